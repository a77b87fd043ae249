"""A long pass needs no more memory than a short one, in training and in validation."""

import gc

import pytest
import torch
from toys import batches, linear

from minilearn import Callback, DeviceCB, Learner, MetricsCB, ProgressCB, TrainCB, mse


class Count(Callback):
    """Counts the bytes of live tensors after two batches of each pass."""

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
        if type(o) in (torch.Tensor, torch.nn.Parameter):
            storage = o.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class KeepsOutputs(Callback):
    """What other frameworks did: the outputs of every batch wait for the end of the pass."""

    def before_epoch(self, learn):
        self.outputs = []

    def after_batch(self, learn):
        self.outputs.append(learn.preds)


def growth(training, *more):
    # the metric keeps clones of at most 256 KiB (DESIGN), filled long before batch 200
    data, count = batches(1000, size=64), Count(200, 999)
    cbs = [TrainCB(), DeviceCB("cpu"), MetricsCB(mse=mse), ProgressCB(), count, *more]
    Learner(linear(), (data, data), cbs=cbs).fit(1)
    return count.growth(training)


@pytest.mark.case("C150")
@pytest.mark.parametrize("training", [True, False])
def test_a_pass_keeps_nothing_of_its_batches(training):
    assert growth(training) < 16 * 1024


@pytest.mark.case("C150")
@pytest.mark.parametrize("training", [True, False])
def test_outputs_that_are_kept_would_be_seen(training):
    assert growth(training, KeepsOutputs()) > 128 * 1024
