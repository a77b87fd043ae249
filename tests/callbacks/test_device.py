"""Where things are, and settings of the device that end with the fit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys import assert_same_weights, batches, toy_learner

from minilearn.callbacks.device import ChannelsLastCB, DeterministicCB, DeviceCB
from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import CancelFitException
from minilearn.learner import Learner

META = torch.device("meta")  # a device that every machine has


def test_model_loss_and_batch_are_moved():
    loss_func = nn.CrossEntropyLoss(weight=torch.ones(2))
    learn = Learner(nn.Linear(3, 2), ([], []), loss_func, cbs=[TrainCB(), DeviceCB("meta")])
    learn.dls = (None, [{"x": [torch.ones(2, 3)], "name": "a"}])

    class Stop(Callback):
        def before_batch(self, learn):
            raise CancelFitException

    learn.fit(1, train=False, cbs=Stop())
    assert learn.model.weight.device == loss_func.weight.device == META
    assert learn.batch["x"][0].device == META and learn.batch["name"] == "a"


def test_a_loader_may_give_anything():
    learn = Learner(nn.Linear(1, 1), cbs=[DeviceCB("cpu")])
    learn.batch = ("text", None, 3)
    learn.cbs[0].before_batch(learn)
    assert learn.batch == ("text", None, 3)


def flags():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )


@pytest.fixture
def flags_kept():
    enabled, warn_only, deterministic, benchmark = flags()
    yield
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = deterministic, benchmark


def flags_in_a_fit(cb, **kwargs):
    learn, seen = toy_learner([cb]), []
    learn.on("after_batch", lambda learn: seen.append(flags()))
    learn.fit(1, **kwargs)
    assert len(set(seen)) == 1
    return seen[0]


@pytest.mark.case("C142")
@pytest.mark.parametrize("before", [(False, False), (True, True), (True, False)])
def test_the_switch_is_on_in_the_fit_and_as_before_after_it(flags_kept, before):
    def check(cb_class):
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True
        at_first = flags()
        assert flags_in_a_fit(cb_class()) == (True, before[1], True, False)
        assert flags() == at_first

    class Forgets(DeterministicCB):
        def cleanup_fit(self, learn):
            pass

    class Overrules(DeterministicCB):
        def __init__(self):
            super().__init__(warn_only=not before[1])

    check(DeterministicCB)
    for broken in (Forgets, Overrules):
        with pytest.raises(AssertionError):
            check(broken)


@pytest.mark.case("C142")
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, CancelFitException])
def test_the_flags_come_back_whatever_ends_the_fit(flags_kept, error):
    torch.backends.cudnn.benchmark = True
    before = flags()
    learn = toy_learner([DeterministicCB()])

    @learn.on("after_loss")
    def fail(learn):
        raise error

    try:
        learn.fit(1)
    except (ZeroDivisionError, KeyboardInterrupt):
        pass
    assert flags() == before


def test_a_nested_run_inside_the_fit_leaves_the_switch_on(flags_kept):
    learn, seen = toy_learner([DeterministicCB()]), []

    @learn.on("after_batch", when=lambda learn: learn.training)
    def look(learn):
        learn.validate()
        seen.append(flags())

    before = flags()
    learn.fit(1)
    assert {f[0] for f in seen} == {True}
    assert flags() == before


def test_operations_that_cannot_be_deterministic_raise_or_warn(flags_kept):
    class Model(nn.Linear):
        def forward(self, x):
            torch.zeros(2).put_(torch.tensor([0]), torch.ones(1), accumulate=False)
            return super().forward(x)

    with pytest.raises(RuntimeError, match="put_"):
        toy_learner([DeterministicCB()], model=Model(3, 1)).fit(1)
    with pytest.warns(UserWarning, match="put_"):
        toy_learner([DeterministicCB(warn_only=True)], model=Model(3, 1)).fit(1)


def conv_learner(cbs):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    generator = torch.Generator().manual_seed(1)
    data = [(torch.randn(2, 3, 6, 6, generator=generator), torch.tensor([1, 2])) for _ in range(2)]
    return Learner(model, (data, data), F.cross_entropy, cbs=[TrainCB(), *cbs])


def channels_last(x):
    return x.is_contiguous(memory_format=torch.channels_last)


def test_images_and_weights_lie_with_channels_last_in_the_fit_and_not_after_it():
    learn, seen = conv_learner([ChannelsLastCB()]), []
    weight = learn.model[0].weight
    learn.on(
        "after_predict", lambda x: seen.append((channels_last(x.batch[0]), channels_last(weight)))
    )
    learn.fit(1)
    assert set(seen) == {(True, True)}
    assert learn.model[0].weight is weight and weight.is_contiguous()


def test_channels_last_computes_the_same():
    plain, ours = conv_learner([]), conv_learner([ChannelsLastCB()])
    plain.fit(2)
    ours.fit(2)
    for a, b in zip(plain.model.parameters(), ours.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_weights_that_lay_so_before_stay_so():
    learn = conv_learner([ChannelsLastCB()])
    learn.model.to(memory_format=torch.channels_last)
    learn.fit(1)
    assert channels_last(learn.model[0].weight)


def test_a_nested_run_inside_the_fit_leaves_the_weights_as_they_lie():
    learn, once, seen = conv_learner([ChannelsLastCB()]), conv_learner([ChannelsLastCB()]), []

    @learn.on("after_loss", when=lambda learn: learn.training)
    def look(learn):
        learn.validate()
        seen.append(channels_last(learn.model[0].weight))

    learn.fit(1)
    once.fit(1)
    assert set(seen) == {True}
    assert learn.model[0].weight.is_contiguous()
    assert_same_weights(learn.model, once.model)


def test_what_is_no_image_is_left_alone():
    cb, learn = ChannelsLastCB(), toy_learner()
    x = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    learn.batch = (x, torch.zeros(2, 3), "text")
    cb.before_batch(learn)
    assert learn.batch[0] is x and learn.batch[2] == "text"
    toy_learner([cb], (batches(1), batches(1))).fit(1)
