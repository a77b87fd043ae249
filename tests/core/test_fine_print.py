"""The fine print of a batch and an epoch, a test a line: gradients, random numbers, cancels."""

import random

import numpy as np
import pytest
import torch
from toys import (
    At,
    Trace,
    TracedTrainCB,
    batches,
    linear,
    toy_learner,
)

from minilearn.core.callback import Callback
from minilearn.core.events import (
    EVENTS,
    CancelBackwardException,
    CancelBatchException,
    CancelEpochException,
    CancelFitException,
    CancelStepException,
)
from minilearn.learner import Learner

# ---- gradients ----


def grads(learn):
    return [p.grad for p in learn.model.parameters()]


@pytest.mark.parametrize(
    "error",
    [CancelStepException, CancelBatchException, CancelEpochException, CancelFitException, OSError],
)
def test_zero_grad_runs_after_a_step_whatever_follows_it(error):
    trace = Trace()
    at = At("after_step", error)
    learn = Learner(linear(), (batches(1),), cbs=[trace, TracedTrainCB(trace.events), at])
    try:
        learn.fit(1)
    except OSError:
        pass
    position = trace.events.index("after_step")
    assert trace.events[position + 1] == "zero_grad"


@pytest.mark.parametrize("error", [CancelStepException, CancelBatchException, CancelFitException])
def test_zero_grad_does_not_run_without_a_step(error):
    trace = Trace()
    at = At("before_step", error)
    learn = Learner(linear(), (batches(1),), cbs=[trace, TracedTrainCB(trace.events), at])
    learn.fit(1)
    assert not {"step", "after_step", "zero_grad"} & set(trace.events)


@pytest.mark.parametrize("event", ["before_step", "after_backward", "cleanup_backward"])
@pytest.mark.parametrize("held", [True, False])
def test_gradients_without_a_step_are_cleared_unless_somebody_holds_them(event, held):
    seen = []

    def hold(learn):
        learn.plan.in_group = held

    watch = At("cleanup_batch", lambda learn: seen.append(grads(learn)))
    learn = toy_learner([At("before_batch", hold), At(event, CancelBatchException), watch])
    learn.fit(1)
    assert all((g is None) is not held for g in seen[0])
    assert all(g is None for g in grads(learn))


def test_gradients_survive_a_cancelled_step_but_not_the_fit():
    seen = []
    watch = At("cleanup_batch", lambda learn: seen.append(grads(learn)))
    learn = toy_learner([At("before_step", CancelStepException, times=9), watch])
    learn.fit(1)
    assert all(g is not None for g in seen[0])
    assert all(g is None for g in grads(learn))


def test_a_cancelled_backward_clears_what_its_action_left_half_done():
    class Half(Callback):
        def backward(self, learn):
            learn.loss.backward()
            raise CancelBackwardException

    seen, trace = [], Trace()
    watch = At("cleanup_batch", lambda learn: seen.append(grads(learn)))
    toy_learner([Half(), trace, watch]).fit(1)
    assert "before_step" not in trace.events
    assert all(g is None for g in seen[0])


def test_a_cancel_in_after_backward_still_lets_the_step_follow():
    learn = toy_learner([At("after_backward", CancelBackwardException, times=9)])
    learn.fit(1)
    assert learn.steps_done == 2


def test_gradients_of_before_a_fit_do_not_count():
    learn, clean = toy_learner(), toy_learner()
    learn.model(torch.ones(1, 3)).sum().backward()
    learn.fit(1)
    clean.fit(1)
    assert torch.equal(learn.model.weight, clean.model.weight)


def test_loss_and_preds_are_detached_after_gradients_are_cleared_and_before_after_batch():
    seen = {}

    def look(learn, event):
        seen[event] = (learn.loss.requires_grad, learn.preds.requires_grad, grads(learn)[0] is None)

    events = EVENTS[EVENTS.index("after_loss") : EVENTS.index("after_epoch")]
    watch = [At(event, lambda learn, event=event: look(learn, event)) for event in events]
    toy_learner(watch, dls=(batches(1),)).fit(1)
    assert [event for event in events if seen[event][:2] == (True, True)] == events[:-2]
    assert seen["cleanup_step"] == (True, True, True)  # cleared, not yet detached
    assert seen["after_batch"] == seen["cleanup_batch"] == (False, False, True)


def test_validation_runs_without_gradients():
    seen = []
    watch = At("after_loss", lambda learn: seen.append(learn.loss.requires_grad), times=9)
    toy_learner([watch], dls=(batches(1), batches(1))).fit(1)
    assert seen == [True, False]


# ---- random numbers ----


def draw_all():
    return random.random(), np.random.rand(), torch.rand(1).item()


@pytest.mark.parametrize("error", [None, CancelEpochException, CancelFitException, OSError])
def test_random_states_are_the_same_after_a_validation_however_it_ended(error):
    def in_validation(learn):
        draw_all()
        if error:
            raise error

    at = At("after_loss", in_validation, lambda learn: not learn.training)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draw_all()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    try:
        toy_learner([at]).fit(1)
    except OSError:
        pass
    assert draw_all() == expected


# ---- cancels where they do not belong ----


@pytest.mark.parametrize(
    ("event", "cancel", "message"),
    [
        ("after_loss", CancelStepException, r"At\.after_loss, but no step is running"),
        ("before_epoch", CancelBatchException, r"At\.before_epoch, but no batch is running"),
        ("cleanup_batch", CancelStepException, r"At\.cleanup_batch, but no step is running"),
        ("cleanup_epoch", CancelBatchException, r"At\.cleanup_epoch.*running: fit, round\)"),
    ],
)
def test_a_cancel_of_a_level_that_is_not_running_is_an_error_that_names_the_callback(
    event, cancel, message
):
    with pytest.raises(RuntimeError, match=message):
        toy_learner([At(event, cancel)]).fit(1)
