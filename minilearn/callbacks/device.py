"""Where the model and the batches are: DeviceCB.

Stands on core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from minilearn.core.batch import default_device, to_device
from minilearn.core.callback import Callback
from minilearn.core.events import Order

if TYPE_CHECKING:
    from minilearn.core.learner import Learner


class DeviceCB(Callback):
    """Move the model, a loss module and the optimizer's state when a fit begins, and every batch.

    Args:
        device: where to, such as "cuda:1"; `default_device()` when it is not given.

    Events: before_fit, before_batch
    Order:  PLACE
    Reads:  model, loss_func, opt, batch
    Writes: batch
    """

    order = Order.PLACE

    def __init__(self, device: torch.device | str | None = None) -> None:
        self.device = default_device() if device is None else torch.device(device)

    def before_fit(self, learn: Learner) -> None:
        """Move what stays for the whole fit."""
        if hasattr(learn.model, "to"):
            learn.model.to(self.device)
        if isinstance(learn.loss_func, nn.Module):
            learn.loss_func.to(self.device)
        _follow_parameters(getattr(learn, "opt", None))

    def before_batch(self, learn: Learner) -> None:
        """Move the batch."""
        learn.batch = to_device(learn.batch, self.device)

    def __repr__(self) -> str:
        """Show the device."""
        return f"DeviceCB({str(self.device)!r})"


def _follow_parameters(opt: object) -> None:
    """Move state that an optimizer made before its parameters moved (Adagrad does) after them."""
    for p, state in getattr(opt, "state", {}).items():
        for name, value in state.items():
            # a step counter stays on the CPU on purpose: only what is shaped like p moves
            if (
                isinstance(value, torch.Tensor)
                and value.shape == p.shape
                and value.device != p.device
            ):
                state[name] = value.to(p.device)
