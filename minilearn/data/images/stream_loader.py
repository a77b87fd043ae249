"""Batches of streamed images, which have no length and no random access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from minilearn.base.seed import preserved_random_states

from ..seeded import EpochLoader, derive_seed, seed_cpu
from .dataset import Reader, ToModel, collate, finish_batches
from .errors import ErrorLog, FileError
from .hf_images import ImageStream, image_bytes, stored_path

BUFFER = 1000  # images among which a stream's shuffling draws the next one


class StreamLoader(EpochLoader):
    """Batches of streamed images; full ones, as images that cannot be read are skipped.

    (seed, epoch) fix the order and the random transforms, transforms also the number of workers. An
    epoch that starts at a later batch reads what comes before, and so repeats it.

    Args:
        stream: the images.
        read: turns the bytes of a file into pixels.
        target: turns a label into a target; None leaves the image out.
        log: records files that cannot be read.
        to_model: turns pixels into the model's input.
        shuffle: in a new order in each epoch, as far as a buffer of `BUFFER` images allows.
        seed: of order and random transforms.
        collate_fn: see `image_dls`.
        kwargs: all others of torch's DataLoader; a worker takes whole shards of the stream.
    """

    def __init__(
        self,
        stream: ImageStream,
        read: Reader,
        target: Callable[[Any], Any],
        *,
        log: ErrorLog,
        to_model: ToModel,
        shuffle: bool,
        seed: int,
        collate_fn: Callable[[list], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        stream = stream.shuffled(seed, BUFFER) if shuffle else stream
        self.images = _DecodedStream(stream, read, target, log.split)
        self.seed, self.drawn, self.epoch = seed, None, 0
        self.log, self.to_model = log, to_model
        self.kwargs: dict[str, Any] = kwargs
        self.kwargs["collate_fn"] = partial(_collate, join=collate_fn or default_collate)

    @property
    def dataset(self) -> Any:
        """The stream of the library `datasets`."""
        return self.images.stream.ds

    def batches(self, start: int = 0) -> Iterator[Any]:
        """Start the next epoch at batch number `start`; those before it are read and dropped."""
        self.dataset.set_epoch(self.epoch)
        self.images.seed = derive_seed(self.used_seed(), self.epoch)
        self.epoch += 1
        # a generator of its own, so that the global one does not change
        loader = DataLoader(self.images, generator=torch.Generator(), **self.kwargs)
        return islice(finish_batches(loader, self.to_model, self.log), start, None)


class _DecodedStream(IterableDataset):
    """The data set in the workers: lists of a decoded image and the errors that came before it."""

    def __init__(self, stream: ImageStream, read: Reader, target: Any, split: str) -> None:
        self.stream, self.read, self.target, self.split = stream, read, target, split
        self.seed = 0

    def __iter__(self) -> Iterator[list]:
        info, rows = get_worker_info(), []
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i, (value, label) in enumerate(self.stream):
            target = self.target(label)
            if target is None:  # a class that is left out
                continue
            rows.append(self._row(first + i * step, value, torch.as_tensor(target)))
            if not isinstance(rows[-1], FileError):
                yield rows
                rows = []
        if rows:
            yield rows

    def _row(self, row: int, value: Any, target: torch.Tensor) -> Any:
        try:
            with preserved_random_states(device=False):
                seed_cpu(derive_seed(self.seed, row))
                return self.read(image_bytes(value)), target
        except Exception as e:  # PIL and transforms raise many types
            return FileError.of(row, stored_path(value) or f"{self.split}[{row}]", e)


def _collate(parts: Sequence[list], join: Callable[[list], Any]) -> Any:
    return collate([*chain.from_iterable(parts)], join)
