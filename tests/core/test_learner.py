"""The Learner: the same weights as a loop written by hand, and what it takes and keeps."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fastcore.foundation import L
from torch import nn, optim
from toys import (
    ACTIONS,
    At,
    Before,
    Trace,
    assert_same_weights,
    batches,
    linear,
    plain_trace,
    toy_dls,
    toy_learner,
    train_by_hand,
)

from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.learner import Learner

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


@pytest.mark.case("C141")
def test_a_validation_before_the_fit_does_not_change_the_weights():
    def first(learn):
        learn.fit(1, train=False)
        learn.fit(4)

    check_validation_changes_nothing(Learner, first)


@pytest.mark.case("C141")
def test_the_check_of_validation_notices_one_that_moves_the_random_numbers(monkeypatch):
    monkeypatch.setattr("minilearn.core.learner.preserved_random_states", nullcontext)
    with pytest.raises(AssertionError):
        check_validation_changes_nothing(Learner, WAYS["never"])


# ---- what a Learner takes ----


@pytest.mark.parametrize(
    "make",
    [
        lambda cb: cb,
        lambda cb: [cb],
        lambda cb: (cb,),
        lambda cb: L(cb),
        lambda cb: (c for c in [cb]),
        lambda cb: {cb},
    ],
)
def test_callbacks_come_as_one_or_in_any_collection(make):
    learn = Learner(linear(), toy_dls(), cbs=make(train := TrainCB()))
    assert type(learn.cbs) is list and learn.cbs == [train]
    trace = Trace()
    learn.fit(1, cbs=make(trace))
    assert trace.events and learn.cbs == [train]


def test_a_class_stands_for_a_callback_made_without_arguments():
    learn = Learner(linear(), toy_dls(), cbs=TrainCB)
    assert isinstance(learn.cbs[0], TrainCB)
    learn.fit(1, cbs=[Trace])
    assert Learner(linear(), toy_dls()).cbs == []


def test_the_user_s_list_is_copied():
    mine = [TrainCB()]
    learn = Learner(linear(), toy_dls(), cbs=mine)
    learn.add_cb(Trace())
    assert len(mine) == 1
    mine.clear()
    assert len(learn.cbs) == 2


def test_a_callback_that_is_there_already_is_neither_doubled_nor_removed():
    learn = toy_learner([trace := Trace()])
    learn.fit(1, cbs=[trace])
    assert trace.events == [e for e in plain_trace() if e not in ACTIONS]
    assert learn.cbs[-1] is trace
    learn.add_cb(trace)
    assert len(learn.cbs) == 2


@pytest.mark.parametrize("kind", [tuple, list, "dict", "object"])
def test_loaders_come_in_any_of_the_usual_forms(kind):
    train, valid = toy_dls(2, 1)
    forms = {"dict": {"train": train, "valid": valid}}
    forms["object"] = type("DLs", (), {"train": train, "valid": valid})()
    dls = forms[kind] if isinstance(kind, str) else kind((train, valid))
    trace = Trace()
    toy_learner([trace], dls=dls).fit(1)
    assert trace.events.count("before_batch") == 3


def test_a_model_may_be_any_callable():
    w = torch.zeros(1, requires_grad=True)
    learn = Learner(lambda x: x[:, :1] * w, toy_dls(), cbs=TrainCB(), opt=optim.SGD([w], 0.1))
    learn.fit(2)
    assert w.item() != 0 and w.grad is None


# ---- the optimizer ----


def test_each_fit_makes_a_new_optimizer_unless_told_otherwise():
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


# ---- what a Learner keeps ----


@pytest.mark.parametrize("end", [None, "CancelFitException", "KeyboardInterrupt"])
def test_batch_preds_loss_and_optimizer_stay_readable_after_a_fit(end):
    from minilearn.core import exceptions

    cbs = []
    if end:
        error = getattr(exceptions, end, KeyboardInterrupt)
        cbs = [At("after_loss", error, when=lambda learn: learn.iter == 1)]
    learn = toy_learner(cbs)
    learn.fit(1, valid=False, on_interrupt="stop")
    x, y = learn.dls[0][1]
    assert learn.batch[0] is x
    assert learn.preds.shape == y.shape and not learn.preds.requires_grad
    assert not learn.loss.requires_grad and learn.opt is not None
    learn.free()
    assert learn.batch is learn.preds is learn.loss is learn.opt is None
    learn.fit(1)


def test_callbacks_are_found_by_type():
    class Special(Trace): ...

    learn = toy_learner([first := Special(), Trace()])
    assert learn.find(Special) is learn.find(Trace) is first
    assert learn.find(TrainCB) is learn.cbs[0]
    assert learn.find(KeyError) is None
    assert learn.find(Callback) is learn.cbs[0]


def test_callbacks_can_be_added_and_removed_by_object_or_class():
    learn = toy_learner()
    trace = learn.add_cb(Trace)
    assert isinstance(trace, Trace) and learn.cbs[-1] is trace
    learn.add_cb(other := Trace())
    learn.remove_cb(trace)
    assert learn.cbs[1:] == [other]
    learn.add_cb(trace)
    learn.remove_cb(Trace)
    assert learn.find(Trace) is None
    assert trace.events == other.events == []


def test_every_public_attribute_is_declared_in_the_class_body():
    learn = toy_learner()
    learn.fit(1)
    declared = {
        name for kind in type(learn).__mro__ for name in vars(kind).get("__annotations__", {})
    }
    assert {name for name in vars(learn) if not name.startswith("_")} <= declared


def test_a_fit_inside_a_fit_is_refused():
    learn = toy_learner([At("after_batch", lambda learn: learn.fit(1))])
    before = Before(learn)
    with pytest.raises(RuntimeError, match="running"):
        learn.fit(1)
    before.assert_nothing_left()


def test_a_learner_shows_what_will_run():
    text = repr(toy_learner([Trace()], lr=0.25))
    for part in ("Learner", "Linear", "0.25", "mse_loss", "SGD", "TrainCB()", "Trace()"):
        assert part in text
    assert "none" in repr(Learner(F.relu, opt_func=partial(optim.SGD, momentum=0.9)))


# ---- modes ----


def test_the_model_is_set_to_each_pass_s_mode_before_before_epoch():
    modes = []
    watch = At("before_epoch", lambda learn: modes.append(learn.model.training), times=9)
    learn = toy_learner([watch])
    learn.model.eval()
    learn.fit(2)
    assert modes == [True, False, True, False]
    assert learn.model.training is False


def test_frozen_modules_stay_in_eval_and_all_modes_come_back():
    model = noisy_model()
    model[1].eval()
    stats = model[1].running_mean.clone()
    modes = []
    watch = At("before_batch", lambda learn: modes.append([m.training for m in model]), times=9)
    learn = toy_learner([watch], model=model)
    learn.fit(1)
    assert modes == [[True, False, True, True]] * 2 + [[False] * 4]
    assert torch.equal(model[1].running_mean, stats)
    assert [m.training for m in model] == [True, False, True, True]


def test_in_a_model_that_is_in_eval_no_module_counts_as_frozen():
    model = noisy_model().eval()
    modes = []
    watch = At("before_batch", lambda learn: modes.append({m.training for m in model.modules()}))
    toy_learner([watch], model=model).fit(1)
    assert modes == [{True}]
    assert not any(m.training for m in model.modules())


def test_a_module_that_a_callback_freezes_in_before_fit_stays_frozen_and_comes_back():
    model = noisy_model()
    modes = []
    freeze = At("before_fit", lambda learn: model[1].eval())
    watch = At("before_batch", lambda learn: modes.append(model[1].training))
    toy_learner([freeze, watch], model=model).fit(1)
    assert modes == [False]
    assert model[1].training
