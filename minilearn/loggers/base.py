"""The rows of a run, and how they reach a sink: LoggerCB, `learn.log`.

Epoch rows are those of `learn.history`. Update rows, every so many updates, hold `epoch`, `steps`,
the mean `loss` since the row before (and its named parts), the `lr` that the update used (`lr_0`,
`lr_1`, … of several groups), and what `learn.log` was given.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from numbers import Number
from typing import Any

from minilearn.core.callback import Callback
from minilearn.core.events import Order
from minilearn.core.learner import Loop
from minilearn.core.plan import parse_every

from ..base.rank import rank
from ..core.events import CancelException
from ..metrics.mean import loss_of
from .smoothing import HistoryBuffer, MetricStorage

_running: list[Loop] = []  # those with a sink, the innermost last


def log(self: Loop, smooth: bool = True, **values: Any) -> None:
    """Give values to the sinks among the callbacks, from any code that runs during a fit.

    Numbers and tensors with one element join the next update row, where the pass trains, and their
    means over a pass the epoch row, as `train_<name>` and `valid_<name>` (as `<name>` outside of a
    pass). Tensors are read when a row is written. Larger tensors become histograms, figures of
    matplotlib pictures, at once, where the sink knows such. Without a sink nothing happens.

    Args:
        self: the Learner.
        smooth: False to show a value as it is, instead of the mean since the row before.
        values: by name.
    """
    for cb in self.cbs:
        if isinstance(cb, LoggerCB):
            cb.take(self, smooth, values)


def log_values(smooth: bool = True, **values: Any) -> None:
    """Do `learn.log` for the fit that is running: for a model, which knows no Learner.

    Args:
        smooth: as in `learn.log`.
        values: by name.
    """
    if _running:
        _running[-1].log(smooth, **values)


def broke_off(error: BaseException | None) -> bool:
    """Return whether `error`, which ended a fit, was more than a cancel."""
    return not isinstance(error, (type(None), CancelException))


def need(library: str) -> None:
    """Raise where `library` is not installed: when the callback is made, not in the fit."""
    if find_spec(library) is None:
        raise ImportError(f"{library} is not installed; pip install 'minilearn[loggers]' has it")


def numbers(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield what can be drawn over the updates."""
    columns: dict[str, Any] = {k: v for k, v in row.items() if isinstance(v, Number)}
    return ((k, float(v)) for k, v in columns.items() if k != "steps")


class LoggerCB(Callback):
    """The base of all sinks; by itself it keeps the rows in `rows`.

    A sink of your own overrides `_write`, and `_open`, `_close` and `_media` where it needs them.
    What these raise is warned about once and never ends the training; rows are kept, and tried
    again at the end of each round. Only the first of several processes writes.

    Args:
        every: also a row every so many updates; None for the rows of the history alone.

    Events: before_fit, before_step, after_batch, after_round, cleanup_fit
    Order:  REPORT
    Reads:  scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history, levels,
            error, valid_name
    Writes:
    Syncs: once in `every` updates
    """

    order = Order.REPORT
    in_probe = False
    writes_everywhere = False  # or in the first process alone
    is_local = True  # files; a dry run leaves servers alone
    window: int | None = None  # batches in a mean; None for those since the row before

    def __init__(self, every: int | None = None) -> None:
        self.every = None if every is None else parse_every(every, ("step",))[0]
        self._begin()

    def _begin(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.storage = MetricStorage(self.window or self.every or 1)
        self._logged: dict[str, HistoryBuffer] = {}  # since the last epoch row
        self._measured: dict[str, HistoryBuffer] = {}  # the same, of its validation
        self._shown = 0  # media that were written in that
        self._pending: list[Any] = []  # rows, and media as (name, value, step)
        self.written = self._seen = self._step = 0
        self.resumed = self._opened = self._failed = False
        self._lrs: list[float] = []
        self.run_id: Any = None  # of a tracker's run; a resumed fit goes on with it

    # ---- events ----

    def before_fit(self, learn: Loop) -> None:
        """Forget the fit before; the sink is opened with the first row."""
        self._begin()
        self.scratch = learn.scratch
        self._on = self.writes_everywhere or rank() == 0
        self._on = self._on and (self.is_local or self.scratch is None)
        _running.append(learn)

    def before_step(self, learn: Loop) -> None:
        """Note the learning rates, before a schedule moves them."""
        if self.every and (learn.steps_done + 1) % self.every == 0:
            groups = getattr(learn.opt, "param_groups", ())
            self._lrs = [float(group["lr"]) for group in groups if "lr" in group]

    def after_batch(self, learn: Loop) -> None:
        """Take the losses, and write a row if it is time."""
        if not (self.every and self._on and learn.training):
            return
        self.storage.update(**{**(learn.loss_parts or {}), "loss": loss_of(learn)})
        if learn.steps_done != self._step:
            self._step = learn.steps_done
            if self._step % self.every == 0:
                self._emit(self.update_row(learn))

    def after_round(self, learn: Loop) -> None:
        """Write the rows that came to the history."""
        rows = [dict(row) for row in learn.history[self._seen :]]
        self._seen = len(learn.history)
        if rows:
            logged = {**self._logged, **self._measured}
            rows[-1].update((name, buffer.global_avg) for name, buffer in logged.items())
            self._logged, self._measured, self._shown = {}, {}, 0
        self._emit(*rows, again=True)

    def cleanup_fit(self, learn: Loop) -> None:
        """Write what is left, and close."""
        self.after_round(learn)
        if self._opened:
            self._guard(self._close, learn.error)
        self._opened = False
        if learn in _running:
            _running.remove(learn)

    # ---- rows ----

    def update_row(self, learn: Loop) -> dict[str, Any]:
        """Return the row of the update that was just made; this reads the device."""
        values = {name: value for name, (_, value) in self.storage.values_maybe_smooth.items()}
        several = len(self._lrs) > 1
        lrs = {f"lr_{i}" if several else "lr": lr for i, lr in enumerate(self._lrs)}
        return {"epoch": learn.epoch, "steps": learn.steps_done, **values, **lrs}

    def take(self, learn: Loop, smooth: bool, values: dict[str, Any]) -> None:
        """Take what `learn.log` was given."""
        phase = "train_" if learn.training else f"{learn.valid_name or 'valid'}_"
        phase = phase if "epoch" in learn.levels else ""
        logged = self._logged if phase in ("", "train_") else self._measured
        for name, value in values.items() if self._on else ():
            if isinstance(value, Number) or getattr(value, "numel", lambda: 0)() == 1:
                if self.every and phase == "train_":
                    named: dict[str, Any] = {name: value}
                    self.storage.update(smooth=smooth, **named)
                logged.setdefault(phase + name, HistoryBuffer(1)).update(value)
            else:
                before = self.written
                self._emit((name, value, learn.steps_done))
                self._shown += self.written - before if logged is self._measured else 0

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
                self.written += 1
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
                    "on; rows are kept, and tried again at the end of each round.",
                    stacklevel=2,
                )
            self._failed = True

    # ---- for sinks ----

    def _open(self) -> None:
        """Get ready to write; where `resumed`, keep what the first `written` rows gave."""

    def _write(self, row: dict[str, Any]) -> None:
        """Write a row."""
        self.rows.append(row)

    def _media(self, name: str, value: Any, step: int) -> None:
        """Write a picture (a figure) or a histogram (a tensor); this sink leaves them out."""

    def _close(self, error: BaseException | None) -> None:
        """Let go of everything; `error` is what ended the fit."""

    # ---- a resume ----

    def state_dict(self) -> dict[str, Any]:
        """Return how many rows were written, and what the next ones need."""
        return {
            "counts": [self.written, self._seen, self._step],
            "shown": self._shown,
            "pending": [item for item in self._pending if isinstance(item, dict)],
            "storage": self.storage.state_dict(),
            "logged": _states(self._logged),
            "measured": _states(self._measured),
            "measuring": True,  # see `begun_anew`
            "run_id": self.run_id,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after these rows; to be called after `before_fit`."""
        self.resumed, self.run_id = True, state["run_id"]
        written, self._seen, self._step = state["counts"]
        if not self._opened:  # else media came since, the second time that this is loaded
            self.written = written - (0 if state["measuring"] else state["shown"])
        self._pending = list(state["pending"])
        self.storage.load_state_dict(state["storage"])
        self._logged = _buffers(state["logged"])
        if state["measuring"]:  # else a validation begins, and what it gave so far stays
            self._measured, self._shown = _buffers(state["measured"]), state["shown"]

    def __repr__(self) -> str:
        """Show how often it writes."""
        return f"{type(self).__name__}(every={self.every})"


def _states(buffers: dict[str, HistoryBuffer]) -> dict[str, Any]:
    return {name: buffer.state_dict() for name, buffer in buffers.items()}


def _buffers(states: dict[str, Any]) -> dict[str, HistoryBuffer]:
    buffers = {name: HistoryBuffer(1) for name in states}
    for name, saved in states.items():
        buffers[name].load_state_dict(saved)
    return buffers
