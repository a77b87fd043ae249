"""The progress of a fit, for the eye: ProgressCB."""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..base.batch import n_batches
from ..base.modes import is_training
from ..base.notebook import in_notebook
from ..base.rank import rank
from ..core.callback import Callback
from ..core.events import Order
from .notebook import Notebook
from .terminal import Bar, Lines, Silent, Terminal, redirected_log

if TYPE_CHECKING:
    from ..core.learner import Loop


class ProgressCB(Callback):
    """Show a table with one row a round, and a bar for the running pass.

    In a terminal the bar stands beneath the table and vanishes with the fit; in a notebook both are
    one output, updated in place. Written to a file or a pipe, a fit is one plain line a round. The
    columns are those of `learn.history`; a narrow terminal leaves out those without room.

    Between two looks, five a second at most, a batch costs a look at the clock; the loss is read
    from the device only for a look. While a fit runs, a MetricsCB does not print its rows.

    Args:
        plot: also draw the losses while they come, in notebooks; elsewhere it has no effect.

    Events: before_fit, before_epoch, after_batch, after_round, after_fit, cleanup_fit
    Order:  REPORT
    Reads:  cbs, depth, history, plan, steps_done, epoch, n_epochs, training, dl, iter, loss
    Writes:
    """

    order = Order.REPORT

    _display: Any = None  # open from before_fit to cleanup_fit
    _records = False  # whether the display wants the loss of each batch
    _due = math.inf  # when to look at the bar

    def __init__(self, plot: bool = False) -> None:
        self.plot = plot
        self._taken_logs = ExitStack()

    def before_fit(self, learn: Loop) -> None:
        """Open a display, and take over what a MetricsCB would print."""
        if getattr(learn, "depth", 0):
            return
        self._close()
        self._display, self._due = open_display(self.plot), -math.inf
        self._records, self._rows_shown = self._display.has_plot, None
        self._logs_rows = not hasattr(learn, "history")
        for cb in getattr(learn, "cbs", ()):
            if hasattr(cb, "_log") and cb is not self:
                self._take_log(cb)

    def before_epoch(self, learn: Loop) -> None:
        """Begin a bar."""
        if not self._shows(learn):
            return
        if self._rows_shown is None:  # a resumed fit begins with rows that were shown before
            self._rows_shown = len(getattr(learn, "history", ()))
        self._show_rows(learn)
        self._start, self._total = perf_counter(), pass_total(learn)
        if self._start >= self._due:
            self._look(learn, done=0)

    def after_batch(self, learn: Loop) -> None:
        """Move the bar, if it is time."""
        if self._records and is_training(learn) and self._shows(learn):
            self._display.add_loss(learn.loss)
        if perf_counter() >= self._due:
            self._look(learn, done=learn.iter + 1)

    def after_round(self, learn: Loop) -> None:
        """Show the row of the round."""
        if self._shows(learn):
            self._show_rows(learn)

    def after_fit(self, learn: Loop) -> None:
        """Close the display; a learner of a notebook's own may have no clean-up."""
        self.cleanup_fit(learn)

    def cleanup_fit(self, learn: Loop) -> None:
        """Close the display, whatever ended the fit, and give printing back to the MetricsCB."""
        if self._shows(learn):
            self._show_rows(learn)
            self._close()

    def _shows(self, learn: Loop) -> bool:
        """Return whether this fit is the one on display, not one inside it."""
        return self._display is not None and not getattr(learn, "depth", 0)

    def _look(self, learn: Loop, done: int) -> None:
        if not self._shows(learn):
            return
        loss = read_loss(learn.loss) if done else None
        phase = "train" if is_training(learn) else "valid"
        seconds = perf_counter() - self._start
        self._display.show_bar(Bar(fit_progress(learn), phase, done, self._total, seconds, loss))
        self._due = perf_counter() + self._display.redraw_every

    def _show_rows(self, learn: Loop) -> None:
        """Show what came to the history since the last time."""
        if self._logs_rows or self._rows_shown is None:
            return
        counts_steps = learn.plan.cuts or learn.plan.n_steps is not None
        for row in learn.history[self._rows_shown :]:
            if "valid_loss" in row:
                self._display.add_valid_loss(row["valid_loss"])
            self._display.add_row({k: v for k, v in row.items() if k != "steps" or counts_steps})
        self._rows_shown = len(learn.history)

    def _log(self, row: dict[str, Any]) -> None:
        """Show the row of a pass, where there is no history to read rows from."""
        if self._display is None:
            return
        if row.get("train") == "eval" and "loss" in row:
            self._display.add_valid_loss(float(row["loss"]))
        self._display.add_row(row)

    def _take_log(self, metrics: Any) -> None:
        """Keep a MetricsCB from printing; show the rows of one that writes none to the history."""
        self._logs_rows = self._logs_rows or not hasattr(metrics, "rows")
        taken = redirected_log(metrics, self._log) if self._logs_rows else redirected_log(metrics)
        self._taken_logs.enter_context(taken)

    def _close(self) -> None:
        """Close the display if one is open, and give back what was taken."""
        display, self._display, self._due, self._records = self._display, None, math.inf, False
        self._taken_logs.close()
        if display is not None:
            display.close()

    def __repr__(self) -> str:
        """Show whether it plots."""
        return f"ProgressCB({'plot=True' if self.plot else ''})"


def open_display(plot: bool = False) -> Lines | Silent:
    """Return what suits the process: a notebook's output, a terminal, or else plain lines."""
    if rank():
        return Silent()
    if in_notebook():
        return Notebook(plot)
    isatty = getattr(sys.stdout, "isatty", None)
    return Terminal() if isatty is not None and isatty() else Lines()


def fit_progress(learn: Any) -> tuple[str, int, int | None]:
    """Return unit, done and total of the fit: in updates where `n_steps` was given, else epochs."""
    plan = getattr(learn, "plan", None)
    if plan is not None and plan.n_steps is not None:
        return "step", learn.steps_done, plan.n_steps
    return "epoch", learn.epoch, getattr(learn, "n_epochs", None)


def pass_total(learn: Any) -> int | None:
    """Return how many batches the pass that begins will have, None when unknown."""
    total, plan = n_batches(learn.dl), getattr(learn, "plan", None)
    if plan is None or not is_training(learn):
        return total
    updates = plan.stop_after(learn.steps_done) - learn.steps_done
    if updates == math.inf:
        return total
    end = updates * learn.batches_per_step
    return end if plan.cuts or total is None else min(end, total)


def read_loss(loss: Any) -> float | None:
    """Return a loss (the mean of several) as a number, or None; this waits for its device."""
    return loss.float().mean().item() if isinstance(loss, Tensor) else loss
