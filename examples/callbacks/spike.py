"""Notice a training that diverges: warn when the loss jumps, or end the fit there.

`learn.fit(5, cbs=SpikeCB(stop=True))`
"""

import math
import warnings

from minilearn import Callback, CancelFitException, Learner, Order


class SpikeCB(Callback):
    """Warn when the training loss jumps.

    The loss is averaged over every so many batches. A spike is a mean that is not finite, or
    `factor` times the lowest one so far (for positive losses).

    Args:
        factor: how large a jump is a spike, above 1.
        every: batches in a mean; the device is read once for each mean.
        stop: end the fit at the first spike.

    Attributes:
        spikes: (epoch, batch, loss) of each.

    Events: before_fit, after_batch
    Order:  STOP
    Reads:  training, loss, epoch, iter
    Writes:
    Syncs: once in `every` batches
    """

    order = Order.STOP

    def __init__(self, factor: float = 3.0, every: int = 50, stop: bool = False) -> None:
        if not factor > 1 or every < 1:
            raise ValueError(f"factor is above 1 and every at least 1; got {factor} and {every}")
        self.factor, self.every, self.stop = factor, every, stop
        self.spikes: list[tuple[int, int, float]] = []

    def before_fit(self, learn: Learner) -> None:
        """Forget the last fit."""
        self.spikes, self.sum, self.n, self.lowest = [], 0.0, 0, math.inf

    def after_batch(self, learn: Learner) -> None:
        """Add up the losses, and look at their mean when there are enough."""
        if not learn.training:
            return
        self.sum, self.n = self.sum + learn.loss.float().mean(), self.n + 1
        if self.n == self.every:
            loss, self.sum, self.n = float(self.sum) / self.every, 0.0, 0
            if math.isfinite(loss) and not loss > self.factor * self.lowest > 0:
                self.lowest = min(self.lowest, loss)
            else:
                self.report(learn, loss)

    def report(self, learn: Learner, loss: float) -> None:
        """Warn, and end the fit if asked to."""
        self.spikes.append((learn.epoch, learn.iter, loss))
        warnings.warn(
            f"the training loss is {loss:.4g} in epoch {learn.epoch}, batch {learn.iter}; its "
            f"lowest was {self.lowest:.4g}{': the fit ends here' if self.stop else ''}",
            stacklevel=2,
        )
        if self.stop:
            raise CancelFitException
