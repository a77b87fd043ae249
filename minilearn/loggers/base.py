"""Records of a run, and how they reach a logger: LoggerCB, `learn.log`.

The record of an epoch is a row of `learn.history`. The record of an update holds `epoch`, `steps`,
the mean `loss` since the record before (and its named parts), the `lr` that the update used (with
several groups `lr_0`, `lr_1`, …), and what `learn.log` was given.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from numbers import Real
from typing import Any

from ..base.batch import is_number
from ..base.rank import rank
from ..core.callback import Callback
from ..core.events import CancelException, Order
from ..core.learner import Loop
from ..core.plan import parse_every
from ..core.state import learner_of
from ..metrics.callback import MetricsCB
from ..metrics.mean import loss_of
from ..progress.callback import ProgressCB
from .smoothing import MetricStorage

_running: list[Loop] = []  # those with a logger, the innermost last


def log(self: Loop, smooth: bool | str = True, *, bar: bool = False, **values: Any) -> None:
    """Add columns to the history, and values to loggers, from any code that runs during a fit.

    Numbers and tensors with one element become columns of `learn.history` where there is a
    MetricsCB: their means over the items of an epoch, `train_<name>` from training and `<name>`
    from validation; given outside of both, the last value as `<name>`. Of loggers, they join the
    next record of an update during training, larger tensors become histograms, and figures of
    matplotlib images. Tensors are read when a record or row is written. A ProgressCB plots those
    that its `plot` names.

    >>> def after_loss(learn):
    ...     learn.log(loss_squared=learn.loss**2)
    >>> with learn.on("after_loss", after_loss):
    ...     learn.fit(1)

    Args:
        self: the Learner.
        smooth: False to show a value as it is, "median" for the median, instead of the mean since
            the record before.
        bar: whether the bar of a ProgressCB shows the last of these values, too.
        values: by name.

    Raises:
        ValueError: the history has another column of a name.
    """
    for cb in self.cbs:
        if isinstance(cb, MetricsCB):
            cb.add(self, values)
        elif isinstance(cb, LoggerCB):
            cb.add(self, smooth, values)
        elif isinstance(cb, ProgressCB):
            cb.add(self, values, bar)


def log_values(smooth: bool | str = True, **values: Any) -> None:
    """Log values of the running fit from code that has no Learner, such as a model.

    >>> log_values(loss_of_the_decoder=0.5)  # in a model's forward; without a fit it does nothing

    Args:
        smooth: as in `learn.log`.
        values: by name.
    """
    if _running:
        learner_of(_running[-1]).log(smooth, **values)


def failed(error: BaseException | None) -> bool:
    """Return whether a fit ended with more than a cancel."""
    return not isinstance(error, (type(None), CancelException))


def need(library: str) -> None:
    """Raise where `library` is not installed: when the callback is made, not in the fit."""
    if find_spec(library) is None:
        raise ImportError(f"{library} is not installed; pip install 'minilearn[loggers]' has it")


def numbers(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the values of a record that can be plotted over the updates."""
    return ((k, float(v)) for k, v in record.items() if isinstance(v, Real) and k != "steps")


class LoggerCB(Callback):
    """The base of all loggers; by itself it keeps the records in `records`.

    Your own logger overrides `_write`, and `_open`, `_close` and `_media` where it needs them. If
    one of these raises, there is one warning and the training goes on; records are kept, and tried
    again at the end of each round. Only rank 0 writes.

    >>> logger = LoggerCB()
    >>> learn.fit(2, cbs=logger)
    >>> len(logger.records)
    2

    Args:
        every: updates between two records; None for the rows of the history alone.

    Events: before_fit, before_round, before_step, after_batch, after_round, cleanup_fit
    Order:  REPORT
    Reads:  scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history, levels,
            error
    Writes:
    Syncs: once in `every` updates
    """

    order = Order.REPORT
    in_probe = False
    writes_everywhere = False  # or on rank 0 alone
    is_local = True  # writes files; a dry run leaves servers alone
    smooth: bool | str = True  # how the losses of a record are smoothed, as in MetricStorage
    window: int | None = None  # batches in a mean; None for those since the record before

    def __init__(self, every: int | None = None) -> None:
        self.every = None if every is None else parse_every(every, ("step",))[0]
        self._begin()

    def _begin(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.storage = MetricStorage(self.window or self.every or 1)
        self._pending: list[Any] = []  # records, and media as (name, value, step)
        self.written = self._seen = self._step = self._last = 0
        self._opened = self._failed = False
        self.resumed_after: int | None = None  # updates
        self._lrs: list[float] = []
        self.run_id: Any = None  # of a tracker's run; a resumed fit goes on with it

    # ---- events ----

    def before_fit(self, learn: Loop) -> None:
        """Forget the last fit; the logger is opened with the first record."""
        self._begin()
        self.scratch = learn.scratch
        self._on = self.writes_everywhere or rank() == 0
        self._on = self._on and (self.is_local or self.scratch is None)
        _running.append(learn)

    def before_round(self, learn: Loop) -> None:
        """Write the row of a round in which a checkpoint was saved before this wrote it."""
        self.after_round(learn)

    def before_step(self, learn: Loop) -> None:
        """Note the learning rates, before a schedule moves them."""
        if self.every and (learn.steps_done + 1) % self.every == 0:
            groups = getattr(learn.opt, "param_groups", ())
            self._lrs = [float(group["lr"]) for group in groups if "lr" in group]

    def after_batch(self, learn: Loop) -> None:
        """Keep the losses, and write a record if it is time."""
        if not (self._on and learn.training):
            return
        updated, self._step = learn.steps_done != self._step, learn.steps_done
        if self.every:
            losses = {**(learn.loss_parts or {}), "loss": loss_of(learn)}
            self.storage.update(smooth=self.smooth, **losses)
            if updated and self._step % self.every == 0:
                self._emit(self.update_record(learn))

    def after_round(self, learn: Loop) -> None:
        """Write the rows that are new in the history."""
        records = [dict(row) for row in learn.history[self._seen :]]
        self._seen = len(learn.history)
        self._emit(*records, again=True)

    def cleanup_fit(self, learn: Loop) -> None:
        """Write what is left, and close."""
        self.after_round(learn)
        if self._opened:
            self._guard(self._close, learn.error)
        self._opened = False
        if learn in _running:
            _running.remove(learn)

    # ---- records ----

    def update_record(self, learn: Loop) -> dict[str, Any]:
        """Return the record of the update that was just made; this reads the device."""
        values = {name: value for name, (_, value) in self.storage.values_maybe_smooth.items()}
        several = len(self._lrs) > 1
        lrs = {f"lr_{i}" if several else "lr": lr for i, lr in enumerate(self._lrs)}
        return {"epoch": learn.epoch, "steps": learn.steps_done, **values, **lrs}

    def add(self, learn: Loop, smooth: bool | str, values: dict[str, Any]) -> None:
        """Keep what `learn.log` was given for the next record; write media at once."""
        by_update = self.every and learn.training and "epoch" in learn.levels
        for name, value in values.items() if self._on else ():
            if is_number(value):
                if by_update:
                    self.storage.add(name, value, smooth)
            else:
                self._emit((name, value, learn.steps_done))

    def _emit(self, *items: Any, again: bool = False) -> None:
        self._pending += items if self._on else ()
        if self._pending and (again or not self._failed):
            self._guard(self._write_pending)

    def _write_pending(self) -> None:
        if not self._opened:
            self._open()
            self._opened = True
        while self._pending:
            item = self._pending[0]
            if isinstance(item, dict):
                self._write(item)
                self.written, self._last = self.written + 1, item["steps"]
                del self._pending[0]
            else:  # is not tried again
                self._media(*self._pending.pop(0))

    def _guard(self, f: Any, *args: Any) -> None:
        try:
            f(*args)
        except Exception as e:
            if not self._failed:
                warnings.warn(
                    f"{type(self).__name__} cannot write: {type(e).__name__}: {e}. The fit goes "
                    "on; records are kept, and tried again at the end of each round.",
                    stacklevel=2,
                )
            self._failed = True

    # ---- for subclasses ----

    def _open(self) -> None:
        """Get ready to write; a resumed fit keeps the first `written` records."""

    def _write(self, record: dict[str, Any]) -> None:
        """Write a record."""
        self.records.append(record)

    def _media(self, name: str, value: Any, step: int) -> None:
        """Write an image (a figure) or a histogram (a tensor); by default nothing."""

    def _close(self, error: BaseException | None) -> None:
        """Close what `_open` opened; `error` is what ended the fit."""

    # ---- a resume ----

    def state_dict(self) -> dict[str, Any]:
        """Return how many records were written, and what the next ones need."""
        return {
            "counts": [self.written, self._seen, self._step, self._last],
            "pending": [item for item in self._pending if isinstance(item, dict)],
            "storage": self.storage.state_dict(),
            "run_id": self.run_id,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after these records; to be called after `before_fit`."""
        self.written, self._seen, self._step, self._last = state["counts"]
        self.resumed_after, self.run_id = max(self._step, self._last), state["run_id"]
        self._pending = list(state["pending"])
        self.storage.load_state_dict(state["storage"])

    def __repr__(self) -> str:
        """Show how often it writes."""
        return f"{type(self).__name__}(every={self.every})"
