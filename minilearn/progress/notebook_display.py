"""The display of a fit in a notebook: one output that is updated in place."""

from __future__ import annotations

import base64
import html
import io
import math
import time
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.plotting import as_written
from .terminal import Bar, Lines

MOST_ROWS = 100  # that are shown; laying out all of a long table takes longer with each row


class Notebook(Lines):
    """One output of a cell, updated in place: table, bars, and a plot of the losses.

    Args:
        plot: what to plot, "loss" and other names; nothing where it is empty.
    """

    redraw_every = 0.25

    def __init__(self, plot: Sequence[str] = ()) -> None:
        super().__init__()
        self.rows: deque[dict[str, str]] = deque(maxlen=MOST_ROWS)
        self.n_rows, self.row_due = 0, -math.inf
        self.bar: Bar | None = None
        self.curve, self.has_plot = LossCurve(plot) if plot else None, bool(plot)
        self.handle: Any = None

    def show_bar(self, bar: Bar) -> None:
        """Show the bar, and draw the plot if it is time."""
        self.bar = bar
        if self.curve is not None:
            self.curve.draw_if_due()
        self.show()

    def write_row(self, cells: dict[str, str]) -> None:
        """Show the table with its new row; one that follows fast is shown with a later one."""
        self.rows.append(cells)
        self.n_rows += 1
        if time.perf_counter() >= self.row_due:
            self.show()
            self.row_due = time.perf_counter() + self.redraw_every

    def add_loss(self, loss: Any) -> None:
        """Record the loss of a training batch, without reading it."""
        if self.curve is not None and isinstance(loss, Tensor):
            # a new tensor: CUDA graphs overwrite what a compiled model returns
            self.curve.pending.append(loss.detach().float().mean())

    def add_values(self, values: dict[str, Any], ahead: int = 0) -> None:
        """Record further values for the plot, `ahead` of the training batches so far."""
        if self.curve is not None:
            self.curve.add_values(values, ahead)

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
        text = "\n".join([*filter(None, [self.left_out()]), *lines])
        bundle = {"text/html": self.html(), "text/plain": text}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)

    def left_out(self) -> str:
        """Say how many rows are not shown."""
        left = self.n_rows - len(self.rows)
        return f"the last {len(self.rows)} of {self.n_rows:,} rows" if left else ""

    def html(self) -> str:
        """Return the table, the bars and the plot as HTML."""
        from fastprogress.core import text2html_table

        parts = [f"<p>{self.left_out()}</p>"] if self.left_out() else []
        if self.rows:
            cells = [[row.get(name, "") for name in self.columns] for row in self.rows]
            escaped = [[html.escape(cell) for cell in line] for line in (self.columns, *cells)]
            parts.append(text2html_table(escaped).removesuffix("<p>"))  # which nothing closes
        if self.bar is not None:
            parts += _html_bars(self.bar)
        if self.curve is not None and self.curve.image:
            width, height = self.curve.size
            parts.append(
                f'<img width="{width}" height="{height}" decoding="sync" '
                f'alt="{html.escape(", ".join(self.curve.names))}" '
                f'src="data:image/png;base64,{self.curve.image}">'
            )
        return "\n".join(parts)


class LossCurve:
    """The training loss of each batch, further values by name, and a plot of them.

    Losses wait on their device and are read together, at most once a second.

    Args:
        names: of what is plotted, each in axes of its own: "loss", and others, of which
            `train_<name>` and `valid_<name>` join the axes of `<name>`.
    """

    def __init__(self, names: Sequence[str] = ("loss",)) -> None:
        self.names = names
        self.pending: list[Tensor] = []
        self.train = array("f")
        self.values: dict[str, list[tuple[int, Any]]] = {}  # batches so far, value
        self.image = ""  # a PNG in base64
        self.due = time.perf_counter() + 1

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the plot in pixels of the page."""
        return 600 if len(self.names) == 1 else 900, 300 * math.ceil(len(self.names) / 2)

    def add_values(self, values: dict[str, Any], ahead: int = 0) -> None:
        """Add those that are plotted, `ahead` of the number of training batches so far."""
        for column, value in values.items():
            name = column.removeprefix("train_").removeprefix("valid_")
            if name in self.names and column != "train_loss":  # of which each batch is plotted
                batch = len(self.train) + len(self.pending) + ahead
                self.values.setdefault(column, []).append((batch, value))

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
        if not self.train and not self.values:
            return
        width, height = self.size
        figure = Figure(figsize=(width / 100, height / 100), layout="constrained")
        columns = min(2, len(self.names))
        grid = figure.subplots(math.ceil(len(self.names) / 2), columns, squeeze=False).flat
        for axes in grid[len(self.names) :]:
            axes.remove()
        for name, axes in zip(self.names, grid, strict=False):
            self._draw(name, axes)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
        self.image = base64.b64encode(buffer.getvalue()).decode()

    def _draw(self, name: str, axes: Any) -> None:
        """Draw what has this name."""
        if name == "loss" and self.train:
            axes.plot(*thinned(self.train), label="train", linewidth=1)
        has_train = f"train_{name}" in self.values
        labels = {f"train_{name}": "train", f"valid_{name}": "valid"}
        for column, label in (labels | {name: "valid" if has_train else as_written(name)}).items():
            if points := self.values.get(column):
                points[:] = [(x, float(y)) for x, y in points]  # tensors are read here
                x, y = zip(*points[:: len(points) // 1000 + 1], strict=True)
                axes.plot(x, y, label=label, marker="o" if len(x) < 50 else "", markersize=4)
        axes.set(xlabel="batch", ylabel=as_written(name), xlim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(loc="best")


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
