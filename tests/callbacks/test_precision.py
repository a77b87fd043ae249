"""Half precision, with and without a scaled loss, and every pair of recipes against a hand loop."""

import copy
import pickle
import re
import warnings
from contextlib import nullcontext
from functools import partial
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.amp import GradScaler
from torch.optim import lr_scheduler
from toys import At, Before, assert_same_weights, batches, linear, toy_dls, toy_learner

from minilearn import (
    EMACB,
    ActionConflictError,
    BatchSchedCB,
    Callback,
    CancelBatchException,
    CancelFitException,
    ClipGradCB,
    GradAccumCB,
    Learner,
    MetricsCB,
    MixedPrecision,
    MomentumLearner,
    NonFiniteCB,
    RecorderCB,
    ScaledPrecision,
    TrainCB,
    TrainLearner,
    constant,
    warmup,
)

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


# float16 overflows in the first updates, until the scale is small enough
pytestmark = pytest.mark.filterwarnings("ignore:.*not finite")

# ---- every pair, against a loop written by hand ----

PAIRED = (
    "accumulation",
    "clipping",
    "bf16",
    "fp16",
    "one cycle",
    "warm-up",
    "frozen groups",
    "averages",
)
PAIRS = [
    pair
    for pair in combinations(PAIRED, 2)
    if set(pair) not in ({"bf16", "fp16"}, {"one cycle", "warm-up"})  # one takes the other's place
]
OPT = partial(optim.SGD, momentum=0.9, weight_decay=0.1)
LR, BOUND, DECAY = 0.05, 0.5, 0.9


def first_scale(recipes):
    """Return a scale that overflows at first; but a group does so by whether one divides before."""
    return 2.0**10 if "accumulation" in recipes else 2.0**16


def by_hand(recipes, model, data, epochs):
    """Train as torch's documentation says, and return the updates; skipped ones do not count."""
    updates = 0
    opt = OPT(model.parameters(), LR)
    n = 2 if "accumulation" in recipes else 1
    half = next((DTYPES[r] for r in recipes if r in DTYPES), None)
    scaler = GradScaler("cpu", first_scale(recipes), enabled="fp16" in recipes)
    total = epochs * -(-len(data) // n)
    sched = None
    if "one cycle" in recipes:
        sched = lr_scheduler.OneCycleLR(opt, LR, total, final_div_factor=4e3, pct_start=0.25)
    if "warm-up" in recipes:
        sched = lr_scheduler.LambdaLR(opt, lambda step: min(step / 4, 1.0))
    if "frozen groups" in recipes:
        model[0].requires_grad_(False)
    averages = [p.detach().clone() for p in model.parameters()]
    model.train()
    for _ in range(epochs):
        if "frozen groups" in recipes:
            model[1].eval()
        for start in range(0, len(data), n):
            group = data[start : start + n]
            for x, y in group:
                with torch.autocast("cpu", half) if half else nullcontext():
                    loss = F.mse_loss(model(x), y)
                scaler.scale(loss / len(group)).backward()
            scaler.unscale_(opt)
            if "clipping" in recipes:
                nn.utils.clip_grad_norm_(model.parameters(), BOUND)
            scale = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            made = scaler.get_scale() >= scale
            updates += made
            if sched is not None and made:
                sched.step()
            for average, p in zip(averages, model.parameters(), strict=True):
                if made:
                    average.lerp_(p.detach(), 1 - DECAY)
    if "averages" in recipes:
        for average, p in zip(averages, model.parameters(), strict=True):
            p.data.copy_(average)
    return updates


def with_callbacks(recipes, model, data, epochs):
    table = {
        "accumulation": lambda: GradAccumCB(2),
        "clipping": lambda: ClipGradCB(BOUND),
        "bf16": lambda: MixedPrecision("bf16"),
        "fp16": lambda: MixedPrecision("fp16", scaler=GradScaler("cpu", first_scale(recipes))),
        "warm-up": lambda: BatchSchedCB(warmup(constant, 4)),
        "averages": lambda: EMACB(DECAY, warmup=False, keep=True),
    }
    cbs = [TrainCB(), *(table[r]() for r in recipes if r in table)]
    learn = Learner(model, (data,), F.mse_loss, LR, cbs, OPT)
    if "frozen groups" in recipes:
        learn.freeze("0", "1")
    if "one cycle" in recipes:
        learn.fit_one_cycle(epochs, LR, div_final=1e5)
    else:
        learn.fit(epochs)
    return learn


@pytest.mark.parametrize("recipes", PAIRS, ids="+".join)
def test_each_pair_of_recipes_equals_a_loop_written_by_hand(recipes):
    ours, theirs, data = mlp(), mlp(), batches(7, 4)  # seven: the last group has one batch
    if "frozen groups" in recipes:
        theirs[1].requires_grad_(False)
    learn = with_callbacks(recipes, ours, data, 2)
    updates = by_hand(recipes, theirs, data, 2)
    assert_same_weights(ours, theirs)
    assert learn.steps_done == updates


def test_the_comparison_notices_a_recipe_that_is_left_out():
    for recipe in PAIRED:
        ours, theirs, data = mlp(), mlp(), batches(7, 4)
        with_callbacks((), ours, data, 2)
        by_hand((recipe,), theirs, data, 2)
        with pytest.raises(AssertionError):
            assert_same_weights(ours, theirs)


# ---- half precision ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["beside TrainCB", "alone", "TrainLearner"])
def test_it_works_beside_a_traincb_alone_and_on_a_trainlearner(dtype, how):
    ours, theirs, data = linear(), linear(), batches(4)
    precision = MixedPrecision(dtype)
    if how == "TrainLearner":
        learn = TrainLearner(ours, (data,), F.mse_loss, LR, [precision], OPT)
    else:
        cbs = [precision] if how == "alone" else [precision, TrainCB()]
        learn = Learner(ours, (data,), F.mse_loss, LR, cbs, OPT)
    learn.fit(2)
    by_hand((dtype,), theirs, data, 2)
    assert_same_weights(ours, theirs)
    assert learn.preds.dtype == DTYPES[dtype] and ours.weight.dtype == torch.float32


def test_settings_may_be_given_to_either_callback():
    data = [(x, 2 * x, y) for x, y in batches(2)]

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.given = linear(), []

        def forward(self, a, b):
            self.given.append((a, b))
            return self.lin(a + b)

    for cbs in (
        [TrainCB(n_inp=2), MixedPrecision("bf16")],
        [TrainCB(), MixedPrecision("fp16", n_inp=2)],
    ):
        model = Two()
        learn = Learner(model, (data,), F.mse_loss, cbs=cbs)
        learn.fit(1)
        for (a, b), (x, twice, _) in zip(model.given, data, strict=True):
            assert torch.equal(a, x) and torch.equal(b, twice)
        torch.testing.assert_close(learn.loss, F.mse_loss(learn.preds.float(), data[-1][2]))


def test_it_works_with_a_callback_that_predicts_in_its_own_way():
    class DDPMCB(TrainCB):
        def predict(self, learn):
            learn.preds = learn.model(learn.batch[0] * 2)

    for dtype in DTYPES:
        learn = Learner(linear(), (batches(2),), cbs=[DDPMCB(), MixedPrecision(dtype)])
        learn.fit(1)
        assert learn.preds.dtype == DTYPES[dtype]


def test_a_scaled_loss_wants_to_be_the_only_one_that_steps():
    class Steps(TrainCB):
        def step(self, learn):
            learn.opt.step()

    Learner(linear(), (batches(2),), cbs=[Steps(), MixedPrecision("bf16")]).fit(1)
    with pytest.raises(ActionConflictError, match="both answer 'step'"):
        Learner(linear(), (batches(2),), cbs=[Steps(), MixedPrecision("fp16")]).fit(1)


def test_carried_gradients_go_with_bf16_and_not_with_a_scaler():
    def learner(dtype):
        return MomentumLearner(linear(), (batches(2),), F.mse_loss, 0.1, [MixedPrecision(dtype)])

    learner("bf16").fit(1)
    with pytest.raises(ValueError, match="ScaledPrecision needs .* MomentumLearner"):
        learner("fp16").fit(1)


def test_the_precision_is_checked():
    with pytest.raises(ValueError, match="'bf16' or 'fp16', got 'fp8'"):
        MixedPrecision("fp8")

    class Own(MixedPrecision):
        pass

    assert type(Own("bf16")) is Own
    with pytest.raises(ValueError, match="derive from ScaledPrecision"):
        Own("fp16")


def test_fp16_makes_the_scaled_one_and_it_can_be_copied():
    cb = MixedPrecision("fp16")
    assert type(cb) is type(copy.deepcopy(cb)) is type(pickle.loads(pickle.dumps(cb)))
    assert type(cb) is ScaledPrecision and repr(cb) == "MixedPrecision('fp16')"


POINTS = ["before_batch", "after_predict", "after_loss", "before_backward", "after_step"]


@pytest.mark.parametrize("error", [ZeroDivisionError, CancelBatchException, CancelFitException])
@pytest.mark.parametrize("point", [*POINTS, "after_batch", "predict", "get_loss"])
def test_half_precision_never_outlives_the_batch(point, error):
    seen, model = [], linear()

    class Raises(TrainCB):
        def predict(self, learn):
            super().predict(learn)
            if point == "predict":
                raise error

        def get_loss(self, learn):
            seen.append(torch.is_autocast_enabled("cpu"))
            super().get_loss(learn)
            if point == "get_loss":
                raise error

    at = [At(point, error)] if point in (*POINTS, "after_batch") else []
    note = At("cleanup_epoch", lambda learn: seen.append(torch.is_autocast_enabled("cpu")))
    learn = Learner(model, (batches(2),), cbs=[Raises(), MixedPrecision("bf16"), *at, note])
    before = Before(learn)
    with pytest.raises(error) if error is ZeroDivisionError else nullcontext():
        learn.fit(1)
    assert seen[-1] is False and all(seen[:-1])
    assert not torch.is_autocast_enabled("cpu")
    before.assert_fit_left_nothing()


def test_the_backward_pass_and_what_follows_see_full_precision():
    seen = {}
    notes = [
        At(event, lambda learn, e=event: seen.setdefault(e, torch.is_autocast_enabled("cpu")))
        for event in POINTS
    ]
    toy_learner([MixedPrecision("bf16"), *notes]).fit(1)
    assert seen == {
        "before_batch": True,
        "after_predict": True,
        "after_loss": False,
        "before_backward": False,
        "after_step": False,
    }


@pytest.mark.parametrize("event", POINTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nested_run_inside_a_batch_changes_nothing(event, dtype):
    def trained(*cbs):
        learn = toy_learner([MixedPrecision(dtype), *cbs], (batches(4), batches(2)), mlp())
        learn.fit(1)
        return learn.model

    def look(learn):
        learn.validate()

    looking = At(event, look, lambda learn: learn.training, times=99)
    assert_same_weights(trained(looking), trained())


# ---- C029: numbers for numpy ----


def numpy_mean(preds, targs):
    return float((preds.numpy() - targs.numpy()).mean())


def check_preds(learn):
    preds, targs = learn.get_preds()
    assert preds.dtype == torch.float32 and preds.numpy().shape == (4, 1)


@pytest.mark.case("C029")
@pytest.mark.parametrize("dtype", DTYPES)
def test_predictions_come_in_float32_and_metrics_see_no_other(dtype):
    metrics = MetricsCB(numpy_mean)
    learn = toy_learner([MixedPrecision(dtype), metrics], (batches(4), batches(2)))
    learn.fit(1)
    check_preds(learn)
    assert learn.history["numpy_mean"][0] == metrics.rows[-1]["numpy_mean"]
    assert learn.preds.dtype == DTYPES[dtype]  # so the model did predict in half precision


@pytest.mark.case("C029")
def test_the_check_of_predictions_notices_half_precision(monkeypatch):
    monkeypatch.setattr("minilearn.base.batch.to_cpu", lambda batch: batch)
    for name in ("minilearn.inference.predict", "minilearn.inference.outputs"):
        monkeypatch.setattr(f"{name}.to_cpu", lambda batch: batch, raising=False)
        monkeypatch.setattr(f"{name}.kept", lambda batch, *args: batch, raising=False)
    learn = toy_learner([MixedPrecision("bf16")], (batches(4), batches(2)))
    learn.fit(1)
    with pytest.raises((AssertionError, TypeError)):
        check_preds(learn)


# ---- the scaler ----


class Pull(nn.Module):
    """Two numbers whose gradient is what the batch says."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, pull):
        return (self.w * pull).sum()


def pulling(cbs, pulls, **kwargs):
    data = [(torch.tensor(pull),) for pull in pulls]
    return Learner(Pull(), (data,), lambda loss: loss, 1.0, cbs, **kwargs)


INF = [float("inf"), 0.0]


def check_unscaled(precision):
    learn = pulling([TrainCB(), precision, clip := ClipGradCB(1.0)], [[3.0, 4.0]])
    learn.fit(1)
    assert precision.scaler.get_scale() == 65536
    torch.testing.assert_close(learn.model.w.detach(), -torch.tensor([0.6, 0.8]), atol=1e-4, rtol=0)
    assert clip.norm.item() == pytest.approx(5)


@pytest.mark.case("C027")
def test_gradients_are_scaled_down_before_they_are_clipped():
    check_unscaled(MixedPrecision("fp16"))


@pytest.mark.case("C027")
def test_the_check_of_scaling_notices_a_clip_of_scaled_gradients():
    class TooLate(ScaledPrecision):
        order = 35

    with pytest.raises(AssertionError):
        check_unscaled(TooLate())


def check_skipped(precision):
    updates, positions, ema = [], [], EMACB(warmup=False)
    note = At("after_step", lambda learn: updates.append(learn.iter), times=99)
    sched = BatchSchedCB(partial(lr_scheduler.StepLR, step_size=1))
    keep = At("after_batch", lambda learn: positions.append(sched.schedo.last_epoch), times=99)
    rec = RecorderCB("lr")
    learn = pulling(
        [TrainCB(), precision, sched, note, rec, keep, ema], [INF, INF, *[[1.0, 1.0]] * 8]
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learn.fit(1)
    said = [str(w.message) for w in caught]
    assert updates == list(range(2, 10)) and learn.steps_done == ema.n_averaged == 8
    assert positions == [0, 0, *range(1, 9)]
    assert rec.recs["lr"] == pytest.approx([0.1**i for i in range(8)])
    assert learn.model.w.isfinite().all()
    assert "epoch 0, batch 0" in said[0] and "2 times; 8 updates" in said[1]
    assert len(said) == 2  # none of torch about the order of calls


@pytest.mark.case("C028")
def test_an_update_that_overflows_moves_no_schedule_and_no_counter():
    check_skipped(cb := MixedPrecision("fp16"))
    assert cb.scaler.get_scale() == 65536 / 4


@pytest.mark.case("C028")
def test_the_check_of_skips_notices_a_scaler_that_skips_in_silence():
    class Silent(ScaledPrecision):
        def before_step(self, learn):
            pass

        def step(self, learn):
            self.scaler.step(learn.opt)

        def cleanup_step(self, learn):
            self.scaler.update()

    with pytest.raises(AssertionError):
        check_skipped(Silent())


def test_an_overflow_in_one_batch_skips_its_whole_group():
    pulls = [[1.0, 0.0], INF, [0.0, 2.0], [0.0, 4.0], [8.0, 0.0]]
    cbs = [TrainCB(), MixedPrecision("fp16"), GradAccumCB(2), NonFiniteCB()]
    learn = pulling(cbs, pulls, count=lambda batch: 1)
    with pytest.warns(UserWarning, match="batch 1"):
        learn.fit(1)
    assert learn.steps_done == 2
    assert learn.model.w.tolist() == [-8.0, -3.0]


def test_overflows_without_end_raise():
    learn = pulling([TrainCB(), MixedPrecision("fp16")], [INF] * 40)
    with (
        pytest.warns(UserWarning),
        pytest.raises(FloatingPointError, match="batch 29 .*30 in a row: .*'bf16'"),
    ):
        learn.fit(1)


def test_the_scale_goes_on_from_fit_to_fit_and_through_a_saved_state():
    cb = MixedPrecision("fp16", scaler=GradScaler("cpu", 1024.0, growth_interval=3))
    learn = pulling([TrainCB(), cb], [[1.0, 1.0]] * 5)
    learn.fit(1)
    assert cb.scaler.get_scale() == 2048
    learn.fit(1)
    assert cb.scaler.get_scale() == 8192
    state = cb.state_dict()
    other = MixedPrecision("fp16")
    other.load_state_dict(state)
    assert other.state_dict() == state
    pulling([TrainCB(), other], [[1.0, 1.0]] * 2).fit(1)
    assert other.scaler.get_scale() == 16384


def test_gradients_too_small_for_float16_survive_by_the_scale():
    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(1, 1, bias=False)

        def forward(self, x):
            return self.lin(x)

    data, grads = [(torch.full((1, 1), 1e-3), torch.zeros(1, 1))], {}
    for name, cb in {
        "plain": At("before_batch", lambda learn: None),
        "scaled": MixedPrecision("fp16"),
    }.items():
        model = Tiny()
        nn.init.ones_(model.lin.weight)

        def keep(learn, name=name):
            grads[name] = learn.model.lin.weight.grad.item()

        note = At("before_step", keep)
        note.order = 95
        learn = Learner(
            model, (data,), lambda p, y: (p.float() * 1e-5).sum(), cbs=[TrainCB(), cb, note]
        )
        learn.fit(1)
    assert grads["scaled"] == pytest.approx(1e-8, rel=1e-2) == grads["plain"]


def test_probes_leave_the_scale_alone():
    cb = MixedPrecision("fp16", scaler=GradScaler("cpu", 1024.0, growth_interval=1))
    learn = pulling([TrainCB(), cb, Callback()], [[1.0, 1.0]] * 2)
    learn.dls = (learn.dls[0], learn.dls[0])
    scaler, scale = cb.scaler, cb.scaler.get_scale()
    learn.dry_run()
    assert cb.scaler is scaler and scaler.get_scale() == scale


# ---- losses that have no gradient ----


@pytest.mark.parametrize("trains", [TrainCB, partial(MixedPrecision, "fp16")])
@pytest.mark.parametrize(
    ("loss", "hint"),
    [
        (lambda p, y: (p - y).square(), r"Tensor\[2, 1\].*reduction='mean'"),
        (lambda p, y: float((p - y).square().mean()), "the loss is float"),
        (lambda p, y: (p - y).square().mean().detach(), "no weight that trains led to the loss"),
        (lambda p, y: (p.round() == y).float().mean(), "no weight that trains led to the loss"),
    ],
)
def test_a_loss_without_a_gradient_is_explained(loss, hint, trains):
    learn = Learner(linear(), toy_dls(), loss, cbs=trains())
    with pytest.raises((AttributeError, RuntimeError, ValueError)) as caught:
        learn.fit(1)
    assert re.search(hint, " ".join(caught.value.__notes__))
