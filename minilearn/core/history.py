"""The record of a fit: one row a round.

matplotlib and pandas are imported by the methods that need them.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ..base.text import did_you_mean, in_columns

if TYPE_CHECKING:
    import numpy as np
    import pandas

COUNTERS = ("epoch", "steps", "time")
FIRST = ("epoch", "steps", "train_loss", "valid_loss")


def in_order(row: dict[str, Any]) -> dict[str, Any]:
    """Return `row` in column order: counters, losses, training, validation, time."""

    def rank(name: str) -> int:
        if name in FIRST:
            return FIRST.index(name)
        return 6 if name == "time" else 4 if name.startswith("train_") else 5

    return {name: row[name] for name in sorted(row, key=rank)}


class History(list):
    """A list of rows, one dict a round, that can also be read by column.

    Columns are `epoch` (full passes before this round's end), `steps` (updates so far),
    `train_loss`, `valid_loss`, `train_<name>` and `<name>` for each metric (the latter from the
    validation), and `time` (seconds). A round without a validation lacks its columns.

    >>> learn.fit(3)
    >>> learn.history["valid_loss"]
    [..., ..., ...]
    """

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> History: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: Any) -> Any:
        """Return a row by number, some rows by slice, a column by name (None where a row lacks it).

        Raises:
            KeyError: no row has such a column.
        """
        if isinstance(key, slice):
            return History(super().__getitem__(key))
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self.columns:
            near = did_you_mean(key, self.columns, n=1)
            there = ", ".join(self.columns) or "no rows yet"
            raise KeyError(f"no column {key!r}; there are {there}{near}")
        return [row.get(key) for row in self]

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in their order."""
        return list(in_order({name: None for row in self for name in row}))

    def plot(self, *names: str, **kwargs: Any) -> np.ndarray:
        """Plot the loss and each metric, training and validation together.

        The axis counts epochs, or updates where an epoch has several rows.

        Args:
            names: what to plot, "loss" and names of metrics; by default all that are numbers.
            kwargs: go to `get_grid`, such as `figsize` or `ncols`.

        Returns:
            The array of axes.

        Raises:
            ValueError: there are no rows yet.
            KeyError: there is no such column.
        """
        from ..base.plotting import as_written, get_grid

        if not self:
            raise ValueError("the history has no rows yet: call plot() after a fit")
        by_epoch = len(set(self["epoch"])) == len(self)
        x = self["epoch" if by_epoch else "steps"]
        names = names or tuple(
            dict.fromkeys(_metric_name(c) for c in self.columns if _is_number(self[c], c))
        )
        size: dict[str, Any] = {"imsize": 3.2} | kwargs
        fig, axs = get_grid(len(names), **size)
        for ax, name in zip(axs.flat, names, strict=False):
            columns = {f"train_{name}": "training", _valid_column(name): "validation"}
            for column in [c for c in columns if c in self.columns] or [name]:
                ax.plot(x, self[column], "o-", ms=3, label=columns[column])
            ax.set(title=as_written(name), xlabel="epoch" if by_epoch else "updates")
            ax.xaxis.get_major_locator().set_params(integer=True)
            ax.grid(alpha=0.3)
        lines = {line.get_label(): line for ax in axs.flat for line in ax.lines}
        fig.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=2, frameon=False)
        return axs

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a data frame."""
        import pandas

        return pandas.DataFrame(list(self), columns=self.columns)

    def to_csv(self, path: str | Path) -> None:
        """Write the rows to a CSV file, numbers in full, nothing where a row lacks a column."""
        with Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self)

    def __str__(self) -> str:
        """Return the rows as a table of text."""
        rows = [self.columns] + [[format_value(row.get(c)) for c in self.columns] for row in self]
        return "\n".join(in_columns(rows))

    def __repr__(self) -> str:
        """Show the table, or that there is none yet."""
        return str(self) if self else "History: no rows yet"


def _metric_name(column: str) -> str:
    return "loss" if column == "valid_loss" else column.removeprefix("train_")


def _valid_column(name: str) -> str:
    return "valid_loss" if name == "loss" else name


def _is_number(values: list[Any], column: str) -> bool:
    kinds = {type(v) for v in values if v is not None}
    return column not in COUNTERS and kinds <= {int, float}


def format_value(value: Any) -> str:
    """Return `value` as short text for a table: numbers to four significant digits."""
    if value is None:
        return ""
    if isinstance(value, float):
        small = math.isfinite(value) and abs(value) < 1e-3 and value
        return f"{value:.4g}" if small else f"{value:.4f}"
    text = str(value)
    return text if len(text) <= 24 else text[:23] + "…"
