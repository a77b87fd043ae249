"""Loaders whose passes are fixed by (seed, epoch): order, and the random numbers of each item.

`ArrayLoader` serves what lies in memory, whole batches at a time; `SeededLoader` is torch's
DataLoader for data sets that are read item by item. A pass of either draws nothing from the global
random states, only the seed, where none was given, is drawn once from torch's: `torch.manual_seed`
governs both.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from minilearn.base.text import whole

# What SeededLoader hands on to the loader that fetches for it.
FETCHING = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
FETCHING += ("prefetch_factor", "persistent_workers", "in_order")


def derive_seed(*numbers: int) -> int:
    """Mix whole numbers, such as (seed, epoch, index), into one seed of 63 bits."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def draw_seed() -> int:
    """Draw a seed from torch's global generator."""
    return int(torch.randint(2**62, ()))


def shuffled(n: int, seed: int, epoch: int) -> Tensor:
    """Return the numbers 0 to n-1 in the order of this epoch, shape (n,)."""
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    return torch.randperm(n, generator=generator)


class ArrayLoader:
    """Serve batches from arrays in memory by indexing whole batches.

    Args:
        columns: arrays of one length N by name; tensors, or lists where values are no numbers.
        batch_size: items a batch; the last one is smaller unless `drop_last`.
        dataset: what `loader.dataset` shows; not read.
        shuffle: in a new order in each epoch, fixed by (seed, epoch).
        drop_last: leave out a last batch that is not full.
        seed: None draws one at the first shuffled pass from torch's global generator.
        transforms: by column name, what becomes of that column's part of a batch; it is given a
            tensor of its own, never a view of the array.
        as_tuple: batches are tuples of columns, else dicts.

    Attributes:
        epoch: the number of the next pass; advances by itself, and `set_epoch` sets it.
    """

    def __init__(
        self,
        columns: Mapping[Any, Tensor | list],
        batch_size: int,
        *,
        dataset: Any = None,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
        transforms: Mapping[Any, Callable[[Tensor], Tensor]] | None = None,
        as_tuple: bool = True,
    ) -> None:
        self.columns, self.dataset = dict(columns), dataset
        self.batch_size = whole("batch_size", batch_size, of="items")
        self.shuffle, self.drop_last, self.seed, self.epoch = shuffle, drop_last, seed, 0
        self.transforms, self.as_tuple = dict(transforms or {}), as_tuple
        self.n = len(next(iter(self.columns.values())))

    def __len__(self) -> int:
        """Return the number of batches."""
        return (math.floor if self.drop_last else math.ceil)(self.n / self.batch_size)

    def __iter__(self) -> Iterator[tuple | dict]:
        """Start the next pass."""
        return self.batches()

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of this epoch."""
        self.epoch = epoch

    def batches(self, start: int = 0, cut: Callable = iter) -> Iterator[tuple | dict]:
        """Start the next pass at batch number `start`; those before it are not loaded.

        Args:
            start: the first batch, counted behind `cut`.
            cut: makes of the batches of rows, each a tensor (B,), those that are served.
        """
        order = torch.arange(self.n)
        if self.shuffle:
            self.seed = draw_seed() if self.seed is None else self.seed
            order = shuffled(self.n, self.seed, self.epoch)
        self.epoch += 1
        rows = order.split(self.batch_size)[: len(self)]
        return map(self.batch_of, islice(cut(rows), start, None))

    def batch_of(self, rows: Tensor) -> tuple | dict:
        """Return the batch of these rows, shape (B,)."""
        batch = {name: self._take(name, rows) for name in self.columns}
        return tuple(batch.values()) if self.as_tuple else batch

    def _take(self, name: Any, rows: Tensor) -> Tensor | list:
        column = self.columns[name]
        if not isinstance(column, Tensor):
            return [column[i] for i in rows.tolist()]
        part = column.index_select(0, rows)  # three times as fast as column[rows]
        return self.transforms[name](part) if name in self.transforms else part


class ShuffledSampler(Sampler[int]):
    """Yield the rows of a data set in the order of (seed, epoch)."""

    def __init__(self, dataset: Any, seed: int | None = None) -> None:
        self.dataset, self.seed, self.epoch = dataset, seed, 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        """Start the order of the present epoch."""
        if self.seed is None:
            self.seed = draw_seed()
        return iter(shuffled(len(self), self.seed, self.epoch).tolist())

    def set_epoch(self, epoch: int) -> None:
        """Make this the present epoch."""
        self.epoch = epoch


class SeededLoader(DataLoader):
    """A DataLoader that fetches each item under random states fixed by (seed, epoch, index).

    Random transforms then give the same for any number of workers, forked or spawned, and another
    thing in each epoch. Data sets that fetch many items in one call (`__getitems__`, as those of
    Hugging Face do) are fetched batch by batch under the states of the batch's first index, so that
    transforms of whole batches see them. The random states of the calling process are left alone.

    Args:
        dataset: a map-style data set; it stays as `loader.dataset`.
        batch_size: items a batch.
        shuffle: in a new order in each epoch, fixed by (seed, epoch).
        seed: None draws one at the first pass from torch's global generator.
        kwargs: all others of torch's DataLoader, also its samplers.

    Attributes:
        epoch: the number of the next pass; advances by itself, and `set_epoch` sets it.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.seed, self.epoch, self.shuffle, self._fetcher = seed, 0, shuffle, None
        if shuffle:
            kwargs["sampler"] = ShuffledSampler(dataset, seed)
        if "batch_sampler" not in kwargs:
            kwargs["batch_size"] = batch_size
        super().__init__(dataset, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """Start the next pass."""
        return self.batches()

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of this epoch."""
        self.epoch = epoch

    def batches(self, start: int = 0, cut: Callable = iter) -> Iterator[Any]:
        """Start the next pass at batch number `start`; those before it are not loaded.

        Args:
            start: the first batch, counted behind `cut`.
            cut: makes of the sampler's batches of indices those that are served.
        """
        if self.seed is None:
            self.seed = draw_seed()
        if isinstance(self.sampler, ShuffledSampler):
            self.sampler.seed = self.seed
        sampler: Any = self.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.epoch)
        fetcher = self._get_fetcher(self.seed)
        fetcher.sampler.start, fetcher.sampler.epoch, fetcher.sampler.cut = start, self.epoch, cut
        fetcher.generator.manual_seed(derive_seed(self.seed, self.epoch))
        self.epoch += 1
        return iter(fetcher)

    def _get_fetcher(self, seed: int) -> Any:
        """Return the loader that does the work: it takes (epoch, indices) for an index."""
        if self._fetcher is None or not self.persistent_workers:
            self._fetcher = DataLoader(
                _SeededBatches(self.dataset, self.collate_fn, seed),
                batch_size=None,
                sampler=_EpochBatches(self.batch_sampler),
                collate_fn=_unchanged,
                generator=torch.Generator(),
                **{name: getattr(self, name) for name in FETCHING},
            )
        return self._fetcher

    def __getstate__(self) -> dict:
        """Leave the running workers out of copies and pickles."""
        return self.__dict__ | {"_fetcher": None}


class _EpochBatches:
    """Batches of a sampler from `start`, each with the epoch, which so reaches living workers."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.epoch, self.start, self.cut = batches, 0, 0, iter

    def __len__(self) -> int:
        return len(self.batches) - self.start

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        epoch, rest = self.epoch, islice(self.cut(self.batches), self.start, None)
        first = list(islice(rest, 1))  # the order is fixed now, not when the first batch is read
        return ((epoch, batch) for batch in chain(first, rest))


class _SeededBatches(Dataset):
    """What the workers hold: fetch and collate batches of a data set under seeded random states."""

    def __init__(self, dataset: Any, collate_fn: Callable, seed: int) -> None:
        self.dataset, self.collate_fn, self.seed = dataset, collate_fn, seed

    def __getitem__(self, key: tuple[int, list[int]]) -> Any:
        epoch, rows = key
        with _random_states_kept():
            _seed_all(derive_seed(self.seed, epoch, rows[0]))
            if _fetches_batches(self.dataset):
                return self.collate_fn(self.dataset.__getitems__(rows))
            return self.collate_fn([self._item(epoch, row) for row in rows])

    def _item(self, epoch: int, row: int) -> Any:
        _seed_all(derive_seed(self.seed, epoch, row))
        return self.dataset[row]


def _fetches_batches(dataset: Any) -> bool:
    if isinstance(dataset, Subset):  # has the method, but only hands on
        return _fetches_batches(dataset.dataset)
    return hasattr(dataset, "__getitems__")


def _seed_all(seed: int) -> None:
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which also seeds the GPU


@contextlib.contextmanager
def _random_states_kept() -> Iterator[None]:
    import numpy as np

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _unchanged(batch: Sequence) -> Sequence:
    return batch
