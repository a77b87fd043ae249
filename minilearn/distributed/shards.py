"""One process's part of a loader: every sample goes to one process, and none twice.

Batches are dealt out in groups of one for each process. Where a loader has indices a group is
joined and cut into even parts, so that the parts of a group are together the batch of the one
process with the n-fold batch size; else each process takes one batch of the group.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
)

from minilearn.base.batch import n_batches
from minilearn.distributed.sync import Processes

from ..core.position import with_indices
from ..core.stream import Unshared
from ..data.ordered import drawn_by
from ..data.seeded import ArrayLoader, SeededLoader, ShuffledSampler, draw_seed

FIXED = (SequentialSampler, ShuffledSampler, DistributedSampler)  # the same order everywhere


def part_of(rows: Any, rank: int, n: int) -> Any:
    """Return the part of `rank` when `rows` are cut into `n` parts that differ by one at most."""
    size, more = divmod(len(rows), n)
    start = rank * size + min(rank, more)
    return rows[start : start + size + (rank < more)]


def parts(
    batches: Iterable[Any], rank: int, n: int, training: bool, drop_last: bool
) -> Iterator[Any]:
    """Yield one process's part of each group of `n` batches of indices, lists or tensors.

    Args:
        batches: of one process with all the data.
        rank: which part.
        n: the number of processes.
        training: leave out a group that does not go round, where each must have a batch.
        drop_last: in training, leave out a last group that is not full.
    """
    batches = iter(batches)
    while group := list(islice(batches, n)):
        joined = isinstance(group[0], Tensor)
        rows = torch.cat(group) if joined else [i for batch in group for i in batch]
        if training and (len(rows) < n or (drop_last and len(group) < n)):
            return
        if len(part := part_of(rows, rank, n)):
            yield part


class Shard:
    """This process's part of a loader; whatever else one asks of it, the loader answers.

    The order is that of the first process, whatever draws it. In training all processes have the
    same number of batches: a stream ends with the shortest. A validation leaves nothing out.

    Args:
        dl: a loader of all the data, on every process.
        processes: those that share it.
        training: whether each must have as many batches as the others.
        shares: False where the loader gives each process its own part already.
    """

    def __init__(self, dl: Any, processes: Processes, training: bool, shares: bool = True) -> None:
        self.dl, self.processes, self.training, self.shares = dl, processes, training, shares
        self.rank, self.n = processes.rank, processes.n
        self._warned = False
        self.may_be_empty = not training

    @property
    def _cuts(self) -> bool:
        """Whether the loader's batches are of indices that can be cut anew."""
        dl = self.dl
        if isinstance(dl, ArrayLoader):
            return True
        sized = isinstance(dl, DataLoader) and not isinstance(dl.dataset, IterableDataset)
        return sized and type(dl.batch_sampler) is BatchSampler

    def __len__(self) -> int:
        """Return the number of batches of this process."""
        n, n_here = len(self.dl), self.n
        if not self.shares:
            return n
        groups, rest = divmod(n, n_here)
        if not self._cuts:
            return groups + (not self.training and self.rank < rest)
        _, batch_size, drop_last = drawn_by(self.dl)
        if not rest or (drop_last and self.training):
            return groups
        left = rest * batch_size if drop_last else self._rows - groups * n_here * batch_size
        return groups + (left >= n_here if self.training else self.rank < left)

    @property
    def _is_fixed(self) -> bool:
        """Whether the order is the same on all processes, whatever they draw."""
        if isinstance(self.dl, ArrayLoader):
            return True
        is_own = self.dl.batch_sampler is not None and not self._cuts  # and may draw
        return not is_own and isinstance(drawn_by(self.dl)[0], FIXED)

    @property
    def _rows(self) -> int:
        dl = self.dl
        return dl.n if isinstance(dl, ArrayLoader) else len(_plain_sampler(drawn_by(dl)[0]))

    @property
    def left_out(self) -> str:
        """What of the data is left out of a training epoch, in words; empty where nothing is."""
        n = n_batches(self.dl)
        drop_last = getattr(self.dl, "drop_last", False) or (self._cuts and drawn_by(self.dl)[2])
        if n is None or not (self.training and self.shares) or drop_last:
            return ""
        if self._cuts:
            taken = len(self) * self.n * drawn_by(self.dl)[1]
            return f"{self._rows - taken} samples" if taken < self._rows else ""
        return f"{n % self.n} batches" if n % self.n else ""

    def __iter__(self) -> Iterator[Any]:
        """Start the next epoch."""
        return self.batches()

    def batches(self, start: int = 0) -> Iterator[Any]:
        """Start the next epoch at this process's batch number `start`."""
        dl = self.dl
        if self.shares and isinstance(dl, (ArrayLoader, SeededLoader)):
            dl.used_seed(lambda: self.processes.gather(draw_seed())[0])
            return dl.batches(start, self._deal_out)
        if not self.shares:
            found = islice(iter(dl), start, None)
        elif isinstance(dl, DataLoader) and not isinstance(dl.dataset, IterableDataset):
            drawn = _Drawn(lambda: list(self._deal_out(_order(dl)))[start:])
            found = iter(with_indices(dl, drawn))  # torch draws a seed before the sampler does
            drawn.draw()
            return found
        else:
            found = islice(self._deal(dl), start, None)
        return self._while_all_have(found) if self.training else iter(found)

    def _deal_out(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield this process's part of the batches of indices, in the order of the first one."""
        if not self._is_fixed:
            batches = list(batches)  # all draw, as each would alone
            batches = self.processes.gather(None if self.rank else batches)[0]
        if self._cuts:
            return parts(batches, self.rank, self.n, self.training, drawn_by(self.dl)[2])
        return self._deal(batches)

    def _deal(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield every n-th batch; in training only of groups that go round."""
        batches = iter(batches)
        while group := list(islice(batches, self.n)):
            if self.training and len(group) < self.n:
                if self.rank == 0 and n_batches(self.dl) is None:
                    self._warn_once(f"{len(group)} of its batches do not go round")
            elif self.rank < len(group):
                yield group[self.rank]

    def _while_all_have(self, batches: Iterable[Any]) -> Iterator[Any]:
        if self.shares and isinstance(self.dl, Sequence):
            yield from batches  # the same number everywhere
            return
        batches, end = iter(batches), object()
        while self.processes.all_have((batch := next(batches, end)) is not end):
            yield batch
        if batch is not end:
            self._warn_once(f"process {self.rank} has batches left when another has none")

    def _warn_once(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"the training stream: {what}; they are left out", stacklevel=2)

    def __getattr__(self, name: str) -> Any:
        # its position is counted: the loader's own state knows nothing of the other processes
        if name in ("dl", "state_dict", "load_state_dict") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dl, name)


def share(dl: Any, processes: Processes, training: bool, shares: bool = True) -> Any:
    """Return this process's part of a loader, which may be one already.

    Args:
        dl: the loader.
        processes: those that share it.
        training: whether each process must have as many batches as the others.
        shares: False where the loader gives each process its own part.

    Raises:
        ValueError: there are fewer samples, or batches, than processes.
    """
    if isinstance(dl, (Shard, Unshared)):
        return dl
    shard = Shard(dl, processes, training, shares=shares and not _is_shared(dl))
    if training and n_batches(dl) and not n_batches(shard):
        raise ValueError(
            f"{processes.n} processes cannot share {n_batches(dl)} training batches of "
            f"{getattr(dl, 'batch_size', None)}: give more data or fewer processes"
        )
    return shard


def warn_of_rest(shard: Shard) -> None:
    """Say, in the first process, what does not go round."""
    if shard.rank == 0 and (left_out := shard.left_out):
        warnings.warn(
            f"{left_out} do not go round {shard.n} processes and are left out of each training "
            "epoch (others each time, where the order is shuffled)",
            stacklevel=2,
        )


def _is_shared(dl: Any) -> bool:
    """Return whether Hugging Face's `split_dataset_by_node` has made the part already."""
    return getattr(getattr(dl, "dataset", None), "_distributed", None) is not None


def _plain_sampler(sampler: Any) -> Any:
    """Return the sampler of all the data where it is torch's for one part of them."""
    if not isinstance(sampler, DistributedSampler):
        return sampler
    own: Any = copy.copy(sampler)
    own.num_replicas, own.rank = 1, 0
    own.num_samples = own.total_size = len(own.dataset)
    return own


def _order(dl: Any) -> list[Any]:
    """Return the indices of an epoch, drawing what the loader would draw."""
    if dl.batch_sampler is None:
        return list(_plain_sampler(dl.sampler))
    if type(dl.batch_sampler) is BatchSampler:
        sampler, size, drop_last = drawn_by(dl)
        return list(BatchSampler(_plain_sampler(sampler), size, drop_last))
    return list(dl.batch_sampler)


class _Drawn:
    """Indices that are drawn when the first is asked for."""

    def __init__(self, draw: Callable[[], list[Any]]) -> None:
        self._draw, self._rows = draw, None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.draw())

    def draw(self) -> Iterator[Any]:
        if self._rows is None:
            self._rows = iter(self._draw())
        return self._rows
