"""Helpers for tests of schedules: a callback that notes the rates, loops written by hand."""

import warnings

import pytest
import torch
from torch import nn, optim

from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import CancelStepException, Order
from minilearn.learner import Learner
from tests.toys import batches, linear


class UsedLR(Callback):
    """Writes down the rates that each update used, and the epoch of it."""

    order = Order.METRICS

    def __init__(self):
        self.lrs, self.groups, self.epochs = [], [], []

    def after_step(self, learn):
        groups = learn.opt.param_groups
        self.lrs.append(groups[0]["lr"])
        self.groups.append([dict(g, params=None) for g in groups])
        self.epochs.append(learn.epoch)

    def of_epochs(self):
        return list(dict(zip(self.epochs, self.lrs, strict=True)).values())


class Accumulate(Callback):
    """Makes an update of every n batches, and of what is left at the end of an epoch."""

    order = Order.ACCUMULATE

    def __init__(self, n):
        self.n = n

    def before_fit(self, learn):
        learn.plan.batches_per_step = self.n

    def before_step(self, learn):
        last = learn.iter + 1 == learn.n_batches
        learn.plan.in_group = not last and (learn.iter + 1) % self.n != 0
        if learn.plan.in_group:
            raise CancelStepException


class SkipSteps(Callback):
    """Skips some updates, as a scaler does where gradients are not finite."""

    order = Order.GRADIENT

    def __init__(self, n):
        self.n = n

    def before_step(self, learn):
        if learn.iter < self.n:
            raise CancelStepException


class Row(Callback):
    """Puts a value into the row after each validation, as MetricsCB does."""

    order = Order.METRICS

    def __init__(self, name="valid_loss", values=()):
        self.name, self.values = name, iter(values)

    def after_epoch(self, learn):
        if not learn.training:
            learn.row[self.name] = next(self.values, 1.0)


class Stream:
    """A loader that gives another number of batches than its length says, or has no length."""

    def __init__(self, n, declared=None):
        self.batches = batches(n)
        if declared is not None:
            self.declared = declared

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        if not hasattr(self, "declared"):
            raise TypeError("no length")
        return self.declared


def fit(*cbs, n=10, lr=1.0, dls=None, opt_func=optim.SGD, **kwargs):
    """Fit a toy with `n` batches an epoch; return the Learner and what its updates used."""
    used = UsedLR()
    dls = (batches(n), batches(1)) if dls is None else dls
    learn = Learner(linear(), dls, lr=lr, cbs=[TrainCB(), used, *cbs], opt_func=opt_func)
    learn.fit(**kwargs)
    return learn, used


def torchs(make, n, lr=1.0, opt_func=optim.SGD, field="lr"):
    """What torch's own loop uses in `n` updates."""
    opt = opt_func([nn.Parameter(torch.ones(2))], lr=lr)
    sched, used = make(opt), []
    for _ in range(n):
        used.append(opt.param_groups[0][field])
        opt.step()
        sched.step()
    return used


def check_epoch_rates(cb, expected, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, used = fit(cb, **kwargs)
    assert used.of_epochs() == pytest.approx(expected)


def two_groups(params, lr):
    weight, bias = params
    return optim.AdamW(
        [{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "lr": lr / 10}],
        lr,
        weight_decay=0.0,
    )
