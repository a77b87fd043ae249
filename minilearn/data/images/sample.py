"""Sizes, mean and std of some images, measured before all are read."""

from __future__ import annotations

import io
import math
import statistics
import warnings
from collections import Counter
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ..decode import in_threads, open_image, upright_size
from ..pipeline import Pipeline
from .dataset import ImageDataset, Reader, decode_all
from .errors import ErrorLog, ImageError, reason_of
from .listing import Items

MANY = 256  # images in a sample
LARGE = 224  # pixels a side for images of many sizes, unless they are smaller


def sample(items: Items) -> Items:
    """Return up to `MANY` of the images, always the same ones."""
    if len(items) <= MANY:
        return items
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))
    return items.pick(sorted(order[:MANY].tolist()))


def sizes_of(items: Items) -> Counter[tuple[int, int]]:
    """Count the sizes (H, W) of images by their headers; unreadable ones do not count."""
    from PIL import Image

    found: list[Any] = [None] * len(items)

    def read(row: int) -> None:
        # one that cannot be read is reported when all of it is read
        with suppress(Exception), Image.open(io.BytesIO(items.fetch(items.refs[row]))) as image:
            found[row] = upright_size(image)

    in_threads(read, len(items))
    return Counter(filter(None, found))


def choose_size(items: Items) -> tuple[int, int]:
    """Return the size of most images, or a square for images of many sizes.

    Raises:
        ImageError: none of them can be read; names one, and why.
    """
    sizes = sizes_of(items)
    if not sizes:
        try:
            open_image(items.fetch(items.refs[0]))
            reason = "it can be read now"
        except Exception as e:
            reason = reason_of(e)
        first = f"{items.names[0]} ({reason})"
        raise ImageError(f"none of {len(items):,} sampled images can be read, such as {first}")
    (most, n), total = sizes.most_common(1)[0], sizes.total()
    if n == total:
        return most
    side = min(LARGE, int(statistics.median(min(size) for size in sizes.elements())))
    chosen = most if 2 * n >= total else (side, side)
    warnings.warn(
        f"images are of {len(sizes):,} sizes ({size_range(sizes)}); all get {by(chosen)}, size= "
        "says otherwise",
        stacklevel=2,
    )
    return chosen


def size_range(sizes: Counter[tuple[int, int]]) -> str:
    """Return the smallest and the largest of some sizes (H, W) as text."""
    by_area = sorted(sizes, key=lambda size: size[0] * size[1])
    return " to ".join(map(by, dict.fromkeys((by_area[0], by_area[-1]))))


def by(size: tuple[int, ...]) -> str:
    """Return a size as text: 28×28."""
    return "×".join(map(str, size))


def sample_pixels(items: Items, pipeline: Pipeline) -> Tensor:
    """Return the pixels of a sample as far as it can be read, uint8, shape (N, C, H, W)."""
    chosen = sample(items)
    log = ErrorLog("sample", max_errors=math.inf)
    images = ImageDataset(chosen, torch.zeros(len(chosen)), Reader(pipeline), log)
    return decode_all(images)[images.served]
