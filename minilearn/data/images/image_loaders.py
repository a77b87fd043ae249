"""Make the loaders of images that were found: in memory where they fit, else one by one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from minilearn.base.text import few

from ..columns import channel_stats
from ..loader_factory import Batching, check_not_empty
from ..loaders import DataLoaders
from ..pipeline import Pipeline
from ..seeded import ArrayLoader
from .dataset import ImageDataset, ImageLoader, Reader, ToModel, decode_all
from .errors import ErrorLog, report
from .hf_images import ImageStream, image_bytes
from .labels import UNLABELLED, Classes, as_number, check_labelled, numbered
from .listing import Items
from .sample import MANY, choose_size, sample, sample_pixels
from .stream_loader import StreamLoader


@dataclass
class LoaderBuilder:
    """Build the loaders of `image_dls`.

    Args:
        pipeline: of the images, as far as it is known.
        tfms: transforms training images.
        new_log: makes an `ErrorLog` of a split and its number of images.
        device: of the batches.
        batching: sizes of batches, and the seed of order and random transforms.
        reading: options of loaders that read images one by one, such as num_workers, collate_fn.
    """

    pipeline: Pipeline
    tfms: Callable[[Any], Any] | None
    new_log: Callable[..., ErrorLog]
    device: torch.device
    batching: Batching
    reading: dict[str, Any]

    def from_items(
        self, parts: Mapping[str, Items], classes: Any, normalize: bool, memory_limit: float
    ) -> DataLoaders:
        """Build loaders of images with random access.

        Args:
            parts: the images by role.
            classes: the user's classes, see `image_dls`.
            normalize: normalise by mean and std of the first part.
            memory_limit: the most bytes of decoded images that are kept.

        Raises:
            ValueError: a role has no images, or they have no labels.
            ImageError: too many cannot be read.
        """
        parts, targets, names = numbered(parts, classes)
        for role, items in parts.items():
            if role != "test":
                check_labelled(items, role)
        _warn_of_unseen(targets, names)
        first = next(iter(parts))
        self._complete_pipeline(parts[first], names)
        data = {
            role: ImageDataset(
                items, targets[role], self._reader(role), self.new_log(role, len(items))
            )
            for role, items in parts.items()
        }
        self._check_not_empty(data)
        pixels = self._decode(data, memory_limit)
        logs = [images.log for images in data.values()]
        report(*logs)
        self._check_not_empty(data)  # what could be read
        if normalize:
            known = pixels.get(first)
            if known is not None and data[first].log.found:  # without errors it is not copied
                known = known[data[first].served]
            self._normalise(parts[first], known)
        loaders = {role: self._loader(role, data[role], pixels.get(role)) for role in data}
        return self._dls(loaders, logs)

    def from_streams(
        self, parts: Mapping[str, ImageStream], classes: Any, normalize: bool
    ) -> DataLoaders:
        """Build loaders of streams by role; the first 256 images serve as the sample."""
        first = next(iter(parts.values()))
        values, labels = zip(*islice(first, MANY), strict=True)
        names = [f"row {i}" for i in range(len(values))]
        seen = Items(names, list(values), list(labels), image_bytes)
        target, class_names = _stream_target(seen, first.classes, classes)
        self._complete_pipeline(seen, class_names)
        if normalize:
            self._normalise(seen)
        loaders = {
            role: StreamLoader(
                part,
                self._reader(role),
                target,
                log=self.new_log(role),
                **self._one_by_one(role),
            )
            for role, part in parts.items()
        }
        return self._dls(loaders, [loader.log for loader in loaders.values()])

    def _complete_pipeline(self, items: Items, names: list[str] | None) -> None:
        size = self.pipeline.size or choose_size(sample(items))
        self.pipeline = replace(self.pipeline, size=size, classes=names)

    def _normalise(self, items: Items, pixels: Tensor | None = None) -> None:
        if pixels is None:
            pixels = sample_pixels(items, self.pipeline)
        mean, std = channel_stats(pixels)
        self.pipeline = replace(self.pipeline, mean=mean.tolist(), std=std.tolist())

    def _check_not_empty(self, data: Mapping[str, ImageDataset]) -> None:
        for role, images in data.items():
            check_not_empty(images.served, role, **self.batching.of(role))

    def _reader(self, role: str) -> Reader:
        return Reader(self.pipeline, self.tfms if role == "train" else None)

    def _decode(self, data: Mapping[str, ImageDataset], limit: float) -> dict[str, Tensor]:
        """Decode what does not change, if it fits."""
        fixed = {role: images for role, images in data.items() if images.read.tfms is None}
        size = sum(map(len, fixed.values())) * math.prod(self.pipeline.shape)
        if self.reading["collate_fn"] or size > limit:
            return {}
        return {role: decode_all(images) for role, images in fixed.items()}

    def _one_by_one(self, role: str) -> dict[str, Any]:
        to_model = ToModel(self.pipeline, self.device)
        return {"to_model": to_model, **self.batching.of(role), **self.reading}

    def _loader(self, role: str, images: ImageDataset, pixels: Tensor | None) -> Any:
        if pixels is None:
            return ImageLoader(images, **self._one_by_one(role))
        to_model = ToModel(self.pipeline, self.device)
        return ArrayLoader(
            {"image": pixels, "label": images.targets},
            rows=torch.tensor(images.served) if images.log.found else None,
            dataset=images,
            transforms={"image": to_model, "label": to_model.move},
            **self.batching.of(role),
        )

    def _dls(self, loaders: Mapping[str, Any], logs: list[ErrorLog]) -> DataLoaders:
        dls = DataLoaders(**loaders)
        dls.logs = logs
        dls.set_pipeline(self.pipeline)
        return dls


def _stream_target(
    seen: Items, known: list[str] | None, wanted: Any
) -> tuple[Callable[[Any], Any], list[str] | None]:
    """Return a function from a label to its target, and the class names."""
    if known is not None or wanted is not None:
        classes = Classes.of(seen.labels, known, wanted)
        return classes.target, classes.names
    if any(isinstance(label, (str, list)) for label in seen.labels):
        raise ValueError(
            "the classes of a stream cannot be known from its beginning: its labels are like "
            f"{seen.labels[0]!r}; give all of them in classes=[...]"
        )
    return as_number, None


def _warn_of_unseen(targets: Mapping[str, Tensor], names: list[str] | None) -> None:
    """Warn about classes that no training image has."""
    if names is None or "train" not in targets or targets["train"].dim() > 1:
        return
    seen = {UNLABELLED, *targets["train"].unique().tolist()}
    for role, found in targets.items():
        unseen = [names[i] for i in found.unique().tolist() if i not in seen]
        if unseen:
            warnings.warn(
                f"no training image has these classes of {role!r}: {few(unseen)}",
                stacklevel=2,
            )
