"""Dropout as a measure of uncertainty: repeated predictions differ where the model is unsure.

`preds, targs = learn.tta(20, cbs=MCDropoutCB())` averages over 20 predictions of each sample.
"""

from torch import nn

from minilearn import Callback, Learner


class MCDropoutCB(Callback):
    """Keep dropout on where the model predicts, so that repeated predictions differ.

    It reaches all layers whose class has Dropout in its name, not `F.dropout` in a `forward`. In
    the `cbs` of a Learner it acts in the validation of each fit, too.

    Events: before_epoch
    Order:  DEFAULT
    Reads:  training, model
    Writes:

    Source: Gal & Ghahramani 2016, "Dropout as a Bayesian Approximation" (arXiv:1506.02142).
    """

    in_probe = True

    def before_epoch(self, learn: Learner) -> None:
        """Put dropout layers into train mode; the Learner sets all modes anew for each epoch."""
        if not learn.training and isinstance(learn.model, nn.Module):
            for module in learn.model.modules():
                if "Dropout" in type(module).__name__:
                    module.train()
