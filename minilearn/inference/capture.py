"""CapturePreds: keep inputs, predictions and targets of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minilearn.base.batch import n_rows
from minilearn.core.callback import Callback
from minilearn.core.events import Order
from minilearn.inference.outputs import joined, kept

from ..callbacks.training import inputs_and_targets

if TYPE_CHECKING:
    from minilearn.core.learner import Loop


class CapturePreds(Callback):
    """Keep inputs, predictions and targets of the last epoch on the CPU, joined at its end.

    For the validation set use `learn.fit(1, train=False, cbs=CapturePreds())`. `learn.get_preds`
    does more: it predicts every sample once, in order.

    Args:
        inps: whether to keep the inputs.

    Attributes:
        all_inps: the model's inputs, (N, ...).
        all_preds: its predictions, (N, K), or a structure of tensors.
        all_targs: the targets; None where there are none.

    Events: before_epoch, after_batch, cleanup_epoch
    Order:  STOP
    Reads:  batch, preds, loss_func
    Writes:
    """

    order = Order.STOP

    def __init__(self, inps: bool = True) -> None:
        self.inps = inps
        self.all_inps = self.all_preds = self.all_targs = None
        self._parts: list[tuple[Any, Any, Any]] = []
        self._sizes: list[int] = []

    def before_epoch(self, learn: Loop) -> None:
        """Drop what is left of the epoch before."""
        self._parts, self._sizes = [], []

    def after_batch(self, learn: Loop) -> None:
        """Keep a batch."""
        inputs, targets = inputs_and_targets(learn)
        self._parts.append(kept((inputs if self.inps else None, learn.preds, targets)))
        self._sizes.append(n_rows(learn.batch))

    def cleanup_epoch(self, learn: Loop) -> None:
        """Join what there is, also where a cancel ended the epoch."""
        if self._parts:
            self.all_inps, self.all_preds, self.all_targs = joined(self._parts, self._sizes)
        self._parts, self._sizes = [], []
