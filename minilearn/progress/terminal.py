"""Displays of the progress of a fit: plain lines, a terminal.

They do not know the Learner: `ProgressCB` gives them rows and the state of a bar.
"""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastcore.basics import noop
from torch import Tensor

from ..base.text import write_out
from ..core.history import format_value, in_order


@dataclass
class Bar:
    """The state of a bar: a training epoch or validation.

    Attributes:
        fit: unit, done and total of the fit, such as ("epoch", 1, 3); total is None when unknown.
        phase: "train" or "valid".
        done: batches done.
        total: batches in all, None when unknown.
        seconds: since the first batch was asked for.
        loss: of the last batch, None where there is none to show.
        values: what else to show, by name.
    """

    fit: tuple[str, int, int | None]
    phase: str
    done: int
    total: int | None
    seconds: float
    loss: float | None
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def fraction(self) -> float | None:
        """How much is done, 0 to 1; None if the total is unknown or turned out wrong."""
        return self.done / self.total if self.total and self.done <= self.total else None

    def parts(self) -> dict[str, str]:
        """Return the parts of the line by name, from left to right."""
        unit, done, total = self.fit
        known = self.fraction is not None
        parts = {"fit": f"{unit} {done}" + (f"/{total} " if total else " ") + self.phase}
        if known:
            parts["percent"] = f"{self.fraction:4.0%}"
        parts["count"] = f"{self.done}/{self.total}" if known else f"{self.done} batches"
        if self.loss is not None:
            parts["loss"] = f"loss {format_value(self.loss)}"
        for name, value in self.values.items():
            parts[f"{name} "] = f"{name} {format_value(value)}"  # no other part has such a name
        if self.done and self.seconds > 0:
            parts["rate"] = _rate(self.done / self.seconds)
            if known:
                left = self.seconds / self.done * ((self.total or 0) - self.done)
                parts["left"] = f"{format_seconds(left)} left"
        return parts

    def line(self, width: int, fill: str = "#") -> str:
        """Return one line of fewer than `width` columns; the least important parts go first."""
        parts, most = self.parts(), width - 1
        known, values = "percent" in parts, [f"{name} " for name in self.values][::-1]
        order = ["rate", "count", "left", *values, "fit", "percent"]
        if not known:
            order = ["rate", *values, "fit", "count"]
        for name in order:
            bar = 11 if known and name in ("rate", "count") else 0  # 11: they go for a bar, too
            if len(" ".join(parts.values())) + bar > most:
                parts.pop(name, None)
        size = min(40, most - len(" ".join(parts.values())) - 3)
        if self.fraction is not None and "percent" in parts and size >= 8:
            parts["percent"] += f" |{(fill * int(self.fraction * size)).ljust(size, '-')}|"
        return " ".join(parts.values())[:most]


class Lines:
    """A header and one plain line a row, flushed as it comes: for files, pipes and logs."""

    redraw_every = math.inf  # seconds between two drawings of the bar
    has_plot = False  # whether it needs the loss of each batch

    def __init__(self) -> None:
        self.widths: dict[str, int] = {}  # of each column so far: its name, its widest value
        self.columns: list[str] = []
        self.header: list[str] = []

    def add_row(self, row: dict[str, Any]) -> None:
        """Show a row, after a header where its columns are new."""
        cells = {name: format_cell(name, value) for name, value in row.items()}
        if not row.keys() <= self.widths.keys():
            self.columns = list(in_order(dict.fromkeys([*self.columns, *row])))
        for name, cell in cells.items():
            self.widths[name] = max(self.widths.get(name, 6), len(name), len(cell))
        self.write_row(cells)

    def write_row(self, cells: dict[str, str]) -> None:
        """Write a row."""
        shown = self.fitting_columns()
        if shown != self.header:
            self.header = shown
            self.write_header()
        write_out(self._line(cells) + "\n")

    def write_header(self) -> None:
        """Write the names of the columns."""
        write_out(self._line({name: name for name in self.header}) + "\n")

    def fitting_columns(self) -> list[str]:
        """Return the columns that fit the width, here all of them."""
        return self.columns

    def _line(self, cells: dict[str, str]) -> str:
        line = "  ".join(cells.get(name, "").rjust(self.widths[name]) for name in self.header)
        return line.rstrip()

    def show_bar(self, bar: Bar) -> None:
        """Draw the bar; plain lines have none."""

    def add_loss(self, loss: Any) -> None:
        """Record the loss of a training batch for the plot; only a notebook has one."""

    def add_values(self, values: dict[str, Any], ahead: int = 0) -> None:
        """Record further values for the plot."""

    def close(self) -> None:
        """Remove everything but the rows."""


class Terminal(Lines):
    """Rows, and below them a bar that is redrawn in its line.

    It uses a carriage return and spaces, no escape codes, so that it works in any console.
    """

    redraw_every = 0.2

    def __init__(self) -> None:
        super().__init__()
        self.bar_shown = False

    def show_bar(self, bar: Bar) -> None:
        """Draw the bar over the one before."""
        width = terminal_width() - 2  # Ctrl-C prints ^C after it, which must not wrap
        write_out("\r" + bar.line(width, self._fill()).ljust(width - 1))
        self.bar_shown = True

    def write_row(self, cells: dict[str, str]) -> None:
        """Write a row in the place of the bar."""
        self.close()
        super().write_row(cells)

    def write_header(self) -> None:
        """Write the names of the columns, and before them those for which there is no room."""
        left_out = [name for name in self.columns if name not in self.header]
        if left_out:
            text = f"no room for {', '.join(left_out)}"
            write_out("\n".join(textwrap.wrap(text, terminal_width() - 1)) + "\n")
        super().write_header()

    def fitting_columns(self) -> list[str]:
        """Return the columns that fit the terminal; the least important are left out."""
        shown, width = list(self.columns), terminal_width() - 1
        while len(shown) > 1 and sum(self.widths[c] + 2 for c in shown) - 2 > width:
            shown.remove(max(shown, key=lambda c: (self._dispensable(c), self.columns.index(c))))
        return shown

    def _dispensable(self, column: str) -> int:
        """Return a rank: metrics of the training go first, then what is no metric."""
        if column in ("epoch", "train_loss", "valid_loss"):
            return 0
        if column.startswith("train_"):
            return 3
        return 1 if f"train_{column}" in self.columns else 2

    def _line(self, cells: dict[str, str]) -> str:
        return super()._line(cells)[: terminal_width() - 1]

    def close(self) -> None:
        """Clear the line of the bar."""
        if self.bar_shown:
            write_out("\r" + " " * (terminal_width() - 1) + "\r")
            self.bar_shown = False

    def _fill(self) -> str:
        try:
            "█".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
        except UnicodeEncodeError:
            return "#"
        return "█"


def terminal_width() -> int:
    """Return the present columns of the terminal, 80 if they are unknown."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, AttributeError, ValueError):
        return 80


def format_cell(name: str, value: Any) -> str:
    """Return a value as short text in one line; times in seconds or as a clock."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if (name, value) == ("train", "eval"):  # the mark of a row of MetricsCB
        return "valid"
    if name == "time" and isinstance(value, float):
        return f"{value:.1f}s" if value < 60 else format_seconds(value)
    return format_value(value if isinstance(value, float) else " ".join(str(value).split()))


def format_seconds(seconds: float) -> str:
    """Return seconds as mm:ss or h:mm:ss."""
    from fastprogress.core import format_time

    return format_time(seconds)


def _rate(rate: float) -> str:
    if rate < 1:
        return f"{1 / rate:.1f} s/it"
    return f"{rate:.0f} it/s" if rate >= 100 else f"{rate:.1f} it/s"


@contextmanager
def redirected_log(metrics: Any, log: Callable[[dict[str, Any]], None] = noop) -> Iterator[None]:
    """Send the rows that a MetricsCB would print to `log`, by default nowhere."""
    before = vars(metrics).get("_log")
    metrics._log = log
    try:
        yield
    finally:
        del metrics._log
        if before is not None:
            metrics._log = before
