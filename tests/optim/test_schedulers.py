"""Curves against the formulas of other libraries; groups, other fields, previews, recipes."""

import math
from functools import partial

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from minilearn.callbacks.training import TrainCB
from minilearn.learner import Learner
from minilearn.optim.sched_callbacks import BatchSchedCB
from minilearn.optim.schedulers import (
    constant,
    flat_cos,
    group_lrs,
    one_cycle,
    plot_sched,
    sched_lrs,
)
from minilearn.optim.warmup import warmup
from tests.rates import (
    UsedLR,
    fit,
    two_groups,
)
from tests.toys import batches, linear


def test_cosine_is_timms_formula():
    """timm: lr_min + (lr - lr_min) * (1 + cos(pi * t / T)) / 2."""
    ours = sched_lrs(partial(lr_scheduler.CosineAnnealingLR, eta_min=0.1), 50)
    assert ours == pytest.approx(
        [0.1 + 0.9 * (1 + math.cos(math.pi * t / 50)) / 2 for t in range(50)]
    )


def test_warmup_and_steps_are_detectron2s_formula():
    """detectron2's WarmupMultiStepLR: base * gamma^passed * (factor * (1 - a) + a)."""
    steps = partial(lr_scheduler.MultiStepLR, milestones=[4, 20])
    ours = sched_lrs(warmup(steps, 10, form="factor", start=0.001), 30)
    theirs = [
        0.1 ** ((t >= 4) + (t >= 20)) * (0.001 * (1 - min(t / 10, 1)) + min(t / 10, 1))
        for t in range(30)
    ]
    assert ours == pytest.approx(theirs)


def test_warmup_to_a_constant_is_ignites_formula():
    """ignite's create_lr_scheduler_with_warmup: a line from the start value to the base."""
    ours = sched_lrs(warmup(constant, 5, form="fix", start=0.1), 8, lr=0.5)
    assert ours == pytest.approx([0.1 + 0.4 * t / 5 for t in range(5)] + [0.5] * 3)


def test_flat_then_cosine_is_fastais_formula():
    ours = sched_lrs(partial(flat_cos, pct_start=0.5, div_final=100), 40)
    cos = [0.01 + 0.99 * (1 + math.cos(math.pi * t / 20)) / 2 for t in range(20)]
    assert ours == pytest.approx([1.0] * 20 + cos)


def test_a_one_cycle_keeps_the_ratio_of_the_groups():
    learn = Learner(linear(), (batches(10),), cbs=[TrainCB(), UsedLR()], opt_func=two_groups)
    learn.fit_one_cycle(2, 0.5)
    used = learn.find(UsedLR)
    assert max(used.lrs) == pytest.approx(0.5)
    for groups in used.groups:
        assert groups[1]["lr"] == pytest.approx(groups[0]["lr"] / 10, rel=1e-5)


def test_plain_sgd_stays_plain_in_a_one_cycle():
    learn = Learner(linear(), (batches(10),), cbs=[TrainCB(), UsedLR()])
    learn.fit_one_cycle(1, 0.5)
    assert {g[0]["momentum"] for g in learn.find(UsedLR).groups} == {0}


def test_a_scheduler_instead_of_a_factory_is_refused():
    sched = lr_scheduler.StepLR(optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), 1)
    with pytest.raises(TypeError, match="partial.*StepLR"):
        BatchSchedCB(sched)
    with pytest.raises(TypeError, match="partial.*StepLR"):
        sched_lrs(sched, 3)
    assert sched.last_epoch == 0


def test_an_optimizer_that_is_not_torchs_is_named():
    class Own:
        def __init__(self, params, lr):
            self.params = list(params)

        def step(self):
            pass

        def zero_grad(self):
            pass

    with pytest.raises(TypeError, match="torch.optim.Optimizer.*Own"):
        fit(BatchSchedCB(lr_scheduler.CosineAnnealingLR), opt_func=Own)


def test_a_preview_trains_nothing_and_has_names():
    opt = two_groups(linear().parameters(), 0.3)
    before = [dict(g) for g in opt.param_groups]
    assert sched_lrs(one_cycle, 10, opt=opt) == sched_lrs(one_cycle, 10, lr=0.3)
    assert opt.param_groups == before
    ax = plot_sched(partial(one_cycle, max_lr=0.3), 10, lr=1.0)
    assert (ax.get_title(), ax.get_xlabel()) == ("one_cycle", "step")
    assert list(ax.lines[0].get_ydata()) == sched_lrs(one_cycle, 10, lr=0.3)


def test_rates_beside_an_optimizer_are_those_of_all_its_groups():
    opt = two_groups(linear().parameters(), 0.5)
    lrs = group_lrs(partial(lr_scheduler.ExponentialLR, gamma=0.5), opt, 3)
    assert lrs == [[0.5 * 0.5**t, 0.05 * 0.5**t] for t in range(3)]


def test_recipes_pass_on_all_keywords_of_fit():
    learn = Learner(linear(), (batches(10), batches(1)), lr=None, cbs=[TrainCB()])
    used = UsedLR()
    learn.fit_one_cycle(lr_max=0.5, n_steps=12, valid_every=(4, "step"), cbs=used)
    assert len(used.lrs) == 12 and len(learn.history) == 3
    assert max(used.lrs) == pytest.approx(0.5)
    used = UsedLR()
    learn.fit_flat_cos(1, 0.2, valid=False, cbs=[used])
    assert used.lrs == pytest.approx(sched_lrs(flat_cos, 10, lr=0.2))
    assert learn.find(BatchSchedCB) is None


def test_a_one_cycle_may_rise_for_a_single_update():
    """Torch's own divides by zero here."""
    ours = sched_lrs(partial(one_cycle, pct_start=0.25), 4)
    assert ours == pytest.approx([1 / 25, 0.75, 0.25, 1 / 25e4], abs=1e-4)
