"""Batches of streamed images, which have no length and no random access."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from minilearn.base.seed import preserved_random_states

from ..seeded import EpochLoader, derive_seed, seed_cpu
from .dataset import Reader, Row, ToModel, collate, finish_batches
from .errors import ErrorLog, FileError, file_error
from .hf_images import ImageStream, image_bytes, stored_path


class StreamLoader(EpochLoader):
    """Batches of streamed images; full ones, as images that cannot be read are skipped.

    (seed, epoch) fix the order and the random transforms, transforms also the number of workers. An
    epoch that starts at a later batch reads what comes before, and so repeats it.

    Args:
        stream: the images.
        read: turns the bytes of a file into pixels.
        target: turns a label into a target; None leaves the image out.
        batch_size: images in a batch.
        log: records files that cannot be read.
        to_model: turns pixels into the model's input.
        seed: of random transforms.
        drop_last: leave out a last batch that is not full.
        workers: processes that read ahead; each takes whole shards of the stream.
        pin_memory: whether batches are pinned.
        collate_fn: see `image_dls`.
    """

    def __init__(
        self,
        stream: ImageStream,
        read: Reader,
        target: Callable[[Any], Any],
        batch_size: int,
        *,
        log: ErrorLog,
        to_model: ToModel,
        seed: int,
        drop_last: bool = False,
        workers: int = 0,
        pin_memory: bool | None = None,
        collate_fn: Callable[[list], Any] | None = None,
    ) -> None:
        self.stream, self.read, self.target, self.log = stream, read, target, log
        self.batch_size, self.drop_last, self.workers = batch_size, drop_last, workers
        self.to_model, self.seed, self.epoch = to_model, seed, 0
        self.pin_memory = pin_memory
        self.collate_fn = partial(collate, join=collate_fn or default_collate)

    @property
    def dataset(self) -> Any:
        """The stream of the library `datasets`."""
        return self.stream.ds

    def batches(self, start: int = 0) -> Iterator[Any]:
        """Start the next epoch at batch number `start`; those before it are read and dropped."""
        self.dataset.set_epoch(self.epoch)
        decoded = _Decoded(self, derive_seed(self.seed, self.epoch))
        self.epoch += 1
        loader = DataLoader(
            decoded,
            self.batch_size,
            num_workers=self.workers,
            collate_fn=self.collate_fn,
            drop_last=self.drop_last,
            pin_memory=bool(self.pin_memory),
            generator=torch.Generator(),  # so that the global one does not change
        )
        return islice(finish_batches(loader, self.to_model, self.log), start, None)


class _Decoded(IterableDataset):
    """The data set in the workers: decoded images, each with the errors that came before it."""

    def __init__(self, loader: StreamLoader, seed: int) -> None:
        self.stream, self.read, self.target = loader.stream, loader.read, loader.target
        self.split, self.policy, self.seed = loader.log.split, loader.log.policy, seed

    def __iter__(self) -> Iterator[Row]:
        info, errors = get_worker_info(), []
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i, (value, label) in enumerate(self.stream):
            row = first + i * step
            target = self.target(label)
            if target is None:  # a class that is left out
                continue
            pixels = self._pixels(row, value)
            if isinstance(pixels, FileError):
                errors.append(pixels)
            else:
                yield Row(pixels, torch.as_tensor(target), tuple(errors))
                errors = []
        if errors:
            yield Row(None, None, tuple(errors))

    def _pixels(self, row: int, value: Any) -> Any:
        try:
            if self.read.tfms is None:
                return self.read(image_bytes(value))
            with preserved_random_states(device=False):
                seed_cpu(derive_seed(self.seed, row))
                return self.read(image_bytes(value))
        except Exception as e:  # PIL and transforms raise many types
            return file_error(row, stored_path(value) or f"{self.split}[{row}]", e, self.policy)
