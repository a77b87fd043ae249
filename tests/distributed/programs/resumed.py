"""A fit that is killed or ended by a signal, and resumed; see test_resumed.

Arguments: the folder; "whole", "killed", "ended", "failed" or "resumed"; where to write.
"""

import os
import signal
import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from distributed.fits import data
from distributed.launch import tell
from torch import nn, optim
from torcheval.metrics import MulticlassAccuracy

from minilearn import (
    EMACB,
    AccelerateCB,
    BatchSchedCB,
    Callback,
    CheckpointCB,
    DataLoaders,
    Dataset,
    Learner,
    MetricsCB,
    ProgressCB,
    accuracy,
    set_seed,
)
from minilearn.base.rank import rank
from minilearn.distributed.barrier import processes_of

torch.set_num_threads(1)
warnings.simplefilter("always")


class At(Callback):
    """Does something after so many updates, in one process."""

    def __init__(self, step, do, rank=1):
        self.after, self.do, self.rank = step, do, rank

    def after_batch(self, learn):
        here = processes_of(learn) is None or rank() == self.rank
        if learn.training and learn.steps_done == self.after and here:
            self.do()


class Orders(Callback):
    """Notes the samples of each training epoch."""

    def __init__(self):
        self.passes = {}

    def before_batch(self, learn):
        if learn.training:
            self.passes.setdefault(learn.epoch, []).append(learn.batch[0][:, 0].tolist())


def make(folder, *cbs, keep=None):
    set_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    dls = DataLoaders.from_dsets(Dataset(*data(40)), Dataset(*data(9, 1)), bs=4, seed=7)
    sched = BatchSchedCB(lambda opt: optim.lr_scheduler.ExponentialLR(opt, 0.95))
    saver = CheckpointCB(folder, every=(3, "step"), keep=keep)
    metrics = MetricsCB(accuracy, MulticlassAccuracy())
    made = [AccelerateCB(), metrics, ProgressCB(), EMACB(0.9), sched, saver, orders := Orders()]
    learn = Learner(model, dls, F.cross_entropy, 0.05, cbs=[*made, *cbs], opt_func=optim.AdamW)
    return learn, orders


def results(learn, orders):
    return {
        "weights": {k: v.clone() for k, v in learn.model.state_dict().items()},
        "moments": [s["exp_avg"] for s in learn.opt.state_dict()["state"].values()],
        "history": [{k: v for k, v in row.items() if k != "time"} for row in learn.history],
        "orders": orders.passes,
    }


def fail():
    raise ZeroDivisionError("one process fails")


WHAT = {
    "killed": lambda: [At(7, lambda: os.kill(os.getpid(), signal.SIGKILL))],
    "ended": lambda: [At(8, lambda: os.kill(os.getpid(), signal.SIGTERM))],
    "failed": lambda: [At(7, fail)],
}

if __name__ == "__main__":
    folder, what = Path(sys.argv[1]), sys.argv[2]
    if what in WHAT:
        make(folder / what, *WHAT[what]())[0].fit(3)
    else:
        learn, orders = make(folder / "whole")
        learn.fit(3)
        found = {"whole": results(learn, orders)}
        for name in ("killed", "ended"):
            learn, orders = make(folder / name)
            learn.fit(3, resume=True)
            found[name] = results(learn, orders)
        learn, orders = make(folder / "nothing yet")
        learn.fit(1, resume=True)
        tell(folder, **found)
