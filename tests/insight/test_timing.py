"""Time by a clock that the test holds, traces read as JSON; measuring changes nothing."""

import inspect
import warnings

import pytest

import minilearn.insight.timing as timing
from minilearn import (
    Callback,
    CancelBatchException,
    MetricsCB,
    TimerCB,
    TrainCB,
)
from tests.toys import At, Trace, assert_same_weights, batches, toy_learner


class Clock:
    """A clock that only moves when something takes time."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(timing, "perf_counter", lambda: self.now)

    def takes(self, seconds):
        self.now += seconds


class SlowLoader:
    def __init__(self, clock, seconds, n):
        self.clock, self.seconds, self.data = clock, seconds, batches(n)

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        for batch in self.data:
            self.clock.takes(self.seconds)
            yield batch


def slow_callbacks(clock):
    class Slow(Callback):
        def after_batch(self, learn):
            clock.takes(2)

        def cleanup_epoch(self, learn):
            clock.takes(7)

    class SlowTrainCB(TrainCB):
        def predict(self, learn):
            clock.takes(3)
            super().predict(learn)

    return Slow(), SlowTrainCB()


def timed_fit(clock, data_seconds):
    slow, train = slow_callbacks(clock)
    loaders = SlowLoader(clock, data_seconds, 4), SlowLoader(clock, data_seconds, 1)
    learn = toy_learner([slow, TimerCB()], dls=loaders)
    learn.cbs[0] = train
    learn.fit(2)
    return {(row["who"], row["what"]): row for row in learn.timings}


def test_the_table_says_who_took_how_long(monkeypatch):
    rows = timed_fit(Clock(monkeypatch), data_seconds=1)
    for key, calls, seconds in (
        (("Slow", "after_batch"), 10, 20),
        (("Slow", "cleanup_epoch"), 4, 28),
        (("SlowTrainCB", "predict"), 10, 30),
        (("loader", "next batch"), 10, 10),
        (("SlowTrainCB", "step"), 8, 0),
        (("model", "all"), 44, 30),
        (("data", "all"), 10, 10),
        (("loop", "all"), 1, 0),
    ):
        assert (rows[key]["calls"], rows[key]["seconds"]) == (calls, seconds), key
        assert rows[key]["fraction"] == pytest.approx(seconds / 88)
    assert rows["callbacks", "all"]["seconds"] == 48


def test_a_hint_comes_where_data_dominate(monkeypatch):
    with pytest.warns(UserWarning, match="83% of a step waits for data: raise num_workers"):
        timed_fit(Clock(monkeypatch), data_seconds=25)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timed_fit(Clock(monkeypatch), data_seconds=2)


def test_the_history_says_how_long_each_training_epoch_waited_for_data(monkeypatch):
    clock = Clock(monkeypatch)
    learn = toy_learner(
        [MetricsCB(), TimerCB()], dls=(SlowLoader(clock, 2, 4), SlowLoader(clock, 9, 1))
    )
    learn.fit(2)
    assert learn.history["data_s"] == [8, 8]


def test_measuring_changes_neither_weights_nor_the_order_of_events():
    def fit(*cbs):
        trace = Trace()
        learn = toy_learner([trace, *cbs])
        learn.fit(2)
        return learn, trace.events

    plain, plain_events = fit()
    timed, timed_events = fit(TimerCB(hint=1))
    assert_same_weights(plain.model, timed.model)
    assert plain_events == timed_events


def test_without_a_timer_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(timing, "perf_counter", None)
    learn = toy_learner()
    learn.fit(1)
    with pytest.raises(AttributeError, match=r"cbs=TimerCB\(\)"):
        _ = learn.timings
    assert not hasattr(learn, "timings")
    assert "timings" not in dict(inspect.getmembers(learn))


def test_errors_and_cancels_pass_through_and_name_their_callback():
    learn = toy_learner([At("after_loss", ValueError("bad")), TimerCB()])
    with pytest.raises(ValueError, match="bad") as error:
        learn.fit(1)
    assert [n for n in error.value.__notes__ if "At.after_loss, epoch 0, batch 0" in n]
    assert len(error.value.__notes__) == 1
    skip = At("after_loss", CancelBatchException(), lambda learn: learn.training)
    learn = toy_learner([skip, TimerCB(hint=1)])
    learn.fit(1)
    assert learn.steps_done == 1
    assert ("At", "after_loss") in {(row["who"], row["what"]) for row in learn.timings}


def test_callbacks_that_come_later_are_timed_too(monkeypatch):
    clock = Clock(monkeypatch)
    slow, _ = slow_callbacks(clock)
    add = At("after_batch", lambda learn: learn.add_cb(slow))
    learn = toy_learner([add, TimerCB()])
    learn.fit(2, valid=False)
    rows = {(row["who"], row["what"]): row for row in learn.timings}
    assert rows["Slow", "after_batch"]["calls"] == 3  # not when it was added
    assert rows["TrainCB", "step"]["calls"] == 4


def test_a_callback_that_looks_inside_still_finds_itself_busy():
    looks = []

    class Curious(Callback):
        in_probe = True

        def after_batch(self, learn):
            looks.append(learn.depth)
            if learn.training:
                learn.validate()

    toy_learner([MetricsCB(), Curious(), TimerCB(hint=1)]).fit(1)
    assert looks == [0, 0, 0]  # two batches of training and one of validation, none of validate's
