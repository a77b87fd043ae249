"""The display of a fit in a notebook: one output that is updated in place."""

from __future__ import annotations

import base64
import html
import io
import math
import time
from array import array
from typing import Any

import torch
from torch import Tensor

from .terminal import Bar, Lines


class Notebook(Lines):
    """One output of a cell, updated in place: table, bars, and a plot of the losses."""

    redraw_every = 0.25

    def __init__(self, plot: bool) -> None:
        super().__init__()
        self.bar: Bar | None = None
        self.curve, self.has_plot = LossCurve() if plot else None, plot
        self.handle: Any = None

    def show_bar(self, bar: Bar) -> None:
        """Show the bar, and draw the plot if it is time."""
        self.bar = bar
        if self.curve is not None:
            self.curve.draw_if_due()
        self.show()

    def write_row(self) -> None:
        """Show the table with its new row."""
        self.show()

    def add_loss(self, loss: Any) -> None:
        """Record the loss of a training batch, without reading it."""
        if self.curve is not None and isinstance(loss, Tensor):
            # a new tensor: CUDA graphs overwrite what a compiled model returns
            self.curve.pending.append(loss.detach().float().mean())

    def add_valid_loss(self, loss: float) -> None:
        """Record a validation loss, after the training batches so far."""
        if self.curve is not None:
            self.curve.add_valid(loss)

    def close(self) -> None:
        """Remove the bars; the table and the whole plot stay."""
        self.bar = None
        self.show()  # before the plot: a second Ctrl-C may end its drawing
        if self.curve is not None:
            self.curve.draw()
            self.show()

    def show(self) -> None:
        """Display everything; from the second time on, update the first output."""
        from IPython.display import display

        self.header = self.columns
        lines = [self._line(cells) for cells in ({c: c for c in self.columns}, *self.rows)]
        bundle = {"text/html": self.html(), "text/plain": "\n".join(lines)}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)

    def html(self) -> str:
        """Return the table, the bars and the plot as HTML."""
        from fastprogress.core import text2html_table

        parts = []
        if self.rows:
            cells = [[row.get(name, "") for name in self.columns] for row in self.rows]
            escaped = [[html.escape(cell) for cell in line] for line in (self.columns, *cells)]
            parts.append(text2html_table(escaped))
        if self.bar is not None:
            parts += _html_bars(self.bar)
        if self.curve is not None and self.curve.image:
            parts.append(
                f'<img width="600" height="300" decoding="sync" alt="losses" '
                f'src="data:image/png;base64,{self.curve.image}">'
            )
        return "\n".join(parts)


class LossCurve:
    """The training loss of each batch and the validation loss of each round, and a plot of both.

    Losses wait on their device and are read together, at most once a second.
    """

    def __init__(self) -> None:
        self.pending: list[Tensor] = []
        self.train = array("f")
        self.valid: list[tuple[int, float]] = []
        self.image = ""  # a PNG in base64
        self.due = time.perf_counter() + 1

    def add_valid(self, loss: float) -> None:
        """Add a validation loss at the number of training batches so far."""
        self.valid.append((len(self.train) + len(self.pending), loss))

    def draw_if_due(self) -> None:
        """Draw at most once a second, and for at most a tenth of the time."""
        start, is_first = time.perf_counter(), not self.image
        if start >= self.due:
            self.draw()
            end = time.perf_counter()
            # the first one imports matplotlib and says nothing about the next
            self.due = end + (1 if is_first else max(1, 10 * (end - start)))

    def draw(self) -> None:
        """Read the pending losses, and draw the plot anew."""
        from matplotlib.figure import Figure  # not pyplot: no window, nothing left open

        if self.pending:
            self.train.extend(torch.stack(self.pending).tolist())
            self.pending = []
        if not self.train and not self.valid:
            return
        figure = Figure(figsize=(6, 3))
        axes = figure.subplots(
            gridspec_kw={"left": 0.12, "right": 0.98, "bottom": 0.16, "top": 0.97}
        )
        axes.plot(*thinned(self.train), label="train", linewidth=1)
        if self.valid:
            axes.plot(*zip(*self.valid, strict=True), label="valid", marker="o", markersize=4)
        axes.set(xlabel="batch", ylabel="loss")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper right")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
        self.image = base64.b64encode(buffer.getvalue()).decode()


def thinned(losses: array, most: int = 1000) -> tuple[list[float], list[float]]:
    """Return x and y of a line with at most `most` points: means over neighbouring batches."""
    size = math.ceil(len(losses) / most) or 1
    groups = [losses[i : i + size] for i in range(0, len(losses), size)]
    x = [i * size + (len(group) + 1) / 2 for i, group in enumerate(groups)]  # batches from 1
    return x, [sum(group) / len(group) for group in groups]


def _html_bars(bar: Bar) -> list[str]:
    from fastprogress.core import html_progress_bar

    unit, done, total = bar.fit
    parts = bar.parts()
    del parts["fit"]
    label = html.escape(" · ".join([bar.phase, *map(str.strip, parts.values())]))
    label = f'<span style="white-space: nowrap">{label}</span>'
    known_total = None if bar.fraction is None else bar.total
    bars = [html_progress_bar(done, total, f"{unit} {done}/{total}")] if total else []
    return [*bars, html_progress_bar(bar.done, known_total, label)]
