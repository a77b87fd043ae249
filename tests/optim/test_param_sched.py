"""ParamSchedCB: options of parameter groups, and attributes of anything, as functions of time."""

import math
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim import lr_scheduler

from minilearn import EMACB, CheckpointCB, Learner, MetricsCB, TrainCB
from minilearn.core.callback import Callback
from minilearn.optim.param_sched import ParamSchedCB, combine_scheds
from minilearn.optim.sched_callbacks import BatchSchedCB
from minilearn.optim.schedulers import one_cycle
from minilearn.optim.warmup import warmup
from tests.rates import Stream, fit, torchs, two_groups
from tests.toys import assert_same_weights, batches, toy_learner


def test_other_fields_follow_functions_of_progress():
    fields = ParamSchedCB(weight_decay=lambda p: 0.1 * (1 - p), mom=lambda p: 0.9 + p / 20)
    for opt_func in (optim.AdamW, partial(optim.SGD, momentum=0.9)):
        _, used = fit(fields, n_epochs=2, opt_func=opt_func)
        decays = [g[0]["weight_decay"] for g in used.groups]
        assert decays == pytest.approx([0.1 * (1 - t / 20) for t in range(20)])
        moms = [g[0].get("betas", [g[0].get("momentum")])[0] for g in used.groups]
        assert moms == pytest.approx([0.9 + t / 400 for t in range(20)])


def test_groups_that_differ_take_factors_and_keep_their_differences():
    with pytest.raises(ValueError, match="groups differ in weight_decay.*factor=True"):
        fit(ParamSchedCB(weight_decay=lambda p: 0.1), opt_func=two_groups)
    cb = ParamSchedCB(factor=True, weight_decay=lambda p: 1 - p)
    _, used = fit(cb, opt_func=two_groups)
    assert [g[1]["weight_decay"] for g in used.groups] == [0] * 10
    assert used.groups[5][0]["weight_decay"] == pytest.approx(0.05)


def test_an_unknown_field_is_named_with_a_near_one():
    with pytest.raises(ValueError, match="'weigt_decay'; did you mean 'weight_decay'"):
        fit(ParamSchedCB(weigt_decay=lambda p: 0.1))


def values(used, name, group=0):
    return [groups[group][name] for groups in used.groups]


def test_one_group_is_moved_and_the_other_is_not():
    _, used = fit(ParamSchedCB(1, lr=lambda p: 1 - p), opt_func=two_groups)
    assert values(used, "lr", 0) == [1.0] * 10
    assert values(used, "lr", 1) == pytest.approx([1 - t / 10 for t in range(10)])


def test_steps_and_epochs_are_what_a_function_gets_if_asked():
    _, used = fit(ParamSchedCB(by="step", lr=lambda t: 1 / (1 + t)), n_epochs=2)
    assert values(used, "lr") == [1 / (1 + t) for t in range(20)]
    _, used = fit(ParamSchedCB(by="epoch", lr=lambda e: 0.5**e), n_epochs=3, n=4)
    assert values(used, "lr") == [0.5**e for e in (0, 1, 2) for _ in range(4)]
    with pytest.raises(ValueError, match="progress, step, epoch; got 'batch'"):
        ParamSchedCB(by="batch", lr=float)


def test_an_epoch_that_begins_inside_a_round_is_followed():
    cb = ParamSchedCB(by="epoch", lr=lambda e: 0.5**e)
    _, used = fit(cb, n=4, n_epochs=3, valid_every=(5, "step"))
    assert values(used, "lr") == [0.5**e for e in (0, 1, 2) for _ in range(4)]


def test_steps_need_no_length_and_progress_does():
    dls = (Stream(5), batches(1))
    _, used = fit(ParamSchedCB(by="step", lr=lambda t: t / 10), dls=dls)
    assert values(used, "lr") == [t / 10 for t in range(5)]
    for cb in (ParamSchedCB(lr=lambda p: p), ParamSchedCB(by="step", lr=one_cycle)):
        with pytest.raises(ValueError, match="needs the length.*n_steps"):
            fit(cb, dls=dls)


@pytest.mark.parametrize(
    "make",
    [
        partial(lr_scheduler.CosineAnnealingLR, T_max=20, eta_min=0.01),
        partial(lr_scheduler.StepLR, step_size=3),
        partial(lr_scheduler.OneCycleLR, max_lr=0.3, total_steps=20),
    ],
)
def test_torchs_schedules_move_any_option_to_the_bit(make):
    """Each option in a loop of torch alone, as if it were the learning rate of its own."""
    cb = ParamSchedCB(weight_decay=make, momentum=make, lr=lambda p: 1 - p)
    opt_func = partial(optim.SGD, momentum=0.9, weight_decay=0.2)
    _, used = fit(cb, n_epochs=2, opt_func=opt_func)
    plain = partial(optim.SGD, momentum=0.9)
    assert values(used, "weight_decay") == torchs(make, 20, lr=0.2, opt_func=plain)
    assert values(used, "momentum") == torchs(make, 20, lr=0.9, opt_func=plain)
    assert values(used, "lr") == pytest.approx([1 - t / 20 for t in range(20)])


def test_torchs_schedules_begin_at_the_value_of_each_group_and_take_their_length_from_the_fit():
    _, used = fit(ParamSchedCB(lr=lr_scheduler.CosineAnnealingLR), opt_func=two_groups, n_epochs=2)
    by_update = [(1 + math.cos(math.pi * t / 20)) / 2 for t in range(20)]
    assert values(used, "lr", 0) == pytest.approx(by_update)
    assert values(used, "lr", 1) == pytest.approx([x / 10 for x in by_update])
    _, used = fit(ParamSchedCB(by="epoch", lr=lr_scheduler.CosineAnnealingLR), n_epochs=4, n=2)
    by_epoch = [(1 + math.cos(math.pi * e / 4)) / 2 for e in range(4) for _ in range(2)]
    assert values(used, "lr") == pytest.approx(by_epoch)


def test_a_factory_with_a_warm_up_is_as_with_a_callback_of_its_own():
    sched = warmup(lr_scheduler.CosineAnnealingLR, 5)
    assert fit(ParamSchedCB(lr=sched))[1].lrs == pytest.approx(
        fit(BatchSchedCB(sched))[1].lrs, abs=0
    )


def test_combined_functions_are_fastais_combine_scheds():
    """fastai: the part whose bounds hold the position, at (position - start) / length."""
    rise, fall = (lambda p: 0.1 + 0.9 * p), (lambda p: (1 + math.cos(math.pi * p)) / 2)
    _, used = fit(ParamSchedCB(lr=combine_scheds([0.3, 0.7], [rise, fall])))
    by_hand = [rise(t / 3) for t in range(3)] + [fall((t - 3) / 7) for t in range(3, 10)]
    assert values(used, "lr") == pytest.approx(by_hand, abs=1e-9)


def test_combined_functions_of_steps_are_ignites_piecewise_linear():
    """ignite: (0, 1.0), (4, 0.5), (6, 0.5) with lines between them; the last value stays."""
    parts = combine_scheds([4, 2], [lambda p: 1 - p / 2, lambda p: 0.5])
    _, used = fit(ParamSchedCB(by="step", lr=parts))
    assert values(used, "lr") == pytest.approx([1, 0.875, 0.75, 0.625] + [0.5] * 6)


@pytest.mark.parametrize("lengths", [[], [1.0], [1.0, 0.0]])
def test_parts_need_a_length_each(lengths):
    with pytest.raises(ValueError, match="a length above 0 for each function"):
        combine_scheds(lengths, [float, float])


class Seen(Callback):
    """Notes a value in each training batch, and in each validation batch."""

    order = 0

    def __init__(self, read):
        self.read, self.seen = read, {True: [], False: []}

    def after_predict(self, learn):
        self.seen[learn.training].append(self.read())


def test_attributes_of_modules_losses_and_callbacks_move_and_come_back():
    drop, loss, ema = nn.Dropout(0.5), nn.CrossEntropyLoss(label_smoothing=0.2), EMACB(0.9)
    model = nn.Sequential(nn.Linear(3, 3), drop)
    seen = Seen(lambda: (drop.p, loss.label_smoothing, ema.decay))
    cbs = [
        *(TrainCB(), ema, seen, ParamSchedCB(drop, p=lambda p: 0.4 * (1 - p))),
        ParamSchedCB(loss, by="step", label_smoothing=lambda t: t / 100),
        ParamSchedCB(ema, by="epoch", factor=True, decay=lambda e: 1 / (1 + e)),
    ]
    data = [(torch.randn(4, 3), torch.randint(0, 3, (4,))) for _ in range(5)]
    Learner(model, (data, data[:1]), loss, cbs=cbs).fit(2)
    by_hand = [(0.4 * (1 - t / 10), t / 100, 0.9 / (1 + t // 5)) for t in range(10)]
    assert seen.seen[True] == [pytest.approx(x) for x in by_hand]
    assert (drop.p, loss.label_smoothing, ema.decay) == (0.5, 0.2, 0.9)


def test_the_fit_is_that_of_a_loop_by_hand_that_sets_the_dropout():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.9), nn.Linear(8, 1))

    ours, theirs, data = model(), model(), batches(6)
    torch.manual_seed(1)
    sched = ParamSchedCB(ours[1], p=lambda p: 0.5 * p)
    toy_learner([sched], (data, data[:1]), ours, lr=0.1).fit(1)
    torch.manual_seed(1)
    opt = optim.SGD(theirs.parameters(), 0.1)
    for t, (xb, yb) in enumerate(data):
        theirs[1].p = 0.5 * t / 6
        F.mse_loss(theirs(xb), yb).backward()
        opt.step()
        opt.zero_grad()
    assert_same_weights(ours, theirs)


def test_several_objects_move_together_and_a_wrong_attribute_is_named():
    drops = [nn.Dropout(0.4), nn.Dropout(0.2)]
    seen = Seen(lambda: [d.p for d in drops])
    cb = ParamSchedCB(drops, factor=True, p=lambda p: 1 - p)
    toy_learner([seen, cb], (batches(2), batches(1))).fit(1)
    assert seen.seen[True] == [[0.4, 0.2], [0.2, 0.1]]
    with pytest.raises(ValueError, match="Dropout has no attribute 'inplac'; did you mean"):
        toy_learner([ParamSchedCB(drops, inplac=bool)]).fit(1)


def test_a_rate_that_is_a_tensor_keeps_its_own_value_as_the_base():
    rate = torch.tensor(0.5)
    cb = ParamSchedCB(factor=True, lr=lambda p: 1 - p)
    learn = toy_learner([cb], (batches(4), batches(1)), opt_func=None)
    learn.opt = optim.SGD(learn.model.parameters(), lr=rate, foreach=True)
    learn.lr = None
    learn.fit(1)
    group = learn.opt.param_groups[0]
    assert group["lr"] is rate and rate.item() == 0 and group["initial_lr"] == 0.5


def fitted(folder, **kwargs):
    """A fit that moves a layer and another callback; return its Learner."""
    torch.manual_seed(0)
    model, ema = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.4), nn.Linear(8, 1)), EMACB(0.9)
    cbs = [
        *(MetricsCB(), ema, ParamSchedCB(model[1], factor=True, p=lambda p: 1 - p)),
        ParamSchedCB(ema, by="epoch", decay=lambda e: 0.5 + e / 10),
        CheckpointCB(folder, (1, "step"), keep=None),
    ]
    learn = toy_learner(cbs, (batches(4), batches(1)), model)
    learn.fit(3, **kwargs)
    return learn


def test_what_was_moved_is_resumed_to_the_bit_and_is_no_change_of_the_program(tmp_path):
    whole = fitted(tmp_path / "whole")
    files = sorted((tmp_path / "whole").glob("*.ckpt"))
    assert len(files) > 10
    for file in files[1:-1:3]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resumed = fitted(tmp_path / file.stem, resume=file)
        assert_same_weights(resumed.model, whole.model)
        ours, theirs = (x.find(EMACB).state_dict()["averages"] for x in (resumed, whole))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
