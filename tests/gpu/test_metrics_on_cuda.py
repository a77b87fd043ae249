"""MetricsCB on a CUDA device; the proxies without one are in tests/metrics/test_callback.py."""

import pytest
import torch
import torch.nn.functional as F
import torcheval.metrics as te
import torchmetrics as tm
from sklearn import metrics as sk
from torch import nn

from minilearn.callbacks.device import DeviceCB
from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import Order
from minilearn.learner import Learner
from minilearn.metrics.callback import MetricsCB
from minilearn.metrics.functions import accuracy, skm

pytestmark = pytest.mark.gpu


class Quiet(MetricsCB):
    def _log(self, row):
        pass


class SyncIsAnError(Callback):
    """Makes CUDA refuse to be waited for from before_batch to cleanup_batch."""

    order = Order.PLACE + 1

    def before_batch(self, learn):
        torch.cuda.set_sync_debug_mode("error")

    def cleanup_batch(self, learn):
        torch.cuda.set_sync_debug_mode("default")


def data(n=200, size=8, k=4):
    x, y = torch.randn(n, k).cuda(), torch.randint(0, k, (n,)).cuda()
    return x, y, list(zip(x.split(size), y.split(size), strict=True))


def fit(*metrics, cbs=(), dls=None, **named):
    learn = Learner(nn.Identity(), (None, dls), F.cross_entropy, 0.1)
    for cb in (TrainCB(), DeviceCB("cuda"), Quiet(*metrics, **named), *cbs):
        learn.add_cb(cb)
    learn.fit(1, train=False)
    return learn.history[0]


@pytest.mark.case("C037")
def test_objects_made_without_a_device_work_on_cuda_and_give_floats():
    x, y, batches = data()
    row = fit(
        te.MulticlassAccuracy(), tm.Accuracy("multiclass", num_classes=4), accuracy, dls=batches
    )
    want = sk.accuracy_score(y.cpu(), x.argmax(1).cpu())
    for name in ("MulticlassAccuracy", "MulticlassAccuracy_2", "accuracy"):
        if name in row:
            assert type(row[name]) is float and row[name] == pytest.approx(want, abs=1e-6)
    assert row["valid_loss"] == pytest.approx(F.cross_entropy(x, y).item(), abs=1e-6)


@pytest.mark.case("C037")
def test_an_object_that_stays_on_the_cpu_fails():
    x, y, _ = data()
    with pytest.raises(RuntimeError):
        tm.Accuracy("multiclass", num_classes=4).update(x, y)


def test_no_batch_waits_for_the_device():
    x, y, batches = data()
    joined = skm(sk.accuracy_score, lambda p: p.argmax(1))
    row = fit(accuracy, te.MulticlassAccuracy(), joined=joined, cbs=[SyncIsAnError()], dls=batches)
    want = sk.accuracy_score(y.cpu(), x.argmax(1).cpu())
    assert row["accuracy"] == pytest.approx(want, abs=1e-6)
    assert row["joined"] == pytest.approx(want, abs=1e-6)
