"""Dropout as a measure of doubt: MCDropoutCB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from minilearn.core.callback import Callback

if TYPE_CHECKING:
    from minilearn.core.learner import Loop


class MCDropoutCB(Callback):
    """Keep dropout on where the model predicts, so that repeated predictions differ.

    >>> preds, targs = learn.tta(20, cbs=MCDropoutCB())

    It reaches all layers whose class has Dropout in its name, not `F.dropout` in a `forward`. In
    the `cbs` of a Learner it works in the validation of each fit, too.

    Events: before_epoch
    Order:  DEFAULT
    Reads:  training, model
    Writes:

    Source: Gal & Ghahramani 2016, "Dropout as a Bayesian Approximation" (arXiv:1506.02142).
    """

    in_probe = True

    def before_epoch(self, learn: Loop) -> None:
        """Put the layers of dropout into train mode; the Learner sets modes anew for each pass."""
        if not learn.training and isinstance(learn.model, nn.Module):
            for module in learn.model.modules():
                if "Dropout" in type(module).__name__:
                    module.train()
