"""Mixtures of samples: the loss has each sample's weights, metrics get labels, nothing stays."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim import lr_scheduler
from toys import At, Before, batches, linear, toy_learner

from minilearn import (
    EMACB,
    SWACB,
    BatchSchedCB,
    Callback,
    CancelBatchException,
    CancelFitException,
    CapturePreds,
    CheckpointCB,
    ClipGradCB,
    CutMixCB,
    DeviceCB,
    GradAccumCB,
    Learner,
    MetricsCB,
    MixCB,
    MixedPrecision,
    MixUpCB,
    TrainCB,
    TrainLearner,
    accuracy,
    constant,
    set_seed,
    warmup,
)
from minilearn.base.batch import compare
from minilearn.callbacks.mixup import Mixed


def pictures(n=3, size=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 1, 8, 8, generator=g), torch.randint(0, 4, (size,), generator=g))
        for _ in range(n)
    ]


def small_net():
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def learner(cbs, loss_func=F.cross_entropy, kind=Learner, **kwargs):
    train = [] if kind is TrainLearner else [TrainCB()]
    dls = (pictures(), pictures(2, seed=1))
    return kind(small_net(), dls, loss_func, 0.1, [*train, *cbs], **kwargs)


def mixed(n=8, k=5):
    torch.manual_seed(0)
    preds = torch.randn(n, k, requires_grad=True)
    return preds, Mixed(torch.randint(0, k, (n,)), torch.randint(0, k, (n,)), torch.rand(n))


def one_by_one(loss_func, preds, target, reduction="mean"):
    """The formula of the case, sample by sample."""
    losses = []
    for p, a, b, s in zip(preds, target.a, target.b, target.weight, strict=True):
        first, second = (loss_func(p[None], t[None]) for t in (a, b))
        losses.append(s * first + (1 - s) * second)
    losses = torch.stack(losses)
    return losses.squeeze() if reduction == "none" else getattr(losses, reduction)()


# ---- the loss ----


def check_shares():
    preds, target = mixed()
    for reduction in ("mean", "sum", "none"):
        expected = one_by_one(F.cross_entropy, preds, target, reduction)
        module = nn.CrossEntropyLoss(reduction=reduction)
        function = partial(F.cross_entropy, reduction=reduction)
        for loss_func in (module, function):
            ours = compare(loss_func, preds, (target,))
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
        assert module.reduction == reduction


@pytest.mark.case("C113")
def test_each_sample_has_its_own_weights_in_the_loss():
    check_shares()


@pytest.mark.case("C113")
def test_weights_that_are_averaged_first_would_be_seen(monkeypatch):
    def averaged(self, loss_func, preds, targets):
        share = self.weight.mean()
        return share * loss_func(preds, self.a) + (1 - share) * loss_func(preds, self.b)

    monkeypatch.setattr(Mixed, "compare", averaged)
    with pytest.raises(AssertionError):
        check_shares()


def test_it_equals_torchs_soft_labels_with_smoothing_and_class_weights():
    preds, target = mixed()
    weight = torch.rand(5)
    hot = [F.one_hot(t, 5).float() for t in (target.a, target.b)]
    soft = target.weight[:, None] * hot[0] + (1 - target.weight[:, None]) * hot[1]
    for settings in ({}, {"label_smoothing": 0.1}, {"weight": weight}):
        ours = compare(partial(F.cross_entropy, **settings), preds, (target,))
        torch.testing.assert_close(ours, F.cross_entropy(preds, soft, **settings))


def focal(preds, target):
    ce = F.cross_entropy(preds, target, reduction="none")
    return ((1 - torch.exp(-ce)) ** 2 * ce).mean()


@pytest.mark.parametrize(
    "loss_func",
    [
        focal,
        lambda p, y: -p.log_softmax(1).gather(1, y[:, None]).mean(),
        lambda p, y: F.binary_cross_entropy_with_logits(p, F.one_hot(y, 5).float()),
        lambda p, y: F.cross_entropy(p, y) + 0.1 * p.pow(2).mean(),
    ],
)
def test_any_loss_is_taken_sample_by_sample(loss_func):
    preds, target = mixed()
    ours = compare(loss_func, preds, (target,))
    torch.testing.assert_close(ours, one_by_one(loss_func, preds, target))
    ours.backward()
    assert preds.grad.abs().sum(1).min() > 0


def test_several_targets_and_real_numbers():
    preds, target = mixed()
    real = Mixed(torch.randn(8, 5), torch.randn(8, 5), target.weight)
    torch.testing.assert_close(
        compare(F.mse_loss, preds, (real,)), one_by_one(F.mse_loss, preds, real)
    )

    def both(p, label, value):
        return F.cross_entropy(p, label) + F.mse_loss(p, value)

    expected = one_by_one(F.cross_entropy, preds, target) + one_by_one(F.mse_loss, preds, real)
    torch.testing.assert_close(compare(both, preds, (target, real)), expected)


def test_an_error_tells_a_get_loss_of_the_users_own_what_to_do():
    class Mine(TrainCB):
        def get_loss(self, learn):
            learn.loss = learn.loss_func(learn.preds, learn.batch[1])

    learn = Learner(small_net(), (pictures(),), F.cross_entropy, cbs=[Mine(), MixUpCB()])
    with pytest.raises(TypeError, match="batch.compare"):
        learn.fit(1)


# ---- a whole fit against a loop written by hand ----


def by_hand(model, data, draw, epochs=2, loss_func=F.cross_entropy, lr=0.1):
    opt = optim.SGD(model.parameters(), lr)
    for _ in range(epochs):
        for xb, yb in data:
            x, a, b, share = draw(xb, yb)
            preds = model(x)
            losses = share * F.cross_entropy(preds, a, reduction="none") + (
                1 - share
            ) * F.cross_entropy(preds, b, reduction="none")
            losses.mean().backward()
            opt.step()
            opt.zero_grad()


def mixup_by_hand(alpha):
    def draw(xb, yb):
        order = torch.randperm(len(xb))
        share = torch.distributions.Beta(alpha, alpha).sample((len(xb),))
        s = share[:, None, None, None]
        return s * xb + (1 - s) * xb[order], yb, yb[order], share

    return draw


@pytest.mark.parametrize("kind", [Learner, TrainLearner])
def test_a_fit_equals_a_loop_written_by_hand(kind):
    learn = learner([MixUpCB(0.4), DeviceCB("cpu")], kind=kind)
    theirs = small_net()
    torch.manual_seed(7)
    by_hand(theirs, learn.dls[0], mixup_by_hand(0.4))
    torch.manual_seed(7)
    learn.fit(2)
    for a, b in zip(learn.model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


RECIPES = {
    "accumulation": lambda: [GradAccumCB(2)],
    "clipping": lambda: [ClipGradCB(0.05)],
    "bf16": lambda: [MixedPrecision("bf16")],
    "one cycle": lambda: [BatchSchedCB(partial(lr_scheduler.OneCycleLR, max_lr=0.1))],
    "warm-up": lambda: [BatchSchedCB(warmup(constant, n=2))],
    "averages": lambda: [EMACB(0.5)],
    "equal averages": lambda: [SWACB(0.5)],
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("make", [MixUpCB, CutMixCB])
def test_with_any_recipe_mixing_is_the_same_as_mixed_data_with_soft_labels(recipe, make):
    """Cross-entropy is linear in the target: the mixtures could be in the data from the start."""

    class Keep(Callback):
        order = make.order + 1

        def __init__(self):
            self.batches = []

        def before_batch(self, learn):
            if learn.training:
                x, y = learn.batch
                hot = [F.one_hot(t, 4).float() for t in (y.a, y.b)]
                s = y.weight[:, None]
                self.batches.append((x.clone(), s * hot[0] + (1 - s) * hot[1]))

    keep = Keep()
    learn = learner([make(), keep, *RECIPES[recipe]()])
    learn.fit(1)
    plain = Learner(
        small_net(), (keep.batches,), F.cross_entropy, 0.1, [TrainCB(), *RECIPES[recipe]()]
    )
    plain.fit(1)
    tolerance = {"rtol": 1e-2, "atol": 1e-3} if recipe == "bf16" else {}
    for a, b in zip(learn.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, **tolerance)


# ---- the Learner keeps its loss ----


class Replaces(MixUpCB):
    """Broken: exchanges the loss in the training epochs, and puts it back where they end well."""

    def before_epoch(self, learn):
        if learn.training:
            self.old, learn.loss_func = learn.loss_func, partial(learn.loss_func)

    def after_epoch(self, learn):
        if learn.training:
            learn.loss_func = self.old


def check_loss_func_stays(make, end):
    loss_func = nn.CrossEntropyLoss()
    cbs = [] if end is None else [At("after_loss", end, lambda learn: learn.iter == 1)]
    learn = learner([make(), *cbs], loss_func)
    state = Before(learn)
    try:
        learn.fit(2)
    except (ValueError, KeyboardInterrupt):
        pass
    assert learn.loss_func is loss_func
    assert loss_func.reduction == "mean"
    state.assert_fit_left_nothing()
    learn.get_preds(with_loss=True)
    assert math.isfinite(learn.validate().loss)


@pytest.mark.case("C111")
@pytest.mark.parametrize("end", [None, CancelFitException, ValueError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("make", [MixUpCB, CutMixCB])
def test_the_loss_function_stays_the_learners_own(make, end):
    check_loss_func_stays(make, end)


@pytest.mark.case("C111")
def test_a_loss_that_was_replaced_would_be_seen():
    check_loss_func_stays(Replaces, None)
    with pytest.raises(AssertionError):
        check_loss_func_stays(Replaces, CancelFitException)


@pytest.mark.case("C111")
def test_a_search_for_a_learning_rate_leaves_the_loss_too():
    learn = learner([MixUpCB(), MetricsCB()])
    for probe in (learn.dry_run, partial(learn.lr_find, plot=False)):
        probe()
        assert learn.loss_func is F.cross_entropy


# ---- metrics ----


class Seen:
    """A metric that keeps what it is given."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.targets = []

    def update(self, preds, targs):
        self.targets.append(targs)

    def compute(self):
        return 0.0


class Soft(Callback):
    """Broken: mixes the labels themselves."""

    order = MixUpCB.order

    def before_batch(self, learn):
        if learn.training:
            x, y = learn.batch
            hot, share = F.one_hot(y, 4).float(), torch.rand(len(y), 1)
            learn.batch = (x, share * hot + (1 - share) * hot.flip(0))


class Unmixed(MixUpCB):
    """Broken: leaves the labels of the first samples, whatever their weight."""

    def before_batch(self, learn):
        y = learn.batch[1]
        super().before_batch(learn)
        learn.batch = (learn.batch[0], y)


class Larger(Callback):
    """Keeps the label with the larger weight of each sample, worked out from the inputs.

    Input i of each batch is the one-hot image of its number, so the weights can be read off.
    """

    order = MixUpCB.order + 1

    def __init__(self, labels):
        self.labels, self.expected = labels, []

    def before_batch(self, learn):
        if learn.training:
            self.expected.append(self.labels[learn.batch[0].flatten(1).argmax(1)])


def check_metrics(make):
    labels = torch.tensor([0, 1, 2, 3])
    data = [(torch.eye(4).view(4, 1, 2, 2), labels)] * 3
    model = nn.Sequential(nn.Flatten(), linear(n_in=4, n_out=4))
    seen, larger = Seen(), Larger(labels)
    given, train = [], lambda learn: learn.training
    at_end = At("after_epoch", lambda learn: given.extend(seen.targets), train)
    cbs = [TrainCB(), make(), larger, MetricsCB(seen, accuracy=accuracy), at_end]
    learn = Learner(model, (data, data), F.cross_entropy, cbs=cbs)
    learn.fit(1)
    assert len(larger.expected) == 3
    for found, expected in zip(given, larger.expected, strict=True):
        assert found.dim() == 1 and not found.is_floating_point()
        assert torch.equal(found, expected)
    plain = learn.validate()
    learn.cbs = [cb for cb in learn.cbs if not isinstance(cb, type(cbs[1]))]
    assert dict(learn.validate()) == dict(plain)
    assert plain.accuracy == learn.history["accuracy"][-1]
    assert learn.get_preds(decoded=True)[-1].dtype == torch.int64


@pytest.mark.case("C112")
def test_metrics_get_the_label_with_the_larger_weight_and_validation_is_untouched():
    for seed in range(5):
        torch.manual_seed(seed)
        check_metrics(MixUpCB)


@pytest.mark.case("C112")
@pytest.mark.parametrize("make", [Soft, Unmixed])
def test_soft_or_unmixed_labels_would_be_seen(make):
    with pytest.raises((AssertionError, ValueError)):
        for seed in range(5):
            torch.manual_seed(seed)
            check_metrics(make)


def test_predictions_can_be_captured_in_training_too():
    capture = CapturePreds()
    learn = learner([MixUpCB(), capture])
    learn.fit(1, valid=False)
    assert capture.all_preds.shape == (18, 4)


# ---- what is mixed ----


class Batches(Callback):
    order = MixUpCB.order + 1

    def __init__(self):
        self.seen = []

    def before_batch(self, learn):
        self.seen.append((learn.training, learn.batch))


def test_validation_batches_are_those_of_the_loader():
    look = Batches()
    learn = learner([CutMixCB(), look])
    learn.fit(1)
    valid = [batch for training, batch in look.seen if not training]
    assert all(batch is own for batch, own in zip(valid, learn.dls[1], strict=True))


def test_inputs_and_targets_of_any_batch_are_distinguished():
    data = [{"y": torch.arange(4), "a": torch.randn(4, 3), "b": torch.randn(4, 3), "id": "no"}] * 2

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear(n_out=4)

        def forward(self, a, b):
            return self.layer(a + b)

    look = Batches()
    cbs = [TrainCB(inputs=("a", "b"), targets="y"), MixUpCB(), look, MetricsCB(accuracy=accuracy)]
    Learner(Sum(), (data,), F.cross_entropy, cbs=cbs).fit(1)
    batch = look.seen[0][1]
    target, share = batch["y"], batch["y"].weight[:, None]
    assert isinstance(target, Mixed) and batch["id"] == "no"
    for name in ("a", "b"):  # both with the same weights and partners
        own = data[0][name]
        expected = share * own[target.a] + (1 - share) * own[target.b]
        torch.testing.assert_close(batch[name], expected)


@pytest.mark.parametrize("size", [(8, 8), (7, 12)])
def test_a_cut_image_has_one_rectangle_and_its_exact_weight(size):
    x = torch.arange(16.0).view(16, 1, 1, 1).expand(16, 3, *size)
    look = Batches()
    data = [(x, torch.arange(16))]
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear(n_out=16))
    for seed in range(5):
        torch.manual_seed(seed)
        Learner(model, (data,), F.cross_entropy, cbs=[TrainCB(), CutMixCB(), look]).fit(1)
    sizes = set()
    for _, (xb, yb) in look.seen:
        other = xb[:, 0] != yb.a.view(16, 1, 1)
        assert torch.equal(xb[:, 0][other], yb.b.view(16, 1, 1).expand(16, *size)[other].float())
        own = (xb[:, 0] == yb.a.view(16, 1, 1)).float().mean((1, 2))
        apart = yb.a != yb.b
        torch.testing.assert_close(yb.weight[apart], own[apart])
        for cut in other:  # a rectangle is all of its rows times all of its columns
            assert torch.equal(cut, cut.any(1)[:, None] & cut.any(0)[None])
            sizes.add(int(cut.sum()))
    assert len(sizes) > 10


def test_weights_follow_their_distribution():
    shares = []
    look = At("after_loss", lambda learn: shares.append(learn.batch[1].weight), times=99)
    data = [(torch.randn(2000, 3), torch.randn(2000, 1))]
    toy_learner([MixUpCB(0.4), look], (data, None)).fit(1)
    beta = torch.distributions.Beta(0.4, 0.4)
    assert shares[0].mean().item() == pytest.approx(0.5, abs=0.05)
    assert shares[0].var().item() == pytest.approx(beta.variance.item(), abs=0.02)


def test_images_of_bytes_can_be_cut_and_not_added_up():
    data = [((x * 50).clamp(0, 255).to(torch.uint8), y) for x, y in pictures(1)]

    class ToFloat(nn.Module):
        def forward(self, x):
            return x.float()

    model = nn.Sequential(ToFloat(), small_net())
    Learner(model, (data,), F.cross_entropy, cbs=[TrainCB(), CutMixCB()]).fit(1)
    with pytest.raises(TypeError, match="one is torch.uint8"):
        Learner(model, (data,), F.cross_entropy, cbs=[TrainCB(), MixUpCB()]).fit(1)


def test_mistakes_say_what_to_do():
    for make in (MixUpCB, CutMixCB):
        with pytest.raises(ValueError, match="alpha"):
            make(0)
    with pytest.raises(TypeError, match="needs images"):
        toy_learner([CutMixCB()]).fit(1)
    with pytest.raises(ValueError, match="only one callback mix"):
        learner([MixUpCB(), CutMixCB()]).fit(1)
    with pytest.raises(ValueError, match="name the targets"):
        data = [{"x": torch.randn(4, 3)}]
        Learner(linear(), (data,), cbs=[TrainCB(inputs="x"), MixUpCB()]).fit(1)


def test_a_cancelled_batch_leaves_nothing():
    cancel = At("after_predict", CancelBatchException, times=2)
    learn = toy_learner([MixUpCB(), cancel], (batches(4), batches(1)))
    learn.fit(1)
    assert learn.steps_done == 2


# ---- as timm does it ----


def timms_targets(target, k, smoothing):
    """timm.data.mixup: one_hot with off and on values, then `y1 * lam + y2 * (1 - lam)`."""
    off = smoothing / k
    on = 1.0 - smoothing + off

    def one_hot(x):
        return torch.full((len(x), k), off).scatter_(1, x.view(-1, 1), on)

    lam = target.weight.view(-1, 1)
    return one_hot(target.a) * lam + one_hot(target.b) * (1.0 - lam)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_targets_and_their_loss_are_timms(smoothing):
    preds, target = mixed()
    theirs = timms_targets(target, 5, smoothing)
    torch.testing.assert_close(target.soft(5, smoothing), theirs, rtol=0, atol=1e-6)
    soft_target_cross_entropy = torch.sum(-theirs * F.log_softmax(preds, -1), -1).mean()
    ours = compare(partial(F.cross_entropy, label_smoothing=smoothing), preds, (target,))
    torch.testing.assert_close(ours, soft_target_cross_entropy, rtol=0, atol=1e-6)


class Chosen(Callback):
    """Notes what was done to each training batch: by the values that are left in its inputs."""

    order = MixUpCB.order + 1

    def __init__(self):
        self.kinds = []

    def before_batch(self, learn):
        if learn.training:
            x, y = learn.batch
            whole = bool((x == x.round()).all())
            kind = "none" if not isinstance(y, Mixed) else "cutmix" if whole else "mixup"
            self.kinds.append((learn.epoch, kind))


def chosen(mix, epochs=1, n=400):
    x = torch.arange(16.0).view(16, 1, 1, 1).expand(16, 1, 4, 4)
    chosen, model = Chosen(), nn.Sequential(nn.Flatten(), linear(n_in=16, n_out=16))
    data = [(x, torch.arange(16))] * n
    Learner(model, (data, None), F.cross_entropy, 1e-9, [TrainCB(), mix, chosen]).fit(epochs)
    return chosen.kinds


@pytest.mark.parametrize(("prob", "switch"), [(1, 0.5), (0.7, 0.2), (0.25, 1), (0, 0.5)])
def test_batches_are_mixed_with_their_probabilities(prob, switch):
    set_seed(0)
    kinds = [kind for _, kind in chosen(MixCB([MixUpCB(1.0), CutMixCB(1.0)], prob, switch))]
    expected = {"none": 1 - prob, "mixup": prob * (1 - switch), "cutmix": prob * switch}
    for kind, share in expected.items():
        assert kinds.count(kind) / len(kinds) == pytest.approx(share, abs=0.07)


def test_of_three_each_is_equally_likely_and_one_is_enough():
    set_seed(0)
    kinds = [kind for _, kind in chosen(MixCB([MixUpCB(), CutMixCB(), CutMixCB()]))]
    assert kinds.count("mixup") / len(kinds) == pytest.approx(1 / 3, abs=0.07)
    assert {kind for _, kind in chosen(MixCB([MixUpCB()]), n=9)} == {"mixup"}


def test_nothing_is_mixed_from_an_epoch_on():
    kinds = chosen(MixCB([MixUpCB(), CutMixCB()], until=2), epochs=4, n=5)
    assert all((kind != "none") == (epoch < 2) for epoch, kind in kinds) and len(kinds) == 20


def test_a_fit_that_was_stopped_mixes_on_as_if_it_had_not_been(tmp_path):
    def make(folder, *cbs):
        mix = MixCB([MixUpCB(), CutMixCB()], prob=0.8, until=2)
        return learner([mix, CheckpointCB(tmp_path / folder, (1, "step")), *cbs])

    set_seed(5)
    whole = make("a")
    whole.fit(3)
    set_seed(5)
    with pytest.raises(KeyboardInterrupt):
        make("b", At("before_batch", KeyboardInterrupt, lambda x: x.steps_done == 5)).fit(3)
    set_seed(6)
    resumed = make("b")
    resumed.fit(3, resume=True)
    assert resumed.steps_done == 9
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_mistakes_of_a_choice_say_what_to_do():
    for make in (lambda: MixCB([]), lambda: MixCB([MixUpCB()], prob=2)):
        with pytest.raises(ValueError, match="prob and switch from 0 to 1"):
            make()
    assert repr(MixCB([MixUpCB(0.2)], 0.5)) == "MixCB([MixUpCB(0.2)], prob=0.5)"
