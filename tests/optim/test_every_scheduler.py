"""Every scheduler class of the installed torch against loops written by hand, resumed as well."""

import re
import warnings
from functools import partial

import pytest
from torch.optim import lr_scheduler as L

from minilearn import BatchSchedCB, CheckpointCB, EpochSchedCB, Learner, PlateauCB, TrainCB, warmup
from minilearn.checkpoint.files import newest_first
from tests.rates import Row, UsedLR, two_groups
from tests.toys import batches, linear

# by introspection, so that a class of a new torch fails here until somebody has thought of it
CLASSES = [
    name
    for name, found in vars(L).items()
    if isinstance(found, type) and hasattr(found, "step") and found.__module__ == L.__name__
    if not name.startswith("_") and name != "LRScheduler"
]
MAKE = {
    "LambdaLR": partial(L.LambdaLR, lr_lambda=[lambda t: 0.9**t, lambda t: 1 / (1 + t)]),
    "MultiplicativeLR": partial(L.MultiplicativeLR, lr_lambda=lambda t: 0.95 if t % 3 else 0.8),
    "StepLR": partial(L.StepLR, step_size=4, gamma=0.5),
    "MultiStepLR": partial(L.MultiStepLR, milestones=[2, 5, 5, 11], gamma=0.5),
    "ConstantLR": partial(L.ConstantLR, factor=0.25, total_iters=6),
    "LinearLR": partial(L.LinearLR, start_factor=0.1, total_iters=9),
    "ExponentialLR": partial(L.ExponentialLR, gamma=0.9),
    "SequentialLR": lambda opt: L.SequentialLR(
        opt, [L.LinearLR(opt, 0.1, total_iters=3), L.CosineAnnealingLR(opt, 30)], [3]
    ),
    "PolynomialLR": partial(L.PolynomialLR, total_iters=12, power=2.0),
    "CosineAnnealingLR": partial(L.CosineAnnealingLR, T_max=8, eta_min=1e-3),
    "ChainedScheduler": lambda opt: L.ChainedScheduler(
        [L.ConstantLR(opt, 0.1, 4), L.StepLR(opt, 3, 0.5)], opt
    ),
    "CyclicLR": partial(
        L.CyclicLR, base_lr=0.01, max_lr=[0.1, 0.2], step_size_up=4, mode="exp_range", gamma=0.9
    ),
    "CosineAnnealingWarmRestarts": partial(L.CosineAnnealingWarmRestarts, T_0=3, T_mult=2),
    "OneCycleLR": partial(L.OneCycleLR, max_lr=[0.5, 0.05], total_steps=40, three_phase=True),
}
PLATEAU = {"mode": "min", "factor": 0.5, "patience": 0, "cooldown": 1}
FORMS = {
    "alone": lambda make, opt: make(opt),
    "first of a sequence": lambda make, opt: L.SequentialLR(
        opt, [make(opt), L.ExponentialLR(opt, 0.9)], [6]
    ),
    "second of a sequence": lambda make, opt: L.SequentialLR(
        opt, [L.ConstantLR(opt, 0.5, 4), make(opt)], [4]
    ),
    "in a chain": lambda make, opt: L.ChainedScheduler(
        [make(opt), L.ExponentialLR(opt, 0.95)], opt
    ),
}
WAYS = {  # batches an epoch, epochs, and when a checkpoint is made
    BatchSchedCB: (8, 2, (7, "step")),
    EpochSchedCB: (2, 9, (7, "step")),
}


def options(groups):
    return [[group[name] for name in ("lr", "betas", "weight_decay")] for group in groups]


def by_hand(make, n, values=None):
    """The options of each group in `n` steps of a loop with torch alone, and what torch says."""
    opt = two_groups(linear().parameters(), 0.1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sched, used = make(opt), []
        for step in range(n):
            used.append(options(opt.param_groups))
            opt.step()
            sched.step(*[] if values is None else [values[step]])
    return used, {str(w.message).split(". ")[0] for w in said}


def warmed_by_hand(used, n, form):
    """What `warmup` with `start=0` makes of the options that `by_hand` returned."""
    rows = []
    for t, groups in enumerate(used):
        ends = used[n] if form == "auto" else groups
        rates = [end[0] * t / n if t < n else g[0] for g, end in zip(groups, ends, strict=True)]
        rows.append([[lr, *g[1:]] for lr, g in zip(rates, groups, strict=True)])
    return rows


def check(sched_cb, way, expected, folder, said=(), values=None):
    """The rates of a fit, and of its resumes in the middle, are those of the loop by hand."""
    n_batches, epochs, every = way

    def fit(name, resume=None):
        used = UsedLR()
        cbs = [TrainCB(), used, sched_cb(), CheckpointCB(folder / name, every, keep=None)]
        if values is not None:
            done = 0 if resume is None else int(resume.name[5:8])  # its epoch is validated again
            cbs.append(Row(values=values[done:]))
        dls = (batches(n_batches), None if values is None else batches(1))
        learn = Learner(linear(), dls, cbs=cbs, lr=0.1, opt_func=two_groups)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for text in said:
                warnings.filterwarnings("ignore", re.escape(text))
            learn.fit(epochs, resume=resume)
        return [options(groups) for groups in used.groups]

    if len(expected) == epochs:
        expected = [groups for groups in expected for _ in range(n_batches)]
    rates = fit("whole")
    assert rates == flat_approx(expected)
    files = newest_first(folder / "whole")[1:]  # but for the end
    assert len(files) == 2
    for file in files:
        rates = fit(file.stem, file)
        assert rates == flat_approx(expected[len(expected) - len(rates) :]), file.stem


class flat_approx:  # noqa: N801  reads as pytest.approx, which takes no nested lists
    def __init__(self, rows):
        self.rows = rows

    def __eq__(self, other):
        return len(other) == len(self.rows) and _flat(other) == pytest.approx(_flat(self.rows))

    def __repr__(self):
        return repr(self.rows)


def _flat(x):
    return [v for part in x for v in _flat(part)] if isinstance(x, (list, tuple)) else [x]


def test_every_class_of_the_installed_torch_is_known_here():
    assert set(CLASSES) == {*MAKE, "ReduceLROnPlateau"}


@pytest.mark.case("F01")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("cb", WAYS)
def test_a_scheduler_has_the_rates_of_torchs_own_loop_also_when_resumed(cb, name, form, tmp_path):
    make = partial(FORMS[form], MAKE.get(name, partial(L.ReduceLROnPlateau, **PLATEAU)))
    n_batches, epochs, _ = way = WAYS[cb]
    try:
        expected, said = by_hand(make, epochs if cb is EpochSchedCB else n_batches * epochs)
    except Exception as refused:  # torch cannot do this either
        with pytest.raises((type(refused), TypeError, ValueError)):
            check(lambda: cb(make), way, [], tmp_path)
    else:
        check(lambda: cb(make), way, expected, tmp_path, said)


@pytest.mark.parametrize("name", MAKE)
def test_a_warmed_up_scheduler_has_the_rates_of_the_formula_also_when_resumed(name, tmp_path):
    for cb, unit, form in ((BatchSchedCB, "step", "auto"), (EpochSchedCB, "epoch", "factor")):
        n_batches, epochs, _ = way = WAYS[cb]
        expected, said = by_hand(MAKE[name], epochs if cb is EpochSchedCB else n_batches * epochs)
        expected = warmed_by_hand(expected, 4, form)
        make = warmup(MAKE[name], 4, unit, form)
        check(lambda make=make, cb=cb: cb(make), way, expected, tmp_path / unit, said)


VALUES = [3.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.5, 1.5, 1.0]


def test_a_plateau_has_the_rates_of_torchs_own_loop_also_when_resumed(tmp_path):
    expected, said = by_hand(partial(L.ReduceLROnPlateau, **PLATEAU), 9, VALUES)
    settings = {name: value for name, value in PLATEAU.items() if name != "mode"}
    plain, way = partial(PlateauCB, "valid_loss", **settings), WAYS[EpochSchedCB]
    check(plain, way, expected, tmp_path / "plain", said, VALUES)
    warmed = partial(plain, warmup=partial(warmup, n=7, form="factor"))
    updates = [groups for groups in expected for _ in range(2)]
    rates = warmed_by_hand(updates, 7, "factor")
    check(warmed, way, rates, tmp_path / "warmed", said, VALUES)


@pytest.mark.case("F01")
def test_the_check_notices_a_scheduler_that_begins_again(tmp_path, monkeypatch):
    expected, said = by_hand(MAKE["StepLR"], 16)
    monkeypatch.setattr(BatchSchedCB, "load_state_dict", lambda self, state: None)
    with pytest.raises(AssertionError):
        check(lambda: BatchSchedCB(MAKE["StepLR"]), WAYS[BatchSchedCB], expected, tmp_path)
