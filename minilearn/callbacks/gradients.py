"""What happens to gradients before an update: accumulated, clipped, skipped if not finite."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..base.batch import counted
from ..base.text import whole
from ..core.callback import Callback
from ..core.events import (
    CancelBackwardException,
    CancelEpochException,
    CancelFitException,
    CancelStepException,
    Order,
)
from ..core.learner import Loop
from .training import adds_up


def with_grads(learn: Loop) -> list[Any]:
    """Return the optimizer's parameters that have a gradient; the model's if it has no groups."""
    groups = getattr(learn.opt, "param_groups", None) or [{"params": learn.model.parameters()}]
    return [p for group in groups for p in group["params"] if p.grad is not None]


def check_grads_end(cb: Callback, learn: Loop) -> None:
    """Check that nobody carries gradients on from update to update.

    Raises:
        ValueError: the owner of `zero_grad` is not the usual one.
    """
    if not learn.answers_by_default("zero_grad"):
        owner = type(learn.owner("zero_grad")).__name__
        raise ValueError(
            f"{type(cb).__name__} needs gradients that end with their update, and {owner} has "
            "a zero_grad of its own that may carry them on. Remove one of the two."
        )


def items_of(learn: Loop) -> Any:
    """Return the number of items in the batch.

    Raises:
        ValueError: it is unknown.
    """
    return counted(learn.n_items, learn.batch, "an update weighs batches by their items")


class GradAccumCB(Callback):
    """Make one update for every `n` batches, with the gradient of the mean over all their items.

    That is the gradient of one large batch, whatever the sizes of the batches; items are what the
    Learner's `count` says. With a loss that is a sum over items, it is the gradient of the sum.
    At the end of an epoch an update is made of the batches that are left.
    If a cancel of the round or the fit, or an error, comes first, their gradients are dropped with
    a warning. A callback that answers `backward` must begin at `learn.loss`.

    >>> learn.fit(1, cbs=GradAccumCB(4))  # an update for every four batches

    Args:
        n: batches for an update; or a function of the epoch that returns them; or a dict, `{0: 1,
            5: 4}` for one batch at first, and four from epoch 5 on.

    Raises:
        ValueError: `n` is below 1, or a dict without epoch 0; the owner of `zero_grad` carries
            gradients on; or the number of items in a batch is unknown.

    Events: before_fit, before_backward, after_backward, cleanup_backward, before_step, after_epoch,
        cleanup_epoch
    Order:  ACCUMULATE
    Reads:  loss, loss_func, batch, n_items, model, opt, plan, is_last, epoch, error
    Writes: loss
    """

    order = Order.ACCUMULATE

    def __init__(self, n: int | dict[int, int] | Callable[[int], int]) -> None:
        if isinstance(n, dict) and 0 not in n:
            raise ValueError(
                f"give the batches for an update from epoch 0 on, {{0: 1, …}}; got {n}"
            )
        self.n = n if isinstance(n, dict) or callable(n) else whole("n", n, of="batches")
        self.items_of = items_of  # with several processes it is the mean over them
        self._open(1)

    def _open(self, first: Any) -> None:
        """Begin a group whose first batch has `first` items: that is the weight 1."""
        self._batches, self._unit, self._weights = 0, first, 0
        self._weight, self._loss, self._closing = 1, None, False

    def closes(self, learn: Loop) -> bool:
        """Return whether the current batch is known to be the last of its group."""
        return self._batches + 1 >= learn.plan.batches_per_step or bool(learn.is_last)

    def before_fit(self, learn: Loop) -> None:
        """Set how many batches an update takes."""
        check_grads_end(self, learn)
        learn.plan.batches_per_step = self.n if isinstance(self.n, int) else self._n_in
        self._open(1)

    def _n_in(self, epoch: int) -> int:
        n: Any = self.n
        if isinstance(n, dict):
            return whole("n", n[max(first for first in n if first <= epoch)], of="batches")
        return whole("n", n(epoch), of="batches")

    def before_backward(self, learn: Loop) -> None:
        """Weight the loss by the number of items; leave a batch without items out."""
        items = 1 if adds_up(learn) else self.items_of(learn)
        if not isinstance(items, Tensor) and not items:
            raise CancelBackwardException  # a mean over nothing is NaN
        gave_nothing = self._batches >= learn.plan.batches_per_step and not with_grads(learn)
        if not self._batches or gave_nothing:
            self._open(torch.clamp(items, min=1) if isinstance(items, Tensor) else max(items, 1))
        self._weight = items / self._unit
        if isinstance(items, Tensor) or self._weight != 1:
            self._loss, learn.loss = learn.loss, learn.loss * self._weight

    def after_backward(self, learn: Loop) -> None:
        """Add the batch to the group, and give the loss back its value."""
        self._batches += 1
        self._weights = 1 if adds_up(learn) else self._weights + self._weight
        learn.plan.in_group = True
        self.cleanup_backward(learn)

    def cleanup_backward(self, learn: Loop) -> None:
        """Give the loss back its value, also where no backward ran."""
        if self._loss is not None:
            learn.loss, self._loss = self._loss, None

    def before_step(self, learn: Loop) -> None:
        """Wait for more batches, or close the group: divide by the sum of the weights."""
        if self._batches < learn.plan.batches_per_step and not self._closing:
            raise CancelStepException
        if self._batches > 1 or isinstance(self._weights, Tensor) or self._weights != 1:
            with torch.no_grad():
                for p in with_grads(learn):
                    if p.requires_grad:
                        p.grad.div_(self._weights)
                    else:  # frozen since the group began: momentum and decay would move it
                        p.grad = None
        self._open(1)
        learn.plan.in_group = False

    def after_epoch(self, learn: Loop) -> None:
        """Make an update of the batches that are left."""
        if self._batches:
            self._closing = True
            learn.close_group()
            self._drop(learn)

    def cleanup_epoch(self, learn: Loop) -> None:
        """Make that update after a cancelled epoch; drop the batches if more has ended."""
        if isinstance(learn.error, CancelEpochException):
            self.after_epoch(learn)
        elif self._batches:
            warnings.warn(
                f"{self._batches} batches of an unfinished accumulation were dropped: "
                f"{type(learn.error).__name__} ended epoch {learn.epoch}",
                stacklevel=2,
            )
            self._drop(learn)

    def _drop(self, learn: Loop) -> None:
        learn.clear_grads()
        self._open(1)
        learn.plan.in_group = False

    def __repr__(self) -> str:
        """Show the number of batches."""
        return f"GradAccumCB({getattr(self.n, '__name__', self.n)})"


# ---- norms and clipping; each function returns the norm before it clips ----


def total_norm(params: list[Any]) -> Tensor:
    """Return the norm of all gradients together, sparse ones included."""
    return nn.utils.get_total_norm([_values(p.grad) for p in params])


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def clip_norm(params: list[Any], bound: float) -> Tensor:
    """Scale all gradients down until their norm together is at most `bound`."""
    norm = total_norm(params)
    nn.utils.clip_grads_with_norm_(params, bound, norm)
    return norm


@torch.no_grad()
def clip_value(params: list[Any], bound: float) -> Tensor:
    """Bound the absolute value of each element."""
    norm = total_norm(params)
    for p in params:
        if p.grad.is_sparse:
            p.grad = p.grad.coalesce()  # what is stored twice is one element
    values = [_values(p.grad) for p in params]
    torch._foreach_clamp_min_(values, -bound)
    torch._foreach_clamp_max_(values, bound)
    return norm


@torch.no_grad()
def clip_adaptively(params: list[Any], ratio: float) -> Tensor:
    """Bound each row of a gradient to `ratio` times the norm of the same row of the weights.

    Raises:
        ValueError: a gradient is sparse.
    """
    norm = total_norm(params)
    for p in params:
        if p.grad.is_sparse:
            raise ValueError("agc bounds dense gradients; use ClipGradCB(max_norm) or max_value")
        most = _row_norms(p).clamp(min=1e-3) * ratio
        norms = _row_norms(p.grad)
        p.grad.mul_(torch.where(norms > most, most / norms.clamp(min=1e-6), 1.0))
    return norm


def last_layer(model: Any) -> set[int]:
    """Return the ids of the last layer's parameters: the last of several modules with a matrix."""
    layers = [list(m.parameters(recurse=False)) for m in getattr(model, "modules", tuple)()]
    layers = [params for params in layers if any(p.dim() > 1 for p in params)]
    return {id(p) for p in layers[-1]} if len(layers) > 1 else set()


def _row_norms(x: Tensor) -> Tensor:
    # a row makes one output: (K, ...) -> (K, 1, ...); a bias or a scale is one row
    return x.norm() if x.dim() < 2 else x.flatten(1).norm(dim=1).view(-1, *[1] * (x.dim() - 1))


CLIP: dict[str, Callable[[list[Any], float], Tensor]] = {
    "max_norm": clip_norm,
    "max_value": clip_value,
    "agc": clip_adaptively,
}


class NonFiniteCB(Callback):
    """Skip updates whose gradients are not finite, so that no weight becomes infinite or NaN.

    A skipped update does not count: no schedule, average or counter moves.

    >>> learn.fit(1, cbs=NonFiniteCB(max_skips=3))

    Args:
        on_nonfinite: "skip" with a warning, "raise", or "stop" to end the fit.
        max_skips: so many skips in a row raise.

    Attributes:
        norm: the norm of all gradients before the last update, a tensor.

    Raises:
        FloatingPointError: gradients are not finite, with "raise" or too many times in a row.

    Events: before_fit, before_step, after_step, cleanup_fit
    Order:  GRADIENT
    Reads:  model, opt, epoch, iter, steps_done
    Writes:
    Syncs: once an update
    """

    order = Order.GRADIENT

    def __init__(self, on_nonfinite: str = "skip", max_skips: int = 10) -> None:
        if on_nonfinite not in ("skip", "raise", "stop"):
            raise ValueError(f"on_nonfinite is 'skip', 'raise' or 'stop', got {on_nonfinite!r}")
        self.on_nonfinite, self.max_skips = on_nonfinite, max_skips
        self.norm: Tensor | None = None
        self.skipped = self._in_row = 0

    @property
    def skips_non_finite(self) -> bool:
        """Whether the fit goes on after an update with gradients that are not finite."""
        return self.on_nonfinite == "skip"

    def before_fit(self, learn: Loop) -> None:
        """Forget the last fit."""
        self.skipped = self._in_row = 0

    def before_step(self, learn: Loop) -> None:
        """Measure the norm of the gradients, and check that it is finite."""
        if params := with_grads(learn):
            self.norm = self._bound(params, learn)
            if not math.isfinite(self.norm.item()):
                self.refuse(learn, "lower the learning rate, or look for bad data")

    def _bound(self, params: list[Any], learn: Loop) -> Tensor:
        """Return the norm of the gradients; subclasses also bound them."""
        return total_norm(params)

    def refuse(self, learn: Loop, advice: str) -> None:
        """Clear the gradients, and cancel the update or the fit, or raise."""
        learn.clear_grads()
        self.skipped, self._in_row = self.skipped + 1, self._in_row + 1
        message = f"the gradients of epoch {learn.epoch}, batch {learn.iter} are not finite"
        if self.on_nonfinite == "raise" or self._in_row >= self.max_skips:
            raise FloatingPointError(f"{message}, {self._in_row} in a row: {advice}")
        if self.on_nonfinite == "stop":
            warnings.warn(f"{message}: the fit ends here", stacklevel=2)
            learn.stop(f"stopped: {message}")
            raise CancelFitException
        if self.skipped == 1:  # `cleanup_fit` counts the others
            warnings.warn(f"{message}: this update is skipped", stacklevel=2)
        raise CancelStepException

    def after_step(self, learn: Loop) -> None:
        """Begin to count anew: an update was made."""
        self._in_row = 0

    def cleanup_fit(self, learn: Loop) -> None:
        """Warn of how many updates were skipped."""
        if self.skipped > 1:
            message = f"gradients were not finite {self.skipped} times"
            warnings.warn(f"{message}; {learn.steps_done} updates were made", stacklevel=2)

    def __repr__(self) -> str:
        """Show what is done about gradients that are not finite."""
        return f"NonFiniteCB({self.on_nonfinite!r})"


class ClipGradCB(NonFiniteCB):
    """Clip the gradients once an update, and skip updates whose gradients are not finite.

    >>> learn.fit(1, cbs=ClipGradCB(1.0))

    Args:
        max_norm: the largest norm of all gradients together.
        max_value: the largest absolute value of an element.
        agc: the largest ratio of a row's gradient to the row, by norm; not for the last layer (of
            several; the last module with a weight of two dimensions or more).
        on_nonfinite: as in `NonFiniteCB`.
        max_skips: as in `NonFiniteCB`.

    Attributes:
        norm: the norm before the last update, and before clipping, a tensor.

    Raises:
        ValueError: not exactly one bound is given.

    Events: before_fit, before_step, after_step, cleanup_fit
    Order:  GRADIENT
    Reads:  model, opt, epoch, iter, steps_done
    Writes:
    Syncs: once an update

    Source: adaptive clipping (`agc`) is by Brock et al. 2021 (arXiv:2102.06171).
    """

    def __init__(
        self,
        max_norm: float | None = None,
        *,
        max_value: float | None = None,
        agc: float | None = None,
        on_nonfinite: str = "skip",
        max_skips: int = 10,
    ) -> None:
        given = {"max_norm": max_norm, "max_value": max_value, "agc": agc}
        self.bounds = {name: bound for name, bound in given.items() if bound is not None}
        if len(self.bounds) != 1 or min(self.bounds.values()) <= 0:
            raise ValueError(f"give one of max_norm, max_value and agc, above 0; got {self.bounds}")
        super().__init__(on_nonfinite, max_skips)

    def _bound(self, params: list[Any], learn: Loop) -> Tensor:
        ((kind, bound),) = self.bounds.items()
        if kind != "agc":
            return CLIP[kind](params, bound)
        norm, spared = total_norm(params), last_layer(learn.model)
        clip_adaptively([p for p in params if id(p) not in spared], bound)
        return norm

    def __repr__(self) -> str:
        """Show the bound."""
        return f"ClipGradCB({', '.join(f'{name}={bound}' for name, bound in self.bounds.items())})"
