"""What happens to gradients before an update: gathered, clipped, refused where not finite."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minilearn.base.text import whole
from minilearn.core.callback import Callback
from minilearn.core.events import Order

from ..core.events import (
    CancelBackwardException,
    CancelEpochException,
    CancelFitException,
    CancelStepException,
)
from .clipping import CLIP, total_norm

if TYPE_CHECKING:
    from minilearn.core.learner import Loop


def with_grads(learn: Loop) -> list[Any]:
    """Return the optimizer's parameters that have a gradient; the model's if it has no groups."""
    groups = getattr(learn.opt, "param_groups", None) or [{"params": learn.model.parameters()}]
    return [p for group in groups for p in group["params"] if p.grad is not None]


def check_grads_end(cb: Callback, learn: Loop) -> None:
    """Raise where somebody carries gradients on from update to update.

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
    """Return the number of items in the batch."""
    return learn.n_items


class GradAccumCB(Callback):
    """Make one update for every `n` batches, with the gradient of the mean over all their items.

    That is the gradient of the one large batch, whatever the sizes of the batches; items are what
    the Learner's `count` says. The last group of a pass closes with the batches that it has. A
    group that a cancel of the round or the fit, or an error, leaves open is dropped with a warning.
    Whoever answers `backward` must begin at `learn.loss`.

    Args:
        n: batches for an update.

    Raises:
        ValueError: `n` is below 1; or the owner of `zero_grad` carries gradients on.

    Events: before_fit, before_backward, after_backward, cleanup_backward, before_step, after_epoch,
        cleanup_epoch
    Order:  ACCUMULATE
    Reads:  loss, n_items, model, opt, plan, is_last, epoch, error
    Writes: loss
    """

    order = Order.ACCUMULATE

    def __init__(self, n: int) -> None:
        self.n = whole("n", n, of="batches")
        self.items_of = items_of  # with several processes it is the mean over them
        self._open(1)

    def _open(self, first: Any) -> None:
        """Begin a group whose first batch has `first` items: that is the weight 1."""
        self._batches, self._unit, self._weights = 0, first, 0
        self._weight, self._loss, self._closing = 1, None, False

    def closes(self, learn: Loop) -> bool:
        """Return whether the current batch is known to be the last of its group."""
        return self._batches + 1 >= self.n or bool(learn.is_last)

    def before_fit(self, learn: Loop) -> None:
        """Say how many batches an update takes."""
        check_grads_end(self, learn)
        learn.plan.batches_per_step = self.n
        self._open(1)

    def before_backward(self, learn: Loop) -> None:
        """Weight the loss with the number of items in the batch; without any it is left out."""
        items = self.items_of(learn)
        if not isinstance(items, Tensor) and not items:
            raise CancelBackwardException  # a mean over nothing is NaN
        if not self._batches:
            self._open(torch.clamp(items, min=1) if isinstance(items, Tensor) else max(items, 1))
        self._weight = items / self._unit
        if isinstance(items, Tensor) or self._weight != 1:
            self._loss, learn.loss = learn.loss, learn.loss * self._weight

    def after_backward(self, learn: Loop) -> None:
        """Take the batch into the group, and give the loss back its value."""
        self._batches += 1
        self._weights = self._weights + self._weight
        learn.plan.in_group = True
        self.cleanup_backward(learn)

    def cleanup_backward(self, learn: Loop) -> None:
        """Give the loss back its value where the backward pass did not run, too."""
        if self._loss is not None:
            learn.loss, self._loss = self._loss, None

    def before_step(self, learn: Loop) -> None:
        """Wait for more batches, or close the group: divide by the sum of the weights."""
        if self._batches < self.n and not self._closing:
            raise CancelStepException
        if isinstance(self._weights, Tensor) or self._weights != 1:
            with torch.no_grad():
                for p in with_grads(learn):
                    if p.requires_grad:
                        p.grad.div_(self._weights)
                    else:  # frozen since the group began: momentum and decay would move it
                        p.grad = None
        self._open(1)
        learn.plan.in_group = False

    def after_epoch(self, learn: Loop) -> None:
        """Close the last group of a pass."""
        if self._batches:
            self._closing = True
            learn.close_group()
            self._drop(learn)

    def cleanup_epoch(self, learn: Loop) -> None:
        """Close the group of a cancelled pass; drop it where more than the pass has ended."""
        if isinstance(learn.error, CancelEpochException):
            self.after_epoch(learn)
        elif self._batches:
            warnings.warn(
                f"{self._batches} batches of an unfinished accumulation were dropped: "
                f"{type(learn.error).__name__} ended the pass in epoch {learn.epoch}",
                stacklevel=2,
            )
            self._drop(learn)

    def _drop(self, learn: Loop) -> None:
        learn.clear_grads()
        self._open(1)
        learn.plan.in_group = False

    def __repr__(self) -> str:
        """Show the number of batches."""
        return f"GradAccumCB({self.n})"


class NonFiniteCB(Callback):
    """Skip updates whose gradients are not finite, so that no weight becomes so, too (R19).

    A skipped update counts for nothing: no schedule, average or counter moves.

    Args:
        on_nonfinite: "skip" with a warning, "raise", or "stop" to end the fit.
        max_skips: so many in a row raise.

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
        """Whether the fit goes on after such an update."""
        return self.on_nonfinite == "skip"

    def before_fit(self, learn: Loop) -> None:
        """Forget the last fit."""
        self.skipped = self._in_row = 0

    def before_step(self, learn: Loop) -> None:
        """Measure the gradients, and look whether they are finite."""
        if params := with_grads(learn):
            self.norm = self._bound(params)
            if not math.isfinite(self.norm.item()):
                self.refuse(learn, "lower the learning rate, or look for bad data")

    def _bound(self, params: list[Any]) -> Tensor:
        """Return the norm of the gradients; subclasses bound them, too."""
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
            raise CancelFitException
        if self.skipped == 1:  # the others are summed up
            warnings.warn(f"{message}: this update is skipped", stacklevel=2)
        raise CancelStepException

    def after_step(self, learn: Loop) -> None:
        """An update was made: no more skips in a row."""
        self._in_row = 0

    def cleanup_fit(self, learn: Loop) -> None:
        """Sum up."""
        if self.skipped > 1:
            message = f"gradients were not finite {self.skipped} times"
            warnings.warn(f"{message}; {learn.steps_done} updates were made", stacklevel=2)

    def __repr__(self) -> str:
        """Show what is done about gradients that are not finite."""
        return f"NonFiniteCB({self.on_nonfinite!r})"


class ClipGradCB(NonFiniteCB):
    """Bound the gradients once an update, and skip updates whose gradients are not finite.

    Args:
        max_norm: the largest norm of all gradients together.
        max_value: the largest absolute value of a number.
        agc: the largest ratio of a row's gradient to the row, by norm; not for the last layer.
        on_nonfinite: as in `NonFiniteCB`.
        max_skips: as there.

    Attributes:
        norm: the norm before the last update, and before clipping, a tensor.

    Raises:
        ValueError: not exactly one bound is given.

    Events: before_fit, before_step, after_step, cleanup_fit
    Order:  GRADIENT
    Reads:  model, opt, epoch, iter, steps_done
    Writes:
    Syncs: once an update

    Source: adaptive clipping (`agc`) is of Brock et al. 2021 (arXiv:2102.06171).
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

    def _bound(self, params: list[Any]) -> Tensor:
        ((kind, bound),) = self.bounds.items()
        return CLIP[kind](params, bound)

    def __repr__(self) -> str:
        """Show the bound."""
        return f"ClipGradCB({', '.join(f'{name}={bound}' for name, bound in self.bounds.items())})"
