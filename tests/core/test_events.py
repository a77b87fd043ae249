"""Which events and actions a fit fires, in which order, compared as whole lists."""

import pytest
import torch.nn.functional as F
from toys import (
    ACTIONS,
    POINTS,
    At,
    Before,
    LateTrace,
    Trace,
    TracedTrainCB,
    linear,
    plain_trace,
    toy_dls,
    toy_learner,
)

from minilearn.core.callback import Callback, run_cbs
from minilearn.core.events import EVENTS, Order
from minilearn.learner import Learner


def traced(dls=None, cbs=()):
    trace = Trace()
    train = TracedTrainCB(trace.events)
    return Learner(linear(), dls or toy_dls(), F.mse_loss, cbs=[trace, train, *cbs]), trace.events


def test_the_events_are_those_of_the_design():
    assert set(POINTS) == set(EVENTS[: len(POINTS)])
    assert ACTIONS == ("predict", "get_loss", "backward", "step", "zero_grad")


def test_a_fit_of_one_epoch_fires_the_events_of_the_design_in_its_order():
    learn, events = traced(toy_dls(1, 1))
    learn.fit(1)
    assert events == [
        "before_fit",
        "before_round",
        "before_epoch",
        "before_batch",
        "predict",
        "after_predict",
        "get_loss",
        "after_loss",
        "before_backward",
        "backward",
        "after_backward",
        "cleanup_backward",
        "before_step",
        "step",
        "after_step",
        "zero_grad",
        "cleanup_step",
        "after_batch",
        "cleanup_batch",
        "after_epoch",
        "cleanup_epoch",
        "before_epoch",
        "before_batch",
        "predict",
        "after_predict",
        "get_loss",
        "after_loss",
        "after_batch",
        "cleanup_batch",
        "after_epoch",
        "cleanup_epoch",
        "after_round",
        "cleanup_round",
        "after_fit",
        "cleanup_fit",
    ]
    assert events == plain_trace(1, 1, 1)


@pytest.mark.parametrize(
    ("epochs", "n_train", "n_valid"), [(0, 2, 1), (1, 3, 2), (3, 2, 1), (2, 1, 0)]
)
def test_longer_fits_repeat_rounds_epochs_and_batches(epochs, n_train, n_valid):
    train, valid = toy_dls(n_train, n_valid)
    learn, events = traced((train, valid) if n_valid else (train,))
    learn.fit(epochs)
    assert events == plain_trace(epochs, n_train, n_valid)


def test_a_fit_without_training_or_validation_leaves_out_those_epochs():
    learn, events = traced()
    learn.fit(1, valid=False)
    assert events == plain_trace(1, 2, 0)
    events.clear()
    learn.fit(1, train=False)
    batch = ["before_batch", "predict", "after_predict", "get_loss", "after_loss"]
    assert events == [
        *["before_fit", "before_round", "before_epoch", *batch, "after_batch", "cleanup_batch"],
        *["after_epoch", "cleanup_epoch", "after_round", "cleanup_round", "after_fit"],
        "cleanup_fit",
    ]


def test_a_fit_leaves_nothing_but_its_results():
    learn, events = traced()
    before = Before(learn)
    learn.fit(2)
    before.assert_fit_left_nothing()
    events.clear()
    learn.fit(1)
    assert events == plain_trace(1)


def test_every_event_reaches_callbacks_in_the_order_of_the_slots_and_clean_ups_in_reverse():
    heard = []
    slots = [Order.STOP, Order.PLACE, Order.METRICS, Order.METRICS + 1, Order.DEFAULT]

    class Here(Callback):
        def __init__(self, order, name):
            self.order, self.name = order, name

        def before_batch(self, learn):
            heard.append(self.name)

        cleanup_batch = before_batch

    learn = toy_learner([Here(slot, str(int(slot))) for slot in slots], dls=toy_dls(1, 1))
    learn.fit(1, valid=False)
    assert heard == ["0", "40", "41", "60", "90", "90", "60", "41", "40", "0"]


def test_callbacks_of_one_slot_keep_the_order_of_the_list():
    heard = []
    cbs = [At("before_fit", lambda learn, n=n: heard.append(n)) for n in range(5)]
    toy_learner(cbs[:3]).fit(1, cbs=cbs[3:])
    assert heard == [0, 1, 2, 3, 4]


def test_the_slots_stand_in_the_order_of_the_design():
    names = "ACCUMULATE PLACE TRANSFORM TRAIN GRADIENT METRICS SCHEDULE DEFAULT REPORT SAVE STOP"
    assert [slot.name for slot in sorted(Order)] == names.split()
    assert [int(slot) for slot in sorted(Order)] == [-10, 0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert Callback.order == Order.DEFAULT


def test_a_callback_need_not_be_a_subclass_of_ours():
    class Foreign:
        calls = 0

        def after_batch(self, learn):
            self.calls += 1

    foreign = Foreign()
    toy_learner([foreign]).fit(1)
    assert foreign.calls == 3


def test_run_cbs_calls_what_there_is_lowest_order_first():
    heard = []
    late, early = LateTrace(heard), At("before_fit", lambda learn: heard.append(learn))
    run_cbs([late, early], "before_fit", "a learner")
    run_cbs([late, early], "after_fit")
    assert heard == ["a learner", "before_fit", "after_fit"]


def test_a_method_that_looks_like_an_event_but_is_none_fails_at_the_class_statement():
    with pytest.raises(
        TypeError, match=r"Logger.after_bacth is not an event; did you mean 'after_batch'"
    ):

        class Logger(Callback):
            def after_bacth(self, learn): ...

    with pytest.raises(TypeError, match="register_level"):

        class Odd(Callback):
            def cleanup_kitchen_sink(self, learn): ...


def test_an_attribute_that_is_no_method_may_be_named_like_an_event():
    class Counting(Callback):
        before_lunch = 12

    assert Counting().before_lunch == 12


def test_a_mistyped_event_that_a_mixin_brings_is_found_too():
    class Mixin:
        def before_eposh(self, learn): ...

    with pytest.raises(TypeError, match="did you mean 'before_epoch'"):

        class Mixed(Mixin, Callback): ...


def test_an_event_that_does_not_take_the_learner_fails_at_the_class_statement():
    with pytest.raises(TypeError, match=r"Mine.after_epoch: .*; write after_epoch\(self, learn\)"):

        class Mine(Callback):
            def after_epoch(self): ...

    class Fine(Callback):
        def after_epoch(self, *args): ...

        @staticmethod
        def after_fit(learn): ...
