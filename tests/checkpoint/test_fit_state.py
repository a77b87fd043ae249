"""What a resume restores beside the weights, and what it says where the program has changed."""

import warnings
from functools import partial
from types import FunctionType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler as L
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset
from toys import linear

from minilearn import (
    EMACB,
    SWACB,
    ArrayLoader,
    BatchSchedCB,
    Callback,
    CheckpointCB,
    ClipGradCB,
    EarlyStopCB,
    EpochSchedCB,
    GradAccumCB,
    Learner,
    LimitBatchesCB,
    MetricsCB,
    MixUpCB,
    ParamSchedCB,
    RecorderCB,
    TrainCB,
    accuracy,
    warmup,
)
from minilearn.callbacks.precision import ScaledPrecision
from minilearn.checkpoint import fit_state, process_state, program
from minilearn.checkpoint.files import newest_first, read, write

X, Y = torch.randn(24, 3, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 2


def loaders(n=24, size=4, **kwargs):
    return DataLoader(TensorDataset(X[:n], X[:n, :1]), size, **kwargs), None


def learner(folder, *cbs, model=None, dls=None, loss=F.mse_loss, every=1, lr=0.05, **kwargs):
    torch.manual_seed(0)
    cbs = [TrainCB(), MetricsCB(quiet=True), *cbs, CheckpointCB(folder, every=every, keep=None)]
    return Learner(model or linear(), dls or loaders(), loss, lr, cbs, **kwargs)


def said(fit, *args, **kwargs):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(*args, **kwargs)
    return "\n".join(str(w.message) for w in found)


# ---- a loss with a state ----


class Margin(nn.Module):
    """A loss with a weight, a constant and a statistic."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("center", torch.zeros(1), persistent=False)

    def forward(self, preds, targets):
        with torch.no_grad():
            self.center.lerp_(preds.mean().reshape(1), 0.1)
        return ((preds - self.center - self.scale * self.fixed * targets) ** 2).mean()


def check_loss(make, folder):
    """F23: a loss with weights is trained, saved and restored."""
    whole = make(folder / "a")
    whole.fit(4)
    assert whole.loss_func.scale.item() != 1 and whole.loss_func.fixed.item() == 1
    make(folder / "b").fit(2)
    again = make(folder / "b")
    again.fit(4, resume=True)
    assert torch.equal(again.model.weight, whole.model.weight)
    assert torch.equal(again.loss_func.scale, whole.loss_func.scale)
    assert torch.equal(again.loss_func.center, whole.loss_func.center)


@pytest.mark.case("F23")
@pytest.mark.parametrize("opt", [torch.optim.SGD, torch.optim.AdamW, "adamw"])
def test_a_loss_with_weights_is_trained_saved_and_restored(opt, tmp_path, capsys):
    check_loss(lambda folder: learner(folder, loss=Margin(), opt_func=opt), tmp_path)
    assert "the loss is trained, too: loss.scale (1 parameters)" in capsys.readouterr().out


@pytest.mark.case("F23")
def test_the_check_notices_a_loss_that_is_not_trained(tmp_path):
    with pytest.raises(AssertionError):
        check_loss(lambda folder: learner(folder, loss=Margin(), train_loss=False), tmp_path)


@pytest.mark.case("F23")
def test_the_check_notices_a_loss_that_is_not_restored(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_state, "load_full", lambda *args: None)
    with pytest.raises(AssertionError):
        check_loss(lambda folder: learner(folder, loss=Margin()), tmp_path)


@pytest.mark.case("F23")
def test_without_a_loss_to_train_the_optimizer_gets_the_parameters_of_the_model_alone():
    model = linear()
    shared = Margin()
    shared.scale = model.weight  # the model's
    for loss in (F.mse_loss, nn.MSELoss(), shared):
        learn = Learner(model, loaders(), loss, cbs=TrainCB())
        learn.opt = learn._new_opt(0.1)
        assert [len(g["params"]) for g in learn.opt.param_groups] == [2]
    learn = Learner(linear(), loaders(), Margin(), cbs=TrainCB(), train_loss=False)
    learn.fit(1)
    assert learn.loss_func.scale.item() == 1 and learn.loss_func.scale.grad is None


@pytest.mark.case("F23")
def test_lbfgs_says_that_it_takes_one_group_only():
    with pytest.raises(ValueError, match="train_loss=False"):
        Learner(linear(), loaders(), Margin(), cbs=TrainCB(), opt_func=torch.optim.LBFGS).fit(1)


class Modes(nn.Module):
    """A loss with a frozen part, whose statistics move in train mode alone."""

    def __init__(self):
        super().__init__()
        self.norm, self.frozen = nn.BatchNorm1d(1, affine=False), nn.Dropout().eval()
        self.modes = []

    def forward(self, preds, targets):
        self.modes.append((self.training, self.norm.training, self.frozen.training))
        return F.mse_loss(self.norm(preds), targets)


def check_modes(loss, expected):
    """A loss module follows the mode of the model, and has its own again after the fit."""
    before = [m.training for m in loss.modules()]
    Learner(linear(), loaders()[:1] * 2, loss, cbs=TrainCB()).fit(1)
    assert list(dict.fromkeys(loss.modes)) == expected
    assert [m.training for m in loss.modules()] == before


@pytest.mark.case("F23")
def test_a_loss_module_trains_and_evaluates_with_the_model():
    check_modes(Modes(), [(True, True, False), (False, False, False)])
    check_modes(Modes().eval(), [(False, False, False)])  # the user's own choice
    with pytest.raises(AssertionError):
        check_modes(Modes(), [(True, True, False)])


@pytest.mark.case("F23")
def test_sharded_weights_and_a_loss_to_train_are_refused_before_anything_is_lost(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("minilearn.checkpoint.callback.is_sharded", lambda model: True)
    with pytest.raises(ValueError, match="loss.scale would be lost: .*train_loss=False"):
        learner(tmp_path, loss=Margin()).fit(1)


# ---- buffers and flags ----


class Statistic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.register_buffer("first", None)

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.mean(0) + 1, 0.1)
            if self.first is None:
                self.first = x[0].clone()
        return self.layer(x - self.mean - (0 if self.first is None else self.first))


@pytest.mark.case("F24")
@pytest.mark.parametrize("every", [1, (4, "step")])
def test_buffers_that_are_in_no_state_dict_go_on(every, tmp_path):
    whole = learner(tmp_path / "a", model=Statistic(), every=every)
    whole.fit(3)
    for file in newest_first(tmp_path / "a"):
        again = learner(tmp_path / file.stem, model=Statistic())
        again.fit(3, resume=file)
        assert torch.equal(again.model.layer.weight, whole.model.layer.weight)


@pytest.mark.case("F24")
def test_restore_best_puts_back_buffers_of_all_kinds_and_the_loss():
    torch.manual_seed(0)
    best, dls = EarlyStopCB("valid_loss", patience=3, restore_best=True), loaders()[:1] * 2
    cbs = [TrainCB(), MetricsCB(quiet=True), best]
    learn = Learner(Statistic(), dls, Margin(), lr=0.3, cbs=cbs)
    learn.fit(8)
    assert best.stopped is not None
    state = best.state_dict()["weights"]
    assert torch.equal(learn.loss_func.scale, state["loss"]["state"]["scale"])
    assert torch.equal(learn.model.mean, state["model"]["rest"]["buffers"]["mean"])


class Unfreeze(Callback):
    """Freezes the first layer, and unfreezes it in a later epoch."""

    def __init__(self, at, freeze):
        self.at, self.freeze = at, freeze

    def before_epoch(self, learn):
        if learn.training and learn.epoch == self.at:
            learn.model[0].requires_grad_(not self.freeze)


def deep():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))


def check_flags(folder, freeze):
    """F25: what was frozen or unfrozen in the fit is so after a resume."""

    def make(name):
        model = deep()
        model[0].requires_grad_(freeze)
        return learner(folder / name, Unfreeze(1, freeze), model=model)

    whole = make("a")
    whole.fit(4)
    for epochs in (1, 2, 3):
        make(f"b{epochs}").fit(epochs)
        again = make(f"b{epochs}")
        again.fit(4, resume=True)
        assert again.model[0].weight.requires_grad is not freeze
        assert torch.equal(again.model[0].weight, whole.model[0].weight)


@pytest.mark.case("F25")
@pytest.mark.parametrize("freeze", [False, True])
def test_what_is_frozen_goes_on(freeze, tmp_path):
    check_flags(tmp_path, freeze)


@pytest.mark.case("F25")
def test_the_check_notices_flags_that_the_script_sets_again(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_state, "load_rest", lambda *args: None)
    with pytest.raises(AssertionError):
        check_flags(tmp_path, False)


@pytest.mark.case("F25")
def test_fine_tune_goes_on_in_either_of_its_fits(tmp_path):
    whole = learner(tmp_path / "a", model=deep(), every=(3, "step"))
    whole.fine_tune(2, freeze_epochs=1)
    files = sorted(newest_first(tmp_path / "a"), key=lambda f: f.stat().st_mtime_ns)
    stages = [read(file)["stage"] for file in files]
    assert set(stages) == {"fine_tune, 1", "fine_tune, 2"}
    for file in files:
        again = learner(tmp_path / file.stem, model=deep())
        again.fine_tune(2, freeze_epochs=1, resume=file)
        assert torch.equal(again.model[0].weight, whole.model[0].weight), file.stem


# ---- which callback is which ----


class Count(Callback):
    def __init__(self, by):
        self.by, self.n = by, 0

    def after_batch(self, learn):
        self.n += self.by

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


class Plain(Count):
    """Nothing tells two of these apart."""

    def __init__(self):
        self.n, self.by = 0, 1

    __repr__ = Callback.__repr__


def check_identity(folder):
    """F28: states go to the callbacks that they were saved of, whatever their order."""
    for cbs in ([1, 100], [100, 1], [100], [7, 1, 100]):
        name = "-".join(map(str, cbs))
        learner(folder / name, Count(1), Count(100)).fit(1)
        found = [Count(by) for by in cbs]
        learner(folder / name, *found).fit(2, resume=True)
        assert [cb.n for cb in found] == [42 if cb.by == 7 else 12 * cb.by for cb in found]


@pytest.mark.case("F28")
def test_callbacks_of_one_class_are_told_apart_by_their_settings(tmp_path):
    check_identity(tmp_path)


@pytest.mark.case("F28")
def test_the_check_notices_states_by_position(tmp_path, monkeypatch):
    monkeypatch.setattr(process_state, "settings_of", lambda cb: {})
    with pytest.raises(AssertionError):
        check_identity(tmp_path)


@pytest.mark.case("F28")
def test_early_stops_keep_their_own_best_with_another_patience(tmp_path):
    def make(*names, patience):
        stops = [EarlyStopCB(name, patience=patience) for name in names]
        return learner(tmp_path, *stops, dls=loaders()[:1] * 2), stops

    first, stops = make("train_loss", "valid_loss", patience=3)
    first.fit(2)
    best = {cb.monitor.name: cb.monitor.best for cb in stops}
    again, stops = make("valid_loss", "train_loss", patience=5)
    again.fit(2, resume=True)
    assert {cb.monitor.name: cb.monitor.best for cb in stops} == best


def count_of(module, by):
    """A callback of a class `Count` in some module."""
    cls = type("Count", (Count,), {"__module__": module, "__repr__": Callback.__repr__})
    return cls(by)


OTHERS = {
    "one class name in two modules": lambda: [count_of("a", 1), count_of("b", 1)],
    "two averages": lambda: [EMACB(0.5), EMACB(0.9)],
    "two windows of averages": lambda: [SWACB(2), SWACB(2, every=2)],
    "recorders": lambda: [RecorderCB("lr"), RecorderCB("mom")],
    "three counts": lambda: [Count(1), Count(2), Count(3)],
    "schedules": lambda: [
        ParamSchedCB(weight_decay=lambda p: 0.1),
        BatchSchedCB(partial(L.StepLR, step_size=4)),
    ],
}


@pytest.mark.case("F28")
@pytest.mark.parametrize("name", OTHERS)
def test_callbacks_that_differ_in_anything_find_their_own_state(name, tmp_path):
    first, again = OTHERS[name](), OTHERS[name]()
    for number, cb in enumerate(first):
        cb.tag = number
        load, save = cb.load_state_dict, cb.state_dict
        cb.state_dict = lambda save=save, number=number: {**save(), "tag": number}
    for number, cb in enumerate(again):
        load = cb.load_state_dict
        cb.load_state_dict = lambda s, load=load, number=number: (
            load(s) or seen.add((number, s["tag"]))
        )
    seen = set()
    learner(tmp_path, *first).fit(1)
    learner(tmp_path, *again[::-1]).fit(2, resume=True)
    assert seen == {(number, number) for number in range(len(again))}


@pytest.mark.case("F28")
def test_where_nothing_tells_them_apart_another_number_is_said(tmp_path):
    learner(tmp_path, Plain(), Plain()).fit(1)
    file = newest_first(tmp_path)[0]
    text = said(learner(tmp_path / "one", Plain()).fit, 2, resume=file)
    assert "nothing tells Plain, Plain 2 apart" in text
    assert "apart" not in said(learner(tmp_path / "two", Plain(), Plain()).fit, 2, resume=file)


# ---- what has changed ----


def halved(samples):
    return torch.utils.data.default_collate(samples[::2])


CLASSES = (DataLoader(TensorDataset(X, Y), 4), None)

CHANGES = {
    "lr: 0.05 saved, 0.5 here": ({}, {"lr": 0.5}),
    "weight_decay: 0.1 saved, 0.3 here": (
        {"opt_func": lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1)},
        {"opt_func": lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.3)},
    ),
    "StepLR gamma: 0.5 saved, 0.1 here": (
        {"sched": lambda o: L.StepLR(o, 3, gamma=0.5)},
        {"sched": lambda o: L.StepLR(o, 3, gamma=0.1)},
    ),
    "CosineAnnealingLR eta_min: 0.0 saved, 0.01 here": (
        {"sched": lambda o: L.CosineAnnealingLR(o, 18)},
        {"sched": lambda o: L.CosineAnnealingLR(o, 18, eta_min=0.01)},
    ),
    "scaler growth_interval: 2000 saved, 5 here": (
        {"cbs": lambda: [ScaledPrecision(device="cpu")]},
        {
            "cbs": lambda: [
                ScaledPrecision(device="cpu", scaler=torch.amp.GradScaler("cpu", growth_interval=5))
            ]
        },
    ),
    "train loader, batch_size: 4 saved, 3 here": (
        {"dls": loaders(24, 4)},
        {"dls": loaders(18, 3)},
    ),
    "train loader, samples: 24 saved, 21 here": (
        {"dls": loaders(24, 4)},
        {"dls": loaders(21, 4)},
    ),
    "sampler: SequentialSampler saved, RandomSampler here": (
        {},
        {"dls": loaders(shuffle=True)},
    ),
    "callbacks: TrainCB, ClipGradCB saved, TrainCB here": ({"cbs": lambda: [ClipGradCB(1.0)]}, {}),
    "batches for an update: 1 saved, 2 here": ({}, {"cbs": lambda: [GradAccumCB(2)]}),
    "loss: mse_loss saved, l1_loss here": ({}, {"loss": F.l1_loss}),
    "schedules: none saved, BatchSchedCB here": ({}, {"sched": lambda o: L.StepLR(o, 3)}),
    "ClipGradCB(max_norm=1.0) saved, ClipGradCB(max_norm=0.1) here": (
        {"cbs": lambda: [ClipGradCB(1.0)]},
        {"cbs": lambda: [ClipGradCB(0.1)]},
    ),
    "alpha: 0.4 saved, 0.2 here": (
        {
            "cbs": lambda: [MixUpCB(0.4)],
            "loss": F.cross_entropy,
            "model": linear(n_out=2),
            "dls": CLASSES,
        },
        {
            "cbs": lambda: [MixUpCB(0.2)],
            "loss": F.cross_entropy,
            "model": linear(n_out=2),
            "dls": CLASSES,
        },
    ),
    "decay: 0.9 saved, 0.99 here": ({"cbs": lambda: [EMACB(0.9)]}, {"cbs": lambda: [EMACB(0.99)]}),
    "pct_start=0.3) saved": (
        {"sched": partial(L.OneCycleLR, max_lr=0.1, total_steps=18, pct_start=0.3)},
        {"sched": partial(L.OneCycleLR, max_lr=0.1, total_steps=18, pct_start=0.5)},
    ),
    "n=3, unit='step', form='auto', start=0.0) saved": (
        {"sched": warmup(partial(L.StepLR, step_size=5), 3)},
        {"sched": warmup(partial(L.StepLR, step_size=5), 9)},
    ),
    "train loader, seed: 1 saved, 2 here": (
        {"dls": lambda: arrays(seed=1)},
        {"dls": lambda: arrays(seed=2)},
    ),
    "train loader, shuffle: True saved, False here": (
        {"dls": lambda: arrays()},
        {"dls": lambda: arrays(shuffle=False)},
    ),
    "train loader, drop_last: False saved, True here": ({}, {"dls": loaders(drop_last=True)}),
    "nesterov: True saved, False here": (
        {"opt_func": partial(torch.optim.SGD, momentum=0.9, nesterov=True)},
        {"opt_func": partial(torch.optim.SGD, momentum=0.9)},
    ),
    "schedules: BatchSchedCB saved, EpochSchedCB here": (
        {"sched": lambda o: L.StepLR(o, 3)},
        {"cbs": lambda: [EpochSchedCB(lambda o: L.StepLR(o, 3))]},
    ),
    "options: {'weight_decay'": (
        {"cbs": lambda: [ParamSchedCB(weight_decay=float)]},
        {"cbs": lambda: [ParamSchedCB(weight_decay=float, momentum=float)]},
    ),
    "model, 1: Dropout(p=0.1, inplace=False) saved, Dropout(p=0.5, inplace=False) here": (
        {"model": lambda: nn.Sequential(linear(), nn.Dropout(0.1))},
        {"model": lambda: nn.Sequential(linear(), nn.Dropout(0.5))},
    ),
    "model, 1: ReLU(inplace=False) saved, Tanh() here": (
        {"model": lambda: nn.Sequential(linear(), nn.ReLU())},
        {"model": lambda: nn.Sequential(linear(), nn.Tanh())},
    ),
    "model, dtype: torch.float32 saved, torch.float64 here": (
        {},
        {
            "model": lambda: linear().double(),
            "dls": lambda: ([(X.double(), X[:, :1].double())] * 6, None),
        },
    ),
    "delta=1.0) saved, HuberLoss(reduction='mean', delta=0.1) here": (
        {"loss": nn.HuberLoss()},
        {"loss": nn.HuberLoss(delta=0.1)},
    ),
    "loss, itself: MSELoss(reduction='mean') saved, MSELoss(reduction='sum') here": (
        {"loss": nn.MSELoss()},
        {"loss": nn.MSELoss(reduction="sum")},
    ),
    "CrossEntropyLoss(weight=[2]: [1.0, 5.0] ": (
        {
            "loss": nn.CrossEntropyLoss(torch.tensor([1.0, 2.0])),
            "model": linear(n_out=2),
            "dls": CLASSES,
        },
        {
            "loss": nn.CrossEntropyLoss(torch.tensor([1.0, 5.0])),
            "model": linear(n_out=2),
            "dls": CLASSES,
        },
    ),
    "train loader, dataset tensors: ([24, 3]: ": (
        {},
        {"dls": lambda: (DataLoader(TensorDataset(X + 1, X[:, :1]), 4), None)},
    ),
    "train loader, dataset indices: range(0, 12) saved, range(12, 24) here": (
        {"dls": lambda: (DataLoader(Subset(TensorDataset(X, Y), range(12)), 4), None)},
        {"dls": lambda: (DataLoader(Subset(TensorDataset(X, Y), range(12, 24)), 4), None)},
    ),
    "train loader, sampler replacement: False saved, True here": (
        {"dls": loaders(sampler=RandomSampler(X))},
        {"dls": loaders(sampler=RandomSampler(X, replacement=True))},
    ),
    "train loader, collate_fn: default_collate saved, halved here": (
        {},
        {"dls": loaders(collate_fn=halved)},
    ),
    "train loader, num_workers: 0 saved, 1 here": ({}, {"dls": loaders(num_workers=1)}),
    "callbacks: TrainCB saved, LimitBatchesCB, TrainCB here": (
        {},
        {"cbs": lambda: [LimitBatchesCB(5)]},
    ),
    "count: None saved, len here": ({}, {"count": len}),
    "eps: 1e-08 saved, 1e-06 here": (
        {"opt_func": "adamw"},
        {"opt_func": lambda p, lr: torch.optim.AdamW(p, lr, eps=1e-6)},
    ),
}


def arrays(shuffle=True, seed=None):
    return ArrayLoader({"x": X, "y": X[:, :1]}, 4, shuffle=shuffle, seed=seed), None


def changed(folder, sched=None, cbs=lambda: [], **kwargs):
    makers = [k for k in ("dls", "model") if type(kwargs.get(k)) is FunctionType]
    kwargs |= {k: kwargs[k]() for k in makers}
    extra = [BatchSchedCB(sched)] if sched else []
    return learner(folder, *extra, *cbs(), **kwargs)


@pytest.mark.filterwarnings("ignore:.*GradScaler")
@pytest.mark.case("F29")
@pytest.mark.case("F31")
@pytest.mark.parametrize("line", CHANGES)
def test_what_has_changed_is_said_with_both_values(line, tmp_path):
    before, after = CHANGES[line]
    changed(tmp_path, **before).fit(1)
    file = newest_first(tmp_path)[0]
    assert line in said(changed(tmp_path / "new", **after).fit, 3, resume=file)
    same = changed(tmp_path / "same", **before)
    assert "not the fit that was saved" not in said(same.fit, 3, resume=file)


class Centers(nn.Module):
    """A loss with a buffer that training moves, named as the argument that it was made with."""

    def __init__(self, centers):
        super().__init__()
        self.register_buffer("centers", centers)

    def forward(self, preds, targs):
        self.centers += preds.detach().mean()
        return F.mse_loss(preds, targs)


class ByEpoch(TensorDataset):
    """A data set that knows its epoch, and a table that is too long to show."""

    def __init__(self, epoch=0):
        super().__init__(X, X[:, :1])
        self.epoch, self.table = epoch, dict.fromkeys(range(1000), self)

    def set_epoch(self, epoch):
        self.epoch = epoch


@pytest.mark.case("F31")
def test_what_training_itself_moves_is_no_change_of_the_program(tmp_path):
    def make(folder):
        loss, dls = Centers(torch.zeros(1)), (DataLoader(ByEpoch(), 4), None)
        return learner(folder, loss=loss, dls=dls)

    make(tmp_path).fit(2)
    file = newest_first(tmp_path)[0]
    assert "not the fit that was saved" not in said(make(tmp_path / "new").fit, 4, resume=file)


@pytest.mark.case("F29")
@pytest.mark.case("F31")
def test_a_change_without_the_comparison_would_be_silent(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_state.Resume, "_warn_of_changes", lambda *args: None)
    changed(tmp_path).fit(1)
    assert not said(changed(tmp_path, dls=loaders(18, 3), lr=0.5).fit, 3, resume=True)


@pytest.mark.case("F29")
def test_a_schedule_that_the_very_call_replaces_by_a_rate_is_not_missed(tmp_path):
    changed(tmp_path, lambda o: L.StepLR(o, 4)).fit(1)
    file = newest_first(tmp_path)[0]
    assert not said(changed(tmp_path / "rate").fit, 2, lr=0.01, resume=file)
    text = said(changed(tmp_path / "none").fit, 2, resume=file)
    assert "schedules: BatchSchedCB saved, none here" in text
    assert text.count("not the fit that was saved") == 1


@pytest.mark.case("F29")
def test_what_differs_is_one_warning_also_for_a_checkpoint_that_is_loaded_by_hand(tmp_path):
    changed(tmp_path, cbs=lambda: [ClipGradCB(1.0), Count(1)]).fit(1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        changed(tmp_path, lr=0.5).load_checkpoint(tmp_path)
    assert len(found) == 1 and "lr: 0.05 saved, 0.5 here" in str(found[0].message)
    assert "the state of Count is in the checkpoint only" in str(found[0].message)


@pytest.mark.case("F29")
def test_the_warning_comes_again_with_the_next_resume(tmp_path):
    learner(tmp_path).fit(1)
    for epochs in (2, 3):
        text = said(learner(tmp_path, lr=0.5).fit, epochs, resume=True)
        assert "lr: 0.05 saved, 0.5 here" in text


@pytest.mark.case("F29")
@pytest.mark.parametrize("sched", [None, lambda o: L.StepLR(o, 4, gamma=0.5)])
def test_a_rate_that_is_passed_to_the_very_call_wins(sched, tmp_path):
    changed(tmp_path, sched).fit(1)
    before = read(newest_first(tmp_path)[0])["optimizer"]["groups"][0]["lr"]
    learn, rates = changed(tmp_path, sched), []
    learn.on("before_step", lambda learn: rates.append(learn.opt.param_groups[0]["lr"]))
    assert "lr:" not in said(learn.fit, 2, lr=0.5, resume=True)
    assert rates[0] == pytest.approx(before * 10)
    assert rates[-1] == pytest.approx(rates[0] / (1 if sched is None else 2))


# ---- metrics ----


def metric_learner(folder, *metrics):
    torch.manual_seed(0)
    cbs = [TrainCB(), MetricsCB(*metrics, quiet=True)]
    cbs.append(CheckpointCB(folder, every=(2, "step"), keep=None))
    return Learner(
        nn.Linear(3, 2), (DataLoader(TensorDataset(X, Y), 4), None), F.cross_entropy, 0.1, cbs
    )


@pytest.mark.case("F09")
@pytest.mark.parametrize("had", [0, 1, 2])
@pytest.mark.parametrize("has", [0, 1, 2])
def test_metrics_come_and_go_within_an_epoch(had, has, tmp_path):
    from torcheval.metrics import MulticlassF1Score

    def make(n):
        return metric_learner(tmp_path, *[accuracy, MulticlassF1Score()][:n])

    make(had).fit(2)
    for file in newest_first(tmp_path):
        learn = make(has)
        text = said(learn.fit, 3, resume=file)
        assert ("metrics" in text) == (had != has)
        assert len(learn.history) == 3


@pytest.mark.case("F09")
def test_the_check_notices_states_of_metrics_that_are_gone(tmp_path, monkeypatch):
    def load(cb, state):
        for name in state.get("metrics", ()):
            cb.all_metrics[name].load_state_dict(state["metrics"][name])

    metric_learner(tmp_path, accuracy).fit(2)
    monkeypatch.setattr(MetricsCB, "load_state_dict", load)
    with pytest.raises(KeyError):
        for file in newest_first(tmp_path):
            metric_learner(tmp_path).fit(3, resume=file)


# ---- incomplete checkpoints ----

PARTS = ("random", "stream", "loaders", "history", "callbacks", "optimizer", "row", "loss", "rest")
RANDOM = ("python", "numpy", "torch", "device")


def check_incomplete(folder, drop):
    """F10: each part that a checkpoint lacks is named once, and the fit goes on."""
    for part in (*PARTS, *RANDOM):
        learner(folder / part, every=(4, "step")).fit(1)
        path = newest_first(folder / part)[-1]
        assert read(path)["position"] == "training"
        state = read(path)
        drop(state["random"] if part in RANDOM else state, part)
        write(state, path)
        learn = learner(folder / part)
        text = said(learn.fit, 2, resume=path)
        assert text.count(f"{part}: the fit goes on, but is not exact") == 1
        assert learn.history[-1]["epoch"] == 1


@pytest.mark.case("F10")
def test_an_incomplete_checkpoint_goes_on_with_a_warning_for_each_part(tmp_path):
    check_incomplete(tmp_path, lambda state, part: state.pop(part))


@pytest.mark.case("F10")
def test_the_check_notices_a_part_that_is_missing_in_silence(tmp_path):
    with pytest.raises(AssertionError):
        check_incomplete(tmp_path, lambda state, part: None)


# ---- a finished run ----


def check_finished(make, capsys):
    """F33: a finished run says that nothing is left, and how to go on."""
    make().fit(2)
    for amount in ({"n_epochs": 2}, {"n_steps": 12}):
        capsys.readouterr()
        make().fit(**amount, resume=True)
        out = capsys.readouterr().out
        assert "nothing is left to train" in out and "resume=True)" in out
    make().fit(3, resume=True)
    assert "nothing is left" not in capsys.readouterr().out


@pytest.mark.case("F33")
def test_a_finished_run_says_that_nothing_is_left_and_how_to_go_on(tmp_path, capsys):
    check_finished(lambda: learner(tmp_path), capsys)


@pytest.mark.case("F33")
def test_the_check_notices_a_finished_run_that_says_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fit_state, "print", lambda *args: None, raising=False)
    with pytest.raises(AssertionError):
        check_finished(lambda: learner(tmp_path), capsys)


# ---- another path of the folder ----


def moved(folder):
    target = folder.with_name("moved")
    folder.rename(target)
    return target


def linked(folder):
    link = folder.with_name("link")
    link.symlink_to(folder)
    return link


def check_path(folder, change):
    """F34: under another path the best is an existing file, and old ones are deleted."""

    def make(folder):
        cb = CheckpointCB(folder, keep=1, monitor="train_loss", mode="max")  # the first is the best
        return Learner(linear(), loaders(), cbs=[TrainCB(), MetricsCB(quiet=True), cb], lr=0.05)

    make(folder).fit(2)
    files = newest_first(folder)
    path = change(folder)
    learn = make(path)
    learn.fit(4, resume=folder if path.name == "other" else True)
    cb = learn.find(CheckpointCB)
    assert cb.best is not None and cb.best.exists()
    values = [row["train_loss"] for row in learn.history]
    assert f"{max(values):.6g}" in cb.best.name
    assert len(newest_first(path)) <= 2
    if path.name == "other":
        assert newest_first(folder) == files


@pytest.mark.case("F34")
@pytest.mark.parametrize("change", [moved, linked, lambda folder: folder.with_name("other")])
def test_under_another_path_the_best_exists_and_old_files_go(change, tmp_path):
    check_path(tmp_path / "run", change)


@pytest.mark.case("F34")
def test_the_check_notices_files_that_are_known_by_their_path(tmp_path, monkeypatch):
    load = CheckpointCB.load_state_dict

    def by_path(cb, state):
        load(cb, state)
        if state["folder"] != str(cb.folder.absolute()):
            cb.files = []

    monkeypatch.setattr(CheckpointCB, "load_state_dict", by_path)
    with pytest.raises(AssertionError):
        check_path(tmp_path / "run", moved)


# ---- what only describes a callback or a model ----


class Unready(Callback):
    """Shows what a fit sets first."""

    def __repr__(self):
        return f"Unready({self.total / self.count})"

    def before_fit(self, learn):
        self.seen = 0

    def after_batch(self, learn):
        self.seen += 1

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Raises(Unready):
    def __init__(self, error):
        self.error = error

    def __repr__(self):
        raise self.error


def check_shown(cbs, folder):
    """A callback that cannot be shown is saved, found again and resumed."""
    learner(folder, *cbs).fit(1)
    again = [type(cb)(*vars(cb).get("args", ())) if type(cb) is Unready else cb for cb in cbs]
    learn = learner(folder, *again)
    learn.fit(2, resume=True)
    assert learn.epoch == 1 and [cb.seen for cb in again] == [12] * len(again)


@pytest.mark.case("F09")
@pytest.mark.parametrize(
    "make",
    [
        lambda: [Unready()],
        lambda: [Unready(), Unready()],
        lambda: [Raises(RuntimeError("no"))],
        lambda: [Raises(KeyError("k")), Raises(ZeroDivisionError())],
        lambda: [Unready(), Raises(RecursionError("deep"))],
    ],
)
def test_a_callback_that_cannot_be_shown_is_saved_and_resumed(make, tmp_path):
    check_shown(make(), tmp_path)


@pytest.mark.case("F09")
def test_the_check_notices_callbacks_that_must_be_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(process_state, "without_address", repr)
    with pytest.raises((AssertionError, AttributeError)):
        check_shown([Unready()], tmp_path)


@pytest.mark.case("F07")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "trace", [torch.jit.script, lambda m: torch.jit.trace(m, X[:4]), torch.fx.symbolic_trace]
)
def test_a_traced_model_is_saved_and_resumed(trace, tmp_path):
    def model():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        return trace(layers)

    unbroken = learner(tmp_path / "a", model=model())
    unbroken.fit(2)
    learner(tmp_path / "b", model=model()).fit(1)
    resumed = learner(tmp_path / "b", model=model())
    resumed.fit(2, resume=True)
    states = unbroken.model.state_dict(), resumed.model.state_dict()
    assert states[0].keys() == states[1].keys() and all(map(torch.equal, *map(dict.values, states)))


def test_data_are_described_by_their_ends_and_never_copied_whole():
    large = torch.zeros(1, 1).expand(10**6, 10**6)  # four terabytes, if it were flattened
    found = program._describe_loader(DataLoader(TensorDataset(large), 4))
    assert "[1000000, 1000000]: [0.0, 0.0, 0.0, 0.0] ... [0.0, 0.0, 0.0, 0.0]" in str(found)
