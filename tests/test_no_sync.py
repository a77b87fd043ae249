"""No callback reads a device value within a batch, unless its card says `Syncs: once an update`.

On the CPU a read costs nothing and so goes unnoticed: here every way of reading a value is counted.
On a GPU `tests/gpu/` lets CUDA itself raise.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from minilearn import Learner, MetricsCB, ProgressCB, TrainCB, accuracy
from minilearn.core.callback import Callback
from tests.test_cards import CALLBACKS, INDIRECT, INNER, MADE, card, small_cnn, tiny_pictures

METHODS = (
    "item",
    "tolist",
    "numpy",
    "cpu",
    "__float__",
    "__int__",
    "__bool__",
    "__repr__",
    "__format__",
)
READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default}


class Reads(TorchDispatchMode):
    """Counts reads of tensor values while `counting`."""

    def __init__(self):
        super().__init__()
        self.counting, self.seen = False, []

    def note(self, name):
        if self.counting:
            self.seen.append(name)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in READS:
            self.note(str(func))
        return func(*args, **(kwargs or {}))


class Within(Callback):
    """Switches the counting on at one end of a batch, or off at the other."""

    in_probe = True

    def __init__(self, reads, order):
        self.reads, self.order = reads, order


class First(Within):
    def before_batch(self, learn):
        self.reads.counting = True


class Last(Within):
    def cleanup_batch(self, learn):
        self.reads.counting = False


def reads_in_batches(monkeypatch, *cbs, n=3) -> list[str]:
    reads = Reads()
    for name in METHODS:
        method = getattr(torch.Tensor, name)

        def counted(x, *args, _method=method, _name=name, **kwargs):
            reads.note(_name)
            return _method(x, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counted)
    data = tiny_pictures(n)
    train = [] if any(isinstance(cb, TrainCB) for cb in cbs) else [TrainCB()]
    watchers = [First(reads, -1000), Last(reads, -1000)]  # clean-up runs in reverse: this is last
    with reads:
        learn = Learner(small_cnn(), (data, data), F.cross_entropy, cbs=[*train, *cbs, *watchers])
        learn.fit(2)
    return reads.seen


FREE = [
    c
    for c in CALLBACKS
    if ("Syncs" not in card(c) or c is MetricsCB)
    and c.__name__ not in INDIRECT | INNER
    and c is not ProgressCB
]


@pytest.mark.parametrize("cls", FREE, ids=lambda cls: cls.__name__)
def test_callback_reads_no_device_value_in_a_batch(cls, monkeypatch):
    cb = MADE.get(cls.__name__, lambda cls: cls())(cls)
    metrics = [] if cls is MetricsCB else [MetricsCB()]
    assert reads_in_batches(monkeypatch, cb, *metrics) == []


def test_the_loss_is_read_once_in_128_updates(monkeypatch):
    reads = reads_in_batches(monkeypatch, MetricsCB(), n=130)
    assert reads.count("cpu") == 2  # of 260 updates
    assert reads_in_batches(monkeypatch, MetricsCB(on_nan="warn"), n=130) == []


def test_the_usual_callbacks_read_none_together(monkeypatch):
    """The bar reads the loss a few times a second; with the clock held it never does."""
    import time

    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert reads_in_batches(monkeypatch, MetricsCB(accuracy), ProgressCB()) == []


@pytest.mark.parametrize("read", [float, lambda x: x.item(), print, lambda x: x.cpu(), bool])
def test_a_read_would_be_seen(read, monkeypatch):
    class Reader(Callback):
        def after_batch(self, learn):
            read(learn.loss)

    assert reads_in_batches(monkeypatch, Reader())
