"""Warm-up: its three forms as formulas, around every kind of schedule."""

from functools import partial

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

from minilearn.core.callback import Callback
from minilearn.optim.sched_callbacks import BatchSchedCB, EpochSchedCB, PlateauCB
from minilearn.optim.schedulers import constant
from minilearn.optim.warmup import warmup
from tests.rates import Row, check_epoch_rates, fit, torchs


def check_warmup(lrs):
    assert lrs[0] == pytest.approx(1e-5)
    assert lrs[10] == pytest.approx(1e-3)
    assert lrs[:11] == pytest.approx([1e-5 + (1e-3 - 1e-5) * t / 10 for t in range(11)])


@pytest.mark.case("C046")
@pytest.mark.parametrize(
    "kwargs", [{"form": "fix", "start": 1e-5}, {"form": "auto", "start": 0.01}]
)
def test_the_first_update_uses_the_start_of_the_warmup(kwargs):
    _, used = fit(BatchSchedCB(warmup(constant, 10, **kwargs)), lr=1e-3, n_epochs=2)
    check_warmup(used.lrs)


@pytest.mark.case("C046")
def test_the_check_finds_a_warmup_that_comes_one_update_late():
    class Late(BatchSchedCB):
        def before_epoch(self, learn):
            pass

        def after_step(self, learn):
            if not self._running:
                self._make(learn)
            else:
                self._step(learn)

    _, used = fit(Late(warmup(constant, 10, form="fix", start=1e-5)), lr=1e-3, n_epochs=2)
    with pytest.raises(AssertionError):
        check_warmup(used.lrs)


@pytest.mark.case("C046")
def test_a_step_schedule_per_epoch_has_no_first_step_too_early():
    cb = EpochSchedCB(partial(lr_scheduler.StepLR, step_size=2, gamma=0.1))
    check_epoch_rates(cb, [1, 1, 0.1, 0.1], n_epochs=4)


def regular_rates(n, gamma=0.9):
    return [gamma**t for t in range(n)]


def test_the_three_forms_are_those_of_core_pytorch_utils():
    base, n, start = regular_rates(20), 8, 0.2
    a = [t / n for t in range(n)]
    forms = {
        "auto": [start * (1 - x) + base[n] * x for x in a],
        "factor": [r * (start * (1 - x) + x) for r, x in zip(base, a, strict=False)],
        "fix": [start * (1 - x) + x for x in a],
    }
    decay = partial(lr_scheduler.ExponentialLR, gamma=0.9)
    for form, expected in forms.items():
        _, used = fit(BatchSchedCB(warmup(decay, n, form=form, start=start)), n_epochs=2)
        assert used.lrs == pytest.approx(expected + base[n:])


def test_a_warmup_longer_than_the_fit_says_so_and_the_fit_goes_on():
    cycle = partial(lr_scheduler.OneCycleLR, max_lr=0.5)
    with pytest.warns(UserWarning, match="warm-up takes 30 steps, and the fit makes 20"):
        _, used = fit(BatchSchedCB(warmup(cycle, 30)), n_epochs=2)
    assert len(used.lrs) == 20


def test_a_group_that_is_added_in_mid_fit_keeps_its_own_rate():
    head = torch.nn.Parameter(torch.ones(1))

    class Add(Callback):
        def after_step(self, learn):
            if learn.steps_done == 3:
                learn.opt.add_param_group({"params": [head], "lr": 0.3})

    _, used = fit(BatchSchedCB(warmup(constant, 8)), Add())
    assert used.lrs == pytest.approx([t / 8 for t in range(8)] + [1.0] * 2)
    assert used.groups[-1][1]["lr"] == 0.3


def test_a_warmup_of_no_length_is_none():
    cosine = lr_scheduler.CosineAnnealingLR
    learn, used = fit(BatchSchedCB(warmup(cosine, 0)), n_epochs=2)
    assert type(learn.find(BatchSchedCB).schedo) is cosine
    assert used.lrs == torchs(partial(cosine, T_max=20), 20)


def test_a_warmup_of_updates_goes_with_a_schedule_per_epoch():
    """As mmcv's and core-pytorch-utils' mixed case: 'factor' of the rate that the epoch has."""
    steps = partial(lr_scheduler.StepLR, step_size=1, gamma=0.5)
    cb = EpochSchedCB(warmup(steps, 15, form="factor"))
    _, used = fit(cb, n_epochs=3)
    regular = [0.5 ** (t // 10) for t in range(30)]
    assert used.lrs == pytest.approx([r * min(t / 15, 1) for t, r in enumerate(regular)])
    cb = EpochSchedCB(warmup(steps, 15, form="auto"))
    _, used = fit(cb, n_epochs=3)
    expected = [0.5 * t / 15 for t in range(15)] + regular[15:]
    assert used.lrs == pytest.approx(expected)


def test_a_warmup_in_epochs_goes_with_a_schedule_per_update_and_per_epoch():
    _, used = fit(BatchSchedCB(warmup(constant, 0.5, unit="epoch")), n_epochs=1)
    assert used.lrs == pytest.approx([0, 0.2, 0.4, 0.6, 0.8] + [1.0] * 5)
    _, used = fit(EpochSchedCB(warmup(constant, 2, unit="epoch")), n_epochs=4)
    assert used.of_epochs() == pytest.approx([0, 0.5, 1, 1])


def test_a_warmup_keeps_the_momentum_of_a_one_cycle():
    cycle = partial(lr_scheduler.OneCycleLR, max_lr=0.5)
    _, plain = fit(BatchSchedCB(cycle), opt_func=optim.AdamW, n_epochs=2)
    _, used = fit(BatchSchedCB(warmup(cycle, 4)), opt_func=optim.AdamW, n_epochs=2)
    assert [g[0]["betas"] for g in used.groups] == [g[0]["betas"] for g in plain.groups]
    assert used.lrs[4:] == pytest.approx(plain.lrs[4:])


def test_a_warmup_leads_into_a_plateau():
    cb = PlateauCB("valid_loss", warmup=partial(warmup, n=20), patience=0, factor=0.5)
    _, used = fit(Row(values=[1, 2, 3, 4]), cb, n_epochs=4)
    # better, then worse three times: the line leads to the rate that the plateau has by then
    expected = [t / 20 for t in range(20)] + [0.5] * 10 + [0.25] * 10
    assert used.lrs == pytest.approx(expected)


@pytest.mark.parametrize("kwargs", [{"form": "linear"}, {"unit": "batch"}, {"n": -1}])
def test_a_warmup_refuses_what_it_does_not_know(kwargs):
    with pytest.raises(ValueError):
        warmup(constant, **{"n": 1} | kwargs)
