"""A column in the history: the peak of memory in each round.

Copy `MemoryCB` into your script, or run `python examples/callbacks/memory.py` to see its column.
"""

import resource  # not on Windows
import sys

from minilearn.all import *


class MemoryCB(Callback):
    """Add the peak of memory to the row of each round: `memory_mb`, in MiB.

    On CUDA it counts the tensors of this process in the round. Elsewhere it is the most memory that
    the process ever had.

    Events: before_round, after_epoch
    Order:  METRICS + 1
    Reads:  row
    Writes: row
    """

    order = Order.METRICS + 1

    def before_round(self, learn: Learner) -> None:
        """Measure anew."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def after_epoch(self, learn: Learner) -> None:
        """Write the peak to the row; the validation's replaces the training epoch's."""
        learn.row = {**learn.row, "memory_mb": peak_memory()}


def peak_memory() -> float:
    """The peak of memory in MiB."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes, KiB on Linux


def main(epochs: int = 2, batches: int | None = 20) -> Learner:
    dls = DataLoaders.from_dd(fashion_mnist(), 64)
    learn = Learner(resnet(1, 10), dls, F.cross_entropy, 0.1, opt_func="adamw", metrics=accuracy)
    learn.fit(epochs, cbs=[MemoryCB(), LimitBatchesCB(train=batches, valid=batches)])
    return learn


if __name__ == "__main__":
    main()
