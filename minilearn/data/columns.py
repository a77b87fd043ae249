"""Plain columns of a Hugging Face data set to tensors in memory; pictures to batches of floats."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minilearn.base.batch import to_device

from .decode import as_mode, own_channels, to_tensor
from .png import decode_pngs

if TYPE_CHECKING:
    import pyarrow as pa

Column = Tensor | list  # a list where the values are no numbers of one shape

MODES = ("L", "LA", "RGB", "RGBA")  # PIL's modes of 8 bits, kept as they are
MEMORY_LIMIT = 4 * 2**30  # bytes of decoded pictures that are kept without being asked to


class MissingKeyError(KeyError):
    """A KeyError whose message is printed as written, not as a quoted key."""

    def __str__(self) -> str:
        return str(self.args[0])


class Scale:
    """Turn pictures into floats of 0..1, normalised where mean and deviation are given.

    Mean and deviation follow the pictures to their device.

    Args:
        mean: per channel, on the scale 0..1, shape (C,).
        std: the deviation, likewise; a channel that is constant is only shifted.
    """

    def __init__(self, mean: Tensor | None = None, std: Tensor | None = None) -> None:
        self.stats: tuple[Tensor, Tensor] | None = None  # two of (C, 1, 1)
        if mean is not None and std is not None:
            self.stats = mean[:, None, None], torch.where(std > 0, std, 1.0)[:, None, None]

    def __call__(self, pictures: Tensor) -> Tensor:
        """Return floats for pictures of shape (B, C, H, W), uint8 or floats of 0..1."""
        if pictures.is_floating_point():
            scaled = pictures.clone()
        else:
            scaled = pictures.float().div_(255)
        if self.stats is None:
            return scaled
        mean, std = self.stats = to_device(self.stats, scaled.device)
        return scaled.sub_(mean).div_(std)


def channel_stats(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel on the scale 0..1, two of shape (C,).

    Args:
        pictures: uint8, shape (N, C, H, W). Its grey levels are counted, so the sums are exact.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([p.flatten().bincount(minlength=256) for p in pictures.unbind(1)])
    shares = counts.double() / counts[0].sum()  # (C, 256)
    mean = shares @ levels
    variance = (shares * (levels - mean[:, None]) ** 2).sum(1)
    return mean.float(), variance.sqrt().float()


def is_picture(feature: Any) -> bool:
    """Tell whether a column's feature is a `datasets.Image`."""
    return type(feature).__name__ == "Image"


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
            raise MissingKeyError(
                f"no column {key!r} in the data set, which has {list(ds.features)}"
            )
    table = ds.with_format("arrow")[:]
    return {key: _load_column(key, table[key], ds.features[key], limit) for key in keys}


def _load_column(key: str, column: pa.ChunkedArray, feature: Any, limit: float) -> Column:
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise ValueError(f"column {key!r} has no value in row {row}; filter such rows out first")
    if is_picture(feature):
        return decode_pictures(column.to_pylist(), feature, key, limit)
    if hasattr(feature, "decode_example"):
        kind = type(feature).__name__
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

    Small plain PNG files are inflated all together, others opened with PIL in threads. Palettes
    and CMYK become RGB (with transparency RGBA), black-and-white pictures grey; all must have
    one size and mode.

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
            f"{limit / 2**30:.1f}. Pass cache=True to keep them all the same, or decode them "
            "batch by batch in ds.with_transform(f)."
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
            pictures[i] = picture
    return pictures


def _open(row: Mapping[str, Any], feature: Any) -> Tensor:
    """Decode one picture as `datasets` does, shape (C, H, W)."""
    picture = feature.decode_example(row)
    if picture.mode[0] in "IF":
        raise ValueError(
            f"a picture has mode {picture.mode!r}, and only {list(MODES)} fit in 8 bits a channel; "
            'use ds.cast_column(name, datasets.Image(mode="RGB")) or ds.with_transform(f)'
        )
    if picture.mode not in MODES:
        picture = as_mode(picture, own_channels(picture))
    return to_tensor(picture)
