"""Make the loaders of pictures that were found: in memory where they fit, else one by one."""

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

from ..loader_factory import check_batch_size, check_not_empty
from ..columns import channel_stats
from ..loaders import DataLoaders
from ..pipeline import Pipeline
from ..seeded import ArrayLoader
from .dataset import PictureLoader, Pictures, Reader, ToModel, decode_all
from .errors import FaultLog, Rule, report
from .hf_images import Streamed, stored
from .items import Items, shortened
from .labels import UNLABELLED, Classes, as_number, check_labelled, numbered
from .sample import MANY, choose_size, sample, sample_stats
from .stream import StreamLoader

BUFFER = 1000  # pictures among which the next one of a stream to train on is drawn


@dataclass
class Making:
    """How the loaders of `image_dls` are made.

    Args:
        pipeline: of the pictures, as far as it is known.
        rule: what becomes of pictures that cannot be read.
        tfms: changes training pictures.
        seed: of order and random transforms.
        workers: processes that read pictures that are not in memory.
        device: where batches are given.
        batch_size: of each role, train, valid and test.
        drop_last: whether a last training batch that is not full is left out.
    """

    pipeline: Pipeline
    rule: Rule
    tfms: Callable[[Any], Any] | None
    seed: int
    workers: int
    device: torch.device
    batch_size: Mapping[str, int]
    drop_last: bool = False

    # ---- pictures that can be asked for by row ----

    def of_items(
        self, parts: Mapping[str, Items], classes: Any, measures: bool, limit: float
    ) -> DataLoaders:
        """Make loaders of pictures by role.

        Args:
            parts: the pictures.
            classes: the user's classes, see `image_dls`.
            measures: whether to normalise by mean and deviation of the first part.
            limit: the most bytes of decoded pictures that are kept.

        Raises:
            ValueError: a role has no pictures, or they have no labels.
            PictureError: too many cannot be read.
        """
        same = {role: _first_with(items, parts) for role, items in parts.items()}
        distinct = {role: parts[role] for role in dict.fromkeys(same.values())}
        distinct, targets, names = numbered(distinct, classes)
        for role in distinct:
            if role != "test":
                check_labelled(distinct[role], role)
        _warn_of_unseen(targets, names)
        self._see(next(iter(distinct.values())), names)
        data = {role: self._pictures(role, x, targets[role]) for role, x in distinct.items()}
        logs = [pictures.log for pictures in data.values()]
        self._check_not_empty(data)
        pixels = self._decoded(data, limit)
        report(*logs)
        self._check_not_empty(data)  # of what is left
        if measures:
            self._measure(next(iter(data)), data, pixels)
        loaders = {role: self._loader(role, data[role], pixels.get(role)) for role in data}
        loaders |= {r: copy.copy(loaders[other]) for r, other in same.items() if r != other}
        return self._dls(loaders, logs)

    def _see(self, items: Items, names: list[str] | None) -> None:
        """Complete the pipeline by the size of the pictures and the names of the classes."""
        size = self.pipeline.size or choose_size(sample(items, self.seed))
        self.pipeline = replace(self.pipeline, size=size, classes=names)

    def _check_not_empty(self, data: Mapping[str, Pictures]) -> None:
        for role, pictures in data.items():
            check_not_empty(pictures, role, self.batch_size[role], self._drops(role))

    def _pictures(self, role: str, items: Items, targets: Tensor) -> Pictures:
        return Pictures(items, targets, self._reader(role), FaultLog(role, self.rule, len(items)))

    def _reader(self, role: str) -> Reader:
        return Reader(self.pipeline, self.tfms if role == "train" else None)

    def _drops(self, role: str) -> bool:
        return self.drop_last and role == "train"

    def _decoded(self, data: dict[str, Pictures], limit: float) -> dict[str, Tensor]:
        """Decode what is the same in every pass, if it fits; `data` is left with what is served."""
        fixed = [role for role, pictures in data.items() if pictures.read.tfms is None]
        if sum(len(data[role]) for role in fixed) * math.prod(self.pipeline.shape) > limit:
            return {}
        pixels = {}
        for role in fixed:
            pixels[role], data[role] = decode_all(data[role])
        return pixels

    def _measure(
        self, role: str, data: Mapping[str, Pictures], pixels: Mapping[str, Tensor]
    ) -> None:
        if role in pixels:
            mean, std = channel_stats(pixels[role])
        else:
            mean, std = sample_stats(data[role].items, self.pipeline, self.seed)
        self._normalise(mean, std)

    def _normalise(self, mean: Tensor, std: Tensor) -> None:
        self.pipeline = replace(self.pipeline, mean=mean.tolist(), std=std.tolist())

    def _loader(self, role: str, pictures: Pictures, pixels: Tensor | None) -> Any:
        to_model = ToModel(self.pipeline, self.device)
        options = {
            "batch_size": self.batch_size[role],
            "shuffle": role == "train",
            "drop_last": self._drops(role),
            "seed": self.seed,
        }
        if pixels is None:
            return PictureLoader(
                pictures,
                to_model=to_model,
                num_workers=self.workers,
                persistent_workers=self.workers > 0,
                pin_memory=self.device.type == "cuda",
                **options,
            )
        columns = {"image": pixels, "label": pictures.targets}
        transforms = {"image": to_model, "label": to_model.moved}
        return ArrayLoader(columns, dataset=pictures, transforms=transforms, **options)

    def _dls(self, loaders: Mapping[str, Any], logs: list[FaultLog]) -> DataLoaders:
        dls = DataLoaders(**loaders)
        dls.pipeline, dls.logs = self.pipeline, logs
        if self.pipeline.mean is not None:
            dls.mean, dls.std = torch.tensor(self.pipeline.mean), torch.tensor(self.pipeline.std)
        return dls

    # ---- streams ----

    def of_streams(self, parts: Mapping[str, Streamed], wanted: Any, measures: bool) -> DataLoaders:
        """Make loaders of streams by role; the first 1,000 pictures stand for all others."""
        first = next(iter(parts.values()))
        check_batch_size(self.batch_size["train"])
        values, labels = zip(*islice(first, MANY), strict=True)
        seen = Items([f"row {i}" for i in range(len(values))], list(values), list(labels), stored)
        target, names = self._target(seen, first.classes, wanted)
        self._see(seen, names)
        if measures:
            self._normalise(*sample_stats(seen, self.pipeline, self.seed))
        logs = {role: FaultLog(role, self.rule) for role in parts}
        loaders = {
            role: StreamLoader(
                part.shuffled(self.seed, BUFFER) if role == "train" else part,
                self._reader(role),
                target,
                self.batch_size[role],
                log=logs[role],
                to_model=ToModel(self.pipeline, self.device),
                seed=self.seed,
                drop_last=self._drops(role),
                workers=self.workers,
            )
            for role, part in parts.items()
        }
        return self._dls(loaders, list(logs.values()))

    def _target(
        self, seen: Items, known: list[str] | None, wanted: Any
    ) -> tuple[Callable[[Any], Any], list[str] | None]:
        if known is not None or wanted is not None:
            classes = Classes.of(seen.labels, known, wanted)
            return classes.target_if_used, classes.names
        if any(isinstance(label, (str, list)) for label in seen.labels):
            raise ValueError(
                "the classes of a stream cannot be known from its beginning: its labels are like "
                f"{seen.labels[0]!r}; give all of them in classes=[...]"
            )
        return as_number, None


def _warn_of_unseen(targets: Mapping[str, Tensor], names: list[str] | None) -> None:
    """Name the classes of other pictures that no training picture has."""
    if names is None or "train" not in targets or targets["train"].dim() > 1:
        return
    seen = {UNLABELLED, *targets["train"].unique().tolist()}
    for role, found in targets.items():
        unseen = [names[i] for i in found.unique().tolist() if i not in seen]
        if unseen:
            warnings.warn(
                f"no picture to train on has these classes of {role!r}: {shortened(unseen)}",
                stacklevel=2,
            )


def _first_with(items: Items, parts: Mapping[str, Items]) -> str:
    """Return the first role that has these pictures: one split may be both valid and test."""
    return next(role for role, others in parts.items() if others is items)
