"""Hugging Face data sets: in-place transforms, collating, choosing splits, making loaders."""

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

from ..base.arguments import VALID_SPLITS
from .columns import MEMORY_LIMIT, MissingKeyError, channel_stats, is_image, load_columns
from .loader_factory import Batching, make_loader
from .pipeline import Pipeline, names_of
from .seeded import ArrayLoader, SeededLoader


class inplace:
    """Turn a function that changes a batch in place into a transform for `with_transform`.

    The result can be pickled wherever `f` can, so worker processes may be spawned or forked.

    >>> @inplace
    ... def scale(batch):
    ...     batch["x"] = [x / 255 for x in batch["x"]]
    >>> scale({"x": [51.0]})
    {'x': [0.2]}

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
        # A decorator replaces the function under its name, where pickle would look for `f`.
        try:
            named = _look_up(self.__module__, self.__qualname__) is self
        except (AttributeError, KeyError):
            named = False
        if not named:
            return inplace, (self.f,)
        # `datasets` compares transforms by their pickles: a redefined function must differ.
        code = getattr(self.f, "__code__", None)
        version = zlib.crc32(marshal.dumps(code, 2)) if code else 0
        return _look_up, (self.__module__, self.__qualname__, version)


def _look_up(module: str, name: str, version: int = 0) -> Any:
    if module not in sys.modules:
        __import__(module)
    return operator.attrgetter(name)(sys.modules[module])


class collate_dict:
    """Collate rows (dicts) of a data set into a tuple of its columns, also where there is only one.

    The order is that of `ds.features`. The first batch decides which columns there are, since a
    transform may drop, rename or add some: new ones replace the first dropped one, else come last.

    >>> ds = fashion_mnist()["test"].with_format("torch")
    >>> dl = DataLoader(ds, 8, collate_fn=collate_dict(ds))

    Args:
        ds: a data set with `features`; only their names are kept.
        keys: the columns wanted and their order, instead of all.

    Raises:
        KeyError: a batch lacks a wanted column; names the columns it has.
        TypeError: a column cannot become a tensor, such as one of PIL images.
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
    first_dropped = next((i for i, key in enumerate(features) if key not in seen), len(known))
    return known[:first_dropped] + new + known[first_dropped:]


def _collate_column(key: str, values: list) -> Any:
    try:
        return default_collate(values)
    except (TypeError, RuntimeError) as e:
        raise type(e)(
            f"cannot collate column {key!r}, values like {type(values[0]).__name__}: {e}. Turn "
            "them into tensors of one shape in ds.with_transform(f), or leave the column out."
        ) from e


def is_hub_dataset(ds: Any) -> bool:
    """Return whether `ds` is a map-style data set of the library `datasets`."""
    return all(hasattr(ds, name) for name in ("features", "column_names", "with_format", "format"))


def has_own_format(ds: Any) -> bool:
    """Return whether a data set has a format or transform, or shows only some columns."""
    shown = ds.format
    return shown["type"] is not None or set(shown["columns"]) != set(ds.column_names)


def choose_splits(dd: Mapping[str, Any], wanted: Mapping[str, str | None] | None) -> dict[str, str]:
    """Choose the splits for `train`, `valid` and `test`.

    Args:
        dd: data sets by the name of the split.
        wanted: the user's choice for some or all of the three; None as a choice means none.

    Raises:
        KeyError: a split does not exist, none is known for training or validation, or all are None.
    """
    names = list(dd)
    validation = next((name for name in VALID_SPLITS if name in dd), None)
    splits = {"train": "train", "valid": validation, "test": "test" if "test" in dd else None}
    splits |= wanted or {}
    for role, name in splits.items():
        if name is not None and name not in dd:
            raise MissingKeyError(f"no split {name!r} for {role}; there are {names}. {HOW_TO_NAME}")
    if splits["valid"] is None and "valid" not in (wanted or {}):
        raise MissingKeyError(
            f"no split to validate on; there are {names}. {HOW_TO_NAME}, split the data by "
            'dd["train"].train_test_split(0.2), or pass splits={"valid": None} to do without.'
        )
    chosen = {role: name for role, name in splits.items() if name is not None}
    if not chosen:
        raise MissingKeyError(f"no split is used; there are {names}. {HOW_TO_NAME}")
    return chosen


HOW_TO_NAME = 'Name it in splits={"train": ..., "valid": ...}'


def hub_loaders(
    data: Mapping[str, Any],
    splits: Mapping[str, str],
    batching: Batching,
    as_tuple: bool,
    keys: Sequence[str] | None,
    normalize: bool | tuple,
    cache: bool | None,
    **kwargs: Any,
) -> tuple[dict[str, ArrayLoader | DataLoader], Pipeline | None]:
    """Make the loaders of `DataLoaders.from_dd`.

    Args:
        data: data sets by role (`train`, `valid`, ...).
        splits: their own names by role, for errors.
        batching: as in `from_dd`.
        as_tuple: as in `from_dd`.
        keys: as in `from_dd`.
        normalize: as in `from_dd`.
        cache: as in `from_dd`.
        kwargs: as in `from_dd`.

    Returns:
        The loaders by role, and the pipeline of plain data with at most one column of images.
    """
    plain = _are_plain({splits[role]: ds for role, ds in data.items()})
    first = next(iter(data))  # train, where there is one
    collate = collate_dict(data[first], keys)
    if cache and "collate_fn" in kwargs:
        raise ValueError(
            "cache=True keeps columns and collate_fn wants rows; give only one of them"
        )
    if not cache and (cache is False or not plain or "collate_fn" in kwargs):
        kwargs = {"collate_fn": collate if as_tuple else collate.as_dict} | kwargs
        return {
            role: make_loader(splits[role], ds, batching.of(role), **kwargs)
            for role, ds in data.items()
        }, None
    if plain:
        read = partial(load_columns, keys=keys, limit=math.inf if cache else MEMORY_LIMIT)
    else:
        read = partial(_run_transform, collate=collate, seed=batching.seed, **kwargs)
    distinct = {id(ds): ds for ds in data.values()}  # one split may be both valid and test
    once = {key: read(ds) for key, ds in distinct.items()}
    columns = {role: once[id(ds)] for role, ds in data.items()}
    pipelines = _pipelines(columns, data[first].features, normalize) if plain else {}
    transforms = {key: pipeline.scale for key, pipeline in pipelines.items() if key is not None}
    loaders: dict[str, Any] = {
        role: ArrayLoader(
            columns[role], dataset=ds, transforms=transforms, as_tuple=as_tuple, **batching.of(role)
        )
        for role, ds in data.items()
    }
    return loaders, next(iter(pipelines.values())) if len(pipelines) == 1 else None


def _pipelines(
    columns: Mapping[str, Mapping[str, Any]], features: Any, normalize: bool | tuple
) -> dict[str | None, Pipeline]:
    """Return the pipeline of each column of images; without such columns, that of the classes."""
    first, classes = next(iter(columns.values())), names_of(features)
    pipelines: dict[str | None, Pipeline] = {}
    for key in filter(lambda key: is_image(features[key]), first):
        shapes = {role: tuple(part[key].shape[1:]) for role, part in columns.items()}
        channels, height, width = first[key].shape[1:]
        if any(shape[0] != channels for shape in shapes.values()):
            raise ValueError(
                f"images of column {key!r} have other channels in other splits: (C, H, W) is "
                f"{shapes}; give them one mode by "
                f'dd.cast_column({key!r}, datasets.Image(mode="RGB"))'
            )
        stats = channel_stats(first[key]) if normalize is True else normalize or (None, None)
        mean, std = (x if x is None else torch.as_tensor(x).tolist() for x in stats)
        pipelines[key] = Pipeline((height, width), "crop", channels, mean, std, classes)
    return pipelines or {None: Pipeline(classes=classes)}


def _run_transform(ds: Any, collate: collate_dict, seed: int | None, **kwargs: Any) -> dict:
    """Return all rows, as the data set's own transform returns them, by column."""
    batches = list(SeededLoader(ds, 1024, seed=seed, collate_fn=collate.as_dict, **kwargs))
    columns: dict[str, Any] = {key: [batch[key] for batch in batches] for key in batches[0]}
    for key, parts in columns.items():
        if not isinstance(parts[0], Tensor | list):
            raise TypeError(f"cache=True cannot join column {key!r}, a {type(parts[0]).__name__}")
        columns[key] = torch.cat(parts) if isinstance(parts[0], Tensor) else sum(parts, [])
    return columns


def _are_plain(data: Mapping[str, Any]) -> bool:
    """Return whether these splits are plain data sets with equal columns; all or none must be."""
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
