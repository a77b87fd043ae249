"""Passes inside a fit, started at any of its events, leave no trace."""

import contextlib
import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from toys import POINTS, assert_same_weights

from minilearn.callbacks import averaging
from minilearn.callbacks.averaging import EMACB, SWACB
from minilearn.callbacks.handlers import LambdaCB
from minilearn.callbacks.limits import LimitBatchesCB
from minilearn.callbacks.training import TrainCB
from minilearn.core import learner
from minilearn.core import nested as scope
from minilearn.core.callback import Callback
from minilearn.data.loaders import DataLoaders
from minilearn.learner import Learner
from minilearn.metrics.callback import MetricsCB
from minilearn.metrics.functions import accuracy
from minilearn.optim import freeze as freezing
from minilearn.optim import optimizer as optimizers
from minilearn.optim.optimizer import optimizer
from minilearn.optim.sched_callbacks import BatchSchedCB


def small_model():
    """Everything that a forward pass could change: running statistics, dropout, a frozen layer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.BatchNorm1d(8)
    )
    model.add_module("head", nn.Linear(8, 2))
    model[4].eval()
    return model


def small_dls(kind="arrays"):
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(15, 3, generator=g), torch.randint(0, 2, (15,), generator=g)
    if kind == "arrays":
        return DataLoaders.from_arrays(x, y, bs=4, valid_pct=0.34)
    train = DataLoader(TensorDataset(x[:10], y[:10]), 4, shuffle=True)
    return DataLoaders(train, DataLoader(TensorDataset(x[10:], y[10:]), 4))


class Seen:
    """A metric object with state of its own: the sum of all targets, batch by batch."""

    joins = True

    def __init__(self):
        self.reset()

    def reset(self):
        self.sums = []

    def update(self, preds, targs):
        self.sums.append(targs.sum().item())

    def compute(self):
        return float(sum(self.sums))


class KeepsLists(Callback):
    """Takes part in probes, and collects in lists, dicts and counters."""

    def __init__(self):
        self.seen, self.by_pass, self.total = [], {}, 0

    def before_batch(self, learn):
        self.seen.append(learn.iter)
        self.by_pass[learn.training] = len(self.seen)
        self.total += 1


def small_learner(kind="arrays", cbs=()):
    """A Learner; the kind "torch" has torch's loaders and an optimizer that outlives its fits."""
    cbs = [TrainCB(), MetricsCB(accuracy=accuracy, seen=Seen()), KeepsLists(), *cbs]
    cbs[1]._log = lambda row: None
    model = small_model()
    opt = optim.Adam(model.parameters(), 0.05) if kind == "torch" else None
    made = {"opt_func": optim.Adam} if opt is None else {"opt": opt}
    return Learner(model, small_dls(kind), F.cross_entropy, 0.05, cbs, **made)


def everything(learn):
    """All that an epoch could disturb, by name, as text."""
    torch_opt = isinstance(learn.opt, optim.Optimizer)
    skipped = {"cbs", "stream", "dls", "opt", "model", "_table", "_owners", "plan", "metrics"}
    found = {
        "weights": learn.model.state_dict(),
        "modes": [m.training for m in learn.model.modules()],
        "grads": [p.grad for p in learn.model.parameters()],
        "versions": [t._version for t in learn.model.state_dict(keep_vars=True).values()],
        "grad mode": torch.is_grad_enabled(),
        "opt": (id(learn.opt), learn.opt.state_dict() if torch_opt else None),
        "cbs": [id(cb) for cb in learn.cbs],
        "handlers": {event: methods for event, methods in learn._table.items()},
        "random": [random.getstate(), str(np.random.get_state()), torch.get_rng_state()],
    }
    found |= {f"learn.{k}": v for k, v in vars(learn).items() if k not in skipped}
    for cb in learn.cbs:
        name = type(cb).__name__
        found |= {f"{name}.{k}": v for k, v in vars(cb).items() if not callable(v)}
        for metric_name, metric in getattr(cb, "all_metrics", {}).items():
            found[f"metric {metric_name}"] = vars(metric)
        if (feed := getattr(cb, "feed", None)) is not None:
            found["feed"] = vars(feed)
    for name in ("train", "valid"):
        places = {k: v for k, v in vars(learn.dls[name]).items() if k in ("epoch", "seed")}
        found[name] = (places, id(getattr(learn.dls[name], "_iterator", None)))
    return {name: plain(value) for name, value in found.items()}


def plain(x):
    if isinstance(x, torch.Tensor):
        return str(x.detach().flatten().tolist()) + str(x.grad_fn)
    if isinstance(x, dict):
        return str([(str(k), plain(v)) for k, v in x.items()])
    if isinstance(x, (list, tuple)):
        return str([plain(v) for v in x])
    return repr(x)


def look_around(learn):
    learn.validate()
    learn.get_preds(learn.dls.train, with_loss=True)
    next(learn.iter_preds())
    learn.dry_run()


def check_nothing_changes(learn, call):
    before = everything(learn)
    call(learn)
    assert everything(learn) == before


@pytest.mark.parametrize("kind", ["arrays", "torch"])
def test_calls_before_and_after_a_fit_change_nothing(kind):
    learn = small_learner(kind)
    check_nothing_changes(learn, look_around)
    learn.fit(1)
    check_nothing_changes(learn, look_around)


@pytest.mark.case("C141")
@pytest.mark.parametrize("kind", ["arrays", "torch"])
@pytest.mark.parametrize("event", POINTS)
def test_calls_at_any_event_of_a_fit_change_nothing(event, kind):
    learn, plain_learn = small_learner(kind), small_learner(kind)
    torch.manual_seed(1)
    plain_learn.fit(2)
    times = []

    def look(learn):
        if not learn.depth and len(times) < 5:
            times.append(learn.training)
            check_nothing_changes(learn, look_around)

    torch.manual_seed(1)
    with learn.on(event, look):
        learn.fit(2)
    assert times
    assert_same_weights(learn.model, plain_learn.model)
    ours, theirs = ([{**row, "time": 0} for row in x.history] for x in (learn, plain_learn))
    assert ours == theirs
    assert learn.cbs[2].seen == plain_learn.cbs[2].seen


@pytest.mark.parametrize(
    "part",
    ["_undo_attributes", "_undo_grads", "keep", "_undo_opt", "preserved_random_states"],
)
@pytest.mark.case("C141")
def test_each_part_of_the_scope_is_needed(part, monkeypatch):
    """The check above fails where the scope forgets one thing."""
    forget = lambda *args, **kwargs: lambda: None  # noqa: E731
    if part == "preserved_random_states":
        forget = contextlib.nullcontext
    learn = small_learner("torch")
    with pytest.raises((AssertionError, RuntimeError, TypeError)):
        with learn.on("after_backward", lambda x: check_nothing_changes(x, look_around), once=True):
            monkeypatch.setattr(scope, part, forget)
            learn.fit(1)


@pytest.mark.case("C141")
@pytest.mark.parametrize("kind", ["arrays", "torch"])
def test_how_often_one_validates_does_not_change_the_training(kind):
    def weights(valid=True, first=lambda learn: None, **kwargs):
        learn = small_learner(kind)
        torch.manual_seed(7)
        first(learn)
        learn.fit(2, valid=valid, **kwargs)
        return learn.model

    never = weights(valid=False)
    for model in (
        weights(),
        weights(valid_every=2),
        weights(first=lambda learn: learn.validate()),
        weights(first=lambda learn: learn.validate(learn.dls.train)),
        weights(first=lambda learn: learn.get_preds(learn.dls.train)),
    ):
        assert_same_weights(model, never)


@pytest.mark.case("C141")
def test_that_check_sees_a_validation_that_draws(monkeypatch):
    monkeypatch.setattr(learner, "preserved_random_states", contextlib.nullcontext)
    # only a validation that draws shows the fault: one over a shuffled torch loader does
    with pytest.raises(AssertionError):
        test_how_often_one_validates_does_not_change_the_training("torch")


@pytest.mark.case("C123")
def test_modes_and_gradients_survive_an_error_in_a_nested_run():
    def check(learn):
        modes = [m.training for m in learn.model.modules()]
        for call in (learn.validate, learn.get_preds, learn.dry_run):
            with pytest.raises(ZeroDivisionError):
                call(cbs=Raises())
            assert [m.training for m in learn.model.modules()] == modes
            assert torch.is_grad_enabled()

    class Raises(Callback):
        def after_predict(self, learn):
            raise ZeroDivisionError

    learn = small_learner()
    check(learn)

    real_fit = learn.fit

    def fit_that_leaves_eval(*args, **kwargs):
        try:
            real_fit(*args, **kwargs)
        finally:
            learn.model.eval()

    learn.fit = fit_that_leaves_eval
    with pytest.raises(AssertionError):
        check(learn)


@pytest.mark.case("C123")
def test_the_model_trains_in_training_mode_whatever_validations_happen_between():
    def check(validate):
        learn, modes = small_learner(), []

        class Look(Callback):
            in_probe = False

            def before_batch(self, learn):
                if learn.training:
                    modes.append([m.training for m in learn.model.modules()])

        with learn.on("after_batch", validate, every=2):
            learn.fit(2, cbs=Look())
        assert len(modes) == 6
        assert all(mode == [True] * 5 + [False, True] for mode in modes)

    check(lambda learn: learn.validate())
    with pytest.raises(AssertionError):
        check(lambda learn: learn.model.eval())  # a validation by hand


def test_a_dry_run_makes_schedules_for_the_whole_fit_and_takes_them_back():
    lengths = []

    def sched(opt, total_steps=None):
        lengths.append(total_steps)
        return optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=total_steps)

    cb = BatchSchedCB(sched)
    learn = small_learner(cbs=[cb])
    before = dict(vars(cb))
    learn.dry_run()
    assert set(lengths) == {3}  # batches of an epoch, not the one that was run
    assert vars(cb).keys() == before.keys()


def test_a_dry_run_gives_writers_a_folder_of_their_own(tmp_path, capsys):
    found = []

    class Writes(Callback):
        def after_round(self, learn):
            (learn.scratch / "file").write_text("x")
            found.append(learn.scratch)
            print("noise")

    learn = small_learner(cbs=[Writes()])
    learn.dry_run()
    assert not found[0].exists()
    assert learn.scratch is None
    assert capsys.readouterr().out == (
        "dry run: one batch of training and validation went through 4 callbacks\n"
    )


def test_a_dry_run_shows_errors_with_their_place():
    class Faulty(Callback):
        def after_epoch(self, learn):
            raise KeyError("bad name")

    learn = small_learner(cbs=[Faulty()])
    with pytest.raises(KeyError) as e:
        learn.dry_run()
    assert "Faulty.after_epoch" in e.value.__notes__[0]
    assert not learn.history and learn.levels == ()


def test_a_dry_run_runs_one_batch_of_training_and_of_validation():
    learn, seen = small_learner(), []
    learn.on("after_batch", lambda learn: seen.append((learn.training, learn.iter)))
    learn.dry_run()
    assert seen == [(True, 0), (False, 0)]


@pytest.mark.parametrize("event", ["before_batch", "cleanup_batch", "after_predict"])
def test_a_callback_in_the_middle_of_an_event_does_not_start_itself_again(event):
    depths = []

    def look(learn):
        depths.append(learn.depth)
        learn.validate()

    class Validates(Callback):
        in_probe = True

    setattr(Validates, event, lambda self, learn: look(learn))
    small_learner(cbs=[Validates()]).fit(1)
    assert set(depths) == {0}
    small_learner(cbs=[LambdaCB(**{event: look})]).fit(1)
    assert set(depths) == {0}


def test_nor_does_one_that_is_added_in_the_middle_of_a_fit():
    depths = []

    class Validates(Callback):
        in_probe = True

        def before_fit(self, learn):
            depths.append(learn.depth)
            learn.validate()

    learn = small_learner()
    learn.on("after_batch", lambda learn: learn.add_cb(Validates()), once=True)
    learn.fit(1)
    assert depths == [0]


def test_endless_nesting_is_an_error_that_says_what_to_do():
    class Validates(TrainCB):
        def after_batch(self, learn):
            learn.validate()

    learn = Learner(small_model(), small_dls(), F.cross_entropy, 0.1, [Validates()])
    with pytest.raises(RuntimeError, match="learn.depth"):
        learn.fit(1)
    assert learn.depth == 0 and learn.levels == ()


def test_an_epoch_over_a_loader_with_living_workers_goes_on_after_one_inside_it():
    """Such a loader has one iterator: a second epoch over it would start the first one anew."""
    data = TensorDataset(torch.arange(12.0)[:, None], torch.zeros(12, 1))
    train = DataLoader(data, 3, num_workers=1, persistent_workers=True)
    learn = Learner(nn.Linear(1, 1), (train, train), F.mse_loss, 0.01, [TrainCB()])
    seen = []

    def look(learn):
        if not learn.depth:
            seen.extend(learn.batch[0].flatten().tolist())
            if learn.iter == 1:
                learn.validate()

    learn.on("after_batch", look)
    learn.fit(1, valid=False)
    assert seen == list(range(12))
    train._iterator = None  # ends the workers


def test_limits_are_for_fits_not_for_nested_runs():
    learn = small_learner(cbs=[LimitBatchesCB(1, 1)])
    preds = []
    learn.on("after_round", lambda learn: preds.append(learn.get_preds()[0]))
    learn.fit(1)
    assert len(preds[0]) == 5


def test_an_attribute_that_cannot_be_copied_does_no_harm():
    class Bar:
        def __init__(self):
            self.lock, self.n = threading.Lock(), 0

        def reset(self):
            self.n = 0

    class HasBar(Callback):
        def __init__(self):
            self.bar = Bar()

        def before_batch(self, learn):
            self.bar.n += 1

    learn = small_learner(cbs=[HasBar()])
    learn.validate()
    assert learn.cbs[-1].bar.n == 0


class CountsPasses:
    """A loader that changes with each epoch over it, and has a state to save and load."""

    def __init__(self, batches):
        self.batches, self.passes = batches, 0

    def __iter__(self):
        self.passes += 1
        return iter(self.batches)

    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"]


def test_loaders_and_generators_stay_where_they_were():
    data = TensorDataset(torch.randn(8, 3), torch.arange(8) % 2)
    batches = list(DataLoader(data, 4))
    counts = CountsPasses(batches)
    shuffled = DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(2))
    learn = Learner(small_model(), (batches, batches), F.cross_entropy, 0.1, [TrainCB()])
    state = shuffled.generator.get_state()
    for dl in (counts, shuffled):
        learn.validate(dl)
        learn.get_preds(dl)
    assert counts.passes == 0
    assert torch.equal(shuffled.generator.get_state(), state)


class Total:
    """Adds up, as a metric does."""

    def __init__(self, within=None):
        self.n, self.seen, self.within = 0, [], within

    def reset(self):
        self.n = 0


def test_metrics_that_refer_to_each_other_do_so_in_a_nested_run_too():
    class Measures(Callback):
        in_probe = True

        def __init__(self):
            self.total = Total()
            self.all = Total(self.total)

        def after_batch(self, learn):
            self.total.n += 1
            self.total.seen.append(learn.iter)

        def after_epoch(self, learn):
            seen.append((self.all.within is self.total, self.all.within.n))

    seen, measures = [], Measures()
    learn = small_learner(cbs=[measures])
    learn.validate(learn.dls.train)
    assert seen == [(True, 3)]
    assert (
        measures.total.n == 0
        and measures.total.seen == []
        and measures.all.within is measures.total
    )


def test_models_and_classes_with_a_reset_are_no_metrics():
    class Net(nn.Linear):
        calls = 0

        def reset(self): ...

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    class HoldsThem(Callback):
        in_probe = True

        def __init__(self, net, kind):
            self.net, self.kind = net, kind

        def after_predict(self, learn):
            self.net(learn.batch[0])
            self.kind.seen = learn.iter

    class Kind(Total): ...

    net = Net(3, 2)
    learn = small_learner(cbs=[HoldsThem(net, Kind)])
    learn.validate(learn.dls.train)
    assert net.calls == 3 and Kind.seen == 2


def test_a_probe_leaves_the_settings_of_the_optimizer_as_they_were():
    learn = small_learner("torch")  # whose optimizer the nested run uses, too
    seen = []

    def probe(learn):
        group = learn.opt.param_groups[0]
        before = dict(group)
        learn.dry_run(cbs=LambdaCB(after_step=lambda o: o.opt.param_groups[0].update(extra=1)))
        seen.append(learn.opt.param_groups[0] is group and dict(group) == before)

    learn.on("after_batch", probe, once=True)
    learn.fit(1)
    assert seen == [True]


def lazy_model():
    return nn.Sequential(
        nn.LazyLinear(4), nn.LazyBatchNorm1d(affine=False), nn.ReLU(), nn.LazyLinear(2)
    )


def lazy_learner(*cbs, **kwargs):
    learn = Learner(lazy_model(), small_dls(), F.cross_entropy, cbs=[TrainCB(), *cbs], **kwargs)
    torch.manual_seed(5)
    return learn


LAZY = {
    "averages": lambda: lazy_learner(EMACB(0.9)).fit(1),
    "late averages": lambda: lazy_learner(SWACB(start=0)).fit(1),
    "dry run": lambda: lazy_learner().dry_run(),
    "lr search": lambda: lazy_learner().lr_find(max_mult=1e9, plot=False),
    "batch size": lambda: lazy_learner().find_batch_size(4, 8),
    "diagnosis": lambda: lazy_learner().diagnose(3),
    "freeze by name": lambda: lazy_learner().freeze("0"),
    "freeze by number": lambda: lazy_learner().freeze_to(-1),
    "fine tuning": lambda: lazy_learner().fine_tune(1),
    "weight decay": lambda: lazy_learner(opt_func=optimizer("adamw", wd=0.1)).fit(1),
}


@pytest.mark.case("F05")
@pytest.mark.parametrize("call", LAZY)
def test_a_first_batch_makes_the_weights_of_lazy_layers(call):
    LAZY[call]()


UNDONE = ("dry run", "lr search", "batch size", "diagnosis")  # what they undo takes lazy weights


@pytest.mark.case("F05")
@pytest.mark.parametrize("call", [call for call in LAZY if call not in UNDONE])
def test_lazy_layers_that_nobody_makes_would_be_seen(call, monkeypatch):
    for module in (scope, averaging, freezing, optimizers):
        monkeypatch.setattr(module, "make_lazy_weights", lambda learn: None)
    with pytest.raises(ValueError, match="uninitialized parameter"):
        LAZY[call]()


@pytest.mark.case("F05")
def test_weights_of_lazy_layers_are_those_that_a_run_by_hand_makes_and_nothing_else_changes():
    learn, by_hand = lazy_learner(), lazy_model()
    learn.dls = [(torch.zeros(1, 3), torch.zeros(1).long())], None
    by_hand.eval()(torch.zeros(1, 3))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    scope.make_lazy_weights(learn)
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in by_hand.state_dict().items():
        assert torch.equal(learn.model.state_dict()[name], value), name


@pytest.mark.case("F05")
def test_lazy_layers_without_data_say_so():
    learn = Learner(lazy_model(), cbs=[TrainCB()])
    with pytest.raises(Exception) as error:
        learn.freeze("0")
    assert any("lazy layers" in note for note in error.value.__notes__)
    learn.dls = iter(small_dls().train), None
    with pytest.raises(ValueError, match="would lose that batch: run one"):
        learn.freeze("0")
    learn.model(torch.zeros(2, 3))
    learn.freeze("0")


# ---- state that is in no state_dict ----

CALLS = ("dry_run", "lr_find", "find_batch_size", "summary", "validate", "get_preds")
OPTIONS = {"lr_find": {"plot": False}}


class Memory(nn.Module):
    """Its buffers grow, are filled, and are replaced in any forward pass."""

    def __init__(self):
        super().__init__()
        self.layer, self.extra = nn.Linear(4, 1), 0
        self.register_buffer("grown", torch.zeros(0, 4))
        self.register_buffer("resized", torch.zeros(0), persistent=False)
        self.register_buffer("mean", None)

    def get_extra_state(self):
        return {"calls": self.extra}

    def set_extra_state(self, state):
        self.extra = state["calls"]

    def forward(self, x):
        with torch.no_grad():
            self.grown = torch.cat([self.grown, x])
            self.resized.resize_(len(self.resized) + 1).fill_(1)
            self.mean = x.mean(0)
        self.extra += 1
        return self.layer(x).squeeze(-1)


class Centered(nn.Module):
    """A loss that moves in each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(1))
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, preds, targets):
        self.center += 1
        return ((preds - self.weight * targets.float().reshape(preds.shape)) ** 2).mean()


def check_undone(call):
    """F24, F06: what a nested run filled, resized or moved in model and loss is as it was."""
    model, loss = Memory(), Centered()
    x = torch.randn(16, 4)
    dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), 4)
    learn = Learner(model, DataLoaders(dl, dl), loss, cbs=[TrainCB()], lr=0.01)
    with contextlib.suppress(ValueError):  # lr_find may have no answer
        getattr(learn, call)(**OPTIONS.get(call, {}))
    assert model.grown.shape == (0, 4) and model.resized.shape == (0,) and model.mean is None
    assert model.extra == 0 and loss.center.item() == 0 and loss.weight.item() == 1


@pytest.mark.case("F06")
@pytest.mark.case("F23")
@pytest.mark.case("F24")
@pytest.mark.parametrize("call", CALLS)
def test_nested_runs_put_back_buffers_of_every_kind_and_the_loss(call):
    check_undone(call)


@pytest.mark.case("F06")
@pytest.mark.case("F23")
@pytest.mark.case("F24")
def test_the_check_notices_modules_that_are_not_kept(monkeypatch):
    monkeypatch.setattr(scope, "keep", lambda *args, **kwargs: lambda: None)
    with pytest.raises(AssertionError):
        check_undone("validate")


def check_random_states(call):
    """F26: no random state moves, neither the global ones nor that of the loader."""
    generator = torch.Generator().manual_seed(3)
    data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    for own in (None, generator):
        dl = torch.utils.data.DataLoader(data, 4, shuffle=True, generator=own)
        learn = Learner(nn.Linear(4, 1), DataLoaders(dl, dl), cbs=[TrainCB()], lr=0.01)
        before = torch.get_rng_state(), generator.get_state()
        with contextlib.suppress(ValueError):
            call(learn)
        assert torch.equal(before[0], torch.get_rng_state())
        assert torch.equal(before[1], generator.get_state())


@pytest.mark.case("F26")
@pytest.mark.parametrize("call", CALLS)
def test_no_call_moves_a_random_state(call):
    check_random_states(lambda learn: getattr(learn, call)(**OPTIONS.get(call, {})))


@pytest.mark.case("F26")
def test_the_check_notices_a_loader_that_draws_a_seed():
    with pytest.raises(AssertionError):
        check_random_states(lambda learn: next(iter(learn.dls.train)))
