"""How processes stay together: the callbacks that come into a fit with AccelerateCB."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..base.batch import n_batches
from ..callbacks.gradients import items_of
from ..callbacks.training import adds_up
from ..core.callback import Callback, attribute
from ..core.events import (
    CancelEpochException,
    CancelException,
    CancelFitException,
    CancelRoundException,
    Order,
    cancel_level,
)
from .sync import OtherProcessError, Processes

if TYPE_CHECKING:
    from ..core.learner import Loop

CANCELS: Any = (None, CancelEpochException, CancelRoundException, CancelFitException)  # by width
WIDTHS = {"step": 0, "backward": 0, "batch": 0, "epoch": 1, "round": 2}  # the fit is 3
POINTS = {"batch": ["end"], "epoch": ["body", "end"], "round": ["end"]}  # where all wait


class Requests(ABC):
    """A callback with a number that all processes should know at the end of a batch or a round."""

    @abstractmethod
    def request(self, learn: Loop) -> float:
        """Return the number of this process."""

    @abstractmethod
    def answer(self, learn: Loop, level: str, requests: list[float]) -> None:
        """Act on the numbers of all processes, in their order."""


def processes_of(learn: Any) -> Processes | None:
    """Return the processes that make the running fit together, None where there is one."""
    cbs = (cb for cb in attribute(learn, "cbs") if isinstance(cb, BarrierCB))
    return next((cb.processes for cb in cbs), None)


def connected(cbs: Iterable[Any]) -> Processes | None:
    """Return the processes that a callback has connected, also outside a fit."""
    found = (getattr(cb, "processes", None) for cb in cbs)
    return next((p for p in found if p is not None), None)


class BarrierCB(Callback):
    """Wait for the other processes at the end of batches, epochs and rounds, and agree on cancels.

    Args:
        processes: those that make the fit together.
        join: called with the Learner where others make an update from which this process has no
            batch: takes part in it with nothing.

    Raises:
        CancelException: the widest that any of the processes raised.

    Events: before_round, after_batch, after_epoch, after_round, cleanup_batch, cleanup_epoch,
        cleanup_round, cleanup_fit
    Order:  STOP + 2000
    Reads:  training, cbs, error, row, n_items, stopped, depth, interrupts
    Writes: error, row
    """

    order = Order.STOP + 2000  # after whatever anybody has
    in_probe = False

    def __init__(self, processes: Processes, join: Callable[[Any], None]) -> None:
        self.processes, self.join = processes, join
        self._met: set[tuple[str, str]] = set()
        self._shared, self._start = False, 0.0

    def before_round(self, learn: Loop) -> None:
        """Begin to measure the time of the round; from now on this decides where a stop ends it."""
        learn.interrupts.agreed = True
        self._start = perf_counter()

    def after_batch(self, learn: Loop) -> None:
        """Wait for the others. They have different numbers of validation batches."""
        if learn.training:
            self.meet(learn, "batch", "end")

    def after_epoch(self, learn: Loop) -> None:
        """Wait for the others."""
        self.meet(learn, "epoch", "end")

    def after_round(self, learn: Loop) -> None:
        """Wait for the others."""
        self.meet(learn, "round", "end")

    def cleanup_batch(self, learn: Loop) -> None:
        """Agree on what ended the batch."""
        self._settle(learn, "batch")

    def cleanup_epoch(self, learn: Loop) -> None:
        """Agree on what ended the epoch."""
        self._settle(learn, "epoch")

    def cleanup_round(self, learn: Loop) -> None:
        """Agree on what ended the round."""
        self._settle(learn, "round")

    def cleanup_fit(self, learn: Loop) -> None:
        """Let the others know of an error."""
        self._settle(learn, "fit")

    def share_items(self, learn: Loop | None) -> None:
        """Agree, before the backward pass, on how many items the batches of all have.

        Args:
            learn: has the current batch; None where there is none here.
        """
        if not self._shared:
            self._shared = True
            self.processes.share_items(0.0 if learn is None else _items_of(learn))

    def meet(self, learn: Loop, level: str, point: str) -> None:
        """Wait for the others where the body of a level, or all of it, is over."""
        self._met.add((level, point))
        stop = None if learn.stopped is None or learn.depth else CancelFitException()
        if (cancel := self._agree(learn, level, point, stop)) is not None:
            raise cancel
        if point == "end":
            self._forget(level)

    def _settle(self, learn: Loop, level: str) -> None:
        """Let the others know what ended a level here; end it by the widest cancel of all."""
        error: Any = learn.error
        if not isinstance(error, (type(None), CancelException, SystemExit, OtherProcessError)):
            self.processes.publish(error)
        if isinstance(error, CancelException) and (level != "batch" or learn.training):
            for point in POINTS.get(level, ()):
                if (level, point) not in self._met:
                    error = self._agree(learn, level, point, error) or error
        self._forget(level)
        if error is not learn.error:
            learn.error = error
            raise error  # pyright: ignore[reportGeneralTypeIssues]

    def _forget(self, level: str) -> None:
        self._met = {place for place in self._met if place[0] != level}

    def _agree(
        self, learn: Loop, level: str, point: str, error: BaseException | None
    ) -> BaseException | None:
        if level == "batch":
            self._finish_update(learn)
        mine = 0 if error is None else WIDTHS.get(cancel_level(error) or "", 3)
        if point == "end" and mine == WIDTHS[level]:
            mine = 0  # the level's own cancel ends here
        asking = [cb for cb in learn.cbs if isinstance(cb, Requests) and point == "end"]
        if level == "epoch":
            numbers = [perf_counter() - self._start]
        else:
            numbers = [cb.request(learn) for cb in asking]
        rows = self.processes.exchange(f"the {point} of the {level}", mine, *numbers)
        if level == "epoch":
            learn.row["time"] = max(row[1] for row in rows)
        else:
            for i, cb in enumerate(asking, 1):
                cb.answer(learn, level, [row[i] for row in rows])
        widest = max(int(row[0]) for row in rows)
        return CANCELS[widest]() if widest > mine else error

    def _finish_update(self, learn: Loop) -> None:
        """Take part in an update that others make of this batch, if it was cancelled here."""
        try:
            if not self._shared:
                self.share_items(None)
                if self.processes.mean_items:
                    self.join(learn)
        finally:
            self._shared = False


def _items_of(learn: Loop) -> float:
    return 1.0 if adds_up(learn) else float(items_of(learn))


class ShardCB(Callback):
    """Give this process its shard of the loaders, and see how many items an update has in all.

    Args:
        barrier: of the same fit.
        shares: False where the loaders give each process its own part.

    Events: before_fit, before_epoch, before_backward, after_epoch
    Order:  ACCUMULATE - 1000
    Reads:  plan, training, dl, n_items, batch, loss_func, cbs, row
    Writes: dl, row
    """

    order = Order.ACCUMULATE - 1000  # before whatever anybody has
    in_probe = False

    def __init__(self, barrier: BarrierCB, shares: bool = True) -> None:
        self.barrier, self.processes, self.shares = barrier, barrier.processes, shares

    def _shard(self, dl: Any, training: bool) -> Any:
        from .shards import share  # brings the modules of data, which nobody else needs here

        return share(dl, self.processes, training, self.shares)

    def before_fit(self, learn: Loop) -> None:
        """Take the shard of the training loader."""
        self.processes.begin_fit()
        plan = learn.plan
        if plan.train_dl is not None:
            plan.train_dl = self._shard(plan.train_dl, True)
        if plan.n_batches is not None:
            plan.n_batches = n_batches(plan.train_dl)

    def before_epoch(self, learn: Loop) -> None:
        """Take the shard of a validation loader."""
        if not learn.training:
            learn.dl = self._shard(learn.dl, False)

    def before_backward(self, learn: Loop) -> None:
        """Agree on the number of items."""
        self.barrier.share_items(learn)

    def after_epoch(self, learn: Loop) -> None:
        """Wait for the others before anybody reads results of the epoch."""
        self.barrier.meet(learn, "epoch", "body")
