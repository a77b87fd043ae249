"""Folders of real image files: the sample written out, and files that are unusual or broken."""

import io
import random
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from minilearn import fashion_mnist

CLASSES = ("bag", "boot", "coat")
CORRUPT = {
    "train/bag/truncated.jpg": "image file is truncated",
    "train/bag/text.png": "this is no image",
    "train/coat/zero.jpg": "the file is empty",
}


@cache
def sample() -> list[Image.Image]:
    return fashion_mnist()["train"].select(range(60))["image"][:]


def write_folder(root: Path, n: int = 24, splits=("train", "valid")) -> Path:
    """Write images below root/split/class, PNG and JPEG by turns."""
    for k, split in enumerate(splits):
        for i in range(n):
            folder = root / split / CLASSES[i % 3]
            folder.mkdir(parents=True, exist_ok=True)
            sample()[(i + k * n) % 60].save(folder / f"{i:03}{('.png', '.jpg')[i // 3 % 2]}")
    return root


def jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG")
    return file.getvalue()


def add_corrupt(root: Path) -> None:
    whole = jpeg(sample()[0])
    (root / "train/bag/truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "train/bag/text.png").write_text("no image")
    (root / "train/coat/zero.jpg").write_bytes(b"")


def add_unusual(folder: Path) -> dict[str, Image.Image]:
    """Write readable files of unusual kinds; return each as the image that is to be seen."""
    grey = sample()[1]
    colours = Image.merge("RGB", [grey, grey.rotate(90), grey.rotate(180)])
    (folder / "jpeg.png").write_bytes(jpeg(grey))
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    deep.save(folder / "deep.png")
    palette = colours.quantize(16)
    palette.save(folder / "palette.png")
    alpha = colours.convert("RGBA")
    alpha.putalpha(grey.point(lambda level: 255 if level else 0))
    alpha.save(folder / "alpha.png")
    white = Image.new("RGB", grey.size, "white")
    white.paste(colours, mask=grey.point(lambda level: 255 if level else 0))
    cmyk = Image.merge("CMYK", [*Image.eval(colours, lambda level: 255 - level).split(), zeros()])
    cmyk.save(folder / "cmyk.tif")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    colours.save(folder / "turned.png", exif=exif)
    grey.save(folder / "animated.gif", save_all=True, append_images=[grey.rotate(90)])
    return {
        "jpeg.png": Image.open(io.BytesIO(jpeg(grey))).convert("RGB"),
        "deep.png": grey.convert("RGB"),
        "palette.png": palette.convert("RGB"),
        "alpha.png": white,
        "cmyk.tif": colours,
        "turned.png": colours.rotate(-90),
        "animated.gif": grey.convert("RGB"),
    }


def zeros() -> Image.Image:
    return Image.new("L", (28, 28), 0)


def all_of(dl) -> list[torch.Tensor]:
    """Return the columns of a whole epoch."""
    return [torch.cat(column) for column in zip(*dl, strict=True)]


def raw(dls, name: str) -> torch.Tensor:
    """Return the images of an epoch as 0..255, as they were before they were normalised."""
    x = all_of(dls[name])[0]
    if dls.mean is not None:
        x = x * dls.std[:, None, None] + dls.mean[:, None, None]
    return x.mul(255).round().to(torch.uint8)


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


class Jitter:
    """A random transform that shows what it drew: the image is one grey level."""

    def __call__(self, image):
        draws = random.random(), float(np.random.rand()), float(torch.rand(()))
        return torch.tensor(draws)[:, None, None].expand(3, 28, 28)


def fail_on_bright(image):
    if np.asarray(image).mean() > 80:
        raise RuntimeError("too bright to transform")
    return image
