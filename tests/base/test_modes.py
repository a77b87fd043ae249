"""Train and eval modes: set for each epoch, frozen modules left alone, all put back."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from toys import At, toy_learner

from minilearn.base.modes import hold, is_training, preserved_modes, set_mode


def noisy_model():
    layers = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)
    return nn.Sequential(*layers)


def test_the_model_has_its_mode_before_before_epoch():
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


@pytest.mark.parametrize("training", [True, False])
def test_a_held_module_is_in_eval_at_once_and_takes_the_models_mode_when_it_is_let_go(training):
    model = noisy_model().train(training)
    hold(model[1], True, training)
    assert [m.training for m in model] == [training, False, training, training]
    set_mode(model, True, [])
    assert [m.training for m in model] == [True, False, True, True]
    set_mode(model, training, [])
    hold(model[1], False, training)
    assert [m.training for m in model] == [training] * 4


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_module_held_or_let_go_within_comes_back_as_the_model_and_its_hold_say(training, frozen):
    model = noisy_model().train(training)
    hold(model[1], not frozen, training)
    with preserved_modes(model):
        model.train()
        hold(model[1], frozen, True)
    rest = [training] * 4
    rest[1] = training and not frozen
    assert [m.training for m in model] == rest


def test_a_learner_that_does_not_say_whether_it_trains_has_a_model_that_does():
    for training in (True, False):
        bare = SimpleNamespace(model=noisy_model().train(training))
        assert is_training(bare) is training
        assert is_training(SimpleNamespace(model=bare.model, training=not training)) is not training
