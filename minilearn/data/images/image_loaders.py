"""Make the loaders of images that were found: in memory where they fit, else one by one."""

from __future__ import annotations

import copy
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
from ..loader_factory import check_not_empty
from ..loaders import DataLoaders
from ..pipeline import Pipeline
from ..seeded import ArrayLoader
from .dataset import ImageDataset, ImageLoader, Reader, ToModel, decode_all
from .errors import ErrorLog, ErrorPolicy, report
from .hf_images import ImageStream, image_bytes
from .labels import UNLABELLED, Classes, as_number, check_labelled, numbered
from .listing import Items
from .sample import MANY, choose_size, sample, sample_stats
from .stream_loader import StreamLoader

BUFFER = 1000  # images among which a stream's shuffling draws the next one


@dataclass
class LoaderBuilder:
    """Build the loaders of `image_dls`.

    Args:
        pipeline: of the images, as far as it is known.
        policy: what happens to images that cannot be read.
        tfms: transforms training images.
        seed: of order and random transforms.
        workers: processes that read images that are not in memory.
        device: of the batches.
        bs: images in a training batch.
        bs_valid: images in another batch.
        drop_last: leave out a last training batch that is not full.
        pin_memory: whether batches that are read one by one are; None where the device is a GPU.
        collate_fn: see `image_dls`.
    """

    pipeline: Pipeline
    policy: ErrorPolicy
    tfms: Callable[[Any], Any] | None
    seed: int
    workers: int
    device: torch.device
    bs: int
    bs_valid: int
    drop_last: bool
    pin_memory: bool | None = None
    collate_fn: Callable[[list], Any] | None = None

    def __post_init__(self) -> None:
        if self.pin_memory is None:
            self.pin_memory = self.device.type == "cuda"

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
        # One split may be both valid and test: it is read once, for its first role.
        first_role = {id(items): role for role, items in reversed(list(parts.items()))}
        distinct = {role: parts[role] for role in parts if first_role[id(parts[role])] == role}
        distinct, targets, names = numbered(distinct, classes)
        for role, items in distinct.items():
            if role != "test":
                check_labelled(items, role)
        _warn_of_unseen(targets, names)
        first = next(iter(distinct))
        self._complete_pipeline(distinct[first], names)
        data = {
            role: ImageDataset(
                x, targets[role], self._reader(role), ErrorLog(role, self.policy, len(x))
            )
            for role, x in distinct.items()
        }
        logs = [images.log for images in data.values()]
        self._check_not_empty(data)
        pixels = self._decode(data, memory_limit)
        report(*logs)
        self._check_not_empty(data)  # what could be read
        if normalize and first in pixels:
            self._normalise(*channel_stats(pixels[first]))
        elif normalize:
            self._normalise(*sample_stats(data[first].items, self.pipeline, self.seed))
        loaders = {role: self._loader(role, data[role], pixels.get(role)) for role in data}
        copies = {r: copy.copy(loaders[first_role[id(parts[r])]]) for r in parts if r not in data}
        return self._dls(loaders | copies, logs)

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
            self._normalise(*sample_stats(seen, self.pipeline, self.seed))
        loaders = {
            role: StreamLoader(
                part.shuffled(self.seed, BUFFER) if role == "train" else part,
                self._reader(role),
                target,
                log=ErrorLog(role, self.policy),
                to_model=ToModel(self.pipeline, self.device),
                seed=self.seed,
                workers=self.workers,
                pin_memory=self.pin_memory,
                collate_fn=self.collate_fn,
                **self._batching(role),
            )
            for role, part in parts.items()
        }
        return self._dls(loaders, [loader.log for loader in loaders.values()])

    def _complete_pipeline(self, items: Items, names: list[str] | None) -> None:
        size = self.pipeline.size or choose_size(sample(items, self.seed))
        self.pipeline = replace(self.pipeline, size=size, classes=names)

    def _normalise(self, mean: Tensor, std: Tensor) -> None:
        self.pipeline = replace(self.pipeline, mean=mean.tolist(), std=std.tolist())

    def _batching(self, role: str) -> dict[str, Any]:
        if role == "train":
            return {"batch_size": self.bs, "drop_last": self.drop_last}
        return {"batch_size": self.bs_valid, "drop_last": False}

    def _check_not_empty(self, data: Mapping[str, ImageDataset]) -> None:
        for role, images in data.items():
            check_not_empty(images, role, **self._batching(role))

    def _reader(self, role: str) -> Reader:
        return Reader(self.pipeline, self.tfms if role == "train" else None)

    def _decode(self, data: dict[str, ImageDataset], limit: float) -> dict[str, Tensor]:
        """Decode what does not change, if it fits; `data` keeps the images that could be read."""
        fixed = [role for role, images in data.items() if images.read.tfms is None]
        if (
            self.collate_fn
            or sum(len(data[role]) for role in fixed) * math.prod(self.pipeline.shape) > limit
        ):
            return {}
        pixels = {}
        for role in fixed:
            pixels[role], data[role] = decode_all(data[role])
        return pixels

    def _loader(self, role: str, images: ImageDataset, pixels: Tensor | None) -> Any:
        to_model = ToModel(self.pipeline, self.device)
        options = self._batching(role) | {"shuffle": role == "train", "seed": self.seed}
        if pixels is None:
            return ImageLoader(
                images,
                to_model=to_model,
                num_workers=self.workers,
                persistent_workers=self.workers > 0,
                pin_memory=self.pin_memory,
                collate_fn=self.collate_fn,
                **options,
            )
        columns = {"image": pixels, "label": images.targets}
        transforms = {"image": to_model, "label": to_model.moved}
        return ArrayLoader(columns, dataset=images, transforms=transforms, **options)

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
