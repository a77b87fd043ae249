"""What only a GPU decides: its memory does not grow in an epoch."""

import pytest
import torch
from toys import batches, linear

from minilearn import Callback, DeviceCB, Learner, MetricsCB, ProgressCB, TrainCB, mse

pytestmark = pytest.mark.gpu


class Note(Callback):
    """Notes the allocated memory after batches 10 and 1,000 of each epoch."""

    order = 1000

    def __init__(self):
        self.seen = {}

    def after_batch(self, learn):
        if learn.iter in (9, 999):
            self.seen[learn.training, learn.iter] = torch.cuda.memory_allocated()


class KeepsOutputs(Callback):
    def before_fit(self, learn):
        self.outputs = []

    def after_batch(self, learn):
        self.outputs.append(learn.preds)


def growth(*more):
    data, note = batches(1000, size=4096), Note()
    cbs = [TrainCB(), DeviceCB("cuda"), MetricsCB(mse=mse), ProgressCB(), note, *more]
    Learner(linear(), (data, data), cbs=cbs).fit(1)
    return max(note.seen[training, 999] - note.seen[training, 9] for training in (True, False))


@pytest.mark.case("C150")
def test_device_memory_does_not_grow_in_an_epoch():
    assert growth() < 2**20


@pytest.mark.case("C150")
def test_kept_outputs_would_be_seen():
    assert growth(KeepsOutputs()) > 2**20
