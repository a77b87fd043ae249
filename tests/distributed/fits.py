"""Fits that are run on one process and on two, by the same code but for the batch size."""

import os
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torcheval.metrics import MulticlassAccuracy, MulticlassAUROC

from minilearn import (
    EMACB,
    AccelerateCB,
    ClipGradCB,
    DataLoaders,
    EarlyStopCB,
    GradAccumCB,
    Learner,
    MetricsCB,
    SeededLoader,
    TrainCB,
    accuracy,
    set_seed,
)


def alone():
    return "RANK" not in os.environ


def data(n, seed=0, classes=3):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=g), torch.randint(classes, (n,), generator=g)


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def loaders(kind, n, n_valid, bs):
    train, valid = TensorDataset(*data(n)), TensorDataset(*data(n_valid, 1))
    if kind == "arrays":
        return DataLoaders.from_dsets(train, valid, bs=bs, seed=7)
    if kind == "seeded":
        return SeededLoader(train, bs, shuffle=True, seed=7), SeededLoader(valid, bs)
    return DataLoader(train, bs, shuffle=True), DataLoader(valid, bs)


def fit(
    cbs=(),
    kind="arrays",
    n=80,
    n_valid=11,
    bs=4,
    epochs=2,
    opt=optim.SGD,
    lr=0.1,
    loss=F.cross_entropy,
    **kwargs,
):
    """Train on all processes, or on one with the batch of all."""
    world = 2
    set_seed(3)
    model = net()
    trainer = TrainCB() if alone() else AccelerateCB()
    metrics = MetricsCB(accuracy, MulticlassAccuracy(), auc=MulticlassAUROC(num_classes=3))
    dls = loaders(kind, n, n_valid, bs * world if alone() else bs)
    made = [cb() for cb in cbs]
    learn = Learner(model, dls, loss, lr, cbs=[trainer, metrics, *made], opt_func=opt, **kwargs)
    metrics._log = lambda row: None
    learn.fit(epochs)
    assert learn.model is model and type(learn.model[0].weight) is nn.Parameter
    preds, targs = learn.get_preds()
    res = learn.validate()
    history = [dict(row) for row in learn.history]
    return {
        "weights": {k: v.clone() for k, v in model.state_dict().items()},
        "history": [{k: v for k, v in row.items() if k != "time"} for row in history],
        "times": [row["time"] for row in history],
        "preds": preds,
        "targs": targs,
        "loss": res.loss,
        "noise": torch.rand(3),
        "extra": [getattr(cb, "rates", None) for cb in made],
        "keys": sorted(vars(model)),
    }


def count_labels(batch):
    """Items that differ from batch to batch, and from process to process."""
    return int((batch[1] > 0).sum())


def summed(preds, targs):
    """The mean over what `count_labels` counts."""
    return F.cross_entropy(preds[targs > 0], targs[targs > 0])


def accumulate(n):
    return lambda: GradAccumCB(n)


TOTAL = partial(F.cross_entropy, reduction="sum")

FITS = {
    "plain": lambda _: fit(),
    "uneven": lambda _: fit(n=83, bs=5),
    "seeded": lambda _: fit(kind="seeded", n=46),
    "torch": lambda _: fit(kind="torch", n=46),
    "accumulated": lambda _: fit([accumulate(3)], n=83, bs=3),
    "clipped": lambda _: fit([lambda: ClipGradCB(0.1)], opt=optim.AdamW, lr=0.01),
    "averaged": lambda _: fit([lambda: EMACB(0.8)], n=46),
    "sums": lambda _: fit(n=83, bs=5, lr=0.01, loss=TOTAL),
    "accumulated sums": lambda _: fit([accumulate(3)], n=83, bs=3, lr=0.01, loss=TOTAL),
    "stopped": lambda _: fit([lambda: EarlyStopCB(patience=1)], lr=0.5, epochs=9),
}
