"""The processes that make one fit together: what they tell each other, and where they meet.

All of it goes over the CPU, beside the exchange of gradients: it waits for no device. Whoever waits
looks out for an error of another process, so none hangs.
"""

from __future__ import annotations

import atexit
import pickle
import time
import traceback
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..core.events import (
    CancelEpochException,
    CancelException,
    CancelFitException,
    CancelRoundException,
    cancel_level,
)

if TYPE_CHECKING:
    from ..core.learner import Loop

CANCELS: Any = (None, CancelEpochException, CancelRoundException, CancelFitException)  # by width
WIDTHS = {"step": 0, "backward": 0, "batch": 0, "epoch": 1, "round": 2}  # the fit is 3
MEETINGS = {"batch": ("end",), "epoch": ("body", "end"), "round": ("end",)}
PLACES = ["a value", "the next batch", "an update"]
PLACES += [f"the {point} of a {level}" for level, points in MEETINGS.items() for point in points]
WIDTH = 8  # numbers in an exchange
LOOK_EVERY = 0.25  # seconds between two looks for an error elsewhere, while waiting


class Processes:
    """What one process knows of all that make a fit together.

    Args:
        share: takes a loader and whether it is for training, returns this process's part.
        join: called with the Learner where others make an update from which this process has no
            batch: takes part in it with nothing.

    Attributes:
        rank: the number of this process.
        n: how many there are.
        items: how many there are in the batch in hand.
        mean_items: the mean of that over all processes.
        states: what each process alone knew at the last meeting that asked for it.
    """

    def __init__(self, share: Callable[[Any, bool], Any], join: Callable[[Loop], None]) -> None:
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.share, self.join = share, join
        self.items = self.mean_items = 0.0
        self.states: list[Any] = []
        self._group = _cpu_group(dist.group.WORLD)
        self._store = dist.distributed_c10d._get_default_store()
        self._fits, self._agreed, self._met = 0, False, set()

    def begin(self, learn: Loop) -> None:
        """Begin a fit: an error of the one before is no news any more."""
        self._fits, self._agreed = self._fits + 1, False
        self._met = {key for key in self._met if key[0] < learn.depth}

    # ---- telling ----

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in their order; all must ask for it."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [int(size) for (size,) in self._exchange("a value", len(data))]
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
        return all(had for (had,) in self._exchange("the next batch", float(batch)))

    def publish(self, error: BaseException) -> None:
        """Let the others know that an error ends this process's fit; they end theirs with it."""
        text = "".join(traceback.format_exception(error))
        self._store.set(self._key, f"process {self.rank} failed:\n{text}")

    @property
    def _key(self) -> str:
        return f"minilearn/fit{self._fits}/error"

    def _exchange(self, place: str, *numbers: float) -> list[list[float]]:
        """Return the numbers of all processes, which must have come to the same place."""
        told = torch.zeros(WIDTH, dtype=torch.float64)  # of one size at whatever place
        told[: 1 + len(numbers)] = torch.tensor([PLACES.index(place), *numbers])
        rows = [row.tolist() for row in self._all_gather(told)]
        if any(row[0] != rows[0][0] for row in rows):
            where = [f"process {r} is at {PLACES[int(row[0])]}" for r, row in enumerate(rows)]
            raise RuntimeError(
                f"the processes went different ways: {'; '.join(where)}. Callbacks that start "
                "passes, cancel or save together must do so in all processes."
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

    # ---- meeting ----

    def begin_update(self, learn: Loop | None) -> None:
        """Agree, before the backward pass, on how many items the batches of all have.

        Args:
            learn: has the batch in hand; None where there is none here.
        """
        if not self._agreed:
            self._agreed = True
            self.items = 0.0 if learn is None else float(learn.n_items)
            counts = self._exchange("an update", self.items)
            self.mean_items = sum(n for (n,) in counts) / self.n

    def meet(self, learn: Loop, level: str, point: str) -> None:
        """Wait for the others where the body of a level, or all of it, is over.

        Raises:
            CancelException: the widest that any of them raised.
        """
        if point in self._points(learn, level):
            self._met.add((learn.depth, level, point))
            if (stop := self._agree(learn, level, point, None)) is not None:
                raise stop
            if point == "end":
                self._forget(learn, level)

    def settle(self, learn: Loop, level: str, error: BaseException) -> BaseException:
        """Return what ends the level for all, where `error` does so here."""
        try:
            if not isinstance(error, (CancelException, SystemExit, OtherProcessError)):
                self.publish(error)
            if isinstance(error, CancelException):
                for point in self._points(learn, level):
                    if (learn.depth, level, point) not in self._met:
                        error = self._agree(learn, level, point, error) or error
            return error
        except BaseException as e:
            return e
        finally:
            self._forget(learn, level)

    def _points(self, learn: Loop, level: str) -> tuple[str, ...]:
        # the processes have different numbers of validation batches, so they meet at the end
        return () if level == "batch" and not learn.training else MEETINGS.get(level, ())

    def _forget(self, learn: Loop, level: str) -> None:
        self._met -= {(learn.depth, level, point) for point in ("body", "end")}

    def _agree(
        self, learn: Loop, level: str, point: str, error: BaseException | None
    ) -> BaseException | None:
        if level == "batch":
            self._finish_update(learn)
        mine = 0 if error is None else WIDTHS.get(cancel_level(error) or "", 3)
        if point == "end" and mine == WIDTHS[level]:
            mine = 0  # the level's own cancel ends here
        asks = point == "end" and level != "epoch"
        asking = [cb for cb in learn.cbs if hasattr(cb, "wish")] if asks else []
        wishes = [cb.wish(learn) for cb in asking]
        rows = self._exchange(f"the {point} of a {level}", mine, *wishes)
        for i, cb in enumerate(asking, 1):
            cb.grant(learn, level, [row[i] for row in rows])
        widest = max(int(row[0]) for row in rows)
        return CANCELS[widest]() if widest > mine else error

    def _finish_update(self, learn: Loop) -> None:
        """Take part in an update that others make of this batch, if it was cancelled here."""
        try:
            if not self._agreed:
                self.begin_update(None)
                if self.mean_items:
                    self.join(learn)
        finally:
            self._agreed = False


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
