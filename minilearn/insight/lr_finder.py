"""Find a learning rate: raise it at each update, watch the loss, and undo everything."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.batch import batch_size
from ..base.notebook import in_notebook
from ..base.plotting import new_axes, quiet
from ..core.callback import Callback, attribute
from ..core.events import CancelEpochException, CancelFitException, Order
from ..core.learner import Loop
from ..core.nested import inner, participants
from ..distributed.barrier import processes_of
from ..metrics.mean import loss_of
from ..optim.schedulers import set_lr

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EARLY = 10  # the first losses, which show how noisy the loss is
WIDTH = 0.15  # of the smoothing, in decades of the learning rate


class LRFinderCB(Callback):
    """Raise the learning rate after each update, record it with the loss, stop on divergence.

    `learn.lr_find()` undoes what this does to the weights; `fit(n, cbs=LRFinderCB())` does not. All
    groups of the optimizer keep the ratio of their rates, and the largest is recorded. Validation
    is skipped.

    >>> learn.fit(1, cbs=LRFinderCB(), lr=1e-4)  # `learn.lr_find()` also puts all back

    Args:
        gamma: factor between two updates; with both `end_lr` and `num_it` it follows from them.
        max_mult: the loss has diverged when two updates in a row are above so many times the lowest
            loss, and above the lowest by more than `max_mult - 1` times the range so far.
        end_lr: the last rate.
        num_it: the number of updates.
        start_lr: the first rate; by default the optimizer's own.

    Attributes:
        lrs: the rate of each update.
        losses: its loss, the mean over all batches of the update.

    Raises:
        ValueError: the rates do not rise, or the optimizer has no rate.

    Events: before_fit, before_epoch, after_loss, after_batch, after_epoch, cleanup_fit
    Order:  STOP
    Reads:  training, opt, loss, loss_func, batch, n_items, steps_done, depth, cbs
    Writes:
    Syncs:  once a batch
    """

    order = Order.STOP
    in_probe = False

    def __init__(
        self,
        gamma: float = 1.3,
        max_mult: float = 3,
        end_lr: float | None = None,
        num_it: int | None = None,
        *,
        start_lr: float | None = None,
    ) -> None:
        self.gamma, self.max_mult, self.end_lr, self.num_it = gamma, max_mult, end_lr, num_it
        self.start_lr, self.lrs, self.losses = start_lr, [], []

    def course(self, start: float) -> tuple[float, int | None]:
        """Return the factor between two updates from `start` on, and how many there will be."""
        factor, length = self.gamma, self.num_it
        if self.end_lr is not None and length is not None:
            factor = (self.end_lr / start) ** (1 / max(length - 1, 1))
        elif self.end_lr is not None and factor > 1:
            length = 1 + math.ceil(math.log(self.end_lr / start) / math.log(factor) - 1e-9)
        if not factor > 1 or not self.max_mult > 1 or (length is not None and length < 2):
            raise ValueError(
                f"{self!r} does not raise the rate from {start}: gamma and max_mult must be above "
                "1, num_it at least 2, end_lr above the first rate"
            )
        return factor, length

    def before_fit(self, learn: Loop) -> None:
        """Set the first rate."""
        rates = [float(group["lr"]) for group in _groups(learn.opt)]
        top = max(rates)
        if not top > 0:
            raise ValueError(f"the learning rates are {rates}: nothing to multiply; set lr above 0")
        self._ratios = [rate / top for rate in rates]
        self._lr = top if self.start_lr is None else self.start_lr
        self._factor, self._length = self.course(self._lr)
        self.lrs, self.losses, self._sum, self._items = [], [], 0.0, 0.0
        self._steps = attribute(learn, "steps_done")  # None where every batch is an update
        self._set_rates(learn.opt)

    def before_epoch(self, learn: Loop) -> None:
        """Skip the validation."""
        if not learn.training:
            raise CancelEpochException

    def after_loss(self, learn: Loop) -> None:
        """Collect the loss of a batch; one that is not finite ends the search before it is used."""
        n = float(attribute(learn, "n_items") or batch_size(learn.batch) or 1)
        loss = n * float(loss_of(learn).detach().mean())
        if (processes := processes_of(learn)) is not None:  # one search, one curve
            loss, n = map(sum, zip(*processes.gather((loss, n)), strict=True))
        self._sum, self._items = self._sum + loss, self._items + n
        if not math.isfinite(self._sum):
            self._record()
            raise CancelFitException

    def after_batch(self, learn: Loop) -> None:
        """Record the update, if there was one, then raise the rate or end the search."""
        steps = attribute(learn, "steps_done")
        if steps is None or steps > self._steps:
            self._steps = steps
            self._next(learn.opt)

    def after_epoch(self, learn: Loop) -> None:
        """Record an update that an open group of batches made at the end of the epoch."""
        if self._items:
            self.after_batch(learn)

    def cleanup_fit(self, learn: Loop) -> None:
        """Show the curve in a notebook, in a fit of the user's own."""
        if len(self.lrs) > 1 and in_notebook() and not attribute(learn, "depth"):
            plot_curves(self.lrs, self.losses)

    def _next(self, opt: Any) -> None:
        self._record()
        diverged = min(self.losses[-2:]) > limit(self.losses, self.max_mult)
        if diverged or len(self.lrs) == self._length:
            raise CancelFitException
        self._lr *= self._factor
        self._set_rates(opt)

    def _record(self) -> None:
        self.lrs.append(self._lr)
        self.losses.append(self._sum / self._items)
        self._sum = self._items = 0.0

    def _set_rates(self, opt: Any) -> None:
        for group, ratio in zip(_groups(opt), self._ratios, strict=True):
            set_lr(group, self._lr * ratio)

    def __repr__(self) -> str:
        """Show the settings."""
        return f"LRFinderCB({self.gamma}, {self.max_mult}, {self.end_lr}, {self.num_it})"


def lr_find(
    self: Loop,
    gamma: float = 1.3,
    max_mult: float = 3,
    start_lr: float = 1e-5,
    max_epochs: int | None = None,
    *,
    end_lr: float = 10.0,
    num_it: int | None = None,
    suggest: str | Callable[..., float] | Sequence[Any] = ("valley", "steep"),
    plot: bool = True,
) -> LRFound:
    """Try out learning rates from low to high, and suggest some; nothing changes.

    The training loader is repeated as often as needed. Callbacks that prepare a batch, train or
    change gradients take part; all others notice nothing.

    >>> lr = learn.lr_find()
    >>> learn.fit(3, lr=lr.valley)

    Args:
        self: the Learner.
        gamma: factor between two updates, unless `num_it` is given.
        max_mult: how far the loss may rise before the search ends, see `LRFinderCB`.
        start_lr: the first rate, of the group with the largest.
        max_epochs: at most so many epochs over the data.
        end_lr: the last rate, if the loss does not diverge before.
        num_it: the number of updates from `start_lr` to `end_lr`.
        suggest: rules: "valley" (in the middle of the longest descent), "steep" (where the loss
            falls fastest), or functions of (rates, smoothed losses).
        plot: whether to draw the curve.

    Raises:
        ValueError: the curve has no answer, says why; a rule is unknown; the rates do not rise.

    Source: Smith 2015, "Cyclical learning rates for training neural networks" (arXiv:1506.01186);
        the rule "valley" comes from fastai.
    """
    rules = rules_of(suggest)
    finder = LRFinderCB(gamma, max_mult, end_lr, num_it, start_lr=start_lr)
    n_steps = finder.course(start_lr)[1] if max_epochs is None else None
    with inner(self, [*participants(self), finder], trains=True):
        self.fit(max_epochs, valid=False, lr=start_lr, n_steps=n_steps)
        found = LRFound(finder.lrs, finder.losses, rules)
    if plot:
        found.plot()
    return found


def _groups(opt: Any) -> list[dict[str, Any]]:
    """Return the groups of an optimizer; a notebook's own, with one rate `lr`, looks like one."""
    groups = getattr(opt, "param_groups", None)
    if groups is None and hasattr(opt, "lr"):
        return [vars(opt)]
    if not groups:
        raise ValueError(f"{type(opt).__name__} has neither param_groups nor lr: no rate to find")
    return groups


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
        self.lrs, self.losses, clipped = lrs, losses, _clipped(losses)
        self.smooth = _smooth(lrs, clipped)
        _check_answer(lrs, losses, np.subtract(clipped, self.smooth)[:EARLY], self.smooth)
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
    return quiet(ax)


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
        reason = f"the loss stayed at {losses[0]} over {where}. Has the optimizer the weights?"
    elif smooth.argmin() == 0 and smooth[:EARLY][-1] - smooth[0] > 2 * np.std(noise):
        reason = f"the loss only rose over {where}. Lower start_lr"
    else:
        if smooth[0] - smooth.min() < 2 * np.std(noise):
            warnings.warn(
                "the loss fell by less than its noise: do not trust what lr_find suggests; try "
                "larger batches, or more updates with num_it",
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
    return lrs[int(np.diff(losses[: max(losses.argmin(), 1) + 1]).argmin())]


RULES = {"valley": _valley, "steep": _steep}


def rules_of(suggest: Any) -> dict[str, Callable[..., Any]]:
    """Return rules by name from names, functions, or one of these."""
    rules = [suggest] if isinstance(suggest, str) or callable(suggest) else suggest
    if unknown := [rule for rule in rules if isinstance(rule, str) and rule not in RULES]:
        raise ValueError(f"unknown rule {unknown[0]!r} in suggest; there are {', '.join(RULES)}")
    named = {r: RULES[r] for r in rules if isinstance(r, str)}
    return named | {getattr(r, "__name__", type(r).__name__): r for r in rules if callable(r)}
