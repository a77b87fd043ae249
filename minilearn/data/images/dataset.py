"""Images that are read one by one; those that cannot be read are skipped or raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from minilearn.base.batch import to_device

from ..decode import as_mode, decode_jpeg, in_threads, open_image
from ..pipeline import Pipeline
from ..seeded import SeededLoader
from .errors import ErrorLog, FileError, report
from .listing import Items


class Reader:
    """Turn the bytes of a file into the pixels of an image.

    Args:
        pipeline: gives size and channels.
        tfms: transforms the image first, a PIL image of its own size, or its pixels where the
            decoder is "torchvision"; returns an image, or pixels as uint8 or as floats of 0..1,
            shape (C, H, W).
    """

    def __init__(self, pipeline: Pipeline, tfms: Callable[[Any], Any] | None = None) -> None:
        self.pipeline, self.tfms = pipeline, tfms

    def __call__(self, source: Any) -> Tensor:
        """Return pixels of shape (C, H, W), uint8, or floats of 0..1 where `tfms` returns such.

        Raises:
            ValueError: `tfms` returns floats of another range or shape.
        """
        if self.tfms is None:
            return self.pipeline.pixels(source)
        shape = self.pipeline.shape
        if self.pipeline.decoder == "torchvision":
            image: Any = decode_jpeg(source, shape[0])
        else:
            image = as_mode(open_image(source), shape[0])
        changed = self.tfms(image)
        if not (isinstance(changed, Tensor) and changed.is_floating_point()):
            return self.pipeline.pixels(changed)
        if changed.shape != shape or changed.min() < 0 or changed.max() > 1:
            low, high = changed.min().item(), changed.max().item()
            raise ValueError(
                f"tfms gave floats {low:.2f} to {high:.2f} of shape {tuple(changed.shape)}; it "
                f"gives an image, uint8, or floats 0 to 1 of shape {shape}. Normalise by mean= "
                "and std=, so that predictions are normalised alike"
            )
        return changed


class ImageDataset:
    """A map-style data set of images; its rows are errors where files cannot be read.

    Args:
        items: the images.
        targets: of shape (N,) or (N, K).
        read: turns what `items.fetch` returns into pixels.
        log: records the errors, in the main process.
    """

    def __init__(self, items: Items, targets: Tensor, read: Reader, log: ErrorLog) -> None:
        self.items, self.targets, self.read, self.log = items, targets, read, log

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.items)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor] | FileError:
        """Return pixels and target of an image, or why it cannot be read."""
        try:
            return self.read(self.items.fetch(self.items.refs[row])), self.targets[row]
        except Exception as e:  # PIL and transforms raise many types
            return FileError.of(row, self.items.names[row], e)

    @property
    def served(self) -> list[int]:
        """The rows of the images that are served, in order, as far as errors are known."""
        return [row for row in range(len(self)) if row not in self.log.found]

    @property
    def names(self) -> list[str]:
        """The names of the files that are served, in order, as far as errors are known."""
        return [self.items.names[row] for row in self.served]


def decode_all(images: ImageDataset) -> Tensor:
    """Read all N images at once, in threads.

    Returns:
        Pixels as uint8, shape (N, C, H, W); those of images that cannot be read mean nothing.

    Raises:
        ImageError: there are too many errors, or `on_error` is "raise".
    """
    pixels = torch.empty(len(images), *images.read.pipeline.shape, dtype=torch.uint8)
    errors: list[FileError] = []

    def read(row: int) -> None:
        found = images[row]
        if isinstance(found, FileError):
            errors.append(found)
        else:
            pixels[row] = found[0]

    in_threads(read, len(images))
    images.log.add(sorted(errors))
    return pixels


@dataclass
class ToModel:
    """Move batches to the device as bytes, and normalise them there."""

    pipeline: Pipeline
    device: torch.device

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return floats (B, C, H, W) on the device."""
        return self.pipeline.scale(self.move(pixels))

    def move(self, x: Any) -> Any:
        """Return tensors on the device."""
        return to_device(x, self.device)


class ImageLoader(SeededLoader):
    """A SeededLoader for an `ImageDataset`; images that cannot be read are missing.

    A batch without any readable image is None, which a Learner skips.

    Args:
        images: the data set; its log records the errors that worker processes report.
        batch_size: images in a batch.
        shuffle: as in SeededLoader.
        to_model: turns pixels into the model's input.
        collate_fn: see `image_dls`.
        kwargs: all others of SeededLoader.

    Raises:
        ImageError: during an epoch, once there are too many errors.
    """

    def __init__(
        self,
        images: ImageDataset,
        batch_size: int,
        shuffle: bool = False,
        *,
        to_model: ToModel,
        collate_fn: Callable[[list], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.to_model, self.log = to_model, images.log
        kwargs["collate_fn"] = partial(collate, join=collate_fn or default_collate)
        super().__init__(images, batch_size, shuffle, **kwargs)

    def batches(self, start: int = 0, cut: Callable = iter) -> Iterator[Any]:
        """Start the next epoch at batch number `start`; see SeededLoader."""
        return finish_batches(super().batches(start, cut), self.to_model, self.log)


def collate(
    rows: Sequence[Any], join: Callable[[list], Any] = default_collate
) -> tuple[Any, list[FileError], int]:
    """Collate rows: a batch of the readable images, None without any; all errors; the images."""
    errors = [row for row in rows if isinstance(row, FileError)]
    items = [row for row in rows if not isinstance(row, FileError)]
    return join(items) if items else None, errors, len(items)


def finish_batches(batches: Iterable[Any], to_model: ToModel, log: ErrorLog) -> Iterator[Any]:
    """Yield batches ready for the model; log their errors, and report them once at the end."""
    log.read = 0
    try:
        for batch, errors, n in batches:
            log.read += len(errors) + n
            log.add(errors)
            if batch is not None:
                pixels, *rest = batch
                batch = to_model(pixels), *to_model.move(rest)
            yield batch
    finally:
        report(log)
