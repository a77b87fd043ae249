"""Batches of a stream of pictures, which has no length and no rows to ask for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..seeded import _random_states_kept, _seed_all, derive_seed
from .dataset import Reader, Row, ToModel, finished, together
from .errors import Fault, FaultLog, fault_of
from .hf_images import Streamed, stored


class StreamLoader:
    """Batches of streamed pictures; full ones, for a picture that cannot be read is passed over.

    The order of a pass and its random transforms follow (seed, epoch), transforms also the number
    of workers. A pass that begins in the middle reads what lies before, and so finds the same.

    Args:
        streamed: the pictures.
        read: makes pixels of the bytes of a file.
        target: makes the target of a label.
        batch_size: pictures in a batch.
        log: takes the faults.
        to_model: makes of pixels what the model is given.
        seed: of random transforms.
        drop_last: leave out a last batch that is not full.
        workers: processes that read ahead; each takes whole shards of the stream.

    Attributes:
        epoch: the number of the next pass; advances by itself, and `set_epoch` sets it.
    """

    def __init__(
        self,
        streamed: Streamed,
        read: Reader,
        target: Callable[[Any], Any],
        batch_size: int,
        *,
        log: FaultLog,
        to_model: ToModel,
        seed: int,
        drop_last: bool = False,
        workers: int = 0,
    ) -> None:
        self.streamed, self.read, self.target, self.log = streamed, read, target, log
        self.batch_size, self.drop_last, self.workers = batch_size, drop_last, workers
        self.to_model, self.seed, self.epoch = to_model, seed, 0

    @property
    def dataset(self) -> Any:
        """The stream of the library `datasets`."""
        return self.streamed.ds

    def __iter__(self) -> Iterator[Any]:
        """Start the next pass."""
        return self.batches()

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of this epoch."""
        self.epoch = epoch

    def batches(self, start: int = 0) -> Iterator[Any]:
        """Start the next pass at batch number `start`; those before it are read and dropped."""
        self.dataset.set_epoch(self.epoch)
        decoded = _Decoded(self, derive_seed(self.seed, self.epoch))
        self.epoch += 1
        loader = DataLoader(
            decoded,
            self.batch_size,
            num_workers=self.workers,
            collate_fn=together,
            drop_last=self.drop_last,
            pin_memory=self.to_model.device.type == "cuda",
            generator=torch.Generator(),  # the global one is left alone
        )
        return islice(finished(self._counted(loader), self.to_model, self.log), start, None)

    def _counted(self, loader: DataLoader) -> Iterator[Any]:
        self.log.read = 0
        for pixels, targets, faults in loader:
            self.log.read += len(faults) + (0 if pixels is None else len(pixels))
            yield pixels, targets, faults


class _Decoded(IterableDataset):
    """What the workers hold: pictures with the faults that lay before each."""

    def __init__(self, loader: StreamLoader, seed: int) -> None:
        self.streamed, self.read, self.target = loader.streamed, loader.read, loader.target
        self.split, self.rule, self.seed = loader.log.split, loader.log.rule, seed

    def __iter__(self) -> Iterator[Row]:
        info, faults = get_worker_info(), []
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i, (value, label) in enumerate(self.streamed):
            row = first + i * step
            target = self.target(label)
            if target is None:  # a class that is left out
                continue
            pixels = self._pixels(row, value)
            if isinstance(pixels, Fault):
                faults.append(pixels)
            else:
                yield Row(pixels, torch.as_tensor(target), tuple(faults))
                faults = []
        if faults:
            yield Row(None, None, tuple(faults))

    def _pixels(self, row: int, value: Any) -> Any:
        try:
            with self._seeded(row):
                return self.read(stored(value))
        except Exception as e:  # PIL and transforms raise many kinds
            path = value.get("path") if isinstance(value, dict) else value
            name = path if isinstance(path, str) else f"{self.split}[{row}]"
            return fault_of(row, name, e, self.rule)

    @contextlib.contextmanager
    def _seeded(self, row: int) -> Iterator[None]:
        if self.read.tfms is None:
            yield
            return
        with _random_states_kept():
            _seed_all(derive_seed(self.seed, row))
            yield
