"""Fewer batches."""

from contextlib import suppress

import pytest
import torch
from torch import optim
from toys import At, assert_same_weights, batches, linear, toy_learner, train_by_hand

from minilearn.callbacks.limits import Kept, LimitBatchesCB, OverfitCB, Shortened
from minilearn.core.callback import Callback
from minilearn.core.events import CancelEpochException, CancelFitException


class Look(Callback):
    """Notes what a fit knows about its length, and each batch."""

    def __init__(self):
        self.batches, self.lengths, self.n_steps = [], [], None

    def before_fit(self, learn):
        self.n_steps = learn.n_steps

    def after_batch(self, learn):
        self.batches.append((learn.training, learn.batch[0], learn.is_last))
        self.lengths.append(learn.plan.length)

    def count(self, training):
        return sum(t == training for t, *_ in self.batches)


def stream(n):
    return iter_only(batches(n))


class iter_only:
    """A loader without a length."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


@pytest.mark.parametrize(
    ("train", "valid", "expected"),
    [
        (2, 1, (2, 1)),
        (0.5, 0.5, (5, 2)),
        (0.01, None, (1, 4)),
        (1.0, 1, (10, 1)),
        (99, 99, (10, 4)),
        (None, 3, (10, 3)),
    ],
)
def test_epochs_have_as_many_batches_as_was_said(train, valid, expected):
    look = Look()
    learn = toy_learner([LimitBatchesCB(train, valid), look], (batches(10), batches(4)))
    learn.fit(2)
    assert (look.count(True), look.count(False)) == (2 * expected[0], 2 * expected[1])
    assert look.n_steps == learn.steps_done == 2 * expected[0]
    assert set(look.lengths) == set(expected)
    assert sum(bool(last) for *_, last in look.batches) == 4


def test_a_limited_fit_equals_one_on_fewer_batches():
    learn = toy_learner([LimitBatchesCB(3)], (batches(10), batches(4)))
    learn.fit(2)
    model = linear()
    train_by_hand(model, (batches(10)[:3], batches(4)), optim.SGD(model.parameters(), 0.1), 2)
    assert_same_weights(learn.model, model)


def test_events_and_a_row_of_history_are_those_of_a_whole_epoch():
    learn, events = toy_learner([LimitBatchesCB(1, 1)]), []
    learn.on("after_epoch", lambda learn: events.append(learn.training))
    learn.on("after_round", lambda learn: events.append("round"))
    learn.fit(1)
    assert events == [True, False, "round"]


def test_loaders_without_a_length_take_a_number_and_no_fraction():
    look = Look()
    learn = toy_learner([LimitBatchesCB(2, 1), look], (stream(5), stream(5)))
    learn.fit(1)
    assert (look.count(True), look.count(False)) == (2, 1)
    with pytest.raises(ValueError, match="no length"):
        toy_learner([LimitBatchesCB(0.5)], (stream(5), None)).fit(1)


def test_limits_go_with_lengths_in_updates():
    look = Look()
    learn = toy_learner([LimitBatchesCB(2), look], (batches(10), batches(1)))
    learn.fit(n_steps=5, valid_every=(2, "step"))
    first = batches(10)
    used = [next(i for i, b in enumerate(first) if b[0].equal(x)) for t, x, _ in look.batches if t]
    assert used == [0, 1, 0, 1, 0]
    assert learn.steps_done == 5


@pytest.mark.parametrize("limit", [0, -1, 1.5, 0.0, True, "2"])
def test_limits_that_make_no_sense_are_refused(limit):
    with pytest.raises(ValueError, match="or a fraction"):
        LimitBatchesCB(train=limit)


def test_a_shortened_loader_has_the_attributes_of_the_whole_one():
    data = torch.utils.data.TensorDataset(torch.arange(10))
    dl = Shortened(torch.utils.data.DataLoader(data, 2), 3)
    assert len(dl) == len(list(dl)) == 3
    assert dl.dataset is data and dl.batch_size == 2
    assert len(Shortened(batches(2), 3)) == 2
    assert not hasattr(dl, "no_such_thing")


def test_a_model_overfits_the_same_batches_in_every_epoch():
    data = torch.utils.data.TensorDataset(torch.arange(20.0)[:, None], torch.zeros(20, 1))
    dl = torch.utils.data.DataLoader(data, 2, shuffle=True)
    look = Look()
    learn = toy_learner([OverfitCB(2), look], (dl, batches(1, n_in=1)), linear(n_in=1), lr=0.0)
    learn.fit(2)
    learn.fit(1)
    seen = [x.flatten().tolist() for training, x, _ in look.batches if training]
    assert seen[:2] * 3 == seen
    assert seen[0] != seen[1]
    assert learn.n_steps == 2 and set(look.lengths) == {2, 1}


def test_overfitting_may_validate_on_the_same_batches():
    look = Look()
    learn = toy_learner([OverfitCB(1, valid=True), look], (batches(3), batches(5, seed=9)))
    learn.fit(1)
    assert [training for training, *_ in look.batches] == [True, False]
    assert look.batches[0][1].equal(look.batches[1][1])


def test_transforms_in_place_do_not_reach_the_kept_batches():
    def change(learn):
        learn.batch[0].zero_()

    learn = toy_learner([OverfitCB(1)], (batches(3), None))
    learn.on("before_batch", change)
    learn.fit(2)
    assert learn.cbs[1].batches[0][0].equal(batches(3)[0][0])
    kept = Kept(learn.cbs[1].batches)
    assert len(kept) == 1 and list(kept)[0][0] is not list(kept)[0][0]


def test_overfitting_follows_a_refilled_buffer_of_the_loader():
    buffer = torch.zeros(2, 3)

    class Refills:
        def __iter__(self):
            for i in range(3):
                yield buffer.fill_(i), torch.zeros(2, 1)

    look = Look()
    learn = toy_learner([OverfitCB(2), look], (Refills(), None))
    learn.fit(1)
    assert [x[0, 0].item() for _, x, _ in look.batches] == [0, 1]
    assert learn.n_steps == 2


def test_overfitting_says_what_it_lacks():
    with pytest.raises(ValueError, match="1 or more"):
        OverfitCB(0)
    with pytest.raises(ValueError, match="there is none"):
        toy_learner([OverfitCB()], (None, batches(1))).fit(1, train=False)


class Closes:
    """An iterator of batches that notes when it is closed."""

    def __init__(self, n=9):
        self.batches, self.closed = iter(batches(n)), 0

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.batches)

    def close(self):
        self.closed += 1


@pytest.mark.case("F47")
@pytest.mark.parametrize("error", [CancelEpochException, CancelFitException, ValueError])
def test_a_shortened_loader_is_closed_after_a_cancel_or_an_error(error):
    dl = Closes()
    learn = toy_learner([LimitBatchesCB(4), At("after_loss", error)], dls=(dl, None))
    with suppress(ValueError):
        learn.fit(1)
    assert dl.closed == 1


def test_a_shortened_iterator_goes_on_in_the_next_epoch():
    dl = Closes()
    learn = toy_learner([LimitBatchesCB(4)], dls=(dl, None))
    learn.fit(2)
    assert learn.steps_done == 8 and not dl.closed
