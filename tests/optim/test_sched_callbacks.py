"""Schedules in a fit against torch's own loop, and cases from reports of faults."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from minilearn.callbacks.training import TrainCB
from minilearn.checkpoint.callback import CheckpointCB
from minilearn.core.callback import Callback
from minilearn.core.events import (
    CancelEpochException,
    CancelFitException,
    CancelRoundException,
    Order,
)
from minilearn.learner import Learner
from minilearn.optim import sched_callbacks as sched_module
from minilearn.optim.sched_callbacks import BaseSchedCB, BatchSchedCB, EpochSchedCB, PlateauCB
from minilearn.optim.schedulers import constant, flat_cos, sched_lrs
from minilearn.optim.warmup import warmup
from tests.rates import Accumulate, Row, SkipSteps, Stream, UsedLR, check_epoch_rates, fit, torchs
from tests.toys import batches, linear, toy_learner

TORCH = {
    "constant": constant,
    "one cycle": partial(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=20, cycle_momentum=False),
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=20),
    "restarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=5, T_mult=2),
    "polynomial": partial(lr_scheduler.PolynomialLR, total_iters=20, power=2),
    "exponential": partial(lr_scheduler.ExponentialLR, gamma=0.9),
    "multi-step": partial(lr_scheduler.MultiStepLR, milestones=[6, 12]),
}


@pytest.mark.parametrize("make", TORCH.values(), ids=TORCH)
def test_a_schedule_gives_the_rates_of_torchs_own_loop(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's of a wrong order, ours of a length that is off
        learn, used = fit(BatchSchedCB(make), n_epochs=2)
    assert used.lrs == torchs(make, 20)
    assert learn.find(BatchSchedCB).schedo.last_epoch == 20


def test_one_cycle_moves_the_momentum_too():
    make = partial(lr_scheduler.OneCycleLR, max_lr=0.5)
    _, used = fit(BatchSchedCB(make), opt_func=optim.AdamW, n_epochs=2)
    theirs = torchs(partial(make, total_steps=20), 20, opt_func=optim.AdamW, field="betas")
    assert [groups[0]["betas"] for groups in used.groups] == theirs


@pytest.mark.parametrize(
    "make",
    [
        lr_scheduler.CosineAnnealingLR,
        partial(lr_scheduler.LinearLR, end_factor=0.1),
        partial(lr_scheduler.OneCycleLR, max_lr=1.0, epochs=2),
        partial(lr_scheduler.OneCycleLR, max_lr=1.0, steps_per_epoch=10),
        flat_cos,
    ],
)
def test_lengths_left_open_are_taken_from_the_fit(make):
    given = {
        lr_scheduler.CosineAnnealingLR: {"T_max": 20},
        lr_scheduler.LinearLR: {"total_iters": 20},
        lr_scheduler.OneCycleLR: {"epochs": 2, "steps_per_epoch": 10},
        flat_cos: {"total_steps": 20},
    }[getattr(make, "func", make)]
    _, used = fit(BatchSchedCB(make), n_epochs=2)
    assert used.lrs == torchs(partial(make, **given), 20)


@pytest.mark.parametrize(("kwargs", "total"), [({"n_steps": 7}, 7), ({"n_epochs": 3}, 30)])
def test_the_length_is_known_by_steps_and_by_epochs(kwargs, total):
    learn, _ = fit(BatchSchedCB(partial(lr_scheduler.OneCycleLR, max_lr=1.0)), **kwargs)
    assert learn.find(BatchSchedCB).schedo.total_steps == total


def test_a_schedule_without_a_known_length_says_what_to_give():
    with pytest.raises(ValueError, match="T_max.*unknown.*n_steps"):
        fit(BatchSchedCB(lr_scheduler.CosineAnnealingLR), dls=(Stream(5), None))


def test_a_default_of_ones_own_factory_is_kept():
    def own(opt, T_max=50):  # noqa: N803
        return lr_scheduler.CosineAnnealingLR(opt, T_max)

    learn, _ = fit(BatchSchedCB(own), n_epochs=2)
    assert learn.find(BatchSchedCB).schedo.T_max == 50


@pytest.mark.case("C002")
@pytest.mark.parametrize("valid_every", [1, 2, (3, "step"), (10, "step"), (7, "step")])
def test_a_schedule_per_epoch_follows_the_epochs_over_the_data(valid_every):
    cb = EpochSchedCB(partial(lr_scheduler.MultiStepLR, milestones=[4]))
    check_epoch_rates(cb, [1, 1, 1, 1, 0.1, 0.1], n_epochs=6, valid_every=valid_every)


@pytest.mark.case("C002")
def test_the_check_of_epochs_finds_a_schedule_that_steps_after_each_round():
    class PerRound(BaseSchedCB):
        unit = "epoch"

        def after_round(self, learn):
            self._advance()

    cb = PerRound(partial(lr_scheduler.MultiStepLR, milestones=[4]))
    with pytest.raises(AssertionError):
        check_epoch_rates(cb, [1, 1, 1, 1, 0.1, 0.1], n_epochs=6, valid_every=(5, "step"))


@pytest.mark.case("C002")
@pytest.mark.parametrize("valid_every", [1, 2])
def test_a_resumed_schedule_per_epoch_does_not_lag(valid_every):
    """The state is saved as in a checkpoint, at the end of round 3, and goes on from there."""
    make = partial(lr_scheduler.MultiStepLR, milestones=[4])

    class Save(Callback):
        order = Order.SAVE

        def after_round(self, learn):
            if learn.epoch == 2:
                self.state = learn.find(EpochSchedCB).state_dict()

    save = Save()
    fit(EpochSchedCB(make), save, n_epochs=6, valid_every=valid_every)
    resumed = EpochSchedCB(make)
    resumed.load_state_dict(save.state)

    class From3(Callback):
        def before_fit(self, learn):
            learn.plan.epochs = range(3, 6)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, used = fit(resumed, From3(), n_epochs=6, valid_every=valid_every)
    assert used.of_epochs() == pytest.approx([1.0, 0.1, 0.1])


@pytest.mark.parametrize("cancel", [CancelEpochException, CancelRoundException])
def test_a_cancelled_epoch_counts(cancel):
    class Cancel(Callback):
        def before_batch(self, learn):
            if learn.epoch == 0 and learn.training:
                raise cancel

    cb = EpochSchedCB(partial(lr_scheduler.StepLR, step_size=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no update was made before the first step
        _, used = fit(cb, Cancel(), n_epochs=3)
    assert used.of_epochs() == pytest.approx([0.1, 0.01])


def test_the_end_of_the_fit_is_no_epoch():
    class Stop(Callback):
        def after_batch(self, learn):
            if learn.epoch == 1:
                raise CancelFitException

    learn, _ = fit(EpochSchedCB(partial(lr_scheduler.StepLR, step_size=1)), Stop(), n_epochs=3)
    assert learn.find(EpochSchedCB).schedo.last_epoch == 1


def test_lengths_per_epoch_are_epochs():
    learn, _ = fit(EpochSchedCB(lr_scheduler.CosineAnnealingLR), n_epochs=4)
    assert learn.find(EpochSchedCB).schedo.T_max == 4
    cycle = EpochSchedCB(partial(lr_scheduler.OneCycleLR, max_lr=1.0))
    learn, _ = fit(cycle, n_steps=35)
    assert cycle.schedo.total_steps == 4  # the fourth epoch is cut short


def check_skipped(learn, used, sched):
    assert learn.steps_done == len(used.lrs) == 8
    assert sched.last_epoch == 8
    assert used.lrs == pytest.approx([0.9**k for k in range(8)])


@pytest.mark.case("C028")
def test_a_skipped_update_does_not_move_the_schedule():
    cb = BatchSchedCB(partial(lr_scheduler.ExponentialLR, gamma=0.9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn, used = fit(cb, SkipSteps(2))
    check_skipped(learn, used, cb.schedo)


class PerBatch(BaseSchedCB):
    """The fault: a step for every batch."""

    def after_batch(self, learn):
        self._step(learn)


@pytest.mark.case("C028")
@pytest.mark.filterwarnings("ignore")
def test_the_check_finds_a_schedule_that_moves_with_skipped_updates():
    cb = PerBatch(partial(lr_scheduler.ExponentialLR, gamma=0.9))
    learn, used = fit(cb, SkipSteps(2))
    with pytest.raises(AssertionError):
        check_skipped(learn, used, cb.schedo)


def check_accumulated(used, sched):
    assert sched.total_steps == sched.last_epoch == len(used.lrs) == 20
    top = max(range(20), key=used.lrs.__getitem__)
    assert top == 5  # pct_start * total_steps - 1
    assert used.lrs[19] == pytest.approx(0.5 / 25 / 1e4)


@pytest.mark.case("C043")
def test_with_accumulation_a_one_cycle_ends_at_the_last_update():
    cb = BatchSchedCB(partial(lr_scheduler.OneCycleLR, max_lr=0.5))
    _, used = fit(Accumulate(4), cb, n=40, n_epochs=2)
    check_accumulated(used, cb.schedo)


@pytest.mark.case("C043")
@pytest.mark.filterwarnings("ignore")
def test_the_check_finds_a_one_cycle_per_batch():
    cb = PerBatch(partial(lr_scheduler.OneCycleLR, max_lr=0.5))
    _, used = fit(Accumulate(4), cb, n=40, n_epochs=2)
    with pytest.raises(AssertionError):
        check_accumulated(used, cb.schedo)


@pytest.mark.case("C044")
def test_the_short_group_at_the_end_of_an_epoch_is_counted():
    cb = BatchSchedCB(partial(lr_scheduler.OneCycleLR, max_lr=0.5))
    _, used = fit(Accumulate(4), cb, n_epochs=5)
    assert cb.schedo.total_steps == len(used.lrs) == 15


def check_refused(cb):
    """A one-cycle of 12 updates is refused before the first of 15, and both numbers are named."""
    used = UsedLR()
    learn = Learner(linear(), (batches(10),), cbs=[TrainCB(), used, Accumulate(4), cb])
    with pytest.raises(ValueError) as e:
        learn.fit(5)
    assert "12" in str(e.value) and "15" in str(e.value)
    assert not used.lrs


SHORT = partial(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=12)


def after_two(opt):
    """The short one as a part: 13 of the 15 updates are its own."""
    parts = [lr_scheduler.ConstantLR(opt, 0.1, 2), SHORT(opt)]
    return lr_scheduler.SequentialLR(opt, parts, [2])


SHORTS = {
    "alone": SHORT,
    "warmed up": warmup(SHORT, 3),
    "in a function": lambda opt: SHORT(opt),
    "by epochs": partial(lr_scheduler.OneCycleLR, max_lr=0.5, epochs=4, steps_per_epoch=3),
    "in a chain": lambda opt: lr_scheduler.ChainedScheduler([SHORT(opt)], opt),
    "after another": after_two,
    "after another, warmed up": warmup(after_two, 3),
}


@pytest.mark.case("C044")
@pytest.mark.parametrize("sched", SHORTS.values(), ids=SHORTS)
def test_a_schedule_that_is_too_short_is_refused_before_the_first_update(sched):
    check_refused(BatchSchedCB(sched))


@pytest.mark.case("C044")
def test_the_check_finds_a_schedule_that_dies_in_mid_run():
    class Plain(Callback):
        def before_fit(self, learn):
            self.sched = SHORT(learn.opt)

        def after_step(self, learn):
            self.sched.step()

    with pytest.raises(AssertionError):
        check_refused(Plain())


class OwnLR(lr_scheduler.LRScheduler):
    """A scheduler of a user's own, which ends with its list."""

    rates = [1.0] * 12

    def get_lr(self):
        return [self.rates[self.last_epoch] for _ in self.base_lrs]


def test_a_schedule_of_ones_own_that_is_too_short_is_refused_too():
    with pytest.raises(ValueError, match="OwnLR cannot make 20 steps, one for each update"):
        fit(BatchSchedCB(OwnLR), n_epochs=2)
    _, used = fit(BatchSchedCB(OwnLR), n=11)
    assert len(used.lrs) == 11


def test_a_schedule_of_epochs_that_is_too_short_is_refused():
    cycle = partial(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=3)
    with pytest.raises(ValueError, match="cannot make 4 steps, one for each epoch"):
        fit(EpochSchedCB(cycle), n_epochs=4)


def noisy(step):
    return 1 - 0.01 * float(torch.rand(()))


def only_for_sgd(opt):
    assert type(opt) is optim.SGD
    return lr_scheduler.LambdaLR(opt, noisy)


class ByGradient(lr_scheduler.LRScheduler):
    """Needs a weight and its gradient: the try at the start has none."""

    def get_lr(self):
        grads = [p.grad for group in self.optimizer.param_groups for p in group["params"]]
        if self.last_epoch and grads[0] is None:
            raise RuntimeError("no gradient")
        return [1 / (1 + self.last_epoch) for _ in self.base_lrs]


def test_a_schedule_that_needs_more_than_a_try_can_give_is_left_alone():
    _, used = fit(BatchSchedCB(ByGradient))
    assert used.lrs == pytest.approx([1 / (1 + t) for t in range(10)])


def test_the_last_schedule_that_a_factory_made_is_that_of_the_fit():
    made = []

    def make(opt):
        made.append(lr_scheduler.StepLR(opt, 3))
        return made[-1]

    learn, _ = fit(BatchSchedCB(make))
    assert learn.find(BatchSchedCB).schedo is made[-1]


@pytest.mark.parametrize("make", [partial(lr_scheduler.LambdaLR, lr_lambda=noisy), only_for_sgd])
def test_the_try_at_the_start_draws_nothing_and_ends_no_good_run(make):
    torch.manual_seed(5)
    _, used = fit(BatchSchedCB(make), n_epochs=2)
    torch.manual_seed(5)
    assert used.lrs == torchs(make, 20)


def test_a_long_fit_and_one_of_unknown_length_are_not_tried(monkeypatch):
    monkeypatch.setattr("minilearn.optim.schedulers.MOST_TRIED", 19)
    cb = BatchSchedCB(OwnLR)
    with pytest.raises(IndexError):
        fit(cb, n_epochs=2)
    assert cb.steps == 12
    cb = BatchSchedCB(OwnLR)
    with pytest.raises(IndexError):
        fit(cb, dls=(Stream(15), None))
    assert cb.steps == 12


# ---- schedules made of parts ----


def two_parts(opt, n=20):
    parts = [
        lr_scheduler.LinearLR(opt, 0.1, total_iters=2),
        lr_scheduler.CosineAnnealingLR(opt, n - 2),
    ]
    return lr_scheduler.SequentialLR(opt, parts, [2])


def three_parts(opt):
    parts = [
        lr_scheduler.ConstantLR(opt, 0.5, total_iters=2),
        lr_scheduler.ExponentialLR(opt, 0.9),
        lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=10),
    ]
    return lr_scheduler.SequentialLR(opt, parts, [2, 8])


def check_parts(make, cb=BatchSchedCB, n=20, wrap=lambda sched: sched, **kwargs):
    """The fit is not ended, and has the rates of torch's own loop."""
    _, used = fit(cb(wrap(make)), **kwargs)
    rates = used.of_epochs() if issubclass(cb, EpochSchedCB) else used.lrs
    assert rates == pytest.approx(torchs(make, n))


@pytest.mark.case("F01")
@pytest.mark.parametrize("make", [two_parts, three_parts])
@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch's SequentialLR of itself
def test_a_schedule_of_parts_trains_as_in_torchs_own_loop(make):
    check_parts(make, n_epochs=2)
    check_parts(make, n_steps=20)
    check_parts(make, n_steps=7, n=7)
    check_parts(make, dls=(Stream(20), None))
    check_parts(make, cb=EpochSchedCB, n_epochs=12, n=12)
    check_parts(make, n_epochs=2, wrap=partial(warmup, n=0))
    assert sched_lrs(make, 20) == pytest.approx(torchs(make, 20))


@pytest.mark.case("F01")
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_a_warmed_up_schedule_of_parts_trains():
    _, used = fit(BatchSchedCB(warmup(three_parts, 4)), n_epochs=2)
    regular = torchs(three_parts, 20)
    expected = [regular[4] * t / 4 for t in range(4)] + regular[4:]
    assert used.lrs == pytest.approx(expected)


@pytest.mark.case("F01")
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_the_check_notices_an_early_check_that_ends_the_fit():
    class Zips(BatchSchedCB):
        def _make(self, learn):
            super()._make(learn)
            begins = [0, *self.schedo._milestones, learn.n_steps]
            try:
                list(zip(begins, begins[1:], strict=True))
            except ValueError as e:
                raise AssertionError from e

    with pytest.raises(AssertionError):
        check_parts(two_parts, cb=Zips, n_epochs=2)


@pytest.mark.parametrize("sched", [partial(lr_scheduler.OneCycleLR, max_lr=0.5), flat_cos])
def test_a_stream_longer_than_it_says_keeps_the_last_rate_and_warns_once(sched):
    with pytest.warns(UserWarning) as caught:
        _, used = fit(BatchSchedCB(sched), dls=(Stream(26, declared=13), None))
    assert sum("the schedule has 13 steps" in str(w.message) for w in caught) == 1
    assert len(used.lrs) == 26
    assert len(set(used.lrs[13:])) == 1 and used.lrs[-1] < 0.02


def test_a_second_fit_on_a_kept_optimizer_starts_from_the_base():
    used = UsedLR()
    cb = BatchSchedCB(lr_scheduler.CosineAnnealingLR)
    learn = Learner(linear(), (batches(10),), lr=1.0, cbs=[TrainCB(), used, cb])
    learn.fit(1)
    learn.fit(1, reset_opt=False)
    assert used.lrs[:10] == used.lrs[10:]
    learn.fit(0)
    learn.fit(1, train=True, cbs=[], reset_opt=False)
    assert used.lrs[20:] == used.lrs[:10]


def test_a_validation_leaves_the_rates_alone():
    opt = optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    cb = BatchSchedCB(partial(lr_scheduler.OneCycleLR, max_lr=5.0))
    learn = Learner(linear(), (batches(10), batches(1)), cbs=[TrainCB(), cb], opt=opt)
    learn.fit(1, train=False)
    assert opt.param_groups[0]["lr"] == 1.0


RESUMED = {
    "one cycle": partial(lr_scheduler.OneCycleLR, max_lr=0.5),
    "cosine": lr_scheduler.CosineAnnealingLR,
    "warm-up": warmup(lr_scheduler.CosineAnnealingLR, 12),
    "warmed one cycle": warmup(partial(lr_scheduler.OneCycleLR, max_lr=0.5), 12, form="factor"),
    "flat cosine": flat_cos,
    "steps": partial(lr_scheduler.MultiStepLR, milestones=[5, 12]),
}


@pytest.mark.filterwarnings("ignore:the schedule has 20 steps")  # it resumes at epoch 0 here
@pytest.mark.parametrize("make", RESUMED.values(), ids=RESUMED)
def test_a_schedule_goes_on_where_it_was_saved(make, tmp_path):
    class Save(Callback):
        order = Order.SAVE

        def after_step(self, learn):
            if learn.steps_done == 7:
                torch.save(learn.find(BatchSchedCB).state_dict(), tmp_path / "state")

    _, whole = fit(BatchSchedCB(make), Save(), opt_func=optim.AdamW, n_epochs=2)
    resumed = BatchSchedCB(make)
    resumed.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    _, used = fit(resumed, opt_func=optim.AdamW, n_epochs=2)
    ours = [(g[0]["lr"], g[0]["betas"]) for g in used.groups[:13]]
    assert ours == [(g[0]["lr"], g[0]["betas"]) for g in whole.groups[7:]]


def test_a_state_that_is_loaded_in_a_fit_counts_at_once():
    class Back(Callback):
        order = Order.SAVE

        def after_step(self, learn):
            sched = learn.find(BatchSchedCB)
            if learn.steps_done == 3:
                self.state = sched.state_dict()
            if learn.steps_done == 7:
                sched.load_state_dict(self.state)

    make = TORCH["cosine"]
    _, used = fit(BatchSchedCB(make), Back(), n_epochs=2)
    lrs = torchs(make, 16)
    assert used.lrs == lrs[:7] + lrs[3:]


def test_a_plateau_goes_on_with_all_its_counters():
    values = [2, 3, 3, 3, 3, 3]
    first = PlateauCB("valid_loss", patience=2)
    fit(Row(values=values[:3]), first, n_epochs=3)
    resumed = PlateauCB("valid_loss", patience=2)
    resumed.load_state_dict(first.state_dict())
    assert resumed.state_dict() == {}  # it waits for the next fit
    _, used = fit(Row(values=values[3:]), resumed, n_epochs=3)
    assert used.of_epochs() == pytest.approx([1, 0.1, 0.1])


def test_a_schedule_relative_to_the_optimizers_rate_goes_on_after_a_resume(tmp_path):
    """`one_cycle` without max_lr asks the optimizer, whose saved groups hold the first rate."""
    from minilearn import CheckpointCB, schedule

    def rates(epochs, **resume):
        lrs = []
        saver = CheckpointCB(tmp_path, keep=None)
        learn = toy_learner([BatchSchedCB(schedule("one_cycle")), saver], lr=0.1)
        learn.on("before_step", lambda learn: lrs.append(learn.opt.param_groups[0]["lr"]))
        learn.fit(epochs, **resume)
        return lrs

    whole = rates(3)
    first = sorted(tmp_path.glob("*.ckpt"))[0]
    resumed = rates(3, resume=first)
    assert resumed and resumed == whole[-len(resumed) :]


def test_a_schedule_per_epoch_has_stepped_when_an_epoch_is_over_and_after_the_last():
    sched = EpochSchedCB(partial(lr_scheduler.StepLR, step_size=1, gamma=0.5))
    seen = []
    learn = toy_learner([sched], lr=1.0)
    learn.on("after_round", lambda learn: seen.append(learn.opt.param_groups[0]["lr"]))
    learn.fit(2)
    assert seen == [0.5, 0.25] and sched.steps == 2


def test_a_schedule_shows_its_factory():
    sched = partial(lr_scheduler.StepLR, step_size=1)
    assert repr(BatchSchedCB(sched)) == "BatchSchedCB(StepLR)"
    assert repr(EpochSchedCB(warmup)) == "EpochSchedCB(warmup)"


# ---- K1: schedulers of other makers ----


class Halves:
    """A schedule that has a step and nothing else."""

    def __init__(self, opt):
        self.groups, self.steps = opt.param_groups, 0

    def step(self):
        self.steps += 1
        for group in self.groups:
            group["lr"] /= 2


class Keeps(Halves):
    def __init__(self, opt):
        super().__init__(opt)
        self.opt, self.step = opt, partial(Halves.step, self)


class Slots(Halves):
    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.optimizer = optimizer

    def get_last_lr(self):
        return [group["lr"] for group in self.groups]


def check_others(make, folder, cb=BatchSchedCB):
    """It trains, and a resumed fit has the rates of one that went on."""
    rates = []
    for n_epochs, resume in ((1, None), (2, True)):
        note = UsedLR()
        learn = toy_learner([cb(make), note, CheckpointCB(folder)], lr=0.8)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            learn.fit(n_epochs, resume=resume)
        assert ("has no state_dict" in "".join(str(w.message) for w in said)) is bool(resume)
        rates += note.lrs
    per = 1 if cb is BatchSchedCB else 2
    assert rates == pytest.approx([0.8 / 2 ** (n // per) for n in range(4)])


@pytest.mark.case("F01")
@pytest.mark.parametrize("cb", [BatchSchedCB, EpochSchedCB])
@pytest.mark.parametrize("make", [Halves, Slots])
def test_a_scheduler_that_has_a_step_alone_trains_and_goes_on(make, cb, tmp_path):
    check_others(make, tmp_path, cb)


@pytest.mark.case("F01")
def test_the_check_notices_a_scheduler_that_must_have_a_state(tmp_path, monkeypatch):
    monkeypatch.setattr(sched_module, "state_of", lambda sched: sched.state_dict())
    with pytest.raises((AssertionError, AttributeError)):
        check_others(Halves, tmp_path)
