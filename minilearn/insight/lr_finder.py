"""Find a learning rate: raise it update by update and watch the loss, then undo everything."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from minilearn.base.batch import batch_size
from minilearn.core.callback import Callback
from minilearn.core.events import Order
from minilearn.core.learner import Loop
from minilearn.core.nested import inner, participants
from minilearn.distributed.barrier import processes_of
from minilearn.optim.schedulers import set_lr

from ..base.notebook import in_notebook
from ..core.events import CancelEpochException, CancelFitException
from .lr_curve import LRFound, limit, plot_curves, rules_of

__all__ = ["LRFinderCB", "LRFound"]


class LRFinderCB(Callback):
    """Raise the learning rate after each update, record it with the loss, stop on divergence.

    `learn.lr_find()` undoes what this does to the weights; `fit(n, cbs=LRFinderCB())` does not. All
    groups of the optimizer keep the ratio of their rates, and the largest is recorded. Validation
    is left out.

    Args:
        gamma: factor between two updates; with both `end_lr` and `num_it` it follows from them.
        max_mult: the loss may rise to so many times its lowest value, or by the range that it went
            through so many times less one, whichever is more; two updates in a row have to agree.
        end_lr: the last rate.
        num_it: the number of updates.
        start_lr: the first rate; by default the optimizer's own.

    Attributes:
        lrs: the rate of each update.
        losses: its loss, the mean over all batches of the update.

    Raises:
        ValueError: the rates do not rise, or the optimizer has no rate.

    Events: before_fit, before_epoch, after_loss, after_step, after_batch, after_epoch, cleanup_fit
    Order:  STOP
    Reads:  training, opt, loss, batch, n_items, depth, cbs
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
        self.lrs, self.losses, self._sum, self._items, self._done = [], [], 0.0, 0.0, False
        self._by_update = hasattr(type(learn), "steps_done")  # bare learners step in every batch
        self._set_rates(learn.opt)

    def before_epoch(self, learn: Loop) -> None:
        """Leave validation out."""
        if not learn.training:
            raise CancelEpochException

    def after_loss(self, learn: Loop) -> None:
        """Collect the loss of a batch; one that is not finite ends the search before it is used."""
        n = float(getattr(learn, "n_items", None) or batch_size(learn.batch))
        loss = n * float(learn.loss.detach().mean())
        if (processes := processes_of(learn)) is not None:  # one search, one curve
            loss, n = map(sum, zip(*processes.gather((loss, n)), strict=True))
        self._sum, self._items = self._sum + loss, self._items + n
        if not math.isfinite(self._sum):
            self._record()
            raise CancelFitException

    def after_step(self, learn: Loop) -> None:
        """Record the update and raise the rate."""
        if self._by_update:
            self._next(learn.opt)

    def after_batch(self, learn: Loop) -> None:
        """End the search, when the others have seen the batch."""
        if not self._by_update:
            self._next(learn.opt)
        self._end_if_done()

    def after_epoch(self, learn: Loop) -> None:
        """End it too where the last update closed an open group of batches."""
        self._end_if_done()

    def cleanup_fit(self, learn: Loop) -> None:
        """Show the curve in a notebook, in a fit of the user's own."""
        if len(self.lrs) > 1 and in_notebook() and not getattr(learn, "depth", 0):
            plot_curves(self.lrs, self.losses)

    def _end_if_done(self) -> None:
        if self._done:
            raise CancelFitException

    def _next(self, opt: Any) -> None:
        self._record()
        diverged = min(self.losses[-2:]) > limit(self.losses, self.max_mult)
        self._done = diverged or len(self.lrs) == self._length
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
    suggest: str | Callable[..., float] | Sequence[Any] = ("valley", "steep", "minimum", "slide"),
    plot: bool = True,
) -> LRFound:
    """Try out learning rates from low to high, and suggest some; nothing is changed by it.

    The training loader is gone round as often as it takes. Callbacks that prepare a batch, train or
    treat gradients take part, all others notice nothing.

    >>> lr = learn.lr_find()
    >>> learn.fit(3, lr=lr.valley)

    Args:
        self: the Learner.
        gamma: factor between two updates, unless `num_it` is given.
        max_mult: how far the loss may rise before the search ends, see `LRFinderCB`.
        start_lr: the first rate, of the group with the largest.
        max_epochs: at most so many passes over the data.
        end_lr: the last rate, if the loss does not diverge before.
        num_it: the number of updates from `start_lr` to `end_lr`.
        suggest: rules: "valley" (in the middle of the longest descent), "steep" (steepest descent),
            "minimum" (a tenth of the rate with the lowest loss), "slide" (below the descent, where
            the slope is as that one decade above), or functions of (rates, smoothed losses).
        plot: whether to draw the curve.

    Raises:
        ValueError: the curve has no answer, says why; a rule is unknown; the rates do not rise.

    Source: Smith 2015, "Cyclical learning rates for training neural networks" (arXiv:1506.01186);
        the rules "valley" and "slide" come from fastai.
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
        raise ValueError(
            f"{type(opt).__name__} has neither param_groups nor lr, so there is no rate to find"
        )
    return groups
