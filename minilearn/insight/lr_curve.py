"""Read a learning rate off the curve of a search: suggestions and the plot."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.plotting import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EARLY = 10  # so many first losses show how much the loss varies by itself
WIDTH = 0.15  # of the smoothing, in decades of the learning rate


class LRFound:
    """What `lr_find` found: suggestions by name, such as `lr.valley`, and the curve.

    Attributes:
        suggestions: learning rates by the name of their rule.
        lrs: the rate of each update.
        losses: its loss.
        smooth: the losses averaged over neighbouring rates, after cutting off the divergence.

    Raises:
        ValueError: the curve has no answer; says why.
    """

    def __init__(
        self, lrs: list[float], losses: list[float], rules: dict[str, Callable[..., float]]
    ) -> None:
        self.lrs, self.losses, self._clipped = lrs, losses, _clipped(losses)
        self.smooth = _smooth(lrs, self._clipped)
        _check_answer(lrs, losses, np.subtract(self._clipped, self.smooth)[:EARLY], self.smooth)
        self.suggestions = {n: float(f(lrs, self.smooth)) for n, f in rules.items()}

    def __getattr__(self, name: str) -> float:
        suggestions = self.__dict__.get("suggestions", {})
        if name not in suggestions:
            known = ", ".join(suggestions) or "none"
            raise AttributeError(f"no suggestion {name!r} was asked for; there are {known}")
        return suggestions[name]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the losses over the rates, raw and smoothed, and mark the suggestions."""
        ax = plot_curves(self.lrs, self.losses, ax)
        for i, (name, lr) in enumerate(self.suggestions.items()):
            loss = np.interp(math.log(lr), np.log(self.lrs), self.smooth)
            ax.plot(lr, loss, "osD^v"[i % 5], label=f"{name} {lr:.2g}", zorder=3)
        ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        return ax

    def __repr__(self) -> str:
        """Say the suggestions."""
        return f"LRFound({', '.join(f'{n}={lr:.3g}' for n, lr in self.suggestions.items())})"


def plot_curves(lrs: list[float], losses: list[float], ax: Axes | None = None) -> Axes:
    """Draw the losses over the rates, raw and smoothed, without the divergence."""
    clipped = _clipped(losses)
    ax = ax or new_axes((6.5, 3.5))
    ax.plot(lrs, clipped, color="0.75", lw=1, label="each update")
    ax.plot(lrs, _smooth(lrs, clipped), color="C0", label="smoothed")
    ax.set(xscale="log", xlabel="learning rate", ylabel="training loss", title="lr search")
    ax.grid(alpha=0.3)
    return ax


def limit(losses: Sequence[float], max_mult: float) -> float:
    """Return the loss above which a search has diverged, whatever the sign of the losses."""
    high, low = _early_and_lowest(losses)
    return low + (max_mult - 1) * max(high - low, abs(low))


def _early_and_lowest(losses: Sequence[float]) -> tuple[float, float]:
    finite = [loss for loss in losses if math.isfinite(loss)] or [0.0]
    return max(finite[:EARLY]), min(finite)


def _clipped(losses: Sequence[float]) -> list[float]:
    """Return the losses, none higher above the first ones than the lowest is below."""
    high, low = _early_and_lowest(losses)
    top = high + max(high - low, abs(high) / 20)
    return [min(loss, top) if loss == loss else top for loss in losses]


def _smooth(lrs: Sequence[float], losses: Sequence[float]) -> np.ndarray:
    """Average each loss with its neighbours, weighted by their distance in the rate."""
    x = np.log10(lrs) / WIDTH
    weights = np.exp(-((x[:, None] - x) ** 2) / 2)  # (N, N)
    return weights @ np.asarray(losses) / weights.sum(1)


def _check_answer(
    lrs: list[float], losses: list[float], noise: np.ndarray, smooth: np.ndarray
) -> None:
    where = f"{len(lrs)} updates" + (f" from lr {lrs[0]:.2g} on" if lrs else "")
    if len(lrs) < 4:
        reason = f"it ended after {where}, losses {losses}. Lower start_lr, look at data and loss"
    elif min(losses) == max(losses):
        reason = (
            f"the loss stayed at {losses[0]} over {where}. Does the optimizer have the weights?"
        )
    elif smooth.argmin() == 0:
        reason = f"the loss only rose over {where}. Lower start_lr"
    else:
        if smooth[0] - smooth.min() < 2 * np.std(noise):
            warnings.warn(
                "the loss fell by less than its noise: trust no suggestion of lr_find; try larger "
                "batches, or more updates with num_it",
                stacklevel=4,
            )
        return
    raise ValueError(f"lr_find has no answer: {reason}.")


def _valley(lrs: Sequence[float], losses: np.ndarray) -> float:
    """Return the rate in the middle of the longest falling subsequence of the losses."""
    losses = np.round(50 * losses / np.ptp(losses))  # what is less than 2% of the range is noise
    longest, start = np.ones(len(losses), int), np.arange(len(losses))
    for i, loss in enumerate(losses):
        before = np.where(losses[:i] > loss, longest[:i], 0)
        if before.any():
            last = np.flatnonzero(before == before.max())[-1]  # leave out what is flat before it
            longest[i], start[i] = before[last] + 1, start[last]
    end = longest.argmax()
    return lrs[(start[end] + end) // 2]


def _steep(lrs: Sequence[float], losses: np.ndarray) -> float:
    """Return the rate where the loss falls fastest, before its minimum."""
    return lrs[int(np.diff(losses[: losses.argmin() + 1]).argmin())]


def _minimum(lrs: Sequence[float], losses: np.ndarray) -> float:
    """Return a tenth of the rate with the lowest loss."""
    return lrs[int(losses.argmin())] / 10


def _slide(lrs: Sequence[float], losses: np.ndarray) -> float:
    """Slide a window of a decade down from the lowest loss until its ends are equally steep."""
    slopes = np.gradient(losses)
    width = min(max(1, round(1 / math.log10(lrs[1] / lrs[0]))), len(lrs) // 2)
    left = np.flatnonzero(slopes[width:] <= slopes[:-width])
    left = left[left < losses.argmin()]
    return lrs[left[-1] if len(left) else 0]


RULES = {"valley": _valley, "steep": _steep, "minimum": _minimum, "slide": _slide}


def rules_of(suggest: Any) -> dict[str, Callable[..., Any]]:
    """Return rules by name from names, functions, or one of these."""
    wanted = [suggest] if isinstance(suggest, str) or callable(suggest) else suggest
    unknown = [rule for rule in wanted if not callable(rule) and rule not in RULES]
    if unknown:
        raise ValueError(f"unknown rule {unknown[0]!r} in suggest; there are {', '.join(RULES)}")
    rules: Any = {getattr(r, "__name__", r): r for r in wanted}
    return {name: r if callable(r) else RULES[r] for name, r in rules.items()}
