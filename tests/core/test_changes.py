"""Callbacks that come and go while a fit runs."""

import pytest
from toys import POINTS, At, Trace, toy_learner

from minilearn.core.callback import Callback

POINTS_AFTER_LOSS = [
    *["before_backward", "after_backward", "cleanup_backward"],
    *["before_step", "after_step", "cleanup_step", "after_batch", "cleanup_batch"],
    *["after_epoch", "cleanup_epoch", "after_round", "cleanup_round", "after_fit", "cleanup_fit"],
]


class Life(Callback):
    """Counts what it gets."""

    def __init__(self):
        self.events = []


for _event in POINTS:
    setattr(Life, _event, lambda self, learn, e=_event: self.events.append(e))


def test_a_callback_added_in_mid_fit_gets_the_events_of_the_levels_that_run():
    life = Life()
    add = At("after_loss", lambda learn: learn.add_cb(life), lambda learn: learn.iter == 1)
    learn = toy_learner([add])
    learn.fit(1, valid=False)
    assert life.events == [
        *["before_fit", "before_round", "before_epoch", "before_batch"],
        *POINTS_AFTER_LOSS,
    ]
    assert learn.cbs[-1] is life  # added for good
    learn.remove_cb(life)


def test_a_callback_removed_in_mid_fit_cleans_up_and_gets_no_more_events():
    life = Life()
    remove = At("after_loss", lambda learn: learn.remove_cb(life))
    learn = toy_learner([life, remove])
    learn.fit(1)
    assert life.events == [
        *["before_fit", "before_round", "before_epoch", "before_batch"],
        *["after_predict", "after_loss"],
        *["cleanup_batch", "cleanup_epoch", "cleanup_round", "cleanup_fit"],
    ]
    assert life not in learn.cbs


def test_all_clean_up_of_a_removed_callback_runs_even_if_some_of_it_fails():
    life, first, second = Life(), ValueError("1"), OSError("2")
    life.cleanup_batch = At("x", first)._act
    life.cleanup_epoch = At("x", second)._act
    learn = toy_learner([life, At("after_loss", lambda learn: learn.remove_cb(life))])
    before = list(learn.cbs)
    with pytest.raises(ValueError) as caught:
        learn.fit(1)
    assert caught.value is first
    assert any("OSError: 2" in note for note in first.__notes__)
    assert life.events[-2:] == ["cleanup_round", "cleanup_fit"]
    assert learn.cbs == [cb for cb in before if cb is not life]


def test_an_event_finishes_with_the_list_that_it_began_with():
    heard, late = [], Life()
    a, c = At("before_batch", None), At("before_batch", lambda learn: heard.append("c"))
    b = At("before_batch", lambda learn: heard.append("b"))
    a.do = lambda learn: (learn.remove_cb(a), learn.remove_cb(b), learn.add_cb(late))
    learn = toy_learner([a, b, c])
    learn.fit(1, valid=False)
    assert heard == ["b", "c"]
    assert late.events.count("before_batch") == 2  # called once, then in the second batch
    assert a not in learn.cbs and b not in learn.cbs


def test_only_callbacks_passed_to_fit_are_taken_off_afterwards():
    temporary, permanent = Trace(), Life()
    learn = toy_learner([At("before_fit", lambda learn: learn.add_cb(permanent))])
    own = list(learn.cbs)
    learn.fit(1, cbs=temporary)
    assert learn.cbs == [*own, permanent]


def test_errors_of_a_callback_that_is_added_name_it():
    class Broken(Callback):
        def before_epoch(self, learn):
            raise ValueError

    with pytest.raises(ValueError) as caught:
        toy_learner([At("after_loss", lambda learn: learn.add_cb(Broken()))]).fit(1)
    assert caught.value.__notes__[0].startswith("in Broken.before_epoch, epoch 0, batch 0")
