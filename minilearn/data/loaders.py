"""The loaders of a Learner by name: training, validation, test."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minilearn.base.arguments import VALID_SPLITS, check_names
from minilearn.base.batch import n_batches
from minilearn.base.foreign_names import ForeignNames, known_keywords
from minilearn.base.text import whole

from .columns import MissingKeyError
from .data_summary import DataSummary, summarize_data
from .hf_datasets import choose_splits, hub_loaders
from .images.dataset import ImageDataset
from .images.errors import ErrorLog
from .loader_factory import Batching, Dataset, as_array, check_not_empty, get_dls
from .pipeline import Pipeline
from .seeded import permutation

log = logging.getLogger(__name__)

NUMBERS = "biufc"  # kinds of numpy's types


class DataLoaders(ForeignNames):
    """The loaders of a Learner: any iterables of batches, each of which may be missing.

    >>> dls = DataLoaders(train=[(xb, yb)], valid=[(xb, yb)], night=[(xb, yb)])
    >>> list(dls.valids)
    ['valid', 'night']

    Args:
        train: for training.
        valid: for validation.
        test: for later; a fit does not read it.
        named: further validation loaders by name. Without `valid`, one that is called "val", "dev"
            or the like is `valid`.

    Attributes:
        splits: the data set's own names of `train`, `valid` and `test`, after `from_dd`.
        mean: of each channel of the training images, scaled to 0..1, shape (C,), after `from_dd`
            and `image_dls`.
        std: likewise.
        pipeline: prepares an item, after `from_dd` of plain data and `image_dls`; or set by you.
        logs: the errors of files that could not be read, after `image_dls`.

    Raises:
        ValueError: there are further validation loaders, and no first one.
    """

    mean: Tensor | None = None
    std: Tensor | None = None
    pipeline: Pipeline | None = None
    logs: Sequence[ErrorLog] = ()

    def __init__(
        self, train: Any = None, valid: Any = None, test: Any = None, **named: Any
    ) -> None:
        if valid is None and named:
            check_names(named)
            name = next(name for name in VALID_SPLITS if name in named)
            valid = named.pop(name)
        self.train, self.valid, self.test, self.named = train, valid, test, named
        self.splits: dict[str, str] = {}

    @property
    def valids(self) -> dict[str, Any]:
        """The validation loaders by name: `valid`, where there is one, then the named ones."""
        return ({} if self.valid is None else {"valid": self.valid}) | self.named

    def keys(self) -> list[str]:
        """Return the names of the loaders that there are."""
        return list(self._loaders())

    def _loaders(self) -> dict[str, Any]:
        found = {"train": self.train, **self.valids, "test": self.test}
        return {name: dl for name, dl in found.items() if dl is not None}

    @property
    def filenames(self) -> dict[str, list[str]]:
        """The file names of `image_dls` by loader, in the order of the data set.

        Files that are read one by one and cannot be read are left out after the first epoch: then
        there is one name for each prediction.
        """
        datasets = {name: getattr(dl, "dataset", None) for name, dl in self._loaders().items()}
        return {name: ds.names for name, ds in datasets.items() if isinstance(ds, ImageDataset)}

    def summary(self) -> DataSummary:
        """Return counts by class and loader, image sizes, mean and std, and files left out.

        It prints as text. Sizes of images, and statistics that are not known, come from a sample
        of up to 256.
        """
        return summarize_data(self)

    def set_pipeline(self, pipeline: Pipeline | None) -> None:
        """Set the pipeline, and its mean and std as tensors."""
        self.pipeline = pipeline
        if pipeline is not None and pipeline.mean is not None:
            self.mean, self.std = torch.tensor(pipeline.mean), torch.tensor(pipeline.std)

    def show_batch(self, max_n: int = 9, **kwargs: Any) -> np.ndarray:
        """Show the images of a training batch with their classes; the loader keeps its position.

        Without a training loader the batch is one of the first loader that there is.

        Args:
            max_n: how many images, at most.
            kwargs: go to `show_images`.
        """
        from .show_batch import first_batch, show_titled

        first = next(iter(self._loaders().values()), None)
        return show_titled(first_batch(first), self, max_n, kwargs)

    def __getitem__(self, name: str) -> Any:
        """Return a loader by name."""
        loaders = self._loaders()
        if name not in loaders:
            raise MissingKeyError(f"no loader {name!r}; there are {list(loaders)}")
        return loaders[name]

    def __repr__(self) -> str:
        """Return the loaders with their splits and numbers of rows."""
        parts = []
        for name, dl in self._loaders().items():
            rows = n_batches(getattr(dl, "dataset", None))
            text = repr(self.splits[name]) if name in self.splits else type(dl).__name__
            parts.append(f"{name}={text}" + (f" ({rows:,} rows)" if rows is not None else ""))
        return f"DataLoaders({', '.join(parts)})"

    @classmethod
    def from_dsets(
        cls, train: Any, valid: Any = None, test: Any = None, *, bs: int = 64, **kwargs: Any
    ) -> DataLoaders:
        """Make loaders of data sets: training is shuffled, the others have batches of `2 * bs`.

        Args:
            train: the training data set.
            valid: the validation data set.
            test: the test data set.
            bs: items in a training batch.
            kwargs: those of `get_dls`.
        """
        return cls(*get_dls(train, valid, bs, **kwargs), get_dls(train, test, bs, **kwargs)[1])

    @classmethod
    @known_keywords("bs_valid", "drop_last")
    def from_arrays(
        cls,
        x: Any,
        y: Any = None,
        *more: Any,
        bs: int = 64,
        valid_pct: float = 0.2,
        seed: int = 42,
        x_valid: Any = None,
        y_valid: Any = None,
        **kwargs: Any,
    ) -> DataLoaders:
        """Make loaders of arrays in memory; a random part is for validation.

        Arrays that are contiguous and may be written to are not copied: a later change of theirs
        changes the batches.

        Args:
            x: N items as a tensor, a numpy array, or a table or column of pandas, whose rows are
                taken in their order, whatever the index. Float64 of numpy and pandas becomes
                torch's default type, unsigned integers above 8 bits int64.
            y: the targets, likewise.
            more: further arrays, each an element of the batch.
            bs: items in a training batch.
            valid_pct: the fraction of items for validation, 0 for none.
            seed: fixes which items those are. The order of training follows `torch.manual_seed`.
            x_valid: validation inputs, instead of a part of `x`.
            y_valid: their targets.
            kwargs: `bs_valid` and `drop_last` of `get_dls`.

        Raises:
            TypeError: an array holds something else than numbers; names the columns of a table.
            ValueError: the arrays differ in length, or a part would be empty.
        """
        if any(isinstance(a, int) for a in more):
            raise TypeError(f"from_arrays takes arrays by position: write bs={more[-1]}")
        bs = whole("bs", bs, of="items")
        arrays = [_as_tensor(a) for a in (x, y, *more) if a is not None]
        if x_valid is not None:
            given = [_as_tensor(a) for a in (x_valid, y_valid) if a is not None]
            if len(given) != len(arrays):
                raise ValueError(
                    f"{len(arrays)} arrays for training and {len(given)} for validation; give x, y "
                    "and x_valid, y_valid, or two data sets to DataLoaders.from_dsets"
                )
            return cls.from_dsets(Dataset(*arrays), Dataset(*given), bs=bs, **kwargs)
        n, n_valid = len(Dataset(*arrays)), int(len(arrays[0]) * valid_pct)
        if valid_pct and not 0 < n_valid < n:
            raise ValueError(
                f"valid_pct={valid_pct} of {n:,} items leaves {n - n_valid:,} for training and "
                f"{n_valid:,} for validation; both need at least one"
            )
        order = permutation(n, seed).tensor_split([n_valid])
        valid, train = (Dataset(*arrays, rows=rows) for rows in order)
        return cls.from_dsets(train, valid if n_valid else None, bs=bs, **kwargs)

    @classmethod
    def from_dd(
        cls,
        dd: Mapping[str, Any],
        batch_size: int,
        as_tuple: bool = True,
        *,
        splits: Mapping[str, str | None] | None = None,
        keys: Sequence[str] | None = None,
        normalize: bool | tuple[Sequence[float], Sequence[float]] = True,
        cache: bool | None = None,
        bs_valid: int | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> DataLoaders:
        """Make loaders of a dict of Hugging Face data sets.

        Plain data sets are read into memory once, images as uint8, and served by whole batches:
        images as floats (B, C, H, W), numbers as tensors (B, ...), texts as lists. A data set
        with a format or transform of its own is served through it, item by item, in every epoch.

        Args:
            dd: data sets by split. `train` is for training; the first of validation, valid, val,
                eval, dev and test for validation; `dls.splits` and `repr(dls)` show the choice.
            batch_size: items in a training batch.
            as_tuple: batches are tuples in the order of `features`, else dicts.
            splits: another choice, such as `{"train": "train_small", "valid": None}`; None for
                none.
            keys: the columns wanted and their order, instead of all.
            normalize: True for mean and std of the training images in each channel (`dls.mean`,
                `dls.std`), a pair of mean and std to use instead, False for images of 0..1.
            cache: True runs a transform once and keeps its results in memory; False reads plain
                data item by item, too; None as said above, with at most 4 GiB of images.
            bs_valid: items in a batch of the other loaders; None for twice as many.
            drop_last: leave out a last training batch that is not full.
            seed: fixes order and random transforms; None draws one from torch's global generator.
            kwargs: those of torch's DataLoader, used where items are read one by one.

        Raises:
            KeyError: a split or column does not exist.
            MemoryError: images would take more than 4 GiB, without `cache=True`.
            ValueError: a split is empty; the splits differ in columns, channels or in having a
                format; images of one split differ in size.
        """
        whole("num_workers", kwargs.get("num_workers", 0), least=0, of="processes")
        names = choose_splits(dd, splits)
        data = {role: dd[split] for role, split in names.items()}
        batching = Batching(batch_size, bs_valid, drop_last, seed)
        for role, ds in data.items():
            check_not_empty(ds, names[role], **batching.of(role))
        loaders, pipeline = hub_loaders(
            data, names, batching, as_tuple, keys, normalize, cache, **kwargs
        )
        dls = cls(**loaders)
        dls.splits = names
        dls.set_pipeline(pipeline)
        log.info("%r", dls)
        return dls


def _as_tensor(data: Any) -> Tensor:
    array = as_array(data)
    if isinstance(array, np.ndarray) and array.dtype.kind == "O":
        array = np.asarray(array.tolist())  # pandas: several types, or missing values allowed
    if isinstance(array, np.ndarray):
        if array.dtype.kind not in NUMBERS:
            raise TypeError(
                f"{_found_in(data, array)}: turn texts and categories into numbers, by .cat.codes "
                "of pandas for example, dates into a difference in days, and fill missing values"
            )
        # torch takes neither negative strides nor the byte order of other machines
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    tensor = torch.as_tensor(array).contiguous()
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch can hardly index them
        return tensor.long()
    wide = tensor.dtype == torch.float64 and not isinstance(array, Tensor)
    return tensor.to(torch.get_default_dtype()) if wide else tensor


def _found_in(data: Any, array: np.ndarray) -> str:
    """Say what holds no numbers: some columns of a table, a named column, an array."""
    columns = dict(data.items()) if hasattr(data, "columns") else {}
    bad = [name for name, column in columns.items() if not _is_numeric(column)]
    if bad:
        return f"the columns {bad} of the table hold no numbers"
    name = getattr(data, "name", None)
    of = "an array" if name is None else f"the column {name!r}"
    return f"{of} of {getattr(data, 'dtype', array.dtype)} is no tensor"


def _is_numeric(column: Any) -> bool:
    return np.asarray(column.tolist()).dtype.kind in NUMBERS
