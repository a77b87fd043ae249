"""Events fired by hand, and levels of one's own."""

import pytest
import torch
import torch.nn.functional as F
from toys import ACTIONS, At, Before, Trace, batches, linear, plain_trace, toy_learner

from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import (
    EVENTS,
    CancelException,
    CancelFitException,
    register_level,
    with_cbs,
)
from minilearn.learner import Learner

# ---- events outside a fit, unknown events ----


def test_an_event_can_be_fired_outside_a_fit_on_whatever_callbacks_there_are():
    learn, heard = toy_learner(), []
    learn.cbs.append(At("before_fit", lambda learn: heard.append(1), times=9))
    learn.callback("before_fit")
    learn.cbs.append(At("before_fit", lambda learn: heard.append(2), times=9))
    learn.callback("before_fit")
    assert heard == [1, 1, 2]
    learn.callback("after_step")
    Before(learn).assert_fit_left_nothing()


def test_an_unknown_event_is_an_error_with_a_suggestion():
    with pytest.raises(
        TypeError, match="before_bacth is not an event; did you mean 'before_batch'"
    ):
        toy_learner().callback("before_bacth")
    with pytest.raises(TypeError, match=r"register_level\('lunch'\)"):
        toy_learner().callback("before_lunch")


def test_clean_up_events_go_in_reverse_and_all_run_also_when_fired_by_hand():
    heard = []
    cbs = [At("cleanup_fit", lambda learn, n=n: heard.append(n)) for n in range(3)]
    learn = toy_learner([*cbs, At("cleanup_fit", ValueError)])
    with pytest.raises(ValueError):
        learn.callback("cleanup_fit")
    assert heard == [2, 1, 0]


def test_a_batch_can_be_run_outside_a_fit():
    learn = toy_learner([trace := Trace()])
    learn.batch = learn.dls[0][0]
    learn._one_batch()
    x, y = learn.batch
    assert torch.equal(learn.loss, F.mse_loss(learn.model(x), y))
    assert trace.events[0] == "before_batch" and trace.events[-1] == "cleanup_batch"
    Before(learn).assert_fit_left_nothing()


# ---- levels of one's own ----


class Bare:
    """All that `with_cbs` may ask of an object is a method `callback`."""

    def __init__(self, at=None, error=None):
        self.events, self.at, self.error_at = [], at, error

    def callback(self, event):
        self.events.append(event)
        if event == self.at:
            raise self.error_at

    @with_cbs("stage")
    def run(self, n, *, twice=False):
        """Do it."""
        self.events.append("body")
        return 2 * n if twice else n


def test_with_cbs_keeps_name_docstring_and_return_value_on_a_class_without_a_base():
    bare = Bare()
    assert bare.run(3, twice=True) == 6
    assert bare.events == ["before_stage", "body", "after_stage", "cleanup_stage"]
    assert (Bare.run.__name__, Bare.run.__doc__) == ("run", "Do it.")
    assert Bare.run.__qualname__ == "Bare.run"


@pytest.mark.parametrize("at", ["before_stage", "after_stage", "cleanup_stage"])
def test_a_level_of_one_s_own_has_its_cancel(at):
    bare = Bare(at, register_level("stage")())
    bare.run(1)
    assert bare.events[-1] == "cleanup_stage"
    assert "after_stage" not in bare.events or at != "before_stage"
    error = Bare(at, OSError())
    with pytest.raises(OSError):
        error.run(1)
    assert error.events[-1] == "cleanup_stage"
    other = Bare(at, CancelFitException())
    with pytest.raises(CancelFitException):
        other.run(1)


def test_the_cancel_of_a_registered_level_is_made_once():
    cancel = register_level("phase")
    assert cancel.__name__ == "CancelPhaseException" and issubclass(cancel, CancelException)
    assert register_level("phase") is cancel
    assert EVENTS.count("before_phase") == 1
    with pytest.raises(ValueError, match="Python name"):
        register_level("two words")


class CancelLessonException(Exception):
    """The user's own cancel, found by its name."""


class Lessons(Learner):
    @with_cbs("lesson")
    def lesson(self):
        self.fit(1)
        return "done"


def test_a_cancel_that_the_user_defined_beside_the_level_is_found():
    class Hears(Callback):
        def __init__(self):
            self.heard = []

        def before_lesson(self, learn):
            self.heard.append("before")

        def after_lesson(self, learn):
            self.heard.append("after")

        def cleanup_lesson(self, learn):
            self.heard.append("cleanup")

    learn = Lessons(linear(), (batches(1),), cbs=[TrainCB(), hears := Hears()])
    before = Before(learn)
    assert learn.lesson() == "done"
    assert hears.heard == ["before", "after", "cleanup"]
    before.assert_fit_left_nothing()
    hears.heard.clear()
    learn.add_cb(At("before_lesson", CancelLessonException))
    assert learn.lesson() is None
    assert hears.heard == ["before", "cleanup"]


def test_callbacks_added_and_removed_within_a_level_of_one_s_own_leave_nothing_bound():
    class Stages(Learner):
        @with_cbs("lesson")
        def lesson(self):
            life = self.add_cb(Trace())
            self.fit(1)
            self.remove_cb(life)
            return life

    learn = Stages(linear(), (batches(1),), cbs=[TrainCB()])
    before = Before(learn)
    life = learn.lesson()
    assert life.events == [e for e in plain_trace(1, 1, 0) if e not in ACTIONS]
    before.assert_fit_left_nothing()


def test_a_level_may_be_nested_in_the_loop():
    class Pieces(Learner):
        @with_cbs("piece")
        def _piece(self):
            super()._one_batch()

        def _one_batch(self):
            self._piece()

    class Hears(Trace):
        def before_piece(self, learn):
            self.events.append("before_piece")

        def cleanup_piece(self, learn):
            self.events.append("cleanup_piece")

    learn = Pieces(linear(), (batches(1),), cbs=[TrainCB(), hears := Hears()])
    learn.fit(1)
    assert hears.events[3:5] == ["before_piece", "before_batch"]
    assert hears.events[-8:-6] == ["cleanup_batch", "cleanup_piece"]
