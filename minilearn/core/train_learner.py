"""Learners that answer the actions themselves, in the place of a TrainCB.

Stands on learner, actions and batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim

from ..base.batch import compare
from .actions import default_actions
from .learner import Learner


@default_actions
class TrainLearner(Learner):
    """A Learner that needs no TrainCB: `batch` is (inputs, targets).

    Override an action to change the training; a callback that answers one (mixed precision, say)
    wins over these defaults.
    """

    def predict(self) -> None:
        """Run the model on the first item of the batch."""
        self.preds = self.model(self.batch[0])

    def get_loss(self) -> None:
        """Compare the predictions with the rest of the batch."""
        self.loss = compare(self.loss_func, self.preds, self.batch[1:])

    def backward(self) -> None:
        """Compute the gradients."""
        self.loss.backward()

    def step(self) -> None:
        """Let the optimizer make a step."""
        self.opt.step()

    def zero_grad(self) -> None:
        """Clear the gradients."""
        self.opt.zero_grad()


class MomentumLearner(TrainLearner):
    """Momentum by a trick for teaching: gradients are shrunk instead of cleared.

    It carries gradients from batch to batch, so it goes with no accumulation and no gradient
    scaler.

    Args:
        mom: the share of the gradient that is carried on, 0 to 1.
    """

    def __init__(
        self,
        model: nn.Module,
        dls: Any,
        loss_func: Callable[..., Any],
        lr: float | None = None,
        cbs: Any = None,
        opt_func: Callable[..., Any] | None = optim.SGD,
        mom: float = 0.85,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, dls, loss_func, lr, cbs, opt_func, **kwargs)
        self.mom = mom

    def zero_grad(self) -> None:
        """Shrink the gradients by `mom`."""
        with torch.no_grad():
            for p in self.model.parameters():
                if p.grad is not None:
                    p.grad *= self.mom
