"""End a fit before its time, and choose the best of its weights."""

from __future__ import annotations

import math
import time
import warnings
from typing import TYPE_CHECKING, Any

from minilearn.base.text import whole
from minilearn.core.callback import Callback
from minilearn.core.events import Order

from ..core.events import CancelEpochException, CancelFitException
from .averaging import restore_validated, validated_state
from .monitor import Monitor

if TYPE_CHECKING:
    from minilearn.core.learner import Loop


class EarlyStopCB(Callback):
    """End the fit when a column of the history has stopped getting better (R12, R13).

    The fit ends with the `patience`-th validation in a row that was not better than the best so
    far. Values that are not finite are not better; a round without a validation does not count.

    Args:
        monitor: the column, such as "valid_loss" or "accuracy".
        mode: "min" or "max"; "min" where the name ends in "loss".
        patience: so many validations in a row, 1 or more.
        min_delta: better means better by more than this.
        restore_best: end with the weights of the best validation, however the fit ended; these are
            the averages where an `EMACB` had the averages judged.
        keep: go on in the next fit with the best and the count of this one.

    Attributes:
        monitor: its `best` is the best value so far.
        best_epoch: the epoch of it.
        count: validations since.
        stopped: the epoch in which this ended the fit, else None.

    Raises:
        ValueError: there is no direction, or `patience` is below 1.
        KeyError: after the first validation, where there is no such column.

    Events: before_fit, before_round, after_round, cleanup_fit
    Order:  STOP
    Reads:  row, training, epoch, model, cbs
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
    ) -> None:
        self.monitor = Monitor(monitor, mode, min_delta)
        self.patience = whole("patience", patience, of="validations")
        self.restore_best, self.keep, self._resumed = restore_best, keep, False
        self._forget()

    def _forget(self) -> None:
        self.monitor.reset()
        self.count, self.best_epoch, self.stopped, self._best = 0, None, None, None

    def before_fit(self, learn: Loop) -> None:
        """Forget the last fit."""
        if not (self.keep or self._resumed):
            self._forget()
        self.stopped = None

    def before_round(self, learn: Loop) -> None:
        """End a resumed fit at once, if it was this that ended it before."""
        if self._resumed and self.count >= self.patience:
            raise CancelFitException

    def after_round(self, learn: Loop) -> None:
        """Compare, and end the fit when patience is at its end."""
        value = self.monitor.read(learn)
        if value is None:
            return
        if self.monitor.update(value):
            self.count, self.best_epoch = 0, learn.epoch
            self._best = validated_state(learn) if self.restore_best else None
            return
        self.count += 1
        if self.count >= self.patience:
            self.stopped = learn.epoch
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
        """Go on from there, in the running fit or in the next one."""
        self.count, self.best_epoch, self._best = (
            state[name] for name in ("count", "best_epoch", "weights")
        )
        self.monitor.load_state_dict(state["monitor"])
        self._resumed = True

    def __repr__(self) -> str:
        """Show what is watched."""
        return f"EarlyStopCB({self.monitor.name!r}, {self.monitor.mode!r}, {self.patience})"


class TimeLimitCB(Callback):
    """End the fit when its time is up: the training pass ends, its validation still runs.

    Args:
        minutes: from the start of the fit.

    Raises:
        ValueError: `minutes` is not positive.

    Events: before_fit, after_batch, after_round
    Order:  STOP
    Reads:  training
    Writes:
    """

    order = Order.STOP

    def __init__(self, minutes: float) -> None:
        if not minutes > 0:
            raise ValueError(f"minutes are above 0, got {minutes}")
        self.minutes, self._end = minutes, math.inf

    def before_fit(self, learn: Loop) -> None:
        """Look at the clock."""
        self._end = time.monotonic() + 60 * self.minutes

    def after_batch(self, learn: Loop) -> None:
        """End the training pass."""
        if learn.training and time.monotonic() >= self._end:
            raise CancelEpochException

    def after_round(self, learn: Loop) -> None:
        """End the fit."""
        if time.monotonic() >= self._end:
            raise CancelFitException

    def __repr__(self) -> str:
        """Show the limit."""
        return f"TimeLimitCB({self.minutes})"


class SpikeCB(Callback):
    """Warn when the training loss jumps, or end the fit there: it diverges.

    The loss is looked at as a mean over every so many batches. A spike is a mean that is not
    finite, or `factor` times the lowest one so far (for positive losses).

    Args:
        factor: how much is too much, above 1.
        every: batches in a mean; the device is read once for each.
        stop: end the fit at the first spike.

    Attributes:
        spikes: (epoch, batch, loss) of each.

    Raises:
        ValueError: `factor` or `every` is too small.

    Events: before_fit, after_batch
    Order:  STOP
    Reads:  training, loss, epoch, iter
    Writes:
    Syncs: once in `every` batches
    """

    order = Order.STOP

    def __init__(self, factor: float = 3.0, every: int = 50, stop: bool = False) -> None:
        if not factor > 1 or every < 1:
            raise ValueError(f"factor is above 1 and every at least 1; got {factor} and {every}")
        self.factor, self.every, self.stop = factor, every, stop
        self.spikes: list[tuple[int, int, float]] = []
        self._forget()

    def _forget(self) -> None:
        self.spikes, self._sum, self._n, self._lowest = [], 0.0, 0, math.inf

    def before_fit(self, learn: Loop) -> None:
        """Forget the last fit."""
        self._forget()

    def after_batch(self, learn: Loop) -> None:
        """Add up the losses, and look at their mean when there are enough."""
        if not learn.training:
            return
        self._sum, self._n = self._sum + learn.loss.float().mean(), self._n + 1
        if self._n == self.every:
            loss, self._sum, self._n = float(self._sum) / self.every, 0.0, 0
            if math.isfinite(loss) and not loss > self.factor * self._lowest > 0:
                self._lowest = min(self._lowest, loss)
            else:
                self._report(learn, loss)

    def _report(self, learn: Loop, loss: float) -> None:
        self.spikes.append((learn.epoch, learn.iter, loss))
        warnings.warn(
            f"the training loss is {loss:.4g} in epoch {learn.epoch}, batch {learn.iter}; its "
            f"lowest was {self._lowest:.4g}{': the fit ends here' if self.stop else ''}",
            stacklevel=2,
        )
        if self.stop:
            raise CancelFitException

    def __repr__(self) -> str:
        """Show the factor."""
        return f"SpikeCB({self.factor}{', stop=True' if self.stop else ''})"
