"""Each callback's card says what the callback does: events, order, attributes read and written.

A proxy is between a callback and the Learner in real fits (training, validation, a cancel, an
error) and records which attributes it reads and writes.
"""

import contextlib
import importlib
import inspect
import pkgutil
import re
import sys
import tempfile
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim import lr_scheduler

import minilearn
from minilearn import MetricsCB, TrainCB, accuracy
from minilearn.core.callback import Callback
from minilearn.core.events import ACTIONS, EVENTS, CancelEpochException, CancelFitException, Order
from minilearn.learner import Learner

LINE = re.compile(r"^(Events|Order|Reads|Writes|Syncs):[ \t]*(.*(?:\n[ \t]+\S.*)*)$", re.M)


def all_callbacks() -> list[type]:
    for module in pkgutil.walk_packages(minilearn.__path__, "minilearn."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    queue, found = [Callback], []
    while queue:
        for cls in queue.pop().__subclasses__():
            queue.append(cls)
            if cls.__module__.startswith("minilearn.") and not cls.__name__.startswith("_"):
                found.append(cls)
    return sorted(set(found), key=lambda cls: cls.__name__)


def card(cls: type) -> dict[str, str]:
    return dict(LINE.findall(inspect.getdoc(cls) or ""))


def words(text: str) -> set[str]:
    return {word.strip() for word in text.split(",") if word.strip()}


CALLBACKS = all_callbacks()


@pytest.mark.parametrize("cls", CALLBACKS, ids=lambda cls: cls.__name__)
def test_has_a_card(cls):
    assert {"Events", "Order", "Reads", "Writes"} <= set(card(cls))


@pytest.mark.parametrize("cls", CALLBACKS, ids=lambda cls: cls.__name__)
def test_card_names_the_events_that_are_handled(cls):
    handled = {name for name in (*EVENTS, *ACTIONS) if hasattr(cls, name)}
    if card(cls)["Events"].startswith("("):  # decided by its arguments, said in words
        assert not handled
        return
    assert words(card(cls)["Events"]) == handled


@pytest.mark.parametrize("cls", CALLBACKS, ids=lambda cls: cls.__name__)
def test_card_names_the_slot(cls):
    name, _, more = card(cls)["Order"].partition(" ")
    assert cls.order == Order[name] + int(more.replace(" ", "") or 0)


FILES = tempfile.TemporaryDirectory()  # for what writes; goes with the process


def _mlflow(cls):
    pytest.importorskip("mlflow")
    cb = cls()
    cb._open = cb._write = cb._close = lambda *args: None  # a database takes seconds to make
    return cb


def _tensorboard(cls):
    pytest.importorskip("tensorboard")
    return cls(f"{FILES.name}/tensorboard", every=2)


def _wandb(cls):
    pytest.importorskip("wandb")
    return cls(mode="disabled")


# how to make the callbacks that need arguments
MADE = {
    "ActivationCheckpointCB": lambda cls: cls("*"),
    "CSVLoggerCB": lambda cls: cls(f"{FILES.name}/rows.csv"),
    "JSONLLoggerCB": lambda cls: cls(f"{FILES.name}/rows.jsonl", every=2),
    "LogCB": lambda cls: cls(every=2),
    "MLflowCB": _mlflow,
    "RunCB": lambda cls: cls(FILES.name),
    "TensorBoardCB": _tensorboard,
    "WandbCB": _wandb,
    "BaseSchedCB": lambda cls: cls(partial(lr_scheduler.StepLR, step_size=1)),
    "BatchSchedCB": lambda cls: cls(partial(lr_scheduler.StepLR, step_size=1)),
    "BatchTransformCB": lambda cls: cls(lambda batch: batch),
    "CheckpointCB": lambda cls: cls(tempfile.mkdtemp(dir=FILES.name)),
    "ClipGradCB": lambda cls: cls(max_norm=1.0),
    "EpochSchedCB": lambda cls: cls(partial(lr_scheduler.StepLR, step_size=1)),
    "GradAccumCB": lambda cls: cls(2),
    "HooksCallback": lambda cls: cls(lambda hook, mod, inp, outp: None),
    "LimitBatchesCB": lambda cls: cls(train=2, valid=1),
    "MetricsCB": lambda cls: cls(accuracy),
    "MixCB": lambda cls: cls([minilearn.MixUpCB()]),
    "ParamSchedCB": lambda cls: cls(weight_decay=lambda p: 0.1),
    "PlateauCB": lambda cls: cls("valid_loss"),
    "RecorderCB": lambda cls: cls(lr=lambda cb: cb.pg["lr"]),
    "TimeLimitCB": lambda cls: cls(minutes=10),
}
INDIRECT = {"LambdaCB", "OnEvent"}  # run functions of the user
INNER = {"TakePreds", "Resume", "BarrierCB", "ShardCB"}  # made for a fit by others


class Watched(Learner):
    """A Learner that notes which of its attributes a callback of one class reads and writes."""

    def __init__(self, *args, cls, **kwargs):
        object.__setattr__(self, "noted", {"reads": set(), "writes": set()})
        object.__setattr__(self, "cls", cls)
        super().__init__(*args, **kwargs)

    def _note(self, kind, name):
        if not name.startswith("_") and not callable(getattr(Learner, name, None)):
            if asks(sys._getframe(2)) is object.__getattribute__(self, "cls"):
                object.__getattribute__(self, "noted")[kind].add(name)

    def __getattribute__(self, name):
        if name not in ("noted", "_note", "__dict__", "__class__"):
            Watched._note(self, "reads", name)
        return object.__getattribute__(self, name)

    def __setattr__(self, name, value):
        Watched._note(self, "writes", name)
        object.__setattr__(self, name, value)


def asks(frame):
    """The class of the callback in whose method, or in whose module's function, the frame is."""
    module = frame.f_globals["__name__"]
    while frame is not None and frame.f_globals["__name__"] == module:
        if isinstance(cb := frame.f_locals.get("self"), Callback):
            return type(cb)
        frame = frame.f_back
    return None


class Upset(Callback):
    """Raises something in the second training batch."""

    def __init__(self, error):
        self.error = error

    def after_loss(self, learn):
        if learn.training and learn.iter == 1 and self.error:
            raise self.error


def tiny_pictures(n: int) -> list:
    """`n` batches of four random images (4, 1, 8, 8) in three classes."""
    torch.manual_seed(0)
    return [(torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,))) for _ in range(n)]


def small_cnn() -> nn.Module:
    """One convolution and a mean."""
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def watch(cls: type) -> dict[str, set[str]]:
    """Run short fits with the callback: plain, cancelled, failing; return what it did."""
    data = tiny_pictures(3)
    noted = {"reads": set(), "writes": set()}
    for upset in (None, CancelEpochException(), CancelFitException(), ValueError("upset")):
        cb = MADE.get(cls.__name__, lambda cls: cls())(cls)
        learn = Watched(
            small_cnn(),
            (data, data),
            F.cross_entropy,
            cbs=[*([] if isinstance(cb, TrainCB) else [TrainCB()]), Upset(upset), cb],
            opt_func=optim.SGD,
            cls=cls,
        )
        if cls is not MetricsCB:
            learn.add_cb(MetricsCB(on_nan="warn"))
        with contextlib.suppress(ValueError), contextlib.redirect_stdout(None):
            learn.fit(2)
        for kind, names in learn.noted.items():
            noted[kind] |= names
    return noted


@pytest.mark.parametrize(
    "cls",
    [c for c in CALLBACKS if c.__name__ not in INDIRECT | INNER],
    ids=lambda cls: cls.__name__,
)
def test_card_names_what_is_read_and_written(cls):
    noted = watch(cls)
    assert noted["writes"] <= words(card(cls)["Writes"])
    reads = words(card(cls)["Reads"])
    assert reads == {"everything"} or noted["reads"] <= reads | words(card(cls)["Writes"])


def test_only_a_checkpoint_reads_everything():
    assert [c.__name__ for c in CALLBACKS if card(c)["Reads"] == "everything"] == ["CheckpointCB"]


def test_a_wrong_card_is_seen():
    class Sly(Callback):
        def after_batch(self, learn):
            learn.loss = learn.loss + learn.iter

    assert watch(Sly)["writes"] == {"loss"}
    assert {"iter", "loss"} <= watch(Sly)["reads"]
