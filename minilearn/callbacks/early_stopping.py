"""End a fit early, and keep its best weights."""

from __future__ import annotations

import math
import time
from typing import Any

from ..base.text import whole
from ..core.callback import Callback
from ..core.events import CancelEpochException, CancelFitException, Order
from ..core.learner import Loop
from .averaging import restore_validated, validated_state
from .monitor import Monitor


class EarlyStopCB(Callback):
    """End the fit when a column of the history has stopped improving.

    The fit ends with the `patience`-th validation in a row that was not better than the best so
    far. Values that are not finite are not better; a round without a validation does not count.

    >>> learn.fit(20, cbs=EarlyStopCB("accuracy", "max", restore_best=True))

    Args:
        monitor: the column, such as "valid_loss" or "accuracy".
        mode: "min" or "max"; "min" where the name ends in "loss".
        patience: the number of validations in a row, 1 or more.
        min_delta: better means better by more than this.
        relative: `min_delta` is a fraction of the best value: 0.01 is one percent.
        start_from: the first epoch that counts; what comes before is neither better nor worse.
        divergence: end the fit at once where the value is worse than this, or not finite.
        restore_best: end with the weights of the best validation, however the fit ended; with an
            `EMACB` or `SWACB` these are the averages.
        keep: let the next fit go on with the best and the count of this one.

    Attributes:
        monitor: its `best` is the best value so far.
        best_epoch: its epoch.
        count: validations since.
        stopped: the epoch in which this ended the fit, else None.

    Raises:
        ValueError: `mode` is neither given nor known, or `patience` is below 1.
        KeyError: nobody provides such a column.

    Events: before_fit, before_round, after_round, cleanup_fit
    Order:  STOP
    Reads:  row, training, epoch, model, cbs, dls, loss_func
    Writes:
    """

    order = Order.STOP

    def __init__(
        self,
        monitor: str = "valid_loss",
        mode: str | None = None,
        patience: int = 3,
        min_delta: float = 0.0,
        restore_best: bool = False,
        keep: bool = False,
        *,
        relative: bool = False,
        start_from: int = 0,
        divergence: float | None = None,
    ) -> None:
        self.monitor = Monitor(monitor, mode, min_delta, relative)
        self.start_from, self.divergence = start_from, divergence
        self.patience = whole("patience", patience, of="validations")
        self.restore_best, self.keep, self._resumed = restore_best, keep, False
        self._forget()

    def _forget(self) -> None:
        self.monitor.reset()
        self.count, self.best_epoch, self.stopped, self._best = 0, None, None, None

    def before_fit(self, learn: Loop) -> None:
        """Forget the last fit, and see that somebody provides the column."""
        self.monitor.check(learn)
        if not (self.keep or self._resumed):
            self._forget()
        self.stopped = None

    def before_round(self, learn: Loop) -> None:
        """End a resumed fit at once, if this callback had ended it before."""
        if self._resumed and self.count >= self.patience:
            learn.stop(
                f"{self!r} had ended this fit: nothing is left to train; give it more patience "
                "to go on"
            )
            raise CancelFitException

    def after_round(self, learn: Loop) -> None:
        """Compare the value with the best, and end the fit when patience runs out."""
        value, name = self.monitor.read(learn), self.monitor.name
        if value is None:
            return
        if self.divergence is not None:
            past = (value - self.divergence) * (1 if self.monitor.mode == "min" else -1)
            if past > 0 or not math.isfinite(value):
                self._stop(learn, f"{name} is {value:.4g}, worse than {self.divergence:.4g}")
        if learn.epoch < self.start_from:
            return
        if self.monitor.update(value):
            self.count, self.best_epoch = 0, learn.epoch
            self._best = validated_state(learn) if self.restore_best else None
            return
        self.count += 1
        if self.count >= self.patience:
            self._stop(learn, f"{name} was not better {self.count} times in a row")

    def _stop(self, learn: Loop, why: str) -> None:
        """End the fit, and say why and which round was best."""
        self.stopped, best = learn.epoch, self.monitor.best
        found = "" if best is None else f"; the best was {best:.4g}, epoch {self.best_epoch}"
        learn.stop(f"stopped after epoch {learn.epoch}: {why}{found}")
        raise CancelFitException

    def cleanup_fit(self, learn: Loop) -> None:
        """Put the best weights back."""
        self._resumed = False
        if self._best is not None:
            restore_validated(learn, self._best)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, its epoch and weights, and the count."""
        state = {"count": self.count, "best_epoch": self.best_epoch, "weights": self._best}
        return state | {"monitor": self.monitor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back the best value and the count, for the running fit or the next one."""
        self.count, self.best_epoch = state["count"], state["best_epoch"]
        self._best = state["weights"]
        self.monitor.load_state_dict(state["monitor"])
        self._resumed = True

    def __repr__(self) -> str:
        """Show what is watched."""
        return f"EarlyStopCB({self.monitor.name!r}, {self.monitor.mode!r}, {self.patience})"


class TimeLimitCB(Callback):
    """End the fit when its time is up: the training epoch ends, its validation still runs.

    >>> learn.fit(10, cbs=TimeLimitCB(minutes=30))

    Args:
        minutes: from the start of the fit.

    Raises:
        ValueError: `minutes` is not positive.

    Events: before_fit, after_batch, after_round
    Order:  STOP
    Reads:  training, history, row, epoch
    Writes:
    """

    order = Order.STOP

    def __init__(self, minutes: float) -> None:
        if not minutes > 0:
            raise ValueError(f"minutes are above 0, got {minutes}")
        self.minutes, self._end = minutes, math.inf

    def before_fit(self, learn: Loop) -> None:
        """Start the clock."""
        self._end = time.monotonic() + 60 * self.minutes

    def after_batch(self, learn: Loop) -> None:
        """End the training epoch."""
        if learn.training and time.monotonic() >= self._end:
            raise CancelEpochException

    def after_round(self, learn: Loop) -> None:
        """End the fit."""
        if time.monotonic() >= self._end:
            why = f"stopped after epoch {learn.epoch}: {self.minutes:g} minutes are over"
            learn.stop(f"{why}{_best_of([*learn.history, {'epoch': learn.epoch, **learn.row}])}")
            raise CancelFitException

    def __repr__(self) -> str:
        """Show the limit."""
        return f"TimeLimitCB({self.minutes})"


def _best_of(rows: list[dict[str, Any]]) -> str:
    """Return what to say of the round with the lowest validation loss, if there is one."""
    rows = [row for row in rows if math.isfinite(row.get("valid_loss", math.nan))]
    if not rows:
        return ""
    best = min(rows, key=lambda row: row["valid_loss"])
    return f"; the best valid_loss was {best['valid_loss']:.4g}, epoch {best['epoch']}"
