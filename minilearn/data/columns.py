"""Read the columns of a Hugging Face data set into tensors in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .decode import MODES, as_mode, in_threads, own_channels, to_tensor

if TYPE_CHECKING:
    import pyarrow as pa

Column = Tensor | list  # a list where the values are no numbers of one shape

MEMORY_LIMIT = 4 * 2**30  # bytes of decoded images that are kept unless cache=True


class MissingKeyError(KeyError, ValueError):
    """A KeyError that prints its message as written, not as a quoted key."""

    def __str__(self) -> str:
        return str(self.args[0])


def channel_stats(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and std of each channel on the scale 0..1, two of shape (C,).

    Args:
        images: uint8, shape (N, C, H, W). Their levels are counted, so the sums are exact.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([p.flatten().bincount(minlength=256) for p in images.unbind(1)])
    fractions = counts.double() / counts[0].sum()  # (C, 256)
    mean = fractions @ levels
    variance = (fractions * (levels - mean[:, None]) ** 2).sum(1)
    return mean.float(), variance.sqrt().float()


def is_image(feature: Any) -> bool:
    """Return whether a column's feature is a `datasets.Image`."""
    return type(feature).__name__ == "Image"


def load_columns(
    ds: Any, keys: Sequence[str] | None = None, *, limit: float = MEMORY_LIMIT
) -> dict[str, Column]:
    """Read the columns of a plain data set into memory, each once.

    Args:
        ds: a data set without a format of its own; all N rows are read, in its order.
        keys: the wanted columns in their order, instead of all.
        limit: the most bytes that decoded images may take.

    Returns:
        By name: images as uint8 (N, C, H, W), numbers as (N, ...), texts as a list.

    Raises:
        KeyError: a wanted column does not exist.
        MemoryError: the images would take more than `limit` bytes.
        TypeError: a column holds what only a transform can decode (audio, video).
        ValueError: images differ in size or mode, or values are missing.
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
    if is_image(feature):
        return decode_images(column, feature, key, limit)
    if hasattr(feature, "decode_example"):
        kind = type(feature).__name__
        raise TypeError(f"column {key!r} is of type {kind}; decode it in ds.with_transform(f)")
    values = column.to_pylist()
    try:
        return torch.tensor(values)
    except (TypeError, ValueError):  # texts, or lists of different lengths
        return values


def decode_images(
    column: pa.ChunkedArray, feature: Any, key: str = "image", limit: float = MEMORY_LIMIT
) -> Tensor:
    """Decode the rows of an Image column to uint8, shape (N, C, H, W), as `ds[i]` would show them.

    Palettes and CMYK become RGB (with transparency RGBA), black-and-white images grey; all must
    have one size and mode.

    Args:
        column: what is stored: dicts with `bytes` or a `path`.
        feature: the column's `datasets.Image`.
        key: the column's name, for errors.
        limit: the most bytes that the result may take.
    """
    shape, n = _open(column[0].as_py(), feature).shape, len(column)
    if (size := math.prod(shape) * n) > limit:
        raise MemoryError(
            f"the {n:,} images of column {key!r} take {size / 2**30:.1f} GiB when decoded, above "
            f"{limit / 2**30:.1f}. Pass cache=True to keep them all the same, or decode them "
            "batch by batch in ds.with_transform(f)."
        )
    images = torch.empty(n, *shape, dtype=torch.uint8)

    def read(row: int) -> None:
        image = _open(column[row].as_py(), feature)  # one at a time: all would be held twice
        if image.shape != shape:
            raise ValueError(
                f"images of column {key!r} differ: (C, H, W) is {tuple(shape)} in row 0 and "
                f"{tuple(image.shape)} in row {row}. Give them one mode by ds.cast_column({key!r}, "
                'datasets.Image(mode="RGB")), and one size by resizing them in '
                "ds.with_transform(f)."
            )
        images[row] = image

    in_threads(read, n)
    return images


def _open(row: Mapping[str, Any], feature: Any) -> Tensor:
    """Decode one image as `datasets` does, shape (C, H, W)."""
    image = feature.decode_example(row)
    if image.mode[0] in "IF":
        raise ValueError(
            f"an image has mode {image.mode!r}, and only {list(MODES.values())} fit in 8 bits a "
            'channel; use ds.cast_column(name, datasets.Image(mode="RGB")) or ds.with_transform(f)'
        )
    if image.mode not in MODES.values():
        image = as_mode(image, own_channels(image))
    return to_tensor(image)
