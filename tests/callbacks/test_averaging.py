"""Averages of the weights: their values, when the model is evaluated with them, their removal."""

import copy
import csv
import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.optim.swa_utils import (
    AveragedModel,
    get_ema_multi_avg_fn,
    get_swa_multi_avg_fn,
    update_bn,
)
from toys import At, Before, assert_same_weights, batches, linear, toy_learner

from minilearn import (
    EMACB,
    SWACB,
    BatchSchedCB,
    Callback,
    CancelBatchException,
    CancelFitException,
    CancelStepException,
    CheckpointCB,
    ClipGradCB,
    CSVLoggerCB,
    CutMixCB,
    EarlyStopCB,
    GradAccumCB,
    JSONLLoggerCB,
    Learner,
    LimitBatchesCB,
    MetricsCB,
    MixedPrecision,
    MixUpCB,
    Order,
    ProgressCB,
    TrainCB,
    precise_bn,
)
from minilearn.callbacks import averaging
from minilearn.callbacks.averaging import _Averages, validated_state


def mlp(dropout=0.0):
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1)
    )


class Weights(Callback):
    """Keeps a copy of the model's state after each update, and of what each validation used."""

    order = Order.SCHEDULE + 2
    in_probe = True

    def __init__(self):
        self.live, self.judged, self.averaged = [], [], []

    def after_step(self, learn):
        self.live.append(copy.deepcopy(learn.model.state_dict()))
        for cb in learn.cbs:
            if isinstance(cb, _Averages) and cb.n_averaged:
                self.averaged.append(cb.averaged_state_dict())

    def after_predict(self, learn):
        if not learn.training:
            self.judged.append(copy.deepcopy(learn.model.state_dict()))


def same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a
    )


# ---- the average itself ----


class CountUp:
    """An optimizer that sets each weight to the number of the update."""

    def __init__(self, params, lr):
        self.params, self.k = list(params), 0
        self.param_groups = [{"params": self.params, "lr": lr}]

    def step(self):
        self.k += 1
        for p in self.params:
            p.data.fill_(self.k)

    def zero_grad(self):
        for p in self.params:
            p.grad = None


class Skip(Callback):
    """Skips the second and third update of all."""

    order = Order.GRADIENT

    def before_step(self, learn):
        if learn.iter // 2 in (1, 2):
            learn.clear_grads()
            raise CancelStepException


class EachBatch(EMACB):
    """Broken: takes in the weights of each batch, whether there was an update or not."""

    after_step = None

    def after_batch(self, learn):
        if learn.training:
            EMACB.after_step(self, learn)


def averages_of_counted_weights(ema, n=8, cbs=()):
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    seen = []
    look = At("after_batch", lambda learn: seen.append(ema._averages["weight"].item()), times=99)
    data = batches(n, n_in=1)
    learn = Learner(model, (data,), F.mse_loss, cbs=[TrainCB(), GradAccumCB(2), ema, *cbs, look])
    learn.opt_func = CountUp
    learn.fit(1)
    return seen[1::2], learn


def check_once_an_update(make):
    assert averages_of_counted_weights(make(0.5, False))[0] == [0.5, 1.25, 2.125, 3.0625]
    # 12 batches make 6 updates of which 2 are skipped
    skipped, learn = averages_of_counted_weights(make(0.5, False), n=12, cbs=[Skip()])
    assert skipped == [0.5, 0.5, 0.5, 1.25, 2.125, 3.0625]
    assert learn.steps_done == 4


@pytest.mark.case("C104")
def test_an_average_takes_in_each_update_once():
    check_once_an_update(EMACB)


@pytest.mark.case("C104")
def test_an_average_a_batch_would_be_seen():
    with pytest.raises(AssertionError):
        check_once_an_update(EachBatch)


def test_the_moving_average_equals_torchs_to_the_bit():
    model = mlp()
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    theirs.update_parameters(model)  # the first one copies
    ema = EMACB(0.9, warmup=False)
    update = At("after_step", lambda learn: theirs.update_parameters(learn.model), times=99)
    toy_learner([ema, update], model=model).fit(3)
    ours = ema.averaged_state_dict()
    assert ema.n_averaged == 6
    for name, p in theirs.module.named_parameters():
        assert torch.equal(ours[name], p)


def test_equal_weights_equal_torchs_to_the_bit_from_the_start_on():
    model = mlp()
    theirs = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())
    cb = SWACB(0.5)
    late = lambda learn: learn.steps_done > 4  # noqa: E731  of 8
    update = At("after_step", lambda learn: theirs.update_parameters(learn.model), late, times=99)
    toy_learner([cb, update], model=model).fit(4)
    ours = cb.averaged_state_dict()
    assert cb.n_averaged == 4
    for name, p in theirs.module.named_parameters():
        assert torch.equal(ours[name], p)


def test_weights_may_be_taken_in_every_so_many_updates_after_a_number_of_them():
    weights, cb = Weights(), SWACB(2, every=3)
    toy_learner([cb, weights], (batches(9), None)).fit(1)
    assert cb.n_averaged == 2  # updates 5 and 8
    mean = (weights.live[4]["weight"] + weights.live[7]["weight"]) / 2
    torch.testing.assert_close(cb.averaged_state_dict()["weight"], mean)


def test_the_warm_up_follows_its_formula():
    """decay = min(0.9, 1 - (1 + t)^(-2/3)), so the first update is copied."""
    weights, ema = Weights(), EMACB(0.9)
    toy_learner([ema, weights], (batches(40), None)).fit(1)
    average = torch.zeros(1, 3)
    for t, state in enumerate(weights.live):
        decay = min(0.9, 1 - (1 + t) ** (-2 / 3))
        average = decay * average + (1 - decay) * state["weight"]
    torch.testing.assert_close(ema.averaged_state_dict()["weight"], average)
    assert torch.equal(weights.averaged[0]["weight"], weights.live[0]["weight"])


@pytest.mark.parametrize(("cb", "label"), [(EMACB(0.9), "EMA"), (SWACB(3), "SWA")])
def test_the_table_says_which_figures_are_those_of_averages(cb, label, capsys):
    learn = toy_learner([cb, MetricsCB(), ProgressCB()])
    learn.fit(3)
    begun = [True] * 3 if label == "EMA" else [False, True, True]  # two updates a round
    assert learn.history["weights"] == [label if averaged else None for averaged in begun]
    lines = [label in line.split() for line in capsys.readouterr().out.splitlines()[-3:]]
    assert lines == begun
    plain = toy_learner([MetricsCB(quiet=True)])
    plain.fit(1)
    assert "weights" not in plain.history.columns


def test_printed_rows_and_files_say_so_too(capsys, tmp_path):
    loggers = [CSVLoggerCB(tmp_path / "a.csv"), JSONLLoggerCB(tmp_path / "a.jsonl")]
    toy_learner([SWACB(3), MetricsCB(), *loggers]).fit(3)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[-1] == "SWA" for row in rows if row[2] != "train"] == [False, True, True]
    assert not any("SWA" in row for row in rows if row[2] == "train")
    with (tmp_path / "a.csv").open() as file:
        assert [row["weights"] for row in csv.DictReader(file)] == ["", "SWA", "SWA"]
    saved = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row.get("weights") for row in saved] == [None, "SWA", "SWA"]


def test_a_short_fit_has_averages_that_follow_it_unless_the_warm_up_is_off():
    """Towards 1 from 0: after 20 updates the plain average is still where the fit began."""
    lag = {}
    for warmup in (True, False):
        _, learn = averages_of_counted_weights(EMACB(0.999, warmup), n=40)
        ema = learn.find(EMACB)
        lag[warmup] = 1 - ema._averages["weight"].item() / 20
        assert repr(ema) == f"EMACB(0.999, warmup={warmup})"
    assert lag[True] < 0.35 and lag[False] > 0.98
    assert EMACB().warmup


def test_a_model_in_half_precision_is_averaged_in_full():
    model = linear().to(torch.bfloat16)
    start = model.weight.detach().float().clone()
    data = [(x.bfloat16(), y.bfloat16()) for x, y in batches(300)]
    ema = EMACB(0.999, warmup=False)
    Learner(model, (data,), F.mse_loss, 0.1, cbs=[TrainCB(), ema]).fit(1)
    moved = (ema._averages["weight"] - start).abs().max().item()
    assert ema._averages["weight"].dtype == torch.float32
    assert moved > 0.001  # in bfloat16 a weight of 0.001 is rounded away, and nothing ever moves
    assert ema.averaged_state_dict()["weight"].dtype == torch.bfloat16


def test_bad_settings_raise():
    for make in (
        lambda: EMACB(1.0),
        lambda: EMACB(-0.1),
        lambda: SWACB(1.0),
        lambda: SWACB(-1),
        lambda: SWACB(0.5, every=0),
    ):
        with pytest.raises(ValueError, match="got"):
            make()


def test_a_fraction_of_an_unknown_number_of_updates_raises():
    class Endless:
        def __iter__(self):
            return iter(batches(2))

    with pytest.raises(ValueError, match="whose number is unknown"):
        toy_learner([SWACB(0.5)], (Endless(), None)).fit(1)


# ---- together with every other recipe ----

RECIPES = {
    "accumulation": lambda: GradAccumCB(2),
    "clipping": lambda: ClipGradCB(0.1),
    "bf16": lambda: MixedPrecision("bf16"),
    "fp16": lambda: MixedPrecision("fp16"),
    "one cycle": lambda: BatchSchedCB(partial(lr_scheduler.OneCycleLR, max_lr=0.1)),
    "mixup": lambda: MixUpCB(),
    "early stop": lambda: EarlyStopCB(patience=1, min_delta=9.0),
    "swa": lambda: SWACB(0.5),
}


@pytest.mark.filterwarnings("ignore:.*not finite")
@pytest.mark.parametrize("recipe", RECIPES)
def test_with_any_recipe_the_training_is_the_same_and_the_average_is_that_of_its_updates(recipe):
    runs = []
    for cbs in ([], [EMACB(0.9, warmup=False)]):
        weights = Weights()
        learn = toy_learner(
            [*cbs, RECIPES[recipe](), weights, MetricsCB()],
            (batches(5), batches(2)),
            mlp(0.2),
            opt_func=partial(optim.SGD, momentum=0.9),
        )
        torch.manual_seed(3)
        learn.fit(4)
        runs.append(weights)
    plain, averaged = runs
    assert len(plain.live) == len(averaged.live) > 0
    assert all(same(a, b) for a, b in zip(plain.live, averaged.live, strict=True))
    expected = [p.detach().clone() for p in mlp().parameters()]
    names = [name for name, _ in mlp().named_parameters()]
    for state in plain.live:
        torch._foreach_lerp_(expected, [state[name] for name in names], 1 - 0.9)
    ours = learn.find(EMACB).averaged_state_dict()
    assert all(torch.equal(ours[n], e) for n, e in zip(names, expected, strict=True))


# ---- buffers ----


def check_buffers(learn, weights):
    learn.fit(2)
    assert len(weights.averaged) == 4
    for live, averaged in zip(weights.live, weights.averaged, strict=True):
        for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
            assert torch.equal(live[name], averaged[name])
            assert live[name].dtype == averaged[name].dtype
    assert averaged["1.num_batches_tracked"].dtype == torch.int64
    # the validation of epoch 0 used them, with the weights of update 2
    assert same(weights.judged[0], weights.averaged[1])


@pytest.mark.case("C105")
def test_buffers_of_the_average_are_the_live_ones():
    weights = Weights()
    check_buffers(toy_learner([EMACB(0.5, warmup=False), weights], model=mlp()), weights)


class AveragesBuffers(EMACB):
    """Broken: running statistics stay as they were when averaging began."""

    def _begin(self, learn):
        super()._begin(learn)
        self._stats = {name: b.clone() for name, b in learn.model.named_buffers()}


@pytest.mark.case("C105")
def test_stale_buffers_would_be_seen():
    weights = Weights()
    with pytest.raises(AssertionError):
        check_buffers(toy_learner([AveragesBuffers(0.5), weights], model=mlp()), weights)


# ---- in and out ----

ENDS = {
    "normal": [],
    "an error": [("after_loss", ValueError("no"))],
    "an error in the first handler": [("before_epoch", ValueError("no"))],
    "a cancelled batch": [("after_predict", CancelBatchException)],
    "a cancelled fit": [("after_loss", CancelFitException)],
    "an interrupt": [("after_predict", KeyboardInterrupt())],
    "an error in a clean-up": [("cleanup_epoch", ValueError("no"))],
}


class AroundValidation(Callback):
    """Compares the weights before and after each validation, outermost of all."""

    order = -999

    def before_epoch(self, learn):
        if not learn.training:
            self.before = copy.deepcopy(learn.model.state_dict())
            self.params = list(learn.model.parameters())
            self.groups = [p for group in learn.opt.param_groups for p in group["params"]]

    def cleanup_epoch(self, learn):
        if not learn.training:
            self.after = copy.deepcopy(learn.model.state_dict())
            groups = [p for group in learn.opt.param_groups for p in group["params"]]
            for mine, now in ((self.params, learn.model.parameters()), (self.groups, groups)):
                assert all(a is b for a, b in zip(mine, now, strict=True))


def check_swapped_out(ema, ends):
    weights, around = Weights(), AroundValidation()
    only_valid = lambda learn: not learn.training and learn.epoch == 1  # noqa: E731
    cbs = [At(event, do, only_valid) for event, do in ends]
    learn = toy_learner([ema, weights, around, *cbs], model=mlp())
    state = Before(learn)
    try:
        learn.fit(2)
    except (ValueError, KeyboardInterrupt):
        pass
    assert same(around.before, around.after)
    assert same(weights.live[-1], learn.model.state_dict())
    state.assert_fit_left_nothing()


@pytest.mark.case("C106")
@pytest.mark.parametrize("end", ENDS)
def test_after_a_validation_the_live_weights_are_back_however_it_ended(end):
    check_swapped_out(EMACB(0.5, warmup=False), ENDS[end])


@pytest.mark.case("C106")
def test_weights_that_are_not_put_back_would_be_seen():
    class Stays(EMACB):
        def cleanup_epoch(self, learn):
            if learn.error is None:
                super().cleanup_epoch(learn)

    check_swapped_out(Stays(0.5), [])
    with pytest.raises(AssertionError):
        check_swapped_out(Stays(0.5), ENDS["an error"])


def test_validations_use_the_averages_once_there_are_some():
    weights = Weights()
    learn = toy_learner([SWACB(2), weights], model=mlp())
    learn.fit(2)
    assert same(weights.judged[0], weights.live[1])  # it begins with the third update
    assert same(weights.judged[1], weights.averaged[1])
    assert not same(weights.averaged[1], weights.live[3])


def test_validate_and_get_preds_use_the_weights_that_the_fit_validated():
    ema, metrics = EMACB(0.5, warmup=False), MetricsCB()
    learn = toy_learner([ema, metrics], model=mlp())
    learn.fit(2)
    assert learn.validate().loss == learn.history["valid_loss"][-1]
    with ema.swapped(), torch.no_grad():
        expected = learn.model.eval()(learn.dls[1][0][0])
    assert torch.equal(learn.get_preds()[0], expected)
    learn.fit(1, train=False)
    assert metrics.rows[-1]["loss"] == learn.validate().loss


def test_a_model_that_can_be_reset_is_validated_with_its_averages_too():
    """It is no metric, of which a validation would use a copy."""

    class Recurrent(nn.Linear):
        def reset(self):
            """Forget a hidden state."""

    learn = toy_learner([EMACB(0.5, warmup=False), MetricsCB()], model=Recurrent(3, 1))
    learn.fit(2)
    assert learn.validate().loss == learn.history["valid_loss"][-1]


def test_a_validation_in_mid_fit_from_a_callback_uses_them_too_and_leaves_the_fit_alone():
    """Between forward and backward, where a change of the weights would spoil the gradient."""
    weights, results = Weights(), []
    look = At("after_loss", lambda learn: results.append(learn.validate()), times=99)
    learn = toy_learner([EMACB(0.5, warmup=False), weights, look], model=mlp(0.2))
    learn.fit(2)
    plain = Weights()
    toy_learner([plain], model=mlp(0.2)).fit(2)
    assert all(same(a, b) for a, b in zip(plain.live, weights.live, strict=True))
    assert len({r.loss for r in results}) > 2


def test_a_nested_run_inside_the_validation_keeps_the_averages_in():
    weights = Weights()
    look = At("before_batch", lambda learn: learn.validate(), lambda learn: not learn.training)
    ema = EMACB(0.5, warmup=False)
    learn = toy_learner([ema, look, weights], model=mlp())
    learn.fit(1)
    assert all(same(state, weights.averaged[-1]) for state in weights.judged)
    assert same(weights.live[-1], learn.model.state_dict())


def test_probes_that_train_leave_the_averages_alone():
    ema = EMACB(0.5, warmup=False)
    learn = toy_learner([ema], model=mlp())
    learn.fit(1)
    before, live = ema.averaged_state_dict(), copy.deepcopy(learn.model.state_dict())
    learn.dry_run()
    assert ema.n_averaged == 2
    assert same(before, ema.averaged_state_dict())
    assert same(live, learn.model.state_dict())


def test_weights_that_were_loaded_after_the_fit_are_used_themselves():
    learn = toy_learner([EMACB(0.5, warmup=False), MetricsCB()], model=mlp())
    learn.fit(1)
    learn.model.load_state_dict(mlp().state_dict())
    learn.model[0].reset_parameters()
    with torch.no_grad():
        xb, yb = learn.dls[1][0]
        expected = F.mse_loss(learn.model.eval()(xb), yb).item()
    assert learn.validate().loss == pytest.approx(expected)


def test_live_state_gives_the_weights_that_are_trained_during_a_validation_too():
    weights, states = Weights(), []
    valid = lambda learn: not learn.training  # noqa: E731
    look = At("after_predict", lambda learn: states.append(learn.live_state()), valid, times=9)
    learn = toy_learner([EMACB(0.5, warmup=False), SWACB(0), weights, look], model=mlp())
    learn.fit(2)
    assert same(states[0], weights.live[1])
    assert same(states[1], weights.live[3])
    assert not same(states[1], weights.judged[1])
    assert same(learn.live_state(), learn.model.state_dict())


def test_shared_parameters_are_averaged_once_and_named_twice():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = linear(n_in=3, n_out=3)
            self.b = linear(n_in=3, n_out=3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    data = batches(4, n_out=3)
    ema = EMACB(0.5, warmup=False)
    toy_learner([ema], (data, data), Tied()).fit(1)
    state = ema.averaged_state_dict()
    assert torch.equal(state["a.weight"], state["b.weight"])
    assert len(ema.state_dict()["averages"]) == 3


def test_without_averages_there_is_nothing_to_swap_and_their_state_is_an_error():
    ema = EMACB()
    with ema.swapped():
        pass
    with pytest.raises(ValueError, match="averaged nothing yet"):
        ema.averaged_state_dict()


# ---- the end of a fit, the next one, a resume ----


def test_keep_ends_with_the_averages_in_the_model():
    ema = EMACB(0.5, warmup=False, keep=True)
    learn = toy_learner([MetricsCB()], model=mlp())
    learn.fit(2, cbs=ema)
    assert same(learn.model.state_dict(), ema.averaged_state_dict())
    assert learn.validate().loss == learn.history["valid_loss"][-1]


def test_a_second_fit_begins_its_averages_anew():
    ema, weights = EMACB(0.5, warmup=False), Weights()
    learn = toy_learner([ema, weights], (batches(1), batches(1)))
    learn.fit(1)
    start = copy.deepcopy(learn.model.state_dict())
    learn.fit(1)
    expected = (start["weight"] + weights.live[-1]["weight"]) / 2
    torch.testing.assert_close(ema.averaged_state_dict()["weight"], expected)
    assert ema.n_averaged == 1


@pytest.mark.parametrize("when", ["before the fit", "in it"])
@pytest.mark.parametrize("make", [partial(EMACB, 0.9, warmup=True), partial(SWACB, 1)])
def test_stopped_and_resumed_equals_unbroken(make, when):
    whole = make()
    learn = toy_learner([whole])
    learn.fit(3)
    first, second = make(), make()
    learn = toy_learner([first])
    learn.fit(2)
    state = copy.deepcopy(first.state_dict())
    learn.cbs.remove(first)
    learn.add_cb(second)
    second.start = 0  # SWACB counts the updates of its fit
    if when == "before the fit":
        second.load_state_dict(state)
    else:
        train = lambda learn: learn.training  # noqa: E731
        learn.add_cb(At("before_batch", lambda learn: second.load_state_dict(state), train))
    learn.fit(1)
    assert second.n_averaged == whole.n_averaged
    assert same(second.averaged_state_dict(), whole.averaged_state_dict())
    assert same(state["averages"], first.state_dict()["averages"])  # what was loaded is not touched


def evaluated(learn):
    return validated_state(learn)["model"]["state"]


def test_best_weights_are_those_that_were_evaluated():
    weights = Weights()
    states = []
    look = At("after_round", lambda learn: states.append(evaluated(learn)), times=9)
    learn = toy_learner([EMACB(0.5, warmup=False), weights, look], model=mlp())
    learn.fit(2)
    assert all(same(a, b) for a, b in zip(states, weights.judged, strict=True))


# ---- statistics of batch norm ----


def batch_means(model, data):
    """The mean of each channel over each batch, as the second layer of `model` sees it."""
    with torch.no_grad():
        return torch.stack([model[0](x).mean(0) for x, _ in data])


def check_fresh_statistics():
    data = batches(5, size=6) + batches(1, size=3, seed=9)  # a short tail has the same weight
    model = mlp(0.3)
    model[1].momentum = 0.2
    model[3].eval()
    cb = SWACB(0.5)
    learn = toy_learner([cb], (data, batches(1)), model)
    learn.fit(2)
    assert not any(m.training for m in model.modules())  # as the validation left them
    assert model[1].momentum == 0.2
    state = cb.averaged_state_dict()
    averaged = copy.deepcopy(model)
    averaged.load_state_dict(state)
    means = batch_means(averaged, data)
    torch.testing.assert_close(state["1.running_mean"], means.mean(0), rtol=1e-5, atol=1e-7)
    assert state["1.num_batches_tracked"].item() == 6


@pytest.mark.case("C107")
def test_statistics_for_the_average_are_means_with_equal_weights():
    check_fresh_statistics()


@pytest.mark.case("C107")
@pytest.mark.parametrize("momentum", [0.0, 0.1])
def test_a_refresh_with_a_momentum_would_be_seen(monkeypatch, momentum):
    class Wrong(averaging._FreshStatistics):
        def before_epoch(self, learn):
            super().before_epoch(learn)
            for m, _ in self.momenta:
                m.momentum = momentum

    monkeypatch.setattr(averaging, "_FreshStatistics", Wrong)
    with pytest.raises(AssertionError):
        check_fresh_statistics()


@pytest.mark.case("C107")
def test_a_momentum_that_is_not_put_back_would_be_seen(monkeypatch):
    monkeypatch.setattr(averaging._FreshStatistics, "cleanup_epoch", None)
    with pytest.raises(AssertionError):
        check_fresh_statistics()


def test_statistics_equal_torchs_update_bn():
    data = batches(5, size=6)
    cb = SWACB(0.5)
    model = mlp()
    learn = toy_learner([cb], (data, batches(1)), model)
    learn.fit(2)
    theirs = copy.deepcopy(model)
    theirs.load_state_dict(cb.averaged_state_dict())
    update_bn(data, theirs)
    assert same(theirs.state_dict(), cb.averaged_state_dict())


def test_the_refresh_leaves_live_weights_statistics_and_random_numbers_alone():
    ends = []
    for cbs in ([], [SWACB(0.5)]):
        torch.manual_seed(5)
        learn = toy_learner(cbs, (batches(5, size=6), batches(1)), mlp(0.3))
        learn.fit(2)
        ends.append((copy.deepcopy(learn.model.state_dict()), torch.get_rng_state()))
    assert same(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


def test_frozen_batch_norm_keeps_its_statistics_in_the_refresh():
    model = mlp()
    model[1].running_mean.fill_(3.0)
    model[1].eval()
    cb = SWACB(0.5)
    toy_learner([cb], (batches(4, size=6), batches(1)), model).fit(1)
    assert cb.averaged_state_dict()["1.running_mean"].tolist() == [3.0] * 8


def test_an_early_stop_is_refreshed_and_an_interrupt_is_spared():
    for do, refreshed in ((CancelFitException, True), (KeyboardInterrupt(), False)):
        cb = SWACB(0)
        learn = toy_learner([cb, At("after_round", do)], (batches(4, size=6), None), mlp())
        learn.fit(2, on_interrupt="stop")
        assert bool(cb._stats) == refreshed


def test_a_stream_without_an_end_is_refreshed_over_as_many_batches_as_were_trained_on():
    class Endless:
        def __iter__(self):
            while True:
                yield from batches(3, size=6)

    cb = SWACB(2)
    toy_learner([cb], (Endless(), None), mlp()).fit(n_steps=5)
    assert cb.averaged_state_dict()["1.num_batches_tracked"].item() == 5


def test_keep_ends_with_averages_and_their_statistics():
    cb = SWACB(0.5, keep=True)
    learn = toy_learner([cb, MetricsCB()], (batches(4, size=6), batches(2)), mlp())
    learn.fit(2)
    assert same(learn.model.state_dict(), cb.averaged_state_dict())
    loss = learn.validate().loss
    learn.cbs.remove(cb)
    assert learn.validate().loss == loss


def test_two_averages_keep_apart():
    ema, equal = EMACB(0.5, warmup=False), SWACB(0)
    learn = toy_learner([ema, equal], model=mlp())
    learn.fit(2)
    for cb in (EMACB(0.5, warmup=False), SWACB(0)):
        alone = toy_learner([cb], model=mlp())
        alone.fit(2)
        both = ema if isinstance(cb, EMACB) else equal
        assert same(cb.averaged_state_dict(), both.averaged_state_dict())
        assert_same_weights(alone.model, learn.model)


def test_the_refresh_reads_a_shortened_loader_whole():
    cb = SWACB(0)
    cbs = [cb, LimitBatchesCB(train=2)]
    toy_learner(cbs, (batches(5, size=6), None), mlp()).fit(1)
    assert cb.averaged_state_dict()["1.num_batches_tracked"].item() == 5


def test_it_is_fine_with_cut_images():
    data = [(torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,))) for _ in range(3)]
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    ema = EMACB(0.5, warmup=False)
    Learner(model, (data, data), F.cross_entropy, cbs=[TrainCB(), CutMixCB(), ema]).fit(2)
    assert ema.n_averaged == 6


class Quantised(nn.Module):
    """A frozen backbone whose weights no arithmetic takes."""

    def __init__(self, dtype):
        super().__init__()
        weight = torch.randint(0, 2, (3, 4), generator=torch.Generator().manual_seed(0)).to(dtype)
        self.q = nn.Parameter(weight, requires_grad=False)
        torch.manual_seed(0)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(x @ self.q.float())


BYTES = (torch.int8, torch.uint8, torch.int64, torch.bool, torch.float8_e4m3fn)


@pytest.mark.case("F06")
@pytest.mark.parametrize("dtype", BYTES, ids=str)
@pytest.mark.parametrize(
    "make", [lambda: EMACB(0.5, warmup=False), lambda: SWACB(start=0, keep=True)]
)
def test_frozen_weights_of_whole_numbers_are_left_out_of_averages(make, dtype):
    """The others have the averages of a model with float weights of the same values."""
    found = []
    for kind in (dtype, torch.float32):
        learn, cb = toy_learner(model=Quantised(kind)), make()
        learn.fit(2, cbs=cb)
        assert torch.equal(learn.model.q.float(), Quantised(torch.float32).q)
        found.append({n: p.float() for n, p in cb.averaged_state_dict().items()})
    for name, average in found[0].items():
        torch.testing.assert_close(average, found[1][name], rtol=0, atol=0)


@pytest.mark.case("F06")
@pytest.mark.parametrize("dtype", BYTES, ids=str)
def test_averages_of_whole_numbers_would_be_seen(dtype, monkeypatch):
    monkeypatch.setattr(averaging, "_can_be_averaged", lambda p: True)
    with pytest.raises((NotImplementedError, RuntimeError), match="not implemented"):
        toy_learner([EMACB(0.5, warmup=False)], model=Quantised(dtype)).fit(1)


# ---- precise statistics before an evaluation ----


def precise(model, cbs=(), n=None, epochs=2, folder=None, **kwargs):
    """A fit whose validations have precise statistics; return the Learner and its batches."""
    data = batches(6, size=6)
    learn = toy_learner([MetricsCB(), *cbs], (data, batches(2, size=4)), model)
    learn.on("after_epoch", precise_bn, training=True, args=(n,))
    learn.fit(epochs, **kwargs)
    return learn, data


@pytest.mark.parametrize("n", [None, 4])
def test_precise_statistics_are_true_means_over_batches_of_the_weights_that_are_evaluated(n):
    model = mlp()
    learn, data = precise(model, n=n)
    with torch.no_grad():
        xs = [model[0](x) for x, _ in data[:n]]
    means, variances = (torch.stack([f(x) for x in xs]).mean(0) for f in (mean, variance))
    torch.testing.assert_close(model[1].running_mean, means, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model[1].running_var, variances, rtol=1e-6, atol=1e-6)
    assert learn.steps_done == 12 and model[1].momentum == 0.1


def mean(x):
    return x.mean(0)


def variance(x):
    return x.var(0)


def test_precise_statistics_change_no_weight_and_no_random_number():
    ours, theirs = mlp(0.3), mlp(0.3)
    data = batches(6, size=6), batches(2, size=4)
    torch.manual_seed(5)
    toy_learner([MetricsCB()], data, theirs).fit(2)
    state = torch.get_rng_state()
    torch.manual_seed(5)
    precise(ours)
    assert torch.equal(state, torch.get_rng_state())
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )


def test_precise_statistics_are_those_of_the_averages_where_they_are_evaluated():
    model = mlp()
    _, data = precise(model, [cb := EMACB(0.5)], epochs=1)
    with cb.swapped():
        means = batch_means(model, data)
    torch.testing.assert_close(model[1].running_mean, means.mean(0), rtol=1e-6, atol=1e-6)


def test_precise_statistics_are_resumed_to_the_bit(tmp_path):
    torch.manual_seed(5)
    save = CheckpointCB(tmp_path / "whole", (1, "step"), keep=None)
    whole, _ = precise(mlp(0.3), [save])
    for file in sorted((tmp_path / "whole").glob("*.ckpt"))[1::3]:
        again, _ = precise(mlp(0.3), [CheckpointCB(tmp_path / file.stem)], resume=file)
        assert same(again.model.state_dict(), whole.model.state_dict())
        assert again.history[-1]["valid_loss"] == whole.history[-1]["valid_loss"]


def test_a_model_without_batch_norm_is_left_alone():
    learn = toy_learner()
    before = copy.deepcopy(learn.model.state_dict())
    precise_bn(learn)
    assert same(learn.model.state_dict(), before)
