"""The progress of a fit on display: ProgressCB."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from fastcore.basics import noop
from torch import Tensor

from ..base.batch import is_number, n_batches
from ..base.modes import is_training
from ..base.notebook import in_notebook
from ..base.rank import rank
from ..base.text import is_terminal
from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop
from ..metrics.callback import MetricsCB
from .notebook_display import Notebook
from .terminal import Bar, Lines, Terminal, redirected_log


def harmless(method: Callable[..., None]) -> Callable[..., None]:
    """Let what goes wrong in a display end the display, but not the fit."""

    @wraps(method)
    def run(self: ProgressCB, x: Any) -> None:
        try:
            method(self, x)
        except Exception as e:
            self._display = None
            self._close()
            warnings.warn(
                f"the progress is no longer shown: {type(e).__name__}: {e}. The fit goes on.",
                stacklevel=3,
            )

    return run


class ProgressCB(Callback):
    """Show a table with one row a round, and a bar for the running training epoch or validation.

    In a terminal the bar is below the table and vanishes with the fit; in a notebook both are one
    output, updated in place. Written to a file or a pipe, a fit is one plain line a round. The
    columns are those of `learn.history`; a narrow terminal leaves some out, and says which. A
    notebook shows the last 100 rows.

    The bar is drawn at most five times a second, and only then the loss is read from the device,
    as are values of `learn.log(..., bar=True)`. While a fit runs, a MetricsCB does not print its
    rows; one with a `_log` of its own still calls it. Of several ProgressCBs the last one shows the
    fit. Where a display fails, one warning says so, and the fit goes on without.

    A subclass that draws by itself, in an `after_batch` of its own, keeps what it needs in
    `losses`, `val_losses` and `mbar`, which are empty when a fit begins.

    >>> cbs = [TrainCB(), MetricsCB(accuracy), ProgressCB(plot=True)]
    >>> Learner(model, dls, F.cross_entropy, cbs=cbs).fit(2)

    Args:
        plot: also plot the losses during the fit, in notebooks; elsewhere it has no effect. Names
            say what to plot instead: "loss", metrics, other columns of the history, and what
            `learn.log` is given.
        metrics: show the metrics of the running epoch in the bar, those of this process. Each
            drawing computes them on a copy.

    Events: before_fit, before_epoch, after_batch, after_round, after_fit, cleanup_fit
    Order:  REPORT
    Reads:  cbs, depth, history, plan, steps_done, epoch, n_epochs, training, dl, iter, loss
    Writes:
    """

    order = Order.REPORT

    _display: Any = None  # open from before_fit to cleanup_fit
    _plots = False  # whether the display needs the loss of each batch
    _due = math.inf  # when to draw the bar

    def __init__(self, plot: bool | str | Sequence[str] = False, metrics: bool = False) -> None:
        self.plot = (
            ("loss",) if plot is True else (plot,) if type(plot) is str else tuple(plot or ())
        )
        self.metrics = metrics
        self._logged: dict[str, Any] = {}  # for the bar, in this epoch
        self._plotted: set[str] = set()  # columns of what was logged
        self._redirected = ExitStack()

    @harmless
    def before_fit(self, learn: Loop) -> None:
        """Open a display, and show there what a MetricsCB would print."""
        if getattr(learn, "depth", 0):
            return
        self.losses, self.val_losses, self.mbar = [], [], SimpleNamespace()
        if rank():
            return
        displays = [cb for cb in getattr(learn, "cbs", ()) if isinstance(cb, ProgressCB)]
        if self is not (displays or [self])[-1]:
            return
        # one that is added in the fit goes on in the place of another
        shown = [cb._rows_shown for cb in displays if cb is not self and cb._display is not None]
        for cb in (self, *displays):
            cb._close()
        self._display, self._due = open_display(self.plot), -math.inf
        self._plots, self._rows_shown = self._display.has_plot, shown[-1] if shown else None
        self._shows_logs = not hasattr(learn, "history")
        for cb in getattr(learn, "cbs", ()):
            if isinstance(cb, MetricsCB) and not cb.prints_rows():
                continue
            if hasattr(cb, "_log") and cb not in displays:  # one without rows fills no history
                self._shows_logs = self._shows_logs or not hasattr(cb, "rows")
                log = self._log if self._shows_logs else noop
                self._redirected.enter_context(redirected_log(cb, log))

    @harmless
    def before_epoch(self, learn: Loop) -> None:
        """Begin a bar."""
        if not self._shows(learn):
            return
        if self._rows_shown is None:  # a resumed fit begins with rows that were shown before
            self._rows_shown = len(getattr(learn, "history", ()))
        self._show_rows(learn)
        self._start, self._total, self._logged = perf_counter(), n_batches_of_epoch(learn), {}
        if self._start >= self._due:
            self._draw_bar(learn, done=0)

    @harmless
    def after_batch(self, learn: Loop) -> None:
        """Draw the bar, if it is time."""
        if self._plots and is_training(learn) and self._shows(learn):
            self._display.add_loss(learn.loss)
        if perf_counter() >= self._due:
            self._draw_bar(learn, done=learn.iter + 1)

    @harmless
    def after_round(self, learn: Loop) -> None:
        """Show the row of the round."""
        if self._shows(learn):
            self._show_rows(learn)

    def after_fit(self, learn: Loop) -> None:
        """Close the display; your own learner may have no clean-up."""
        self.cleanup_fit(learn)

    @harmless
    def cleanup_fit(self, learn: Loop) -> None:
        """Close the display, whatever ended the fit, and let a MetricsCB print again."""
        if self._shows(learn):
            self._show_rows(learn)
            self._close()

    def _shows(self, learn: Loop) -> bool:
        """Return whether this is the fit on display, not a nested run."""
        return self._display is not None and not getattr(learn, "depth", 0)

    def _draw_bar(self, learn: Loop, done: int) -> None:
        if not self._shows(learn):
            return
        loss = learn.loss if done else None
        if isinstance(loss, Tensor):
            loss = loss.float().mean().item()  # waits for the device
        phase = "train" if is_training(learn) else "valid"
        values = {name: float(value) for name, value in self._logged.items()}
        for cb in learn.cbs if self.metrics and done else ():
            if isinstance(cb, MetricsCB):
                values = cb.running(learn) | values
        seconds = perf_counter() - self._start
        bar = Bar(fit_progress(learn), phase, done, self._total, seconds, loss, values)
        self._display.show_bar(bar)
        self._due = perf_counter() + self._display.redraw_every

    def _show_rows(self, learn: Loop) -> None:
        """Show the rows of the history that are new."""
        if self._shows_logs or self._rows_shown is None:
            return
        counts_steps = learn.plan.cuts or learn.plan.n_steps is not None
        for row in learn.history[self._rows_shown :]:
            # of the others each batch is plotted
            self._display.add_values({k: v for k, v in row.items() if k not in self._plotted})
            self._display.add_row({k: v for k, v in row.items() if k != "steps" or counts_steps})
        self._rows_shown = len(learn.history)

    @harmless
    def _log(self, row: dict[str, Any]) -> None:
        """Show the row of a training epoch or validation, if no history has it."""
        if self._display is None:
            return
        if row.get("train") == "eval" and "loss" in row:
            self._display.add_values({"valid_loss": float(row["loss"])})
        self._display.add_row(row)

    def add(self, learn: Loop, values: dict[str, Any], bar: bool) -> None:
        """Keep what `learn.log` was given for the bar and the plot; it is read when they are drawn.

        Args:
            learn: the Learner.
            values: numbers and tensors with one element by name; others are ignored.
            bar: whether the bar shows them, until this training epoch or validation ends.
        """
        if not self._shows(learn):
            return
        in_training = learn.training and "epoch" in learn.levels
        for name, value in values.items():
            if not (bar or name in self.plot) or not is_number(value):
                continue
            if isinstance(value, Tensor):  # a copy, which holds no graph
                value = value.detach().float().mean()
            if in_training:  # else it is in the row
                self._plotted.add(f"train_{name}")
                self._display.add_values({f"train_{name}": value}, 1)
            if bar:
                self._logged[name] = value

    def _close(self) -> None:
        """Close the display if one is open, and let others print again."""
        display, self._display, self._due, self._plots = self._display, None, math.inf, False
        self._redirected.close()
        if display is not None:
            display.close()

    def __repr__(self) -> str:
        """Show whether it plots."""
        plot = "plot=True" if self.plot == ("loss",) else f"plot={self.plot}"
        shown = [plot] * bool(self.plot) + ["metrics=True"] * self.metrics
        return f"ProgressCB({', '.join(shown)})"


def open_display(plot: Sequence[str] = ()) -> Lines:
    """Return the display for this process: a notebook's output, a terminal, or else plain lines."""
    if in_notebook():
        return Notebook(plot)
    return Terminal() if is_terminal() else Lines()


def fit_progress(learn: Any) -> tuple[str, int, int | None]:
    """Return unit, done and total of the fit: in updates where `n_steps` was given, else epochs."""
    plan = getattr(learn, "plan", None)
    if plan is not None and plan.n_steps is not None:
        return "step", learn.steps_done, plan.n_steps
    return "epoch", learn.epoch, getattr(learn, "n_epochs", None)


def n_batches_of_epoch(learn: Any) -> int | None:
    """Return how many batches this epoch over a loader will have, None when unknown."""
    total, plan = n_batches(learn.dl), getattr(learn, "plan", None)
    if plan is None or not is_training(learn):
        return total
    updates = plan.stop_after(learn.steps_done) - learn.steps_done
    if updates == math.inf:
        return total
    end = updates * learn.plan.batches_per_step
    return end if plan.cuts or total is None else min(end, total)
