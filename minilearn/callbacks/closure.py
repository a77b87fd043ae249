"""For optimizers that compute the loss themselves, several times an update: ClosureCB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from .gradients import GradAccumCB, NonFiniteCB
from .precision import MixedPrecision
from .training import TrainCB

if TYPE_CHECKING:
    from minilearn.core.learner import Loop


class ClosureCB(TrainCB):
    """Train with an optimizer that needs a closure, such as `torch.optim.LBFGS`.

    Its first evaluation of a batch is the loop's own, and the loss of that is reported; for the
    others the actions are asked again, and no events fire.

    Args:
        n_inp: this and the others are those of TrainCB.

    Raises:
        ValueError: a callback changes gradients or precision: it would reach the first evaluation
            only.

    Events: before_fit, predict, get_loss, backward, step, zero_grad
    Order:  TRAIN
    Reads:  cbs, model, batch, loss_func, preds, loss, loss_parts, opt
    Writes: preds, loss, loss_parts
    """

    def before_fit(self, learn: Loop) -> None:
        """See that every evaluation will be like the first."""
        kinds = (GradAccumCB, NonFiniteCB, MixedPrecision)
        if others := [type(cb).__name__ for cb in learn.cbs if isinstance(cb, kinds)]:
            raise ValueError(
                f"{', '.join(others)} would reach only the first of the evaluations that an update "
                "with ClosureCB makes. Leave it out, or take an optimizer without a closure."
            )

    def step(self, learn: Loop) -> None:
        """Let the optimizer make a step, and evaluate the batch as often as it asks."""
        first = learn.preds, learn.loss, learn.loss_parts
        evaluated = True

        def closure() -> Tensor:
            nonlocal evaluated
            if not evaluated:
                learn.clear_grads()
                learn.predict()
                learn.get_loss()
                learn.backward()
            evaluated = False
            return learn.loss

        learn.opt.step(closure)
        learn.preds, learn.loss, learn.loss_parts = first
