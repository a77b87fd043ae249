"""Hugging Face data sets: transforms in place, rows to batches, plain columns to tensors.

Stands on torch; numpy, PIL and datasets are imported where pictures are decoded.
"""

from __future__ import annotations

import functools
import marshal
import operator
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from .png import decode_pngs

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Column = Tensor | list  # a list where the values are no numbers of one shape

MODES = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}  # PIL's 8-bit modes and their channels
MEMORY_LIMIT = 4 * 2**30  # bytes of decoded pictures that are kept without being asked to


class inplace:  # noqa: N801 - used as a decorator, and named so by miniai
    """Make a transform that changes a batch in place also return it, as `with_transform` wants.

    The result can be pickled wherever `f` can, so worker processes may be spawned or forked.

    Args:
        f: changes a dict of columns in place; its return value is ignored.
    """

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


class collate_dict:  # noqa: N801 - used like a function, and named so by miniai
    """Collate rows (dicts) of a data set into a tuple of its columns, one field too.

    The order is that of `ds.features`. Which columns there are is decided at the first batch, since a
    transform may drop, rename or add some: new ones stand where the first dropped one stood, else last.

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
            raise KeyError(f"no column {missing[0]!r} in the batch, which has {list(rows[0])}")
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
            f"cannot collate column {key!r}, values like {type(values[0]).__name__}: {e}. Turn them "
            "into tensors of one shape in ds.with_transform(f), or leave the column out."
        ) from e


def is_hub_dataset(ds: Any) -> bool:
    """Tell whether `ds` is a map-style data set of the library `datasets`."""
    return all(hasattr(ds, name) for name in ("features", "column_names", "with_format", "format"))


def has_own_format(ds: Any) -> bool:
    """Tell whether a data set was given a format or transform, or shows only some of its columns."""
    shown = ds.format
    return shown["type"] is not None or set(shown["columns"]) != set(ds.column_names)


def load_columns(
    ds: Any, keys: Sequence[str] | None = None, *, limit: float = MEMORY_LIMIT
) -> dict[str, Column]:
    """Read the columns of a plain data set into memory, each once.

    Args:
        ds: a data set without a format of its own; all N rows are read, in its order.
        keys: the columns wanted and their order, instead of all.
        limit: the most bytes that decoded pictures may take.

    Returns:
        By name: pictures as uint8 (N, C, H, W), numbers as (N, ...), texts as a list.

    Raises:
        KeyError: a wanted column does not exist.
        MemoryError: the pictures would take more than `limit` bytes.
        TypeError: a column holds what only a transform can decode (audio, video).
        ValueError: pictures differ in size or mode, or values are missing.
    """
    keys = list(ds.features) if keys is None else list(keys)
    for key in keys:
        if key not in ds.features:
            raise KeyError(f"no column {key!r} in the data set, which has {list(ds.features)}")
    table = ds.with_format("arrow")[:]
    return {key: _load_column(key, table[key], ds.features[key], limit) for key in keys}


def _load_column(key: str, column: pa.ChunkedArray, feature: Any, limit: float) -> Column:
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise ValueError(f"column {key!r} has no value in row {row}; filter such rows out first")
    kind = type(feature).__name__
    if kind == "Image":
        return decode_pictures(column.to_pylist(), feature, key, limit)
    if hasattr(feature, "decode_example"):
        raise TypeError(f"column {key!r} is of type {kind}; decode it in ds.with_transform(f)")
    values = column.to_pylist()
    try:
        return torch.tensor(values)
    except (TypeError, ValueError):  # texts, or lists of different lengths
        return values


def decode_pictures(
    rows: Sequence[Mapping[str, Any]], feature: Any, key: str = "image", limit: float = MEMORY_LIMIT
) -> Tensor:
    """Decode the rows of an Image column to uint8, shape (N, C, H, W), as `ds[i]` would show them.

    Small plain PNG files are inflated all together, others opened with PIL in threads. Palettes become
    RGB (with transparency RGBA) and black-and-white pictures grey; all must have one size and mode.

    Args:
        rows: what the column stores: dicts with `bytes` or a `path`.
        feature: the column's `datasets.Image`.
        key: the column's name, for errors.
        limit: the most bytes that the result may take.
    """
    first = _open(rows[0], feature)
    size, n = first.nbytes * len(rows), len(rows)
    if size > limit:
        raise MemoryError(
            f"the {n:,} pictures of column {key!r} take {size / 2**30:.1f} GiB when decoded, above "
            f"{limit / 2**30:.1f}. Pass cache=True to keep them all the same, or decode them batch by "
            "batch in ds.with_transform(f)."
        )
    files = [row["bytes"] for row in rows]
    fits = first.shape[1] * first.shape[2] <= 64 * 64  # PIL is the faster one on large pictures
    pictures = decode_pngs(files) if fits and all(files) else None
    if pictures is None or pictures.shape[1:] != first.shape:  # `feature` asks for another mode
        pictures = _decode_with_pil(rows, feature, key, first.shape)
    return pictures


def _decode_with_pil(rows: Sequence[Mapping], feature: Any, key: str, shape: tuple) -> Tensor:
    pictures = torch.empty(len(rows), *shape, dtype=torch.uint8)
    with ThreadPoolExecutor() as pool:  # PIL lets other threads run while it decodes
        for i, picture in enumerate(pool.map(functools.partial(_open, feature=feature), rows)):
            if picture.shape != shape:
                raise ValueError(
                    f"pictures of column {key!r} differ: (C, H, W) is {shape} in row 0 and "
                    f"{picture.shape} in row {i}. Give them one mode by ds.cast_column({key!r}, "
                    'datasets.Image(mode="RGB")), and one size by resizing them in '
                    "ds.with_transform(f)."
                )
            pictures[i] = torch.from_numpy(picture)
    return pictures


def _open(row: Mapping[str, Any], feature: Any) -> np.ndarray:
    """Decode one picture as `datasets` does, shape (C, H, W)."""
    import numpy as np

    picture = feature.decode_example(row)
    if picture.mode == "P":
        picture = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
    elif picture.mode == "1":
        picture = picture.convert("L")
    if picture.mode not in MODES:
        raise ValueError(
            f"a picture has mode {picture.mode!r}, and only {list(MODES)} fit in 8 bits a channel; "
            'use ds.cast_column(name, datasets.Image(mode="RGB")) or ds.with_transform(f)'
        )
    pixels = np.array(picture).reshape(picture.height, picture.width, -1)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
