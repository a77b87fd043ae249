"""Lengths in updates and in epochs: n_steps, valid_every, is_last, and what is counted."""

import pytest
import torch
from toys import (
    ACTIONS,
    At,
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
from minilearn.core.events import (
    CancelBatchException,
    CancelEpochException,
    CancelRoundException,
    CancelStepException,
)
from minilearn.core.plan import Plan
from minilearn.learner import Learner


class Stream:
    """The same batches on every epoch, and no length."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


class Passes(Callback):
    """Writes down each epoch: (epoch, batches) where it trains, "valid" where it validates."""

    def __init__(self):
        self.passes, self.batches, self.lasts = [], 0, []

    def before_epoch(self, learn):
        self.batches = 0

    def before_batch(self, learn):
        self.batches += 1
        self.lasts.append(learn.is_last)

    def after_epoch(self, learn):
        self.passes.append(self.batches if learn.training else "valid")


def fit(n_train, n_valid=1, length=True, cbs=(), **kwargs):
    train, valid = toy_dls(n_train, n_valid)
    learn = toy_learner([passes := Passes(), *cbs], dls=(train if length else Stream(train), valid))
    learn.fit(**kwargs)
    return learn, passes


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize(
    ("n_steps", "passes"),
    [
        (1, [1, "valid"]),
        (3, [3, "valid"]),
        (4, [4, "valid"]),
        (5, [4, "valid", 1, "valid"]),
        (8, [4, "valid", 4, "valid"]),
        (10, [4, "valid", 4, "valid", 2, "valid"]),
    ],
)
def test_n_steps_makes_that_many_updates_over_as_many_epochs_as_it_takes(n_steps, passes, length):
    learn, seen = fit(4, length=length, n_steps=n_steps)
    assert learn.steps_done == learn.n_steps == n_steps
    assert seen.passes == passes
    assert learn.n_epochs is None
    assert learn.history["steps"] == [*range(4, n_steps, 4), n_steps]
    assert learn.history["epoch"] == list(range(len(passes) // 2))


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize(
    ("n_steps", "every", "passes"),
    [
        (8, 4, [4, "valid", 4, "valid"]),  # multiples of the data: no empty round
        (6, 2, [2, "valid", 2, "valid", 2, "valid"]),
        (9, 3, [3, "valid", 3, "valid", 3, "valid"]),  # rounds span the end of the data
        (7, 3, [3, "valid", 3, "valid", 1, "valid"]),
        (9, 9, [9, "valid"]),
        (3, 5, [3, "valid"]),
    ],
)
def test_n_steps_with_validation_every_k_updates(n_steps, every, passes, length):
    learn, seen = fit(4, length=length, n_steps=n_steps, valid_every=(every, "step"))
    assert seen.passes == passes
    assert learn.steps_done == n_steps
    steps = [min(k, n_steps) for k in range(every, n_steps + every, every)]
    assert learn.history["steps"] == steps
    assert learn.history["epoch"] == [(n - 1) // 4 for n in steps]


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize(
    ("n_epochs", "every", "passes"),
    [
        (1, 4, [4, "valid"]),
        (2, 4, [4, "valid", 4, "valid"]),
        (1, 2, [2, "valid", 2, "valid"]),
        (1, 3, [3, "valid", 1, "valid"]),
        (2, 3, [3, "valid", 3, "valid", 2, "valid"]),
        (3, 5, [5, "valid", 5, "valid", 2, "valid"]),
        (2, 20, [8, "valid"]),
        (3, 6, [6, "valid", 6, "valid"]),
    ],
)
def test_epochs_with_validation_every_k_updates(n_epochs, every, passes, length):
    learn, seen = fit(4, length=length, n_epochs=n_epochs, valid_every=(every, "step"))
    assert seen.passes == passes
    assert learn.steps_done == 4 * n_epochs


@pytest.mark.parametrize("way", [{"n_epochs": 3}, {"n_steps": 12}])
@pytest.mark.parametrize("every", [None, 2, (3, "step"), (4, "step"), (5, "step")])
def test_the_batches_and_weights_are_the_same_however_the_stream_is_cut(way, every):
    learn, _ = fit(4, valid_every=every, **way)
    theirs = linear()
    train_by_hand(theirs, learn.dls, torch.optim.SGD(theirs.parameters(), 0.1), 3)
    assert_same_weights(learn.model, theirs)


def test_validation_every_second_epoch():
    learn, seen = fit(2, n_epochs=5, valid_every=2)
    assert seen.passes == [2, 2, "valid", 2, 2, "valid", 2]
    assert learn.history["epoch"] == [0, 1, 2, 3, 4]


def test_each_part_of_a_cut_stream_is_a_round_with_its_events():
    trace = Trace()
    fit(4, cbs=[trace], n_epochs=1, valid_every=(2, "step"))
    assert trace.events == [e for e in plain_trace(2, 2, 1) if e not in ACTIONS]


def test_the_epoch_counts_full_readings_of_the_data_where_rounds_are_cut_from_the_stream():
    epochs = []
    watch = At("before_batch", lambda learn: epochs.append(learn.epoch), lambda x: x.training, 99)
    fit(4, cbs=[watch], n_steps=12, valid_every=(3, "step"))
    assert epochs == [0] * 4 + [1] * 4 + [2] * 4


def test_samplers_get_the_epoch():
    class Loader(list):
        def __init__(self, items):
            super().__init__(items)
            self.sampler, self.told = self, []

        def set_epoch(self, epoch):
            self.told.append(epoch)

    loader = Loader(batches(4))
    toy_learner(dls=(loader,)).fit(3)
    assert loader.told == [0, 1, 2]


def test_no_epochs_is_a_fit_of_nothing():
    learn, seen = fit(3, n_epochs=0)
    assert seen.passes == [] and learn.history == [] and learn.steps_done == 0
    fit(3, n_epochs=0, valid_every=(2, "step"))


def test_without_any_length_a_fit_is_one_epoch():
    learn, seen = fit(3)
    assert seen.passes == [3, "valid"] and learn.n_epochs == 1


# ---- what is known while it runs ----


def test_is_last_marks_the_last_batch_of_each_epoch():
    _, seen = fit(3, 2, n_epochs=2)
    assert seen.lasts == [False, False, True, False, True] * 2


def test_is_last_is_none_without_a_length():
    _, seen = fit(3, 2, length=False, n_epochs=1)
    assert seen.lasts == [None, None, None, False, True]


@pytest.mark.parametrize(
    ("way", "lasts"),
    [
        ({"n_epochs": 1}, "...x x"),
        ({"n_steps": 6}, "...x x .x x"),
        ({"n_steps": 4, "valid_every": (2, "step")}, ".x x .x x"),
        ({"n_epochs": 1, "valid_every": (3, "step")}, "..x x x x"),
        ({"n_epochs": 2, "valid_every": (3, "step")}, "..x x ..x x .x x"),
    ],
)
@pytest.mark.parametrize("event", ["before_batch", "after_loss", "after_batch", "cleanup_batch"])
def test_is_last_says_the_same_at_every_event_of_a_batch(event, way, lasts):
    seen = []
    ask = At(event, lambda learn: seen.append(learn.is_last), times=99)
    fit(4, cbs=[ask], **way)
    assert seen == [mark == "x" for mark in lasts if mark != " "]


@pytest.mark.parametrize(
    ("way", "length", "total"),
    [
        ({"n_epochs": 3}, True, 12),
        ({"n_epochs": 3}, False, None),
        ({"n_steps": 7}, False, 7),
        ({"n_epochs": 2, "valid_every": (3, "step")}, True, 8),
    ],
)
def test_the_number_of_updates_is_known_from_the_start_where_it_can_be(way, length, total):
    seen = []
    watch = At("before_fit", lambda learn: seen.append(learn.n_steps))
    fit(4, length=length, cbs=[watch], **way)
    assert seen == [total]


def test_short_groups_of_batches_are_an_update_an_epoch_or_one_in_all_where_rounds_are_cut():
    for valid_every, total in ((1, 3 * 3), ((4, "step"), 8)):
        plan = Plan(3, None, valid_every)
        plan.n_batches, plan.batches_per_step = 5, 2
        assert plan.total_steps == total


def test_updates_are_counted_not_batches():
    skip = At("before_batch", CancelBatchException, lambda learn: learn.training, times=2)
    hold = At("before_step", CancelStepException, times=1)
    learn, seen = fit(4, cbs=[skip, hold], n_steps=5)
    assert learn.steps_done == 5
    assert seen.passes == [4, "valid", 4, "valid"]


# ---- cancels and mistakes ----


@pytest.mark.parametrize("cancel", [CancelEpochException, CancelRoundException])
@pytest.mark.parametrize("event", ["before_epoch", "after_batch"])
@pytest.mark.parametrize(
    "way", [{"n_epochs": 2, "valid_every": (3, "step")}, {"n_steps": 8, "valid_every": (3, "step")}]
)
def test_a_cancelled_round_of_a_cut_stream_does_not_end_the_fit(way, event, cancel):
    at = At(event, cancel, lambda learn: learn.training)
    learn, _ = fit(4, cbs=[at], **way)
    assert learn.steps_done == 8


@pytest.mark.parametrize("way", [{"n_steps": 4}, {"n_steps": 4, "valid_every": (2, "step")}])
def test_updates_that_never_come_are_an_error_not_an_endless_loop(way):
    hold = At("before_step", CancelStepException, times=10**6)
    with pytest.raises(RuntimeError, match="no update"):
        fit(3, cbs=[hold], **way)


@pytest.mark.parametrize("n_train", [1, 2])
@pytest.mark.parametrize("way", [{"n_steps": 4}, {"n_steps": 4, "valid_every": (2, "step")}])
def test_short_epochs_may_make_no_update_for_a_while(way, n_train):
    """As under a scaler, which skips updates until its scale fits."""
    skip = At("before_step", CancelStepException, times=30)
    learn, _ = fit(n_train, cbs=[skip], **way)
    assert learn.steps_done == 4


@pytest.mark.parametrize("way", [{"n_epochs": 2}, {"n_steps": 8}])
@pytest.mark.parametrize("event", ["before_round", "before_epoch"])
def test_epochs_that_never_begin_are_an_error_not_an_endless_loop(event, way):
    level = event.removeprefix("before_")
    cancel = {"round": CancelRoundException, "epoch": CancelEpochException}[level]
    with pytest.raises(RuntimeError, match="no update"):
        fit(3, cbs=[At(event, cancel, times=10**3)], valid_every=(2, "step"), **way)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"n_epochs": 1, "n_steps": 2}, "not both"),
        ({"n_epochs": -1}, "n_epochs .*-1"),
        ({"n_epochs": 1.5}, "n_epochs .*1.5"),
        ({"n_epochs": True}, "n_epochs .*True"),
        ({"n_steps": 0}, "n_steps .*0"),
        ({"valid_every": 0}, "0"),
        ({"valid_every": (2, "minutes")}, "unknown unit"),
        ({"n_steps": 3, "train": False}, "n_steps counts updates"),
    ],
)
def test_lengths_that_make_no_sense_are_errors(kwargs, message):
    with pytest.raises(ValueError, match=message):
        fit(2, **kwargs)


def test_n_steps_equal_by_hand_to_a_loop_over_a_repeated_stream():
    train = batches(3)
    ours, theirs = linear(), linear()
    Learner(ours, (Stream(train),), cbs=TrainCB()).fit(n_steps=7)
    opt = torch.optim.SGD(theirs.parameters(), 0.1)
    for step in range(7):
        x, y = train[step % 3]
        torch.nn.functional.mse_loss(theirs(x), y).backward()
        opt.step()
        opt.zero_grad()
    assert_same_weights(ours, theirs)


def test_the_last_batch_of_a_long_epoch_is_known_as_such():
    last, data = [], batches(300)
    note = At("after_batch", lambda learn: last.append(learn.iter), lambda o: o.is_last, 9)
    toy_learner([note], (data,)).fit(1)
    assert last == [299]
