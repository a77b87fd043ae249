"""Gradients before the update: gathered as one large batch gives them, clipped, kept finite."""

import math
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim
from torch.optim import lr_scheduler
from toys import At, Before, Trace, assert_same_weights, batches, linear, toy_learner

from minilearn import (
    BatchSchedCB,
    CancelBackwardException,
    CancelBatchException,
    CancelEpochException,
    CancelFitException,
    ClipGradCB,
    GradAccumCB,
    Learner,
    MetricsCB,
    MomentumLearner,
    NonFiniteCB,
    RecorderCB,
    TrainCB,
    TrainLearner,
)
from minilearn.callbacks import gradients
from minilearn.callbacks.gradients import CLIP, clip_adaptively
from minilearn.core.callback import Callback
from tests.rates import UsedLR


def double(seed=0):
    return linear(seed).double()


def sized(sizes, seed=5):
    """Batches of the given sizes, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return [
        tuple(torch.randn(n, k, generator=generator, dtype=torch.float64) for k in (3, 1))
        for n in sizes
    ]


def groups_of(items, n):
    return [items[i : i + n] for i in range(0, len(items), n)]


def joined(group):
    return tuple(torch.cat(parts) for parts in zip(*group, strict=True))


def by_large_batches(model, data, n, epochs=1, lr=0.1, opt_func=optim.SGD):
    """Train by hand on the concatenation of every `n` batches."""
    opt = opt_func(model.parameters(), lr)
    for _ in range(epochs):
        for group in groups_of(data, n):
            x, y = joined(group)
            F.mse_loss(model(x), y).backward()
            opt.step()
            opt.zero_grad()


def assert_close(ours, theirs, rtol=1e-9):
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)


sizes = st.lists(st.integers(1, 5), min_size=1, max_size=12)


@given(sizes=sizes, n=st.integers(1, 5), cancelled=st.sets(st.integers(0, 11)))
def test_batches_that_are_cancelled_before_their_backward_are_in_no_group(sizes, n, cancelled):
    ours, theirs, data = double(), double(), sized(sizes)
    at = At("after_predict", CancelBatchException, lambda learn: learn.iter in cancelled, 99)
    learn = toy_learner([GradAccumCB(n), at], (data,), ours)
    learn.fit(1)
    left = [batch for i, batch in enumerate(data) if i not in cancelled]
    by_large_batches(theirs, left, n)
    assert_close(ours, theirs)
    assert learn.steps_done == -(-len(left) // n)


@given(sizes=sizes, n=st.integers(1, 5), cancelled=st.sets(st.integers(0, 11)))
def test_batches_that_are_cancelled_after_their_backward_are_in_the_group(sizes, n, cancelled):
    ours, theirs, data = double(), double(), sized(sizes)
    at = At("after_backward", CancelBatchException, lambda learn: learn.iter in cancelled, 99)
    toy_learner([GradAccumCB(n), at], (data,), ours).fit(1)
    group = []
    for i, batch in enumerate(data):
        group.append(batch)
        if i == len(data) - 1 or (len(group) >= n and i not in cancelled):
            by_large_batches(theirs, group, len(group))
            group = []
    assert_close(ours, theirs)


@given(sizes=sizes, n=st.integers(1, 5), epochs=st.integers(1, 2))
def test_a_group_equals_the_one_large_batch(sizes, n, epochs):
    ours, theirs, data = double(), double(), sized(sizes)
    learn = toy_learner([GradAccumCB(n)], (data,), ours)
    learn.fit(epochs)
    by_large_batches(theirs, data, n, epochs)
    assert_close(ours, theirs)
    assert learn.steps_done == learn.n_steps == epochs * -(-len(data) // n)


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=9), n=st.integers(1, 4))
def test_a_group_weights_its_batches_by_their_counts(counts, n):
    data = [(*batch, c) for batch, c in zip(sized([3] * len(counts)), counts, strict=True)]
    ours, theirs = double(), double()
    learn = Learner(
        ours,
        (data,),
        lambda preds, y, c: F.mse_loss(preds, y),
        cbs=[TrainCB(), GradAccumCB(n)],
        count=lambda batch: batch[2],
    )
    learn.fit(1)
    opt = optim.SGD(theirs.parameters(), 0.1)
    for group in groups_of([batch for batch in data if batch[2]], n):  # without items: left out
        total = sum(c for *_, c in group)
        sum(F.mse_loss(theirs(x), y) * c / total for x, y, c in group).backward()
        opt.step()
        opt.zero_grad()
    assert_close(ours, theirs)


def test_counts_may_be_parts_of_an_item():
    data, ours, theirs = sized([2, 3]), double(), double()
    Learner(ours, (data,), cbs=[TrainCB(), GradAccumCB(1)], count=lambda batch: 0.5).fit(1)
    by_large_batches(theirs, data, 1)
    assert_close(ours, theirs)


def test_counts_may_be_tensors():
    def trained(count):
        model = double()
        cbs = [TrainCB(), GradAccumCB(2)]
        Learner(model, (sized([1, 4, 2]),), cbs=cbs, count=count).fit(2)
        return model

    as_tensors = trained(lambda batch: torch.tensor(len(batch[0])))
    assert_close(as_tensors, trained(None))


@pytest.mark.parametrize("n_steps", [1, 3, 7])
@pytest.mark.parametrize("stream", [False, True])
def test_a_fit_by_updates_ends_after_its_last_update(n_steps, stream):
    data, model = sized([2, 3, 1, 2, 2]), double()
    seen = iter_only(data) if stream else data
    learn = toy_learner([GradAccumCB(2), trace := Trace()], (seen,), model)
    learn.fit(n_steps=n_steps)
    assert learn.steps_done == trace.events.count("after_step") == n_steps
    theirs, updates = double(), [g for _ in range(3) for g in groups_of(data, 2)][:n_steps]
    by_large_batches(theirs, [joined(g) for g in updates], 1)
    assert_close(model, theirs)


def test_rounds_that_are_cut_by_updates_let_groups_go_on_across_the_end_of_the_data():
    data, model = sized([2, 3, 1, 2, 2]), double()
    learn = toy_learner([GradAccumCB(2)], (data, data[:1]), model)
    learn.fit(2, valid_every=(2, "step"))
    assert learn.steps_done == learn.n_steps == 5
    assert learn.history["steps"] == [2, 4, 5]
    theirs = double()
    by_large_batches(theirs, data * 2, 2)
    assert_close(model, theirs)


@pytest.mark.parametrize("every", [2, (2, "step")])
def test_a_group_may_be_larger_than_the_data_where_rounds_are_cut_by_updates(every):
    data, model = sized([2, 3]), double()
    toy_learner([GradAccumCB(5)], (data, data[:1]), model).fit(n_steps=3, valid_every=every)
    theirs = double()
    group = data * 2 + data[:1] if every == (2, "step") else data  # else an epoch ends a group
    second = data[1:] + data * 2 if every == (2, "step") else data
    by_large_batches(theirs, [joined(group), joined(second), joined(group)], 1)
    assert_close(model, theirs)


class iter_only:
    """A loader without a length."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


# ---- C019: the tail ----


def check_tail(accum):
    class Grads(Callback):
        order = 35
        seen = []

        def before_step(self, learn):
            self.seen.append(learn.model.weight.grad.clone())

    data, model, start = batches(10), linear(), linear()
    grads = Grads()
    grads.seen = []
    learn = toy_learner([accum, grads], (data,), model, lr=1.0)
    learn.fit(1)
    assert len(grads.seen) == learn.steps_done == 3
    weight, bias = start.weight.detach().clone(), start.bias.detach().clone()
    for group, grad in zip(groups_of(data, 4), grads.seen, strict=True):
        errors = [(x @ weight.T + bias - y, x) for x, y in group]
        expected = sum(2 * (e * x).mean(0) for e, x in errors) / len(group)  # (3,)
        torch.testing.assert_close(grad[0], expected, atol=1e-6, rtol=0)
        weight -= expected
        bias -= sum(2 * e.mean(0) for e, _ in errors) / len(group)


@pytest.mark.case("C019")
def test_the_last_group_is_divided_by_its_own_number_of_batches():
    check_tail(GradAccumCB(4))


@pytest.mark.case("C019")
def test_the_check_of_the_tail_notices_a_division_by_n():
    class ByN(GradAccumCB):
        def before_step(self, learn):
            if self._closing:
                self._weights = self.n
            super().before_step(learn)

    with pytest.raises(AssertionError):
        check_tail(ByN(4))


# ---- C020: tokens ----


def check_tokens(count):
    torch.manual_seed(0)
    x, y = torch.randn(2, 100, 3), torch.randint(0, 4, (2, 100))
    y[0, 10:] = -100  # padding
    ours, theirs = linear(n_out=4), linear(n_out=4)
    loss = nn.CrossEntropyLoss(ignore_index=-100)
    Learner(
        ours, ([(x[0], y[0]), (x[1], y[1])],), loss, 1.0, [TrainCB(), GradAccumCB(2)], count=count
    ).fit(1)
    by_token = F.cross_entropy(theirs(x.flatten(0, 1)), y.flatten(), reduction="none")
    (by_token[y.flatten() != -100].sum() / 110).backward()
    with torch.no_grad():
        theirs.weight -= theirs.weight.grad
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-7)


@pytest.mark.case("C020")
def test_each_token_weighs_the_same():
    check_tokens(lambda batch: (batch[1] != -100).sum())
    check_tokens(lambda batch: int((batch[1] != -100).sum()))


@pytest.mark.case("C020")
def test_the_check_of_tokens_notices_a_mean_of_means():
    with pytest.raises(AssertionError):
        check_tokens(None)


# ---- C021: the loss shown ----


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return 4.0 + self.w * 0 * x.sum()


def check_shown_loss(make, n, data):
    class Batches(Callback):
        seen = []

        def after_backward(self, learn):
            self.seen.append(learn.loss.item())

        def after_batch(self, learn):
            self.seen.append(learn.loss.item())

    metrics, by_batch, rec = MetricsCB(), Batches(), RecorderCB(loss=lambda cb: learn.loss)
    by_batch.seen = []
    learn = toy_learner([make(n), metrics, by_batch, rec], (data,), Constant())
    learn.loss_func = lambda preds, y: preds.mean()
    learn.fit(1)
    assert set(by_batch.seen) == {4.0} == set(rec.recs["loss"])
    assert metrics.rows[0]["loss"] == learn.history["train_loss"][0] == 4.0


@pytest.mark.case("C021")
@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_the_loss_shown_does_not_depend_on_the_accumulation(n):
    check_shown_loss(GradAccumCB, n, batches(9))
    check_shown_loss(GradAccumCB, n, [b for s in (1, 3, 2) for b in batches(3, s)])


@pytest.mark.case("C021")
def test_the_check_of_the_loss_shown_notices_a_scaled_one():
    class Scaled(GradAccumCB):
        def after_backward(self, learn):
            super().after_backward(learn)
            learn.loss = learn.loss / self.n

    with pytest.raises(AssertionError):
        check_shown_loss(Scaled, 2, batches(4))


# ---- what ends or interrupts a group ----


def is_batch(i):
    return lambda learn: learn.training and learn.iter == i


@pytest.mark.parametrize(
    "event, cancel",
    [("after_loss", CancelBatchException), ("before_backward", CancelBackwardException)],
)
def test_a_batch_that_is_cancelled_before_its_backward_is_not_in_the_group(event, cancel):
    data, model, theirs = sized([2, 3, 1, 2]), double(), double()
    learn = toy_learner([At(event, cancel, is_batch(1)), GradAccumCB(3)], (data,), model)
    learn.fit(1)
    by_large_batches(theirs, [data[0], *data[2:]], 3)
    assert_close(model, theirs)
    assert learn.steps_done == 1


def test_a_loss_that_was_weighted_is_put_back_when_its_backward_is_cancelled():
    seen = []
    note = At("after_batch", lambda learn: seen.append(learn.loss.item()), times=9)
    at = At("before_backward", CancelBackwardException, is_batch(1))
    data, model = sized([2, 3]), double()
    at.order = 30
    toy_learner([at, GradAccumCB(2), note], (data,), model, lr=0.0).fit(1)
    assert seen == [F.mse_loss(model(x), y).item() for x, y in data]


@pytest.mark.parametrize("event", ["after_loss", "after_batch", "before_batch"])
def test_a_cancelled_epoch_closes_its_group(event):
    data, model, theirs = sized([2, 3, 1, 2]), double(), double()
    metrics, updates = MetricsCB(), []
    note = At("after_step", lambda learn: updates.append(len(metrics.rows)), times=9)
    cancel = At(event, CancelEpochException, is_batch(3))
    learn = toy_learner([cancel, GradAccumCB(3), metrics, note], (data, data[:1]), model)
    learn.fit(1)
    kept = data if event == "after_batch" else data[:3]
    by_large_batches(theirs, kept, 3)
    assert_close(model, theirs)
    assert learn.steps_done == len(updates) == -(-len(kept) // 3)
    assert learn.history["steps"] == [learn.steps_done]


@pytest.mark.parametrize("error", [CancelFitException, ZeroDivisionError, KeyboardInterrupt])
def test_a_group_is_dropped_with_a_warning_when_more_than_the_epoch_ends(error):
    data, model, theirs = sized([2, 3, 1, 2]), double(), double()
    learn = toy_learner([At("after_batch", error, is_batch(2)), GradAccumCB(2)], (data,), model)
    before = Before(learn)
    with pytest.warns(UserWarning, match=f"1 batches of an unfinished.*{error.__name__}.*epoch 0"):
        if error is CancelFitException:
            learn.fit(1)
        else:
            with pytest.raises(error):
                learn.fit(1)
    before.assert_fit_left_nothing()
    assert not learn.plan.in_group
    by_large_batches(theirs, data[:2], 2)
    assert_close(model, theirs)
    learn.fit(1)  # the next fit begins with a new group
    by_large_batches(theirs, data, 2)
    assert_close(model, theirs)


def test_a_nested_run_inside_a_group_leaves_the_group_alone():
    data, model, theirs = sized([2, 3, 1, 2, 2]), double(), double()
    look = At("after_batch", lambda learn: learn.validate(), lambda learn: learn.training, 99)
    toy_learner([GradAccumCB(2), look], (data, data[:2]), model).fit(2)
    by_large_batches(theirs, data, 2, 2)
    assert_close(model, theirs)


def test_the_last_group_closes_before_the_metrics_are_read():
    events = []
    notes = [
        At("after_step", lambda learn: events.append("update"), times=9),
        At("after_epoch", lambda learn: events.append("pass"), times=9),
    ]
    toy_learner([*notes, GradAccumCB(2)], (batches(3),)).fit(1)
    assert events == ["update", "update", "pass"]


def test_carried_gradients_and_accumulation_contradict_each_other():
    learn = MomentumLearner(linear(), (batches(2),), F.mse_loss, 0.1, [GradAccumCB(2)])
    with pytest.raises(ValueError, match="GradAccumCB needs .* MomentumLearner has a zero_grad"):
        learn.fit(1)
    TrainLearner(linear(), (batches(2),), F.mse_loss, 0.1, [GradAccumCB(2)]).fit(1)


SCHEDULES = [{0: 1, 1: 3}, lambda epoch: (1, 3, 3)[epoch]]


@pytest.mark.parametrize("n", SCHEDULES)
def test_the_number_of_batches_may_follow_the_epoch_as_a_loop_by_hand_has_it(n):
    ours, theirs, data = double(), double(), sized([2, 1, 3, 2, 2])
    learn = toy_learner([GradAccumCB(n)], (data, data[:1]), ours, lr=0.1)
    totals = []
    learn.on("before_epoch", lambda learn: totals.append(learn.n_steps))
    learn.fit(3, valid=False)
    for epoch, size in enumerate((1, 3, 3)):
        by_large_batches(theirs, data, size)
        assert totals[epoch] == 5 + 2 + 2
    assert_close(ours, theirs)
    assert learn.steps_done == 9


def test_a_schedule_of_accumulation_and_one_of_the_rate_end_together():
    used, cosine = UsedLR(), BatchSchedCB(lr_scheduler.CosineAnnealingLR)
    toy_learner([GradAccumCB({0: 1, 2: 4}), used, cosine], (batches(8), batches(1)), lr=1.0).fit(4)
    by_hand = [(1 + math.cos(math.pi * t / 20)) / 2 for t in range(20)]
    assert used.lrs == pytest.approx(by_hand)


def test_the_length_of_a_fit_that_is_cut_in_updates_is_unknown_under_a_schedule():
    learn = toy_learner([GradAccumCB({0: 1, 1: 2})], (batches(4), batches(1)))
    learn.fit(2, valid_every=(3, "step"))
    assert learn.steps_done == 4 + 2 and learn.n_steps is None


@pytest.mark.parametrize("n", [{1: 2}, {}])
def test_a_schedule_of_accumulation_begins_at_epoch_zero(n):
    with pytest.raises(ValueError, match="from epoch 0 on"):
        GradAccumCB(n)


@pytest.mark.parametrize("n", [0, -1, 1.5])
def test_the_number_of_batches_is_checked(n):
    with pytest.raises(ValueError, match=f"1 or more; got {n}"):
        GradAccumCB(n)


# ---- clipping ----


def train_clipped_by_hand(model, data, clip, lr=0.5):
    norms, opt = [], optim.SGD(model.parameters(), lr)
    for x, y in data:
        F.mse_loss(model(x), y).backward()
        params = list(model.parameters())
        norms.append(nn.utils.get_total_norm([p.grad for p in params]).item())
        clip(params)
        opt.step()
        opt.zero_grad()
    return norms


CLIPS = {
    "max_norm": lambda params: nn.utils.clip_grad_norm_(params, 0.3),
    "max_value": lambda params: nn.utils.clip_grad_value_(params, 0.3),
    "agc": lambda params: by_rows(params, 0.3),
}


def by_rows(params, ratio):
    """Adaptive clipping as in the paper, row by row."""
    for p in params:
        rows = [(p, p.grad)] if p.dim() < 2 else zip(p, p.grad, strict=True)
        for weights, grads in rows:
            most = ratio * max(weights.norm().item(), 1e-3)
            if grads.norm() > most:
                grads *= most / grads.norm()


@pytest.mark.parametrize("kind", CLIPS)
def test_clipping_equals_a_loop_written_by_hand(kind):
    ours, theirs, data = linear(n_out=2), linear(n_out=2), batches(5, n_out=2)
    clip = ClipGradCB(**{kind: 0.3})
    rec = RecorderCB(norm=lambda cb: clip.norm)
    toy_learner([clip, rec], (data,), ours, lr=0.5).fit(1)
    norms = train_clipped_by_hand(theirs, data, CLIPS[kind])
    assert rec.recs["norm"] == norms and max(norms) > 0.3
    if kind == "agc":
        assert_close(ours, theirs, 1e-6)
    else:
        assert_same_weights(ours, theirs)


def test_adaptive_clipping_takes_the_rows_of_a_convolution_together():
    conv = nn.Conv2d(2, 3, 3)
    conv(torch.randn(4, 2, 8, 8)).square().sum().backward()
    theirs = [p.grad.clone() for p in conv.parameters()]
    copies = [nn.Parameter(p.detach().clone()) for p in conv.parameters()]
    for copy, grad in zip(copies, theirs, strict=True):
        copy.grad = grad
    by_rows(copies, 0.01)
    clip_adaptively(list(conv.parameters()), 0.01)
    for p, copy in zip(conv.parameters(), copies, strict=True):
        torch.testing.assert_close(p.grad, copy.grad)


@pytest.mark.parametrize(
    "bounds", [{}, {"max_norm": 1, "agc": 0.1}, {"max_norm": 0}, {"max_value": -1}]
)
def test_clipping_takes_exactly_one_bound_above_zero(bounds):
    with pytest.raises(ValueError, match="give one of max_norm, max_value and agc"):
        ClipGradCB(**bounds)


class Pull(nn.Module):
    """Two numbers whose gradient is what the batch says."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, pull):
        return (self.w * pull).sum()


def pulling(cbs, pulls, lr=1.0, **kwargs):
    """A Learner whose gradients are given: each pull is a batch."""
    data = [(torch.tensor(pull),) for pull in pulls]
    return Learner(Pull(), (data,), lambda loss: loss, lr, [TrainCB(), *cbs], **kwargs)


def one_item(batch):
    return 1


def check_clips_the_group(cbs, monkeypatch):
    calls, clip = [], nn.utils.clip_grads_with_norm_
    monkeypatch.setattr(
        nn.utils, "clip_grads_with_norm_", lambda *args: (calls.append(1), clip(*args))[1]
    )
    learn = pulling(cbs, [[6.0, 0.0], [0.0, 2.0]], count=one_item)
    learn.fit(1)
    expected = -torch.tensor([0.9487, 0.3162])
    torch.testing.assert_close(learn.model.w.detach(), expected, atol=1e-4, rtol=0)
    assert len(calls) == 1


@pytest.mark.case("C022")
def test_the_group_is_clipped_once(monkeypatch):
    check_clips_the_group([GradAccumCB(2), ClipGradCB(1.0)], monkeypatch)
    check_clips_the_group([ClipGradCB(1.0), GradAccumCB(2)], monkeypatch)


@pytest.mark.case("C022")
def test_the_check_of_the_group_notices_clipping_of_its_parts(monkeypatch):
    class Parts(Callback):
        def after_backward(self, learn):
            nn.utils.clip_grad_norm_(learn.model.parameters(), 1.0)

    with pytest.raises(AssertionError):
        check_clips_the_group([GradAccumCB(2), Parts()], monkeypatch)


def check_has_effect(clip):
    class Moves(Callback):
        seen, raw = [], []

        def after_loss(self, learn):
            (grad,) = torch.autograd.grad(learn.loss, learn.model.w, retain_graph=True)
            self.raw.append(grad.norm().item())

        def before_step(self, learn):
            self.before = learn.model.w.detach().clone()

        def after_step(self, learn):
            self.seen.append((learn.model.w - self.before).norm().item())

    moves = Moves()
    moves.seen, moves.raw = [], []
    rec = RecorderCB(norm=lambda cb: clip.norm)
    pulling([clip, moves, rec], [[3.0, 4.0], [-2.0, 1.0], [0.5, 9.0]]).fit(1)
    assert len(moves.seen) == 3 and max(moves.seen) <= 0.1 + 1e-6
    assert min(moves.raw) > 1
    assert rec.recs["norm"] == pytest.approx(moves.raw)


@pytest.mark.case("C023")
def test_clipping_acts_on_the_gradients_of_the_update():
    check_has_effect(ClipGradCB(0.1))


@pytest.mark.case("C023")
def test_the_check_of_clipping_notices_one_before_the_backward_pass():
    class TooEarly(ClipGradCB):
        def before_step(self, learn):
            pass

        def before_backward(self, learn):
            super().before_step(learn)

    with pytest.raises(AssertionError):
        check_has_effect(TooEarly(0.1))


# ---- gradients that are not finite ----


class Poison(Callback):
    """Writes NaN into the gradient of some batches."""

    def __init__(self, *at, value=float("nan")):
        self.at, self.value = at, value

    def after_backward(self, learn):
        if learn.iter in self.at:
            next(learn.model.parameters()).grad[0] = self.value


def check_skips(guard):
    class Notes(Callback):
        order = 95

        def after_batch(self, learn):
            weights = [p.detach().clone() for p in learn.model.parameters()]
            moments = [v.clone() for s in learn.opt.state.values() for v in s.values()]
            self.seen.append(weights + moments)

    notes = Notes()
    notes.seen = []
    learn = toy_learner([guard, Poison(2), notes], (batches(6),), opt_func=optim.AdamW)
    with pytest.warns(UserWarning, match="epoch 0, batch 2 .*skipped"):
        learn.fit(1)
    assert all(torch.equal(a, b) for a, b in zip(notes.seen[1], notes.seen[2], strict=True))
    assert all(p.isfinite().all() for p in learn.model.parameters())
    assert learn.steps_done == 5
    assert not any(torch.equal(a, b) for a, b in zip(notes.seen[2], notes.seen[3], strict=True))


@pytest.mark.case("C030")
@pytest.mark.parametrize("guard", [ClipGradCB(1.0), ClipGradCB(max_value=1.0), NonFiniteCB()])
def test_an_update_with_a_nan_is_skipped(guard):
    check_skips(guard)


@pytest.mark.case("C030")
def test_the_check_of_skipping_notices_a_clip_that_lets_nan_pass():
    class Clips(ClipGradCB):
        def refuse(self, learn, advice):
            warnings.warn("epoch 0, batch 2 not skipped", stacklevel=1)

    with pytest.raises(AssertionError):
        check_skips(Clips(1.0))


def test_a_group_with_a_nan_is_skipped_as_a_whole_and_the_next_begins_anew():
    data, model, theirs = sized([2] * 5), double(), double()
    with pytest.warns(UserWarning, match="batch 1"):
        toy_learner([GradAccumCB(2), NonFiniteCB(), Poison(0)], (data,), model).fit(1)
    by_large_batches(theirs, data[2:], 2)
    assert_close(model, theirs)


def test_a_guard_can_raise_or_end_the_fit():
    def learner(**kwargs):
        return toy_learner([NonFiniteCB(**kwargs), Poison(1)], (batches(4),))

    with pytest.raises(FloatingPointError, match="epoch 0, batch 1"):
        learner(on_nonfinite="raise").fit(1)
    learn = learner(on_nonfinite="stop")
    with pytest.warns(UserWarning, match="batch 1 .*the fit ends here"):
        learn.fit(3)
    assert learn.steps_done == 1
    with pytest.raises(ValueError, match="'skip', 'raise' or 'stop', got 'ignore'"):
        NonFiniteCB("ignore")


def test_too_many_skips_in_a_row_raise_and_all_others_are_summed_up():
    def fit(*at):
        learn = toy_learner([NonFiniteCB(max_skips=3), Poison(*at)], (batches(8),))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            learn.fit(1)
        return [str(w.message) for w in caught]

    first, last = fit(0, 1, 3, 4, 6)
    assert "epoch 0, batch 0" in first and "5 times; 3 updates" in last
    with pytest.raises(FloatingPointError, match="batch 5 .*3 in a row"):
        fit(0, 3, 4, 5)


def test_each_fit_counts_its_skips_anew():
    data, guard = batches(8), NonFiniteCB(max_skips=3)
    for _ in range(2):
        learn = toy_learner([guard, Poison(0, 6, 7)], (data,))
        with pytest.warns(UserWarning) as caught:
            learn.fit(1)
        first, last = [str(w.message) for w in caught]
        assert "epoch 0, batch 0" in first and "3 times; 5 updates" in last


@pytest.mark.parametrize("guard", [NonFiniteCB(), ClipGradCB(1.0)], ids=repr)
@pytest.mark.filterwarnings("ignore:the gradients of epoch", "ignore:gradients were not finite")
def test_ten_skips_in_a_row_are_too_many_by_default(guard):
    with pytest.raises(FloatingPointError, match="batch 9 .*10 in a row"):
        toy_learner([guard, Poison(*range(12))], (batches(12),)).fit(1)


GUARDS = [ClipGradCB(0.1), ClipGradCB(max_value=0.01), NonFiniteCB()]


@pytest.mark.parametrize("guard", GUARDS, ids=repr)
def test_sparse_gradients_are_measured_and_bounded_as_dense_ones(guard):
    """torch's own clip_grad_norm_ and clip_grad_value_ refuse them."""

    def trained(sparse):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 3, sparse=sparse), nn.Linear(3, 1)).double()
        data = [(torch.tensor([1, 1, i]), torch.ones(3, 1).double()) for i in range(5)]
        toy_learner([guard, GradAccumCB(2)], (data,), model).fit(1)
        return model, guard.norm

    (ours, norm), (theirs, dense_norm) = trained(True), trained(False)
    assert_close(ours, theirs)
    assert norm.item() == pytest.approx(dense_norm.item())


def with_sparse_grad(indices, values, shape):
    p = nn.Parameter(torch.linspace(0.1, 1, 12).reshape(shape))
    p.grad = torch.sparse_coo_tensor(indices, values, shape)
    return p


@pytest.mark.parametrize(
    ("indices", "values", "shape"),
    [
        ([[1, 1, 4]], torch.tensor([2.0, -3.0, 0.5]), (12,)),
        ([[1, 1, 2]], torch.tensor([[2.0, -1] * 2, [3.0, 1] * 2, [1e-5] * 4]), (3, 4)),
        ([[0, 1]], torch.arange(12.0).reshape(2, 2, 3) - 5, (2, 2, 3)),
    ],
)
def test_a_sparse_gradient_of_any_shape_is_bounded_as_the_dense_one(indices, values, shape):
    ours, theirs = (with_sparse_grad(indices, values, shape) for _ in range(2))
    theirs.grad = theirs.grad.to_dense()
    before = theirs.grad.clone()
    norms = [CLIP["max_value"]([p], 0.3) for p in (ours, theirs)]
    torch.testing.assert_close(ours.grad.to_dense(), theirs.grad)
    torch.testing.assert_close(*norms)
    assert ours.grad.is_sparse and not torch.equal(before, theirs.grad)


def test_a_sparse_gradient_is_refused_by_agc_in_words():
    p = with_sparse_grad([[0, 1], [2, 3]], torch.tensor([2.0, 3.0]), (3, 4))
    with pytest.raises(ValueError, match="dense gradients; use ClipGradCB"):
        CLIP["agc"]([p], 0.3)
    CLIP["max_value"]([p], 0.3)
    assert p.grad.to_dense().max() == pytest.approx(0.3)


def test_clipping_works_with_an_optimizer_that_knows_no_groups():
    class Toy:
        def __init__(self, params, lr):
            self.inner = optim.SGD(params, lr)
            self.step, self.zero_grad = self.inner.step, self.inner.zero_grad

    ours, theirs, data = linear(), linear(), batches(4)
    toy_learner([ClipGradCB(0.3)], (data,), ours, lr=0.5, opt_func=Toy).fit(1)
    train_clipped_by_hand(theirs, data, CLIPS["max_norm"])
    assert_same_weights(ours, theirs)


def test_callbacks_show_their_settings():
    cbs = [GradAccumCB(4), ClipGradCB(1.0), ClipGradCB(agc=0.01), NonFiniteCB("stop")]
    assert repr(cbs) == (
        "[GradAccumCB(4), ClipGradCB(max_norm=1.0), ClipGradCB(agc=0.01), NonFiniteCB('stop')]"
    )


# ---- F15: losses that are sums ----

TOTALS = [nn.MSELoss(reduction="sum"), partial(F.mse_loss, reduction="sum")]


def check_sums(loss_func, cb):
    """Accumulated batches of 4, 4, 2 make the update of the batch of 10."""
    x, y = torch.randn(10, 3), torch.randn(10, 1)
    ours, theirs = linear(), linear()
    data = list(zip(x.split(4), y.split(4), strict=True))
    Learner(ours, (data, None), loss_func, 0.01, [TrainCB(), cb]).fit(1)
    F.mse_loss(theirs(x), y, reduction="sum").backward()
    optim.SGD(theirs.parameters(), 0.01).step()
    assert_close(ours, theirs)


@pytest.mark.case("F15")
@pytest.mark.parametrize("n", [3, 9])
@pytest.mark.parametrize("loss_func", TOTALS, ids=["module", "partial"])
def test_accumulated_sums_are_the_sum_of_the_large_batch(loss_func, n):
    check_sums(loss_func, GradAccumCB(n))


@pytest.mark.case("F15")
def test_the_check_notices_sums_that_are_weighed_as_means(monkeypatch):
    monkeypatch.setattr(gradients, "adds_up", lambda learn: False)
    with pytest.raises(AssertionError):
        check_sums(TOTALS[0], GradAccumCB(3))


@pytest.mark.case("F12")
def test_accumulation_of_unknown_numbers_of_items_asks_for_count():
    data = [(torch.ones(4, 3), torch.ones(2, 1))] * 2
    half = lambda p, t: (p.mean() - t.mean()) ** 2  # noqa: E731
    learn = Learner(linear(), (data, None), half, 0.1, [TrainCB(), GradAccumCB(2)])
    with pytest.raises(ValueError, match=r"unknown: it is tuple\(Tensor\[4, 3\].*count="):
        learn.fit(1)
    Learner(linear(), (data, None), half, 0.1, learn.cbs, count=lambda b: len(b[1])).fit(1)


# ---- F16: adaptive clipping leaves the last layer alone ----


def check_last_layer(model, data):
    """All gradients are clipped by the reference, but for those of the last layer."""
    seen = []
    spy = At("before_step", lambda learn: seen.append([p.grad.clone() for p in params]), times=9)
    spy.order = ClipGradCB.order + 1
    params = list(model.parameters())
    loss = lambda p, t: F.mse_loss(p, t) * 100  # noqa: E731
    F.mse_loss(model(data[0]), data[1]).mul(100).backward()
    theirs = [p.grad.clone() for p in params]
    by_rows(params[:-2], 0.01)
    expected = [p.grad.clone() for p in params[:-2]] + theirs[-2:]
    Learner(model, ([data], None), loss, 0.1, [TrainCB(), ClipGradCB(agc=0.01), spy]).fit(1)
    for ours, grad in zip(seen[0], expected, strict=True):
        torch.testing.assert_close(ours, grad)


HEADS = {
    "a layer": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
    "a head": lambda: nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 1))),
}


@pytest.mark.case("F16")
@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_adaptive_clipping_leaves_the_last_layer_alone(make):
    check_last_layer(make(), (torch.randn(5, 3), torch.randn(5, 1)))


@pytest.mark.case("F16")
def test_the_check_notices_a_last_layer_that_is_clipped(monkeypatch):
    monkeypatch.setattr(gradients, "last_layer", lambda model: set())
    with pytest.raises(AssertionError):
        check_last_layer(HEADS["a layer"](), (torch.randn(5, 3), torch.randn(5, 1)))
