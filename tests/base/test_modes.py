"""Train and eval modes: set for each epoch, and left as the last one; frozen modules stay so."""

import copy
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


def test_a_fit_leaves_the_mode_of_its_last_epoch_as_a_loop_by_hand_does():
    learn = toy_learner(model=noisy_model())
    for valid in (True, False):
        learn.fit(2, valid=valid)
        assert {m.training for m in learn.model.modules()} == {not valid}


def test_nested_runs_leave_each_modules_mode():
    for fitted in (True, False):
        learn = toy_learner(model=noisy_model())
        learn.model[1].eval()
        if fitted:
            learn.fit(1)
        modes = [m.training for m in learn.model.modules()]
        learn.validate()
        learn.dry_run()
        assert [m.training for m in learn.model.modules()] == modes


def modes_in_fit(model, **options):
    """Fit, and return the modes of all layers in each training batch."""
    modes, layers = [], list(model)
    note = At("before_batch", lambda learn: modes.append([m.training for m in layers]), times=9)
    toy_learner([note], model=model).fit(1, **options)
    return modes


def test_frozen_modules_stay_in_eval_in_this_fit_and_in_those_that_follow():
    model = noisy_model()
    model[1].eval()
    stats = model[1].running_mean.clone()
    for _ in range(3):  # each with a Learner of its own
        modes = modes_in_fit(model)
        assert modes == [[True, False, True, True]] * 2 + [[False] * 4]
        assert torch.equal(model[1].running_mean, stats)
    assert modes_in_fit(model, valid=False)[0] == [True, False, True, True]
    assert [m.training for m in model] == [True, False, True, True]


def test_train_mode_set_by_hand_after_a_fit_starts_anew():
    model = noisy_model()
    model[1].eval()
    modes_in_fit(model)
    model.train()
    assert modes_in_fit(model)[0] == [True] * 4
    model.train()
    model[2].eval()  # another one
    assert modes_in_fit(model)[0] == modes_in_fit(model)[0] == [True, True, False, True]
    model[2].train()  # in a model in eval
    assert modes_in_fit(model)[0] == [True] * 4


def test_a_copy_of_a_model_after_a_fit_has_the_same_frozen_modules():
    model = noisy_model()
    model[1].eval()
    modes_in_fit(model)
    assert modes_in_fit(copy.deepcopy(model))[0] == [True, False, True, True]


def test_in_a_model_that_is_in_eval_before_its_first_fit_no_module_counts_as_frozen():
    model = noisy_model().eval()
    modes = []
    watch = At("before_batch", lambda learn: modes.append({m.training for m in model.modules()}))
    toy_learner([watch], model=model).fit(1)
    assert modes == [{True}]
    assert not any(m.training for m in model.modules())


def test_a_module_that_a_callback_freezes_in_before_fit_is_frozen_in_that_fit_alone():
    model = noisy_model()
    for times in (1, 1, 0):
        freeze = At("before_fit", lambda learn: model[1].eval(), times=times)
        modes = []
        watch = At("before_batch", lambda learn, modes=modes: modes.append(model[1].training))
        toy_learner([freeze, watch], model=model).fit(1)
        assert modes == [times == 0]


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
