"""Loaders that repeat: (seed, epoch) fix the order and the random numbers of each item.

`ArrayLoader` serves arrays in memory, whole batches at a time; `SeededLoader` is torch's DataLoader
for data sets that are read item by item. Neither draws from the global random states, except for
the seed, where none was given: each fit draws it anew from torch's, so `torch.manual_seed` before a
fit fixes the order of its data, whatever the loaders have served before.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from fastcore.basics import noop
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from minilearn.base.seed import SEED_RANGE, preserved_random_states
from minilearn.base.text import whole
from minilearn.core.stream import epoch_followers

# Options that SeededLoader passes on to its inner loader.
FETCHING = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
FETCHING += ("prefetch_factor", "persistent_workers", "in_order")


def derive_seed(*numbers: int) -> int:
    """Mix whole numbers, such as (seed, epoch, index), into one seed of 63 bits."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def draw_seed() -> int:
    """Draw a seed from torch's global generator."""
    return int(torch.randint(2**62, ()))


def permutation(n: int, seed: int) -> Tensor:
    """Return the numbers 0 to n-1 in an order fixed by the seed, shape (n,), int32 if they fit."""
    dtype = torch.int32 if n < 2**31 else torch.int64  # the order is the same
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def shuffled(n: int, seed: int, epoch: int) -> Tensor:
    """Return the numbers 0 to n-1 in the order of this epoch, shape (n,)."""
    return permutation(n, derive_seed(seed, epoch))


class EpochLoader:
    """A loader that counts its epochs.

    Attributes:
        epoch: the number of the next epoch; it advances by itself, and `set_epoch` sets it.
        seed: the seed that was given, or None.
        drawn: the seed that is used where none was given; None until it is drawn.
    """

    epoch: int
    seed: int | None
    drawn: int | None

    def begin_fit(self) -> None:
        """Draw the order anew, unless its seed was given; each fit calls this."""
        if self.seed is None:
            self.drawn, self.epoch = None, 0

    def used_seed(self, draw: Callable[[], int] = draw_seed) -> int:
        """Return the seed of order and random numbers; draw it where there is none."""
        if self.seed is not None:
            return self.seed
        if self.drawn is None:
            self.drawn = draw()
        return self.drawn

    def __iter__(self) -> Iterator[Any]:
        """Start the next epoch."""
        return self.batches()

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        self.epoch = epoch

    def batches(self, start: int = 0) -> Iterator[Any]:
        """Start the next epoch at batch number `start`."""
        raise NotImplementedError


class ArrayLoader(EpochLoader):
    """Serve batches from arrays in memory by indexing whole batches.

    >>> dl = ArrayLoader({0: torch.randn(10, 3), 1: torch.randn(10, 1)}, 4, shuffle=True, seed=0)
    >>> [len(x) for x, y in dl]
    [4, 4, 2]

    Args:
        columns: arrays of one length N by name; tensors, or lists where values are no numbers.
        batch_size: items a batch; the last one is smaller unless `drop_last`.
        rows: which of the N rows there are, in the order of the data; None for all.
        dataset: what `loader.dataset` shows; not read.
        shuffle: in a new order in each epoch, fixed by (seed, epoch).
        drop_last: leave out a last batch that is not full.
        seed: None draws one from torch's global generator, anew in each fit.
        transforms: by column name, a function of that column's part of a batch; it gets a tensor of
            its own, never a view of the array.
        as_tuple: batches are tuples of columns, else dicts.
    """

    def __init__(
        self,
        columns: Mapping[Any, Tensor | list],
        batch_size: int,
        *,
        rows: Tensor | None = None,
        dataset: Any = None,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
        transforms: Mapping[Any, Callable[[Tensor], Tensor]] | None = None,
        as_tuple: bool = True,
    ) -> None:
        self.columns, self.rows, self.dataset = dict(columns), rows, dataset
        self.batch_size = whole("batch_size", batch_size, of="items")
        self.shuffle, self.drop_last = shuffle, drop_last
        self.seed, self.drawn, self.epoch = seed, None, 0
        self.transforms, self.as_tuple = dict(transforms or {}), as_tuple
        self.n = len(next(iter(self.columns.values())) if rows is None else rows)

    def __len__(self) -> int:
        """Return the number of batches."""
        return (math.floor if self.drop_last else math.ceil)(self.n / self.batch_size)

    def batches(self, start: int = 0, cut: Callable = iter) -> Iterator[tuple | dict]:
        """Start the next epoch at batch number `start`; those before it are not loaded.

        Args:
            start: the first batch, counted after `cut`.
            cut: selects from an iterator over batches of rows, each a tensor (B,).
        """
        if self.shuffle:
            order = shuffled(self.n, self.used_seed(), self.epoch)
        else:
            order = torch.arange(self.n)
        order = order if self.rows is None else self.rows.index_select(0, order)
        self.epoch += 1
        firsts = range(0, self.n, self.batch_size)[: len(self)]
        rows = (order[i : i + self.batch_size] for i in firsts)
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
        """Start the order of the current epoch."""
        if self.seed is None:
            self.seed = draw_seed()
        return iter(shuffled(len(self), self.seed, self.epoch).tolist())

    def set_epoch(self, epoch: int) -> None:
        """Set the current epoch."""
        self.epoch = epoch


class SeededLoader(EpochLoader, DataLoader):
    """A DataLoader that fetches each item under random states fixed by (seed, epoch, index).

    Random transforms then give the same results for any number of workers, forked or spawned, and
    new ones in each epoch. Data sets that fetch many items in one call (`__getitems__`, as those of
    Hugging Face) are fetched batch by batch under the states of the batch's first index, so that
    transforms of whole batches work. The random states of the calling process do not change.

    >>> ds = Dataset(torch.arange(4.0), torch.arange(4))
    >>> first, second = SeededLoader(ds, 2, True, seed=0), SeededLoader(ds, 2, True, seed=0)
    >>> all(torch.equal(a[0], b[0]) for a, b in zip(first, second))
    True

    Args:
        dataset: a map-style data set; it stays as `loader.dataset`.
        batch_size: items a batch.
        shuffle: in a new order in each epoch, fixed by (seed, epoch).
        seed: None draws one from torch's global generator, anew in each fit.
        kwargs: all others of torch's DataLoader, also its samplers.
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
        self.seed, self.drawn, self.epoch = seed, None, 0
        self.shuffle, self._fetcher = shuffle, None
        if shuffle:
            kwargs["sampler"] = ShuffledSampler(dataset, seed)
        if "batch_sampler" not in kwargs:
            kwargs["batch_size"] = batch_size
        super().__init__(dataset, **kwargs)

    def batches(self, start: int = 0, cut: Callable = iter) -> Iterator[Any]:
        """Start the next epoch at batch number `start`; those before it are not loaded.

        Args:
            start: the first batch, counted after `cut`.
            cut: selects from an iterator over the sampler's batches of indices.
        """
        seed = self.used_seed()
        if isinstance(self.sampler, ShuffledSampler):
            self.sampler.seed = seed
        sampler: Any = self.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.epoch)
        fetcher = self._get_fetcher()
        fetcher.sampler.begin(start, (seed, self.epoch), cut)
        fetcher.generator.manual_seed(derive_seed(seed, self.epoch))
        self.epoch += 1
        return iter(fetcher)

    def _get_fetcher(self) -> Any:
        """Return the inner loader, whose data set takes ((seed, epoch), indices) as its index."""
        # Living workers would not hear of the data set's next epoch.
        keep = self.persistent_workers and not epoch_followers(self.dataset)
        if self._fetcher is None or not keep:
            self._fetcher = DataLoader(
                _SeededBatches(self.dataset, self.collate_fn),
                batch_size=None,
                sampler=_EpochBatches(self.batch_sampler),
                collate_fn=noop,
                generator=torch.Generator(),
                **{name: getattr(self, name) for name in FETCHING},
            )
        return self._fetcher

    def __getstate__(self) -> dict:
        """Leave the running workers out of copies and pickles."""
        return self.__dict__ | {"_fetcher": None}


class _EpochBatches:
    """Batches of a sampler, each with seed and epoch, so that living workers learn them."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.begin(0, (0, 0), iter)

    def begin(self, start: int, numbers: tuple[int, int], cut: Callable) -> None:
        """Serve an epoch from batch number `start` of what `cut` selects."""
        self.start, self.numbers, self.cut = start, numbers, cut

    def __len__(self) -> int:
        return len(self.batches) - self.start

    def __iter__(self) -> Iterator[tuple[tuple[int, int], list[int]]]:
        numbers, rest = self.numbers, islice(self.cut(self.batches), self.start, None)
        first = list(islice(rest, 1))  # the order is fixed now, not when the first batch is read
        return ((numbers, batch) for batch in chain(first, rest))


class _SeededBatches(Dataset):
    """The data set in the workers: fetch and collate batches under seeded random states."""

    def __init__(self, dataset: Any, collate_fn: Callable) -> None:
        self.dataset, self.collate_fn = dataset, collate_fn

    def __getitem__(self, key: tuple[tuple[int, int], list[int]]) -> Any:
        numbers, rows = key
        with preserved_random_states(device=False):
            seed_cpu(derive_seed(*numbers, rows[0]))
            if _fetches_batches(self.dataset):
                return self.collate_fn(self.dataset.__getitems__(rows))
            return self.collate_fn([self._item(numbers, row) for row in rows])

    def _item(self, numbers: tuple[int, int], row: int) -> Any:
        seed_cpu(derive_seed(*numbers, row))
        return self.dataset[row]


def _fetches_batches(dataset: Any) -> bool:
    if isinstance(dataset, Subset):  # it has the method whatever its data set has
        return _fetches_batches(dataset.dataset)
    return hasattr(dataset, "__getitems__")


def seed_cpu(seed: int) -> None:
    """Seed Python, numpy and torch on the CPU."""
    random.seed(seed)
    np.random.seed(seed % SEED_RANGE)
    torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which also seeds the GPU
