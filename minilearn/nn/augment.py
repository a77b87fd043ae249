"""Augment whole batches of images on their device.

No input changes in place. Random numbers are drawn on the CPU, by torch's global generator unless
another is given, so that all devices get the same. Images (B, C, H, W) may be floats or uint8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from minilearn.base.batch import to_device


def rand_erase(
    x: Tensor,
    pct: float = 0.2,
    max_num: int = 4,
    *,
    per_sample: bool = False,
    prob: float = 1.0,
    mode: Literal["pixel", "channel", "constant"] = "pixel",
    generator: Generator | None = None,
) -> Tensor:
    """Fill random rectangles with noise that has the mean, std and range of `x`, or with a colour.

    >>> rand_erase(xb, pct=0.3).shape == xb.shape
    True

    Args:
        x: images (B, C, H, W).
        pct: height and width of a rectangle, as a fraction of the image's.
        max_num: the most rectangles; their number is random and may be 0.
        per_sample: draw new rectangles for each image, instead of the same for all.
        prob: the probability that an image (without `per_sample`, the batch) gets any.
        mode: "pixel" for noise; "channel" for one random value in each channel of an image;
            "constant" for zeros.
        generator: of the random numbers, on the CPU.

    Raises:
        ValueError: `mode` is none of the three, or `x` is no batch of images.
    """
    if mode not in ("pixel", "channel", "constant"):
        raise ValueError(f"mode is 'pixel', 'channel' or 'constant', got {mode!r}")
    shape = x.shape if mode == "pixel" else (*x.shape[:2], 1, 1)
    values, where = x.float(), x.device if generator is None else generator.device
    noise = to_device(torch.randn(shape, generator=generator, device=where), x.device)
    noise = (noise * values.std() + values.mean()).clamp(values.min(), values.max())
    noise = (noise if x.is_floating_point() else noise.round()).to(x.dtype)
    noise = torch.zeros_like(noise) if mode == "constant" else noise
    erased = x
    for top, left, drawn in _positions(x, pct, max_num, per_sample, generator, prob):
        erased = torch.where(_rectangle(x, pct, top, left) & drawn, noise, erased)
    return erased


def rand_copy(
    x: Tensor,
    pct: float = 0.2,
    max_num: int = 4,
    *,
    per_sample: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Copy random rectangles of each image to other positions in it.

    >>> rand_copy(xb, pct=0.3).shape == xb.shape
    True

    Args:
        x: images (B, C, H, W).
        pct: as in `rand_erase`.
        max_num: as in `rand_erase`.
        per_sample: as in `rand_erase`.
        generator: as in `rand_erase`.
    """
    sources = _positions(x, pct, max_num, per_sample, generator)
    for top, left, drawn in _positions(x, pct, max_num, per_sample, generator):
        from_top, from_left, _ = next(sources)
        rows = _pixels(x, -2, from_top - top).clamp(0, x.shape[-2] - 1)
        columns = _pixels(x, -1, from_left - left).clamp(0, x.shape[-1] - 1)
        x = torch.where(_rectangle(x, pct, top, left) & drawn, _pick(x, rows, columns), x)
    return x


def _positions(
    x: Tensor,
    pct: float,
    max_num: int,
    per_sample: bool,
    generator: Generator | None,
    prob: float = 1.0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Draw `max_num` positions: top and left, (n, 1), and whether they are used, (n, 1, 1, 1)."""
    if x.dim() != 4:
        raise ValueError(f"a batch of images is (B, C, H, W), got {tuple(x.shape)}")
    n = len(x) if per_sample else 1
    free = (1 - pct) * torch.tensor(x.shape[-2:]).view(2, 1, 1)  # range of the first row and column
    corners = (torch.rand(max_num, 2, n, 1, generator=generator) * free).long()
    number = torch.randint(max_num + 1, (n, 1, 1, 1), generator=generator)
    if prob < 1:
        number *= torch.rand(number.shape, generator=generator) < prob
    corners, number = to_device((corners, number), x.device)
    return ((top, left, number > i) for i, (top, left) in enumerate(corners))


def _pixels(x: Tensor, dim: int, shift: Tensor) -> Tensor:
    """Return the pixel indices along `dim`, moved by `shift`: (n, 1) -> (n, size)."""
    return torch.arange(x.shape[dim], device=x.device) + shift


def _rectangle(x: Tensor, pct: float, top: Tensor, left: Tensor) -> Tensor:
    rows, columns = _pixels(x, -2, -top), _pixels(x, -1, -left)
    rows = (rows >= 0) & (rows < int(pct * x.shape[-2]))
    columns = (columns >= 0) & (columns < int(pct * x.shape[-1]))
    return rows[:, None, :, None] & columns[:, None, None, :]  # (n, 1, H, W)


def _pick(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return for each image its own rows, (n, h), and columns, (n, w): (B, C, h, w)."""
    b, c, _, width = x.shape
    x = x.gather(-2, rows[:, None, :, None].expand(b, c, -1, width))
    return x.gather(-1, columns[:, None, None, :].expand(b, c, rows.shape[1], -1))


class RandErase(nn.Module):
    """Fill random rectangles with noise: `rand_erase` as a module.

    >>> learn.fit(1, cbs=AugmentCB(RandErase()))

    Args:
        pct: as in `rand_erase`.
        max_num: as in `rand_erase`.
        settings: `per_sample`, `prob`, `mode` and `generator` of `rand_erase`.
    """

    def __init__(self, pct: float = 0.2, max_num: int = 4, **settings: Any) -> None:
        super().__init__()
        self.pct, self.max_num, self.settings = pct, max_num, settings

    def forward(self, x: Tensor) -> Tensor:
        """Return the augmented images."""
        return rand_erase(x, self.pct, self.max_num, **self.settings)


class RandCopy(RandErase):
    """Copy random rectangles of each image to other positions in it: `rand_copy` as a module.

    >>> learn.fit(1, cbs=AugmentCB(RandCopy()))

    Args:
        pct: as in `rand_erase`.
        max_num: as in `rand_erase`.
        settings: `per_sample` and `generator` of `rand_copy`.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the augmented images."""
        return rand_copy(x, self.pct, self.max_num, **self.settings)


class RandomFlip(nn.Module):
    """Mirror each image with probability `p`.

    >>> torch.equal(RandomFlip(p=1.0)(xb), xb.flip(-1))
    True

    Args:
        p: the probability.
        dim: -1 to swap left and right, -2 for up and down.
        generator: of the random numbers, on the CPU.
    """

    def __init__(self, p: float = 0.5, dim: int = -1, generator: Generator | None = None) -> None:
        super().__init__()
        self.p, self.dim, self.generator = p, dim, generator

    def forward(self, x: Tensor) -> Tensor:
        """Return images of the same shape, (B, ..., H, W)."""
        chance = torch.rand(len(x), *[1] * (x.dim() - 1), generator=self.generator)
        return torch.where(to_device(chance, x.device) < self.p, x.flip(self.dim), x)


class RandomCrop(nn.Module):
    """Shift each image at random: pad all sides, then crop to the old size.

    >>> RandomCrop(padding=2)(xb).shape == xb.shape
    True

    Args:
        padding: pixels on each side.
        fill: their value.
        generator: of the random numbers, on the CPU.
    """

    def __init__(
        self, padding: int = 4, fill: float = 0, generator: Generator | None = None
    ) -> None:
        super().__init__()
        self.padding, self.fill, self.generator = padding, fill, generator

    def forward(self, x: Tensor) -> Tensor:
        """Return images of the same shape, (B, C, H, W)."""
        shift = torch.randint(2 * self.padding + 1, (2, len(x), 1), generator=self.generator)
        shift = to_device(shift, x.device)
        padded = F.pad(x, [self.padding] * 4, value=self.fill)
        return _pick(padded, _pixels(x, -2, shift[0]), _pixels(x, -1, shift[1]))
