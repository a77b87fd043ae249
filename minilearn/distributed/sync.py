"""What the processes of one fit exchange beside gradients: values, counts, errors.

All of it goes over the CPU and waits for no device. A process that waits looks for errors of the
others, so none hangs.
"""

from __future__ import annotations

import atexit
import pickle
import time
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PLACES = ("a value", "the next batch", "an update", "the end of the batch")
PLACES += ("the body of the epoch", "the end of the epoch", "the end of the round")
WIDTH = 8  # numbers in an exchange
LOOK_EVERY = 0.25  # seconds between two looks for an error elsewhere, while waiting


class Processes:
    """The processes that make one fit together, as one of them sees them.

    Attributes:
        rank: the number of this process.
        n: how many there are.
        items: how many there are in the current batch.
        mean_items: the mean of that over all processes.
        states: what differs between processes, as of the last time that it was gathered.
    """

    def __init__(self) -> None:
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.items = self.mean_items = 0.0
        self.states: list[Any] = []
        self._group = _cpu_group(dist.group.WORLD)
        self._store = dist.distributed_c10d._get_default_store()
        self._fits = 0

    def begin_fit(self) -> None:
        """Forget errors of the fit before."""
        self._fits += 1

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in their order; all must ask for it."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [int(size) for (size,) in self.exchange("a value", len(data))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = data
        parts = self._all_gather(padded)
        return [
            pickle.loads(part[:size].numpy().tobytes())
            for part, size in zip(parts, sizes, strict=True)
        ]

    def from_first(self, find: Callable[[], Any]) -> Any:
        """Return to all what `find` returns in the first process; what it raises ends all."""
        found, self._fits = None, self._fits + 1  # an error of the fit before is no news
        if self.rank == 0:
            try:
                found = find()
            except Exception as e:
                self.publish(e)
                raise
        return self.gather(found)[0]

    def all_have(self, batch: bool) -> bool:
        """Return whether every process has a next batch."""
        return all(had for (had,) in self.exchange("the next batch", float(batch)))

    def publish(self, error: BaseException) -> None:
        """Let the others know that an error ends this process's fit; they end theirs with it."""
        text = "".join(traceback.format_exception(error))
        self._store.set(self._key, f"process {self.rank} failed:\n{text}")

    @property
    def _key(self) -> str:
        return f"minilearn/fit{self._fits}/error"

    def exchange(self, place: str, *numbers: float) -> list[list[float]]:
        """Return the numbers of all processes, which must have come to the same place."""
        sent = torch.zeros(WIDTH, dtype=torch.float64)  # of one size at whatever place
        sent[: 1 + len(numbers)] = torch.tensor([PLACES.index(place), *numbers])
        rows = [row.tolist() for row in self._all_gather(sent)]
        if any(row[0] != rows[0][0] for row in rows):
            where = [f"process {r} is at {PLACES[int(row[0])]}" for r, row in enumerate(rows)]
            raise RuntimeError(
                f"the processes went different ways: {'; '.join(where)}. Callbacks that start "
                "runs, cancel or save together must do so in all processes."
            )
        return [row[1 : 1 + len(numbers)] for row in rows]

    def _all_gather(self, mine: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(mine) for _ in range(self.n)]
        try:
            self._wait(dist.all_gather(parts, mine, group=self._group, async_op=True))
        except RuntimeError as e:  # a process is gone, and with it its connections
            time.sleep(LOOK_EVERY)
            self._look_out()
            raise RuntimeError(f"another process ended, so this one cannot go on: {e}") from e
        return parts

    def _wait(self, work: Any) -> None:
        start = looked = time.monotonic()
        while not work.is_completed():
            now = time.monotonic()
            if now - looked > LOOK_EVERY:
                looked = now
                self._look_out()
            time.sleep(0.00002 if now - start < 0.01 else 0.001)
        work.wait()

    def _look_out(self) -> None:
        if self._store.check([self._key]):
            raise OtherProcessError(self._store.get(self._key).decode())

    def share_items(self, items: float) -> None:
        """Set `items` and `mean_items` for an update; all processes must do so."""
        self.items = items
        counts = self.exchange("an update", items)
        self.mean_items = sum(n for (n,) in counts) / self.n


@cache
def _cpu_group(world: Any) -> Any:
    """Return the group for what goes over the CPU, made once.

    Groups that are still there when Python collects its last garbage can wait for their own threads
    for ever, so they are let go before.
    """
    atexit.register(_let_go)
    return dist.new_group(backend="gloo")


def _let_go() -> None:
    _cpu_group.cache_clear()
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()


class OtherProcessError(RuntimeError):
    """Another process failed; the message has its traceback."""
