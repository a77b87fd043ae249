"""The history of a fit as curves: `learn.history.plot()`.

Stands on core and plotting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minilearn.base.lazy_method import method_of
from minilearn.core.history import History

from .plotting import get_grid

if TYPE_CHECKING:
    import numpy as np

COUNTERS = ("epoch", "steps", "time")


@method_of(History)
def plot(self: History, *names: str, **kwargs: Any) -> np.ndarray:
    """Plot the loss and each metric, training and validation together.

    The axis counts epochs, or updates where an epoch has several rows.

    Args:
        self: the history.
        names: what to plot, "loss" and names of metrics; by default all that are numbers.
        kwargs: go to `get_grid`, such as `figsize` or `ncols`.

    Returns:
        The array of axes.

    Raises:
        ValueError: there are no rows yet.
        KeyError: there is no such column.
    """
    if not self:
        raise ValueError("the history has no rows yet: call plot() after a fit")
    by_epoch = len(set(self["epoch"])) == len(self)
    x = [i + 1 for i in self["epoch"]] if by_epoch else self["steps"]
    names = names or tuple(dict.fromkeys(_bare(c) for c in self.columns if _is_number(self[c], c)))
    size: dict[str, Any] = {"imsize": 3.2} | kwargs
    fig, axs = get_grid(len(names), **size)
    for ax, name in zip(axs.flat, names, strict=False):
        columns = {f"train_{name}": "training", _valid(name): "validation"}
        for column in [c for c in columns if c in self.columns] or [name]:
            ax.plot(x, self[column], "o-", ms=3, label=columns[column])
        ax.set(title=name, xlabel="epoch" if by_epoch else "updates")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.grid(alpha=0.3)
    lines = {line.get_label(): line for ax in axs.flat for line in ax.lines}
    fig.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=2, frameon=False)
    return axs


def _bare(column: str) -> str:
    return "loss" if column == "valid_loss" else column.removeprefix("train_")


def _valid(name: str) -> str:
    return "valid_loss" if name == "loss" else name


def _is_number(values: list[Any], column: str) -> bool:
    kinds = {type(v) for v in values if v is not None}
    return column not in COUNTERS and kinds <= {int, float}
