"""A long epoch needs no more memory than a short one, in training and in validation."""

import gc

import pytest
import torch
import torch.nn.functional as F
from toys import batches, linear

from minilearn import (
    EMACB,
    Callback,
    ClipGradCB,
    DeviceCB,
    GradAccumCB,
    LambdaCB,
    Learner,
    MetricsCB,
    ProgressCB,
    RecorderCB,
    TrainCB,
    mse,
)

pytestmark = pytest.mark.usefixtures("new_objects_alone")


class Count(Callback):
    """Counts the bytes of live tensors after two batches of each epoch."""

    order = 1000

    def __init__(self, first, last):
        self.at, self.seen = (first, last), {}

    def after_batch(self, learn):
        if learn.iter in self.at:
            self.seen[learn.training, learn.iter] = live_bytes()

    def growth(self, training):
        first, last = (self.seen[training, number] for number in self.at)
        return last - first


def live_bytes():
    gc.collect()
    storages = {}
    for o in gc.get_objects():
        dense = type(o) in (torch.Tensor, torch.nn.Parameter) and o.layout is torch.strided
        if dense:  # sparse ones of other tests have no storage to ask for
            storage = o.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class KeepsOutputs(Callback):
    """What other frameworks did: the outputs of every batch wait for the end of the epoch."""

    def before_epoch(self, learn):
        self.outputs = []

    def after_batch(self, learn):
        self.outputs.append(learn.preds)


def growth(*more):
    """Return how many bytes an epoch of training and one of validation keep."""
    # the metric keeps clones of at most 256 KiB (DESIGN), filled long before batch 200
    data, count = batches(1000, size=64), Count(200, 999)
    cbs = [TrainCB(), DeviceCB("cpu"), MetricsCB(mse=mse), ProgressCB(), count, *more]
    Learner(linear(), (data, data), cbs=cbs).fit(1)
    return count.growth(True), count.growth(False)


@pytest.mark.case("C150")
def test_an_epoch_keeps_nothing_of_its_batches():
    assert max(growth()) < 16 * 1024


@pytest.mark.case("C150")
def test_outputs_that_are_kept_would_be_seen():
    assert min(growth(KeepsOutputs())) > 128 * 1024


class Losses(torch.nn.Module):
    """A model that makes its loss itself, of two parts."""

    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, x, y):
        error = (self.layer(x) - y) ** 2
        return {"mean": error.mean(), "largest": error.max()}


def settings(kind):
    """A model, its loss and callbacks: other inputs than the plain fit of the case."""
    if kind == "accumulation and averages":
        return linear(), F.mse_loss, [TrainCB(), GradAccumCB(4), ClipGradCB(1.0), EMACB(0.9)]
    if kind == "losses of parts":
        return Losses(), None, [TrainCB(n_inp=2)]
    log = LambdaCB(after_loss=lambda learn: learn.log(mine=learn.loss))
    return linear(), F.mse_loss, [TrainCB(), RecorderCB("lr"), log]


KINDS = ("accumulation and averages", "losses of parts", "logged losses")


def watched(kind, watch, n):
    model, loss_func, cbs = settings(kind)
    data = batches(n, size=64)
    learn = Learner(model, (data, data), loss_func, 1e-3, [*cbs, MetricsCB(), watch])
    learn.fit(1)
    return watch


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_fit_keeps_anything_of_its_batches(kind):
    count = watched(kind, Count(100, 399), 400)
    assert count.growth(True) < 16 * 1024 and count.growth(False) < 16 * 1024


class Graphs(Callback):
    """Counts the live tensors that have a graph, after two batches of training."""

    order = 1000

    def __init__(self):
        self.seen = []

    def after_batch(self, learn):
        if learn.training and learn.iter in (5, 50):
            gc.collect()
            tensors = [o for o in gc.get_objects() if type(o) is torch.Tensor]
            self.seen.append(sum(t.grad_fn is not None for t in tensors))


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_fit_keeps_a_graph(kind):
    early, late = watched(kind, Graphs(), 60).seen
    assert early == late


def test_graphs_that_are_kept_would_be_seen():
    kept, graphs = [], Graphs()
    keep = LambdaCB(after_loss=lambda learn: kept.append(learn.loss))
    data = batches(60)
    Learner(linear(), data, F.mse_loss, 1e-3, [TrainCB(), keep, graphs]).fit(1, valid=False)
    assert graphs.seen[1] - graphs.seen[0] == 45
