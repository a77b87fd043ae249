"""Hugging Face data sets: transforms in place, rows to batches, which split is for what."""

from __future__ import annotations

import functools
import marshal
import math
import operator
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from .loader_factory import make_loader
from .columns import (
    MEMORY_LIMIT,
    MissingKeyError,
    Scale,
    channel_stats,
    is_picture,
    load_columns,
)
from .pipeline import Pipeline, pipeline_of
from .seeded import ArrayLoader, SeededLoader

VALID_SPLITS = ("validation", "valid", "val", "dev", "test")  # the first that exists is taken


class inplace:
    """Make a transform that changes a batch in place also return it, as `with_transform` wants.

    The result can be pickled wherever `f` can, so worker processes may be spawned or forked.

    Args:
        f: changes a dict of columns in place; its return value is ignored.
    """

    __qualname__: str  # that of `f`

    def __init__(self, f: Callable[[dict], Any]) -> None:
        self.f = f
        functools.update_wrapper(self, f)

    def __call__(self, batch: dict) -> dict:
        """Call `f` on the batch and return the batch."""
        self.f(batch)
        return batch

    def __reduce__(self) -> tuple:
        # As a decorator we stand under the function's own name, where pickle would look for `f`.
        try:
            named = _look_up(self.__module__, self.__qualname__) is self
        except (AttributeError, KeyError):
            named = False
        if not named:
            return inplace, (self.f,)
        # datasets tells transforms apart by their pickle: a redefined function must look different.
        code = getattr(self.f, "__code__", None)
        version = zlib.crc32(marshal.dumps(code, 2)) if code else 0
        return _look_up, (self.__module__, self.__qualname__, version)


def _look_up(module: str, name: str, version: int = 0) -> Any:
    if module not in sys.modules:
        __import__(module)
    return operator.attrgetter(name)(sys.modules[module])


class collate_dict:
    """Collate rows (dicts) of a data set into a tuple of its columns, one field too.

    The order is that of `ds.features`. Which columns there are is decided at the first batch, since
    a transform may drop, rename or add some: new ones stand where the first dropped one stood, else
    last.

    Args:
        ds: a data set with `features`; only their names are kept.
        keys: the columns wanted and their order, instead of all.

    Raises:
        KeyError: a batch lacks a wanted column; names the columns it has.
        TypeError: a column cannot become a tensor, such as a PIL picture.
    """

    def __init__(self, ds: Any, keys: Sequence[str] | None = None) -> None:
        self.features = list(getattr(ds, "features", None) or [])
        self.keys = list(keys) if keys is not None else None

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> tuple:
        """Return the columns of these rows, each collated by torch's default_collate."""
        return tuple(self.as_dict(rows).values())

    def as_dict(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the columns of these rows by name."""
        if self.keys is None:
            self.keys = _merge_order(self.features, list(rows[0]))
        missing = [key for key in self.keys if key not in rows[0]]
        if missing:
            raise MissingKeyError(
                f"no column {missing[0]!r} in the batch, which has {list(rows[0])}"
            )
        return {key: _collate_column(key, [row[key] for row in rows]) for key in self.keys}


def _merge_order(features: list[str], seen: list[str]) -> list[str]:
    known = [key for key in features if key in seen]
    new = [key for key in seen if key not in features]
    dropped = [key not in seen for key in features]
    place = dropped.index(True) if True in dropped else len(known)
    return known[:place] + new + known[place:]


def _collate_column(key: str, values: list) -> Any:
    try:
        return default_collate(values)
    except (TypeError, RuntimeError) as e:
        raise type(e)(
            f"cannot collate column {key!r}, values like {type(values[0]).__name__}: {e}. Turn "
            "them into tensors of one shape in ds.with_transform(f), or leave the column out."
        ) from e


def is_hub_dataset(ds: Any) -> bool:
    """Tell whether `ds` is a map-style data set of the library `datasets`."""
    return all(hasattr(ds, name) for name in ("features", "column_names", "with_format", "format"))


def has_own_format(ds: Any) -> bool:
    """Tell whether a hub data set was given a format or transform, or shows only some columns."""
    shown = ds.format
    return shown["type"] is not None or set(shown["columns"]) != set(ds.column_names)


def choose_splits(dd: Mapping[str, Any], wanted: Mapping[str, str | None] | None) -> dict[str, str]:
    """Choose which split is for `train`, `valid` and `test`.

    Args:
        dd: data sets by the name of the split.
        wanted: the user's choice for some or all of the three; None as a choice means none.

    Raises:
        KeyError: a split does not exist, or none is fit for training or validation.
    """
    names = list(dd)
    validation = next((name for name in VALID_SPLITS if name in dd), None)
    splits = {"train": "train", "valid": validation, "test": "test" if "test" in dd else None}
    splits |= wanted or {}
    if splits["train"] not in dd:
        raise MissingKeyError(
            f"no split {splits['train']!r} to train on; there are {names}. {HOW_TO_NAME}"
        )
    if splits["valid"] is None and "valid" not in (wanted or {}):
        raise MissingKeyError(
            f"no split to validate on; there are {names}. {HOW_TO_NAME}, split the data by "
            'dd["train"].train_test_split(0.2), or pass splits={"valid": None} to do without.'
        )
    for role, name in splits.items():
        if name is not None and name not in dd:
            raise MissingKeyError(f"no split {name!r} for {role}; there are {names}")
    return {role: name for role, name in splits.items() if name is not None}


HOW_TO_NAME = 'Name it in splits={"train": ..., "valid": ...}'


def hub_loaders(
    data: Mapping[str, Any],
    passes: Mapping[str, Mapping[str, Any]],
    as_tuple: bool,
    keys: Sequence[str] | None,
    normalize: bool | tuple,
    cache: bool | None,
    **kwargs: Any,
) -> tuple[dict[str, ArrayLoader | DataLoader], Any, Any]:
    """Make the loaders of `DataLoaders.from_dd`, which explains the options.

    `data` holds data sets by role (`train`, `valid`, ...), `passes` by role what `make_loader`
    takes besides: split, batch_size, shuffle, drop_last, seed.

    Returns:
        Loaders by role; mean and deviation that normalise the pictures, or None and None.
    """
    plain = _are_plain({passes[role]["split"]: ds for role, ds in data.items()})
    collate = collate_dict(data["train"], keys)
    if cache and "collate_fn" in kwargs:
        raise ValueError(
            "cache=True keeps columns and collate_fn wants rows; give only one of them"
        )
    if not cache and not (cache is None and plain and "collate_fn" not in kwargs):
        kwargs = {"collate_fn": collate if as_tuple else collate.as_dict} | kwargs
        loaders = {role: make_loader(ds=ds, **passes[role], **kwargs) for role, ds in data.items()}
        return loaders, None, None
    if plain:
        read = partial(load_columns, keys=keys, limit=math.inf if cache else MEMORY_LIMIT)
    else:
        read = partial(_run_transform, collate=collate, seed=passes["train"]["seed"], **kwargs)
    distinct = {id(ds): ds for ds in data.values()}  # one split may be both valid and test
    once = {key: read(ds) for key, ds in distinct.items()}
    columns = {role: once[id(ds)] for role, ds in data.items()}
    pictures = [k for k in columns["train"] if plain and is_picture(data["train"].features[k])]
    scales, mean, std = _fit_scales(columns, pictures, normalize)
    loaders = {}
    for role, ds in data.items():
        options = {k: v for k, v in passes[role].items() if k != "split"}
        loaders[role] = ArrayLoader(
            columns[role], dataset=ds, transforms=scales, as_tuple=as_tuple, **options
        )
    return loaders, mean, std


def _fit_scales(
    columns: Mapping[str, Mapping[str, Any]], pictures: Sequence[str], normalize: bool | tuple
) -> tuple[dict[str, Scale], Any, Any]:
    """Return the scale of each picture column, and mean and deviation (dicts for several)."""
    stats = {}
    for key in pictures:
        channels = {role: part[key].shape[1] for role, part in columns.items()}
        if len(set(channels.values())) > 1:
            raise ValueError(
                f"pictures of column {key!r} have other channels in other splits: {channels}; give "
                f'them one mode by dd.cast_column({key!r}, datasets.Image(mode="RGB"))'
            )
        if normalize is True:
            stats[key] = channel_stats(columns["train"][key])
        else:
            stats[key] = tuple(map(torch.tensor, normalize)) if normalize else (None, None)
    scales = {key: Scale(*stats[key]) for key in pictures}
    if len(pictures) == 1:
        return scales, *stats[pictures[0]]
    means, stds = ({key: s[i] for key, s in stats.items()} or None for i in (0, 1))
    return scales, means, stds


def share_pipeline(loaders: Mapping[str, Any], ds: Any, mean: Any, std: Any) -> Pipeline | None:
    """Let all loaders of plain data scale their pictures by one pipeline, and return it."""
    train = loaders["train"]
    if not isinstance(train, ArrayLoader) or has_own_format(ds):
        return None
    pipeline = pipeline_of(train.columns, ds.features, mean, std)
    if pipeline is not None:
        for dl in loaders.values():
            dl.transforms = dict.fromkeys(dl.transforms, pipeline.scale)
    return pipeline


def _run_transform(ds: Any, collate: collate_dict, seed: int | None, **kwargs: Any) -> dict:
    """Return what a data set's own transform makes of all its rows, by column."""
    batches = list(SeededLoader(ds, 1024, seed=seed, collate_fn=collate.as_dict, **kwargs))
    columns: dict[str, Any] = {key: [batch[key] for batch in batches] for key in batches[0]}
    for key, parts in columns.items():
        if not isinstance(parts[0], Tensor | list):
            raise TypeError(f"cache=True cannot join column {key!r}, a {type(parts[0]).__name__}")
        columns[key] = torch.cat(parts) if isinstance(parts[0], Tensor) else sum(parts, [])
    return columns


def _are_plain(data: Mapping[str, Any]) -> bool:
    """Tell whether these splits are plain data sets of equal columns; all or none must be."""
    plain = {split: is_hub_dataset(ds) and not has_own_format(ds) for split, ds in data.items()}
    if len(set(plain.values())) > 1:
        formatted = [split for split, is_plain in plain.items() if not is_plain]
        raise ValueError(
            f"of the splits {list(data)}, only {formatted} have a format or transform of their "
            "own; give all of them one by with_transform, so that they are scaled alike"
        )
    columns = {split: getattr(ds, "column_names", None) for split, ds in data.items()}
    if len({tuple(sorted(names or [])) for names in columns.values()}) > 1:
        raise ValueError(f"the splits differ in columns: {columns}; remove or rename some")
    return all(plain.values())
