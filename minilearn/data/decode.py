"""Decode images of any mode to pixels in the channels that a model expects."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # PIL's 8-bit modes by their channels
CHUNK = 16  # images that a thread reads at a time
JPEG = ("JPEG", "MPO")  # MPO: a JPEG of several images, from phones
ORIENTATION = 0x0112  # in EXIF
TURNED = (5, 6, 7, 8)  # orientations that exchange height and width


def read_image(source: Any, channels: int = 3) -> Tensor:
    """Read an image of any mode, upright, as uint8 of shape (C, H, W).

    >>> read_image("cat.png", channels=1)  # doctest: +SKIP

    Args:
        source: a path, the bytes of a file, an open file, or a PIL image.
        channels: 1 for grey, 3 for RGB; with 2 and 4 transparency is kept as the last
            channel, else transparent pixels are laid on white.

    Raises:
        ValueError: the image has no defined range (mode F), or `channels` is not 1 to 4.
        OSError: this is no image, or a corrupt one.
    """
    return to_tensor(as_mode(open_image(source), channels))


def open_image(source: Any, scale_of: Callable[[int, int], float] | None = None) -> Image:
    """Open what `read_image` takes, and turn it upright by its EXIF orientation.

    Args:
        source: see `read_image`.
        scale_of: takes the height and width of the upright image, and returns the scale at which it
            is still large enough. A JPEG is then decoded at 1/2, 1/4 or 1/8 of its size.
    """
    from PIL import Image, ImageOps

    if isinstance(source, Image.Image):
        return ImageOps.exif_transpose(source)
    if source == b"":
        raise OSError("the file is empty")
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    with Image.open(source if hasattr(source, "read") else Path(source)) as opened:
        if scale_of is not None and opened.format in JPEG:
            scale = scale_of(*upright_size(opened))
            width, height = opened.size
            opened.draft(None, (math.ceil(width * scale), math.ceil(height * scale)))
        opened.load()
    ImageOps.exif_transpose(opened, in_place=True)
    return opened


def upright_size(opened: Image) -> tuple[int, int]:
    """Return the size (H, W) that an opened image has when it is turned upright."""
    width, height = opened.size
    if opened.format != "TIFF" and opened.getexif().get(ORIENTATION) in TURNED:
        return width, height
    return height, width  # PIL has already turned the size of a TIFF


def decode_jpeg(data: bytes, channels: int) -> Tensor:
    """Decode an image by torchvision if it is a JPEG, else by PIL; see `read_image`."""
    from torchvision.io import ImageReadMode, decode_jpeg

    if not data.startswith(b"\xff\xd8"):
        return read_image(data, channels)
    mode = ImageReadMode.GRAY if channels == 1 else ImageReadMode.RGB
    stored = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return decode_jpeg(stored, mode, apply_exif_orientation=True)


def as_mode(image: Image, channels: int) -> Image:
    """Return an image with 8 bits in each of `channels`; see `read_image`."""
    if channels not in MODES:
        raise ValueError(f"an image has 1 to 4 channels (grey 1, RGB 3), got {channels}")
    if image.mode == "F":
        raise ValueError("an image of floats (mode F) has no range to scale; give it as a tensor")
    if image.mode.startswith("I"):
        image = _from_16_bits(image)
    if image.mode == "La":  # premultiplied: PIL converts it only to LA
        image = image.convert("LA")
    if channels in (1, 3) and image.has_transparency_data:
        image = _on_white(image.convert("RGBA"))
    return image if image.mode == MODES[channels] else image.convert(MODES[channels])


def own_channels(image: Image) -> int:
    """Return the number of channels of an image: 1 for grey, 3 for colours, 1 more for alpha."""
    grey = image.mode in ("1", "L", "LA", "La") or image.mode.startswith("I")
    return (1 if grey else 3) + image.has_transparency_data


def to_tensor(image: Image) -> Tensor:
    """Return an image of 8 bits as uint8 of shape (C, H, W)."""
    import numpy as np

    pixels = np.asarray(image).reshape(image.height, image.width, -1)  # (H, W, C)
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def in_threads(read: Callable[[int], None], n: int) -> None:
    """Call `read` for each of `n` images; PIL lets other threads run while it decodes.

    In a terminal a bar appears after a second.
    """
    from tqdm.contrib.concurrent import thread_map

    def read_chunk(start: int) -> None:
        for row in range(start, min(start + CHUNK, n)):
            read(row)

    # None: no bar without a terminal
    bar = {"desc": "reading images", "unit_scale": CHUNK, "delay": 1, "leave": False}
    thread_map(read_chunk, range(0, n, CHUNK), max_workers=8, disable=None, **bar)


def _from_16_bits(image: Image) -> Image:
    """Scale 0..65535 to 0..255, where PIL would clip all above 255."""
    import numpy as np
    from PIL import Image

    levels = np.asarray(image).astype(np.int64).clip(0, 65535)
    return Image.fromarray(((levels + 128) // 257).astype(np.uint8))


def _on_white(image: Image) -> Image:
    from PIL import Image

    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
