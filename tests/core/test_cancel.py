"""Cancelling: what still runs, what does not, and what a fit leaves."""

import threading
import time

import pytest
import torch
from story import CANCELS, Story, disturbed_learner, occurrences
from toys import ACTIONS, POINTS, At, Before, Trace, batches, plain_trace, toy_dls, toy_learner

from minilearn.callbacks.training import SingleBatchCB, TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import (
    CancelBackwardException,
    CancelBatchException,
    CancelEpochException,
    CancelException,
    CancelRoundException,
    CancelStepException,
)
from minilearn.learner import Learner


def test_an_undisturbed_story_is_the_plain_trace():
    assert Story().trace == plain_trace(2)


@pytest.mark.parametrize("point", [*POINTS, *ACTIONS])
@pytest.mark.parametrize("level", CANCELS)
def test_a_cancel_at_any_point_is_followed_by_the_right_events_and_leaves_nothing(level, point):
    for nth in range(1, min(3, occurrences(point)) + 1):
        story = Story(point, nth, CANCELS[level]())
        learn, events, late = disturbed_learner(point, nth, CANCELS[level]())
        before = Before(learn)
        if story.raised is None:
            learn.fit(2)
        else:
            with pytest.raises(story.raised, match=f"no {level} is running"):
                learn.fit(2)
        assert events == story.trace
        assert [e for e in events if e not in ACTIONS] == without_unheard(late, story)
        before.assert_fit_left_nothing()
        events.clear()
        learn.fit(1)
        assert events == plain_trace(1)


def without_unheard(late, story):
    """Put back the one event that callbacks after the raising one must not get."""
    if story.point in ACTIONS or story.point.startswith("cleanup_"):
        return late
    heard = [e for e in story.trace if e not in ACTIONS]
    missed = [i for i, e in enumerate(heard) if e == story.point][story.nth - 1]
    return [*late[:missed], story.point, *late[missed:]]


def test_all_cancels_have_one_base():
    assert all(issubclass(cancel, CancelException) for cancel in CANCELS.values())


def test_cancelling_a_training_epoch_does_not_cancel_the_validation():
    seen = []
    cancel = At("after_batch", CancelEpochException, when=lambda learn: learn.training)
    after = At("after_batch", lambda learn: seen.append((learn.training, learn.iter)), times=9)
    after.order = 99
    toy_learner([cancel, after], dls=toy_dls(3, 2)).fit(1)
    assert seen == [(False, 0), (False, 1)]


def test_cancelling_a_round_skips_its_validation_and_the_next_round_runs():
    seen = []
    cancel = At("after_batch", CancelRoundException, when=lambda learn: learn.training)
    watch = At("before_epoch", lambda learn: seen.append((learn.epoch, learn.training)), times=9)
    toy_learner([watch, cancel]).fit(2)
    assert seen == [(0, True), (1, True), (1, False)]


def test_cancelling_the_backward_leaves_out_the_step_and_the_weights():
    learn = toy_learner([At("before_backward", CancelBackwardException, times=9)])
    weights = learn.model.weight.clone()
    learn.fit(1)
    assert torch.equal(learn.model.weight, weights)
    assert learn.steps_done == 0


def test_a_step_that_ran_counts_even_if_its_after_step_is_cancelled():
    learn = toy_learner([At("after_step", CancelStepException, times=9)])
    learn.fit(1)
    assert learn.steps_done == 2


def test_a_cancelled_step_keeps_the_gradients_for_the_next_batch():
    dls = batches(1), None
    learn, twice = toy_learner([At("before_step", CancelStepException)], dls=dls), []
    learn.add_cb(At("before_step", lambda learn: twice.append(learn.model.weight.grad.clone())))
    learn.fit(1, valid=False)
    assert not twice  # the cancel comes first in the list, the watcher did not get the event
    learn = toy_learner([At("before_step", CancelStepException)], dls=(batches(1) * 2,))
    learn.add_cb(At("before_step", lambda learn: twice.append(learn.model.weight.grad.clone())))
    learn.fit(1)
    once = toy_learner(dls=(batches(1),))
    once.add_cb(At("before_step", lambda learn: twice.append(learn.model.weight.grad.clone())))
    once.fit(1)
    torch.testing.assert_close(twice[0], 2 * twice[1])


def test_single_batch_cb_ends_the_fit_after_one_batch_of_training_or_validation():
    learn = toy_learner([SingleBatchCB])
    learn.fit(3)
    assert (learn.iter, learn.steps_done, learn.epoch) == (0, 1, 0)
    learn.fit(1, train=False)
    assert (learn.iter, learn.steps_done, learn.batch is not None) == (0, 0, True)


class LossRecorder(Callback):
    """Counts the ends of batches and keeps losses of those that ended well."""

    def __init__(self):
        self.losses, self.clean_ups = [], 0

    def after_batch(self, learn):
        self.losses.append(learn.loss.item())

    def cleanup_batch(self, learn):
        self.clean_ups += 1


def check_skipped_batches(learner_class):
    """10 batches, 3 of them cancelled before they begin."""
    data, skipped = batches(10), (2, 5, 9)
    record = LossRecorder()
    skip = At("before_batch", CancelBatchException, lambda learn: learn.iter in skipped, times=10)
    learn = learner_class(
        torch.nn.Linear(3, 1), (data,), lr=0.0, cbs=[TrainCB(), LossRecorder, record, skip]
    )
    learn.fit(1)
    with torch.no_grad():
        kept = [b for i, b in enumerate(data) if i not in skipped]
        expected = [torch.nn.functional.mse_loss(learn.model(x), y).item() for x, y in kept]
    assert record.clean_ups == 10
    assert record.losses == expected
    assert sum(record.losses) / len(record.losses) == pytest.approx(sum(expected) / 7)


@pytest.mark.case("C073")
def test_a_cancelled_batch_fires_its_clean_up_and_nothing_else():
    check_skipped_batches(Learner)


@pytest.mark.case("C073")
def test_the_check_of_cancelled_batches_notices_an_after_batch_with_old_values():
    class Faulty(Learner):
        def _one_batch(self):
            steps = self.steps_done
            super()._one_batch()
            if self.steps_done == steps:  # cancelled: fire the end of the batch all the same
                self.callback("after_batch")

    with pytest.raises(AssertionError):
        check_skipped_batches(Faulty)


# ---- learn.stop ----


def ends_of(learn, event, when=lambda learn: True, **kwargs):
    """Stop at an event; return (epoch, batch, training) of each batch, and the trace."""
    trace, ran = Trace(), []
    note = At("before_batch", lambda x: ran.append((x.epoch, x.iter, x.training)), times=99)
    learn.fit(3, cbs=[trace, note, At(event, lambda learn: learn.stop("enough"), when)], **kwargs)
    return ran, trace.events


EVENTS_AND_LAST = {
    "before_batch": (0, 0, True),
    "after_loss": (0, 0, True),
    "after_batch": (0, 0, True),
    "cleanup_batch": (0, 0, True),
    "after_epoch": (0, 1, True),  # no validation follows
    "after_round": (0, 0, False),
}


@pytest.mark.parametrize("event", EVENTS_AND_LAST)
def test_a_stop_ends_the_fit_after_the_current_batch_with_all_clean_up(event, capsys):
    learn = toy_learner()
    ran, events = ends_of(learn, event)
    assert ran[-1] == EVENTS_AND_LAST[event]
    assert "after_fit" not in events
    for level in ("batch", "epoch", "round", "fit"):
        assert events.count(f"before_{level}") == events.count(f"cleanup_{level}")
    assert learn.stopped == "enough" and capsys.readouterr().out == "enough\n"
    assert not learn.levels and len(learn.history) == 1
    learn.fit(1)
    assert learn.stopped is None


def test_a_stop_in_the_last_round_skips_the_end_too():
    events = ends_of(toy_learner(), "after_round", lambda learn: learn.epoch == 2)[1]
    assert events.count("after_round") == 3 and "after_fit" not in events


def test_another_thread_may_stop_a_fit():
    begun, batches_seen = threading.Event(), []

    def work(learn):
        batches_seen.append(learn.iter)
        begun.set()
        time.sleep(0.001)

    learn = toy_learner([At("after_batch", work, times=10**6)])
    stopper = threading.Thread(target=lambda: (begun.wait(), learn.stop()))
    stopper.start()
    learn.fit(10**6)
    stopper.join()
    assert learn.stopped == "learn.stop() ended the fit"
    assert 0 < len(batches_seen) < 10**4


def test_a_stop_within_a_nested_run_is_for_the_fit_around_it():
    learn, batches_seen = toy_learner(), []

    @learn.on("after_predict", when=lambda learn: learn.depth)
    def stop(learn):
        learn.stop()

    learn.on("after_batch", lambda learn: batches_seen.append(learn.iter))
    validate = At("after_batch", lambda learn: learn.validate())
    learn.fit(3, cbs=validate)
    assert learn.stopped and batches_seen == [0]
    learn.validate()
    assert learn.stopped  # what is known of the last fit stays
