"""Make the loader that fits a data set: whole batches from memory, item by item, or a stream."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from minilearn.base.batch import n_batches
from minilearn.base.foreign_names import check_keywords
from minilearn.base.text import whole
from minilearn.core.stream import epoch_followers

from .seeded import ArrayLoader, SeededLoader

LOADER_OPTIONS = inspect.signature(DataLoader).parameters.keys() - {"batch_size", "shuffle"}


class Dataset:
    """Arrays of one length: item, slice or index list i is (x[i], y[i], ...).

    >>> ds = Dataset(torch.arange(5), torch.arange(5) ** 2)
    >>> ds[3]
    (tensor(3), tensor(9))

    Args:
        arrays: tensors, numpy arrays, tables or columns of pandas, or other sequences, of N items
            each.
        rows: the numbers of the items that there are, in their order; None for all N.

    Raises:
        ValueError: the arrays differ in length.
    """

    def __init__(self, *arrays: Any, rows: Tensor | None = None) -> None:
        arrays = tuple(map(as_array, arrays))
        lengths = [len(a) for a in arrays]
        if len(set(lengths)) != 1:
            raise ValueError(f"arrays of one length are needed, these have {lengths}")
        self.arrays, self.rows = arrays, rows

    @property
    def x(self) -> Any:
        """The first array, the inputs."""
        return self._column(0)

    @property
    def y(self) -> Any:
        """The second array, the targets."""
        return self._column(1)

    def _column(self, number: int) -> Any:
        column = self.arrays[number]
        return column if self.rows is None else column[self.rows]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.arrays[0] if self.rows is None else self.rows)

    def __getitem__(self, i: Any) -> tuple:
        """Return item, slice or index list `i` of every array."""
        i = i if self.rows is None else self.rows[i]
        return tuple(a[i] for a in self.arrays)


def as_array(data: Any) -> Any:
    """Return a table or column of pandas as an array, read-only arrays as copies, others as is."""
    data = data.to_numpy() if hasattr(data, "to_numpy") else data
    read_only = isinstance(data, np.ndarray) and not data.flags.writeable  # torch warns of those
    return data.copy() if read_only else data


def get_dls(
    train_ds: Any,
    valid_ds: Any,
    bs: int,
    *,
    bs_valid: int | None = None,
    drop_last: bool = False,
    seed: int | None = None,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """Return a shuffled training loader and a validation loader.

    Tensors in memory (`Dataset`, `TensorDataset`) get an ArrayLoader, other map-style data sets a
    SeededLoader, streams torch's DataLoader in their own order.

    >>> ds = Dataset(torch.randn(10, 3), torch.randn(10, 1))
    >>> dls = DataLoaders(*get_dls(ds, ds, bs=4))

    Args:
        train_ds: the training data set.
        valid_ds: the validation data set; None for no validation loader.
        bs: items in a training batch.
        bs_valid: items in a validation batch; None for twice as many, since no gradients are kept.
        drop_last: leave out a last training batch that is not full; validation keeps all.
        seed: fixes order and random transforms; None draws one from torch's global generator.
        kwargs: others of torch's DataLoader, for both. Workers stay alive between epochs, and
            memory is pinned where there is a GPU, unless you say otherwise.

    Raises:
        TypeError: an argument is unknown; names the one that was meant.
        ValueError: a data set is empty, or has no full batch with `drop_last`.
    """
    check_keywords(get_dls, kwargs, LOADER_OPTIONS)
    batching = Batching(bs, bs_valid, drop_last, seed)
    train = make_loader("train", train_ds, batching.of("train"), **kwargs)
    if valid_ds is None:
        return train, None
    return train, make_loader("valid", valid_ds, batching.of("valid"), **kwargs)


class Batching(NamedTuple):
    """How data are divided into batches: only those for training are shuffled.

    Args:
        bs: items in a training batch.
        bs_valid: items in another batch; None for twice as many, since no gradients are kept.
        drop_last: leave out a last training batch that is not full; others keep all.
        seed: of order and random transforms.
    """

    bs: int
    bs_valid: int | None
    drop_last: bool
    seed: int | None

    def of(self, role: str) -> dict[str, Any]:
        """Return the options of the loader for `train`, `valid` or another role."""
        train = role == "train"
        return {
            "batch_size": self.bs if train else self.bs_valid or 2 * self.bs,
            "shuffle": train,
            "drop_last": self.drop_last and train,
            "seed": self.seed,
        }


def make_loader(
    split: str, ds: Any, options: Mapping[str, Any], **kwargs: Any
) -> ArrayLoader | DataLoader:
    """Make the loader that fits a data set: see `get_dls`.

    Args:
        split: its name in errors.
        ds: the data set.
        options: see `Batching.of`.
        kwargs: others of torch's DataLoader.
    """
    is_stream = isinstance(ds, IterableDataset) or not hasattr(ds, "__getitem__")
    arrays = () if is_stream or kwargs else _tensors_of(ds)
    if not is_stream:
        check_not_empty(ds, split, **options)
    if arrays:
        rows = getattr(ds, "rows", None)
        return ArrayLoader(dict(enumerate(arrays)), rows=rows, dataset=ds, **options)
    kwargs = {
        "persistent_workers": kwargs.get("num_workers", 0) > 0 and not epoch_followers(ds),
        "pin_memory": torch.cuda.is_available(),
    } | kwargs
    if is_stream:
        seed, size, last = options["seed"], options["batch_size"], options["drop_last"]
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return DataLoader(ds, size, drop_last=last, generator=generator, **kwargs)
    return SeededLoader(ds, **options, **kwargs)


def check_not_empty(ds: Any, split: str, batch_size: int, drop_last: bool, **_: Any) -> None:
    """Raise ValueError where a data set has a length and gives no batch."""
    whole("batch_size", batch_size, of="items")
    n = n_batches(ds)
    if n is not None and n < (batch_size if drop_last else 1):
        raise ValueError(
            f"the {split!r} data give no batch: {n:,} samples, batch size {batch_size}, "
            f"drop_last={drop_last}. Add samples"
            + (", lower the batch size or keep the last batch." if n else ".")
        )


def _tensors_of(ds: Any) -> Sequence[Tensor]:
    """Return the tensors of a data set that only indexes them, else an empty tuple."""
    arrays = {Dataset: "arrays", TensorDataset: "tensors"}.get(type(ds))
    tensors = getattr(ds, arrays) if arrays else ()
    return tensors if all(isinstance(t, Tensor) for t in tensors) else ()
