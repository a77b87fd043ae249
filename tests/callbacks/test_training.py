"""What TrainCB makes of a batch, of what a model returns, and of the gradients."""

import re
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import torcheval.metrics as te
from torch import nn
from toys import At, linear, toy_learner
from transformers import BatchEncoding

from minilearn import CutMixCB, GradAccumCB, MetricsCB, MixUpCB, accuracy
from minilearn.base import batch as batch_module
from minilearn.callbacks.training import TrainCB, own_loss
from minilearn.learner import Learner, TrainLearner
from minilearn.metrics.mean import averaged

LOSS, OTHER = torch.tensor(2.0), torch.tensor(3.0)


@pytest.mark.parametrize(
    ("output", "preds", "loss"),
    [
        (LOSS, None, LOSS),
        (SimpleNamespace(loss=LOSS, logits="logits"), "logits", LOSS),
        ({"loss": LOSS, "logits": "logits"}, "logits", LOSS),
        ({"box": LOSS, "mask": OTHER}, None, {"box": LOSS, "mask": OTHER}),
        (("preds", LOSS), "preds", LOSS),
        (["preds", LOSS], "preds", LOSS),
    ],
)
def test_a_loss_is_found_in_what_models_return(output, preds, loss):
    assert own_loss(output) == (preds, loss)


@pytest.mark.parametrize(
    "output",
    [
        torch.ones(2),
        {},
        {"box": 2.0},
        {"box": torch.ones(2)},
        ("preds", 2.0),
        (LOSS,),
        (LOSS, OTHER),
        [OTHER, LOSS],
        None,
        "loss",
    ],
)
def test_what_holds_no_loss_is_refused_with_its_description(output):
    with pytest.raises(TypeError, match="the model must return its loss; it returned"):
        own_loss(output)


def test_with_a_loss_function_the_model_gets_the_inputs_of_a_dict_alone():
    batch = {"x": torch.ones(2, 3), "y": torch.zeros(2, 1)}
    train = TrainCB(inputs="x", targets="y")
    learn = Learner(nn.Linear(3, 1), ([batch],), nn.functional.mse_loss, cbs=[train])
    learn.fit(1)
    assert learn.steps_done == 1


def test_no_gradient_is_left_of_the_update_before():
    left = []
    watch = At("cleanup_batch", lambda learn: left.extend(p.grad for p in learn.model.parameters()))
    toy_learner([watch]).fit(1, valid=False)
    assert left == [None, None]


X, Z, Y = torch.ones(2, 3), torch.full((2, 3), 2.0), torch.zeros(2, 1)


@pytest.mark.parametrize(
    ("train", "batch", "args", "keywords", "targets"),
    [
        (TrainCB(), (X, Y), [X], {}, [Y]),
        (TrainCB(), [X, Y], [X], {}, [Y]),
        (TrainCB(2), (X, Z, Y), [X, Z], {}, [Y]),
        (TrainCB(), X, [X], {}, []),
        (TrainCB(targets="y"), {"x": X, "z": Z, "y": Y}, [], {"x": X, "z": Z}, [Y]),
        (TrainCB(targets="y"), {"x": X}, [], {"x": X}, []),
        (TrainCB(), {"x": X, "z": Z}, [], {"x": X, "z": Z}, []),
        (TrainCB(inputs=["z", "x"], targets=["y"]), {"x": X, "z": Z, "y": Y}, [Z, X], {}, [Y]),
        (TrainCB(inputs={"a": "x"}, targets="y"), {"x": X, "y": Y}, [], {"a": X}, [Y]),
    ],
)
def test_a_batch_is_split_into_inputs_and_targets(train, batch, args, keywords, targets):
    found = train.split(batch)
    assert [[id(x) for x in found[0]], [id(x) for x in found[2]]] == [
        [id(x) for x in args],
        [id(x) for x in targets],
    ]
    assert {name: id(x) for name, x in found[1].items()} == {n: id(x) for n, x in keywords.items()}


def test_a_batch_that_cannot_be_split_is_described():
    with pytest.raises(TypeError, match="can split a tuple, list, dict or tensor; this batch is"):
        TrainCB().split(3)
    with pytest.raises(KeyError, match=r"the batch has no 'z': it is dict\(x=Tensor"):
        TrainCB(inputs="z").split({"x": X})


@pytest.mark.parametrize(
    ("loss_func", "note"),
    [
        (lambda preds, y: (preds - y).square(), r"the loss is Tensor\[2, 1\], and gradients come"),
        (lambda preds, y: 0.5, "the loss is float, and gradients come from a scalar tensor"),
        (lambda preds, y: (preds - y).detach().mean(), "no weight that trains led to the loss"),
    ],
)
def test_a_loss_without_a_gradient_is_explained(loss_func, note):
    learn = Learner(nn.Linear(3, 1), ([(X, Y)],), loss_func, cbs=[TrainCB()])
    with pytest.raises((AttributeError, RuntimeError)) as caught:
        learn.fit(1)
    assert any(re.search(note, text) for text in caught.value.__notes__)


def test_an_error_of_a_sound_loss_is_not_explained():
    learn = toy_learner([At("before_backward", lambda learn: learn.loss.backward())])
    with pytest.raises(RuntimeError, match="backward through the graph a second time") as caught:
        learn.fit(1)
    assert not any("the loss" in note for note in caught.value.__notes__)


def test_targets_that_the_loss_needs_and_a_dict_lacks_are_named():
    train = TrainCB(inputs="x", targets="y")
    learn = Learner(nn.Linear(3, 1), ([{"x": X}],), cbs=[train])
    with pytest.raises(KeyError, match="the batch has no 'y'"):
        learn.fit(1)
    learn = Learner(nn.Linear(3, 1), ([X],), lambda preds: preds.mean(), cbs=[TrainCB()])
    learn.fit(1)  # a loss of the predictions alone
    assert learn.steps_done == 1
    free = Learner(
        nn.Linear(3, 1), ([{"x": X}],), lambda preds: preds.mean(), cbs=[TrainCB(inputs="x")]
    )
    free.fit(1)
    assert free.steps_done == 1


# ---- F18: a third item of a batch ----


def weighted_batches(n=3, size=4, classes=4):
    g = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(size, 3, generator=g),
            torch.randint(classes, (size,), generator=g),
            torch.rand(size, generator=g),
        )
        for _ in range(n)
    ]


def check_weighted(loss_func, trainer, batches):
    """The update is that of each sample's loss times its weight, averaged by hand."""
    ours, theirs = linear(n_out=4), linear(n_out=4)
    Learner(ours, (batches, None), loss_func, 0.1, [trainer, MetricsCB(quiet=True)]).fit(1)
    opt = torch.optim.SGD(theirs.parameters(), 0.1)
    for x, y, w in (b.values() if isinstance(b, dict) else b for b in batches):
        (w * -theirs(x).log_softmax(1)[range(len(y)), y]).mean().backward()
        opt.step()
        opt.zero_grad()
    torch.testing.assert_close(ours.weight, theirs.weight)


@pytest.mark.case("F18")
@pytest.mark.parametrize("loss_func", [F.cross_entropy, nn.CrossEntropyLoss()])
def test_samples_are_weighted_by_position_or_by_key(loss_func):
    data = weighted_batches()
    check_weighted(loss_func, TrainCB(sample_weight=2), data)
    check_weighted(loss_func, TrainCB(sample_weight=-1), data)
    named = [dict(zip("xyw", batch, strict=True)) for batch in data]
    check_weighted(loss_func, TrainCB(inputs="x", targets="y", sample_weight="w"), named)


@pytest.mark.case("F18")
def test_a_model_that_takes_the_items_of_a_dict_by_name_gets_no_weights():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear(n_out=4)

        def forward(self, x):
            return self.layer(x)

    data = [dict(zip("xyw", batch, strict=True)) for batch in weighted_batches()]
    model, plain = Named(), linear(n_out=4)
    cbs = [TrainCB(targets="y", sample_weight="w")]
    Learner(model, (data, None), F.cross_entropy, 0.1, cbs).fit(1)
    Learner(plain, (weighted_batches(), None), F.cross_entropy, 0.1, TrainCB(sample_weight=2)).fit(
        1
    )
    assert torch.equal(model.layer.weight, plain.weight)


def weighted_accuracy(preds, targs, sample_weight):
    return ((preds.argmax(1) == targs) * sample_weight).sum() / sample_weight.sum()


@pytest.mark.parametrize("named", [True, False])
def test_a_metric_that_asks_for_the_weights_counts_by_them_over_the_epoch(named):
    data = weighted_batches(3) + [tuple(t[:2] for t in weighted_batches(1)[0])]
    x, y, w = map(torch.cat, zip(*data, strict=True))
    trainer = TrainCB(sample_weight=2)
    if named:
        data = [dict(zip("xyw", batch, strict=True)) for batch in data]
        trainer = TrainCB(inputs="x", targets="y", sample_weight="w")
    model = linear(n_out=4)
    metrics = MetricsCB(weighted_accuracy, accuracy=accuracy, quiet=True)
    learn = Learner(model, (data, data), F.cross_entropy, 0.1, [trainer, metrics])
    learn.fit(1)
    hits = (model(x).argmax(1) == y).float()
    row = learn.history[-1]
    assert row["weighted_accuracy"] == pytest.approx((hits * w).sum().item() / w.sum().item())
    assert row["accuracy"] == pytest.approx(hits.mean().item())
    losses = F.cross_entropy(model(x), y, reduction="none")
    assert row["valid_loss"] == pytest.approx((losses * w).mean().item(), abs=1e-6)


def test_weights_of_classes_are_those_of_the_loss_and_count_over_the_epoch():
    """torch divides by the sum of the class weights of a batch; `count` does over the epoch."""
    data, weight = weighted_batches(3), torch.tensor([0.1, 1.0, 2.0, 5.0])
    data = [(x, y) for x, y, _ in data] + [(data[0][0][:1], data[0][1][:1])]
    loss_func = nn.CrossEntropyLoss(weight=weight)
    ours, theirs = linear(n_out=4), linear(n_out=4)
    cbs = [TrainCB(), MetricsCB(quiet=True)]
    count = lambda batch: weight[batch[1]].sum()  # noqa: E731
    learn = Learner(ours, (data, data), loss_func, 0.1, cbs, count=count)
    learn.fit(1)
    for x, y in data:
        nll = -theirs(x).log_softmax(1)[range(len(y)), y]
        ((weight[y] * nll).sum() / weight[y].sum()).backward()
        with torch.no_grad():
            for p in theirs.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    torch.testing.assert_close(ours.weight, theirs.weight)
    x, y = map(torch.cat, zip(*data, strict=True))
    assert learn.history["valid_loss"][0] == pytest.approx(loss_func(ours(x), y).item(), abs=1e-6)


@pytest.mark.case("F18")
def test_the_check_notices_weights_of_samples_that_are_taken_for_weights_of_classes(monkeypatch):
    monkeypatch.setattr(batch_module, "check_targets", lambda loss_func, targets: None)
    with pytest.raises(AssertionError):
        check_weighted(F.cross_entropy, TrainCB(), weighted_batches())


@pytest.mark.case("F18")
@pytest.mark.parametrize("train", [[TrainCB()], [TrainCB(), CutMixCB()], []])
@pytest.mark.parametrize(
    "loss_func", [F.cross_entropy, F.nll_loss, partial(F.cross_entropy, label_smoothing=0.1)]
)
def test_an_unnamed_third_item_is_no_weight_of_classes(loss_func, train):
    data = [(torch.randn(4, 1, 3, 1), y, w) for _, y, w in weighted_batches()]
    model, kind = nn.Sequential(nn.Flatten(), linear(n_out=4)), Learner if train else TrainLearner
    with pytest.raises(TypeError, match="item 3 of the batch as 'weight'.*sample_weight=2"):
        kind(model, (data, None), loss_func, 0.1, train).fit(1)


@pytest.mark.case("F18")
def test_third_items_that_are_meant_are_passed_on():
    seen = []

    def own(preds, targs, weight):
        seen.append(weight)
        return F.cross_entropy(preds, targs)

    data = weighted_batches(1)
    Learner(linear(n_out=4), (data, None), own, 0.1, [TrainCB()]).fit(1)
    assert seen[0] is data[0][2]
    for third, loss_func in [
        (torch.ones(2, 1), F.gaussian_nll_loss),
        (torch.ones(2, 1), F.binary_cross_entropy_with_logits),
        (None, F.mse_loss),
    ]:
        batch = torch.randn(2, 3), torch.ones(2, 1), third
        Learner(linear(), ([batch], None), loss_func, 0.1, [TrainCB()]).fit(1)


@pytest.mark.case("F18")
def test_weights_need_a_loss_by_sample_and_one_weight_for_each():
    data = weighted_batches(1)
    own = lambda p, t: F.cross_entropy(p, t)  # noqa: E731
    with pytest.raises(ValueError, match="reduction"):
        Learner(linear(n_out=4), (data, None), own, 0.1, [TrainCB(sample_weight=2)]).fit(1)
    short = [(x, y, w[:3]) for x, y, w in data]
    with pytest.raises(ValueError, match="one weight for each"):
        learner = Learner(linear(n_out=4), (short, None), F.cross_entropy, 0.1)
        learner.fit(1, cbs=TrainCB(sample_weight=2))
    with pytest.raises(KeyError, match="no sample_weight=3"):
        learner = Learner(linear(n_out=4), (data, None), F.cross_entropy, 0.1)
        learner.fit(1, cbs=TrainCB(n_inp=1, sample_weight=3))


@pytest.mark.case("F18")
def test_mixed_and_accumulated_batches_keep_their_weights():
    data = [(torch.randn(4, 1, 3, 1), y, w) for _, y, w in weighted_batches()]
    for mix in (MixUpCB(), CutMixCB()):
        model = nn.Sequential(nn.Flatten(), linear(n_out=4))
        cbs = [TrainCB(sample_weight=2), mix, GradAccumCB(2), MetricsCB(quiet=True)]
        learn = Learner(model, (data, data), F.cross_entropy, 0.1, cbs)
        learn.fit(1)
        assert learn.steps_done == 2 and len(learn.get_preds(with_loss=True)[2]) == 12


@pytest.mark.case("F18")
def test_metric_objects_that_ask_for_the_weights_count_by_them_and_others_do_not():
    class Weighted(te.BinaryAUROC):
        def update(self, input, target, sample_weight):
            return super().update(input, target, weight=sample_weight)

    @averaged(joins=True)
    def joined(preds, targs, sample_weight=None):
        hits = ((preds > 0) == targs).float()
        return hits.mean() if sample_weight is None else torch.dot(hits, sample_weight) / total(w=1)

    def total(w):
        return learn.batch[2].sum()

    data = [(x[:, 0], (y > 1).float(), w) for x, y, w in weighted_batches(5)]
    x, y, w = map(torch.cat, zip(*data, strict=True))
    metrics = MetricsCB(
        Weighted(), joined, mse=te.MeanSquaredError(), plain=te.BinaryAccuracy(), quiet=True
    )
    cbs = [TrainCB(sample_weight=2), metrics]
    learn = Learner(AsIs(), (data, data), F.binary_cross_entropy_with_logits, 0.0, cbs)
    found = learn.validate()
    hits = ((x > 0) == y).float()
    expected = {
        "Weighted": te.functional.binary_auroc(x, y, weight=w).item(),
        "joined": (hits @ w / w.sum()).item(),
        "mse": ((x - y).square() @ w / w.sum()).item(),
        "plain": ((x > 0.5) == y).float().mean().item(),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


# ---- K5: batches of other forms ----


class AsIs(nn.Module):
    """Predicts its input; the parameter is there to be trained."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.w


Sample = namedtuple("Sample", "label image place")
Pair = namedtuple("Pair", "label image")
NAMES = ("image", "label")  # in the order of inputs and targets


@dataclass
class Row:
    label: torch.Tensor
    image: torch.Tensor
    place: str = "here"


def rows(n=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 4, 3, generator=generator).unbind() for _ in range(n)]


BY_NAME = {
    "dict": lambda x, y: {"label": y, "image": x, "place": "here"},
    "named tuple": lambda x, y: Sample(y, x, torch.ones(4)),
    "pair": lambda x, y: Pair(y, x),
    "data class": lambda x, y: Row(y, x),
    "encoding": lambda x, y: BatchEncoding({"label": y, "image": x}),
    "read-only": lambda x, y: MappingProxyType({"label": y, "image": x}),
    "frozen": lambda x, y: Sample(label=y, image=x, place=None),
}


def check_by_name(make):
    """Inputs and targets are those of the names, whatever their order in the batch."""
    ours, theirs = linear(n_out=3), linear(n_out=3)
    cbs = [TrainCB(inputs="image", targets="label"), MetricsCB(F.l1_loss, quiet=True)]
    data = [make(x, y) for x, y in rows()]
    learn = Learner(ours, (data, data), F.mse_loss, 0.1, cbs)
    learn.fit(1)
    opt = torch.optim.SGD(theirs.parameters(), 0.1)
    for x, y in rows():
        F.mse_loss(theirs(x), y).backward()
        opt.step()
        opt.zero_grad()
    assert torch.equal(ours.weight, theirs.weight)
    x, y = map(torch.cat, zip(*rows(), strict=True))
    assert learn.history[-1]["l1_loss"] == pytest.approx(F.l1_loss(ours(x), y).item())


@pytest.mark.case("F18")
@pytest.mark.parametrize("make", BY_NAME.values(), ids=BY_NAME)
def test_names_find_items_in_whatever_has_names(make):
    check_by_name(make)


@pytest.mark.case("F18")
def test_the_check_notices_named_items_that_are_found_by_position(monkeypatch):
    monkeypatch.setattr(TrainCB, "_named", lambda self, batch: dict(zip(NAMES, batch, strict=True)))
    with pytest.raises(AssertionError):
        check_by_name(BY_NAME["pair"])


@pytest.mark.case("F18")
@pytest.mark.parametrize(
    ("train", "batch", "says"),
    [
        (TrainCB(inputs="x", targets="y"), (1, 2), "this batch has no names"),
        (TrainCB(targets=["y"]), [torch.ones(2), torch.ones(2)], "this batch has no names"),
        (TrainCB(n_inp=2), {"x": 1, "y": 2}, "name those of a dict"),
        (TrainCB(inputs="x", targets="label"), {"x": 1}, None),
    ],
)
def test_settings_that_mean_nothing_for_a_batch_are_refused(train, batch, says):
    if says is None:  # data to predict for have no targets
        assert train.split(batch) == ([1], {}, ())
        return
    with pytest.raises(TypeError, match=says):
        train.split(batch)


@pytest.mark.case("F18")
def test_a_list_of_items_goes_to_a_model_as_it_is():
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear()

        def forward(self, items):
            loss = sum(self.layer(item["image"].mean((1, 2))).square().sum() for item in items)
            return {"loss_box": loss / len(items), "num_boxes": torch.tensor(7)}

    items = [{"image": torch.randn(3, n, n), "height": n} for n in range(4, 11)]
    data = [items[:3], items[3:6], items[6:]]
    model = Detector()
    learn = Learner(model, (data, data), None, 0.0, [TrainCB(), MetricsCB(quiet=True)])
    learn.fit(1)
    loss = model(items)["loss_box"].item()
    row = learn.history[-1]
    assert row["train_loss"] == pytest.approx(loss) and row["loss_box"] == pytest.approx(loss)
    assert row["num_boxes"] == 7
