"""The same weights as a loop written by hand, whatever the optimizer and however one validates."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn, optim
from toys import assert_same_weights, batches, linear, toy_dls, toy_learner, train_by_hand

from minilearn.base.state_dict import load_state
from minilearn.callbacks.device import DeviceCB
from minilearn.callbacks.training import TrainCB
from minilearn.learner import Learner
from minilearn.metrics.callback import MetricsCB
from minilearn.metrics.functions import mae
from minilearn.progress.callback import ProgressCB

OPTIMIZERS = {
    "sgd": partial(optim.SGD, momentum=0.9),
    "adamw": optim.AdamW,
}


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_equal_those_of_a_loop_written_by_hand(name, valid):
    ours, theirs, dls = linear(), linear(), toy_dls(5, 2)
    Learner(ours, dls, cbs=TrainCB(), lr=0.05, opt_func=OPTIMIZERS[name]).fit(3, valid=valid)
    train_by_hand(theirs, dls, OPTIMIZERS[name](theirs.parameters(), 0.05), 3, valid=valid)
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_equal_by_hand_with_metrics_and_bars_attached(name):
    ours, theirs, dls = linear(), linear(), toy_dls(5, 2)
    cbs = [TrainCB(), DeviceCB("cpu"), MetricsCB(mae=mae), ProgressCB()]
    Learner(ours, dls, cbs=cbs, lr=0.05, opt_func=OPTIMIZERS[name]).fit(3)
    train_by_hand(theirs, dls, OPTIMIZERS[name](theirs.parameters(), 0.05), 3)
    assert_same_weights(ours, theirs)


def noisy_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


def shuffled(n=20):
    x, y = batches(1, n)[0]
    dataset = torch.utils.data.TensorDataset(x, y)
    return [torch.utils.data.DataLoader(dataset, 4, shuffle=True) for _ in range(2)]


def trained(train, valid_loader=True):
    """Train a model with dropout on shuffled data, from one seed."""
    model, dls = noisy_model(), shuffled()
    torch.manual_seed(7)
    train(model, dls if valid_loader else dls[:1])
    return model


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_equal_by_hand_with_dropout_and_a_shuffling_loader(name, valid):
    opt_func = OPTIMIZERS[name]

    def by_hand(model, dls):
        train_by_hand(model, dls, opt_func(model.parameters(), 0.05), 3, valid=valid)

    def with_learner(model, dls):
        Learner(model, dls, cbs=TrainCB(), lr=0.05, opt_func=opt_func).fit(3, valid=valid)

    assert_same_weights(trained(with_learner), trained(by_hand))


# C141: whether and how often one validates


def fit(learn, **kwargs):
    learn.fit(4, **kwargs)


WAYS = {
    "never": partial(fit, valid=False),
    "every second epoch": partial(fit, valid_every=2),
    "after every third update": partial(fit, valid_every=(3, "step")),
}


def check_validation_changes_nothing(learner_class, way):
    def plain(model, dls):
        fit(learner_class(model, dls, cbs=TrainCB(), lr=0.05))

    def other(model, dls):
        way(learner_class(model, dls, cbs=TrainCB(), lr=0.05))

    assert_same_weights(trained(plain), trained(other))


@pytest.mark.case("C141")
@pytest.mark.parametrize("way", WAYS)
def test_how_often_one_validates_does_not_change_the_weights(way):
    check_validation_changes_nothing(Learner, WAYS[way])


LOOKS = {
    "a fit that only validates": lambda learn: learn.fit(1, train=False),
    "validate": lambda learn: learn.validate(),
    "get_preds": lambda learn: learn.get_preds(),
    "get_preds of the training data": lambda learn: learn.get_preds(learn.dls[0]),
}


@pytest.mark.case("C141")
@pytest.mark.parametrize("look", LOOKS)
def test_a_look_before_the_fit_does_not_change_the_weights(look):
    def first(learn):
        LOOKS[look](learn)
        fit(learn)

    check_validation_changes_nothing(Learner, first)


@pytest.mark.case("C141")
def test_the_check_of_validation_notices_one_that_moves_the_random_numbers(monkeypatch):
    monkeypatch.setattr("minilearn.core.learner.preserved_random_states", nullcontext)
    with pytest.raises(AssertionError):
        check_validation_changes_nothing(Learner, WAYS["never"])


# ---- the optimizer ----


def test_each_fit_makes_a_new_optimizer_by_default():
    learn = toy_learner(opt_func=partial(optim.SGD, momentum=0.9))
    learn.fit(1)
    first = learn.opt
    learn.fit(1)
    assert learn.opt is not first
    second = learn.opt
    learn.fit(1, reset_opt=False)
    assert learn.opt is second


def test_an_optimizer_that_was_given_is_kept():
    model = linear()
    opt = optim.Adam(model.parameters(), 0.01)
    learn = toy_learner(model=model, opt=opt)
    learn.fit(1)
    learn.fit(1)
    assert learn.opt is opt
    assert next(iter(opt.state.values()))["step"] == 4
    learn.free()
    assert learn.opt is opt


def test_without_an_optimizer_factory_the_learner_keeps_what_it_has():
    learn = toy_learner(opt_func=None)
    learn.opt = opt = optim.SGD(learn.model.parameters(), 0.1)
    learn.fit(1)
    assert learn.opt is opt


@pytest.mark.parametrize("lr", [0.1, 0.01])
def test_a_rate_given_to_fit_counts_for_this_fit_only(lr):
    learn = toy_learner(lr=0.5)
    learn.fit(1, lr=lr)
    assert learn.opt.param_groups[0]["lr"] == lr
    learn.fit(1)
    assert learn.opt.param_groups[0]["lr"] == learn.lr == 0.5


def test_no_rate_is_fine_until_a_fit_trains():
    learn = toy_learner(lr=None)
    learn.fit(1, train=False)
    learn.fit(1, lr=0.1)
    with pytest.raises(ValueError, match=r"learning rate.*lr=0.01"):
        learn.fit(1)


class StepAndZeroGrad:
    """All that the loop may ask of an optimizer."""

    def __init__(self, params, lr):
        self._params, self._lr = list(params), lr

    def step(self):
        with torch.no_grad():
            for p in self._params:
                p.add_(p.grad, alpha=-self._lr)

    def zero_grad(self):
        for p in self._params:
            p.grad = None


class Delegating:
    """An optimizer whose methods are not on its class."""

    def __init__(self, params, lr):
        self._inner = StepAndZeroGrad(params, lr)

    def __getattr__(self, name):
        if name not in ("step", "zero_grad"):
            raise AttributeError(name)
        return getattr(self._inner, name)


@pytest.mark.parametrize("opt_func", [StepAndZeroGrad, Delegating])
def test_an_optimizer_needs_no_more_than_step_and_zero_grad(opt_func):
    learn, theirs = toy_learner(opt_func=opt_func), linear()
    learn.fit(2)
    train_by_hand(theirs, learn.dls, optim.SGD(theirs.parameters(), 0.1), 2)
    assert_same_weights(learn.model, theirs)


def test_an_optimizer_s_own_zero_grad_is_called():
    calls = []

    class Own(optim.SGD):
        def zero_grad(self, set_to_none=True):
            calls.append(1)
            super().zero_grad(set_to_none)

    toy_learner(opt_func=Own).fit(1)
    assert calls == [1, 1]
    opt = optim.SGD((model := linear()).parameters(), 0.1)
    opt.zero_grad = lambda: calls.append(2)
    toy_learner(model=model, opt=opt).fit(1)
    assert calls == [1, 1, 2, 2]


def test_a_state_with_more_than_the_model_has_is_refused_unless_one_asks_for_what_fits():
    more = linear(seed=1).state_dict() | {"more": torch.ones(1)}
    with pytest.raises(ValueError, match="another model"):
        load_state(model := linear(), more)
    assert_same_weights(model, linear())
    with pytest.warns(UserWarning, match="more"):
        load_state(model, more, strict=False)
    assert_same_weights(model, linear(seed=1))
