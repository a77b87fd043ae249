"""Reading folders of JPEGs: CPU milliseconds an image, beside other loaders in the same run.

    python benchmarks/images.py [images [pairs of rounds]]

Give a multiple of 128 images, as timm drops a last batch that is not full. Two sizes of files;
resized to 224, or cropped at random; 0 to 2 workers. The others are
torchvision's ImageFolder and timm's loader where they are installed, else a loader of PIL by hand.
They decode, resize and make batches of float tensors; the time of worker processes counts.
"""

import io
import os
import random
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from harness import report
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

from minilearn import image_dls

FILES = {"500×375": (500, 375), "1600×1200": (1600, 1200)}
SIZE, BS = 224, 32


def write_files(folder: Path, size: tuple[int, int], n: int) -> None:
    """Write `n` JPEGs in two classes, smooth with some noise, as cameras make them."""
    generator, (width, height) = np.random.default_rng(0), size
    for i in range(n):
        coarse = generator.integers(0, 256, (height // 16, width // 16, 3), np.uint8)
        image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
        noisy = np.asarray(image) + generator.normal(0, 6, (height, width, 3))
        path = folder / "ab"[i % 2] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=85)


def random_crop(image: Image.Image) -> Image.Image:
    """Return a random part of half to all of the image, resized."""
    scale = random.uniform(0.5, 1) ** 0.5
    width, height = (int(n * scale) for n in image.size)
    left, top = (random.randint(0, n - m) for n, m in zip(image.size, (width, height), strict=True))
    box = (left, top, left + width, top + height)
    return image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)


class ByHand(Dataset):
    """A folder of JPEGs as most people read it."""

    def __init__(self, folder: Path, crop: bool) -> None:
        self.files, self.crop = sorted(folder.rglob("*.jpg")), crop

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        path = self.files[row]
        with Image.open(io.BytesIO(path.read_bytes())) as opened:
            image = opened.convert("RGB")
        fitted = random_crop(image) if self.crop else ImageOps.fit(image, (SIZE, SIZE))
        pixels = torch.from_numpy(np.array(fitted)).permute(2, 0, 1)  # (H, W, C) -> (C, H, W)
        return pixels.float().div(255), int(path.parent.name == "b")


def ours(folder: Path, crop: bool, workers: int, **options: object) -> Iterable:
    tfms = {"tfms": random_crop} if crop else {}
    return image_dls(
        folder,
        BS,
        size=SIZE,
        valid=0,
        memory_gb=0,
        workers=workers,
        device="cpu",
        **tfms,
        **options,
    ).train


def ours_tensors(folder: Path, crop: bool, workers: int) -> Iterable:
    from torchvision.transforms import v2

    tfms = v2.RandomResizedCrop(SIZE, scale=(0.5, 1), antialias=True)
    options = {"size": SIZE, "valid": 0, "memory_gb": 0, "workers": workers, "device": "cpu"}
    return image_dls(folder, BS, tfms=tfms, decoder="torchvision", **options).train


def by_hand(folder: Path, crop: bool, workers: int) -> Iterable:
    return DataLoader(ByHand(folder, crop), BS, shuffle=True, num_workers=workers)


def of_torchvision(folder: Path, crop: bool, workers: int) -> Iterable:
    from torchvision import datasets
    from torchvision import transforms as tv

    resize = [tv.Resize(SIZE), tv.CenterCrop(SIZE)]
    steps = [tv.RandomResizedCrop(SIZE, scale=(0.5, 1))] if crop else resize
    data = datasets.ImageFolder(str(folder), tv.Compose([*steps, tv.ToTensor()]))
    return DataLoader(data, BS, shuffle=True, num_workers=workers)


def of_timm(folder: Path, crop: bool, workers: int) -> Iterable:
    from timm.data import create_dataset, create_loader

    return create_loader(
        create_dataset("", str(folder)),
        (3, SIZE, SIZE),
        BS,
        is_training=crop,
        crop_pct=1.0,
        scale=(0.5, 1.0),
        num_workers=workers,
        use_prefetcher=False,
        interpolation="bilinear",
        persistent_workers=False,
    )


def loaders(crop: bool) -> dict[str, Callable[..., Iterable]]:
    """Return what can be measured here, by name."""
    found: dict[str, Callable[..., Iterable]] = {"minilearn": ours}
    if not crop:
        found["minilearn, draft"] = lambda *a: ours(*a, decoder="draft")
    others = {"torchvision": of_torchvision, "timm": of_timm}
    for name in others:
        try:
            __import__(name)
        except (ImportError, RuntimeError):
            print(f"{name} is not installed, or does not work with this torch")
        else:
            found[name] = others[name]
    if crop and "torchvision" in found:
        found["minilearn, tensors"] = ours_tensors
    return found if "torchvision" in found else found | {"by hand": by_hand}


def cpu_ms(make: Callable[..., Iterable], folder: Path, crop: bool, workers: int, n: int) -> float:
    """Return the CPU milliseconds an image of one epoch, those of its workers included."""
    batches = make(folder, crop, workers)
    start = sum(os.times()[:4])
    seen = sum(len(x) for x, _ in batches)
    vars(batches).pop("_fetcher", None)  # workers that live on: their time counts once they end
    assert seen == n, f"{seen} of {n} images"
    return 1000 * (sum(os.times()[:4]) - start) / n


def main(n: int = 256, rounds: int = 2) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = {crop: loaders(crop) for crop in (False, True)}
    for name, size in FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            count = n if size[0] < 1000 else n // 4
            write_files(Path(folder), size, count)
            for crop, makers in known.items():
                for workers in (0, 1, 2):
                    what = f"{name} {'crop' if crop else 'resize'}, {workers} workers, ms an image"
                    times = [
                        {k: cpu_ms(make, Path(folder), crop, workers, count) for k, make in turn}
                        for turn in [list(makers.items()), list(makers.items())[::-1]]
                        * (rounds + 1)
                    ]
                    # the first pair pays for imports
                    found = {k: statistics.median(row[k] for row in times[2:]) for k in makers}
                    report(what, **found)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
