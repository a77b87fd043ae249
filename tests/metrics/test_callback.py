"""MetricsCB: the values of an epoch are those of all its items, whatever the batches were."""

import copy
import gc
import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torcheval.metrics as te
import torchmetrics as tm
from sklearn import metrics as sk
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence
from torch.utils._python_dispatch import TorchDispatchMode

from minilearn import CheckpointCB, CSVLoggerCB, JSONLLoggerCB, LogCB, ProgressCB
from minilearn.base.batch import tensors
from minilearn.callbacks.gradients import ClipGradCB, GradAccumCB, NonFiniteCB
from minilearn.callbacks.precision import MixedPrecision
from minilearn.callbacks.training import TrainCB
from minilearn.core import learner as loop_module
from minilearn.core.callback import Callback
from minilearn.core.events import (
    CancelBatchException,
    CancelEpochException,
    CancelFitException,
    Order,
    with_cbs,
)
from minilearn.learner import Learner, TrainLearner
from minilearn.metrics import callback as metrics_module
from minilearn.metrics import mean as mean_module
from minilearn.metrics import update as update_module
from minilearn.metrics.callback import MetricsCB
from minilearn.metrics.functions import accuracy, mse, rmse, skm
from minilearn.metrics.mean import Mean, averaged
from minilearn.metrics.update import Updater

SIZES = (1, 3, 4, 10, 64)


class Quiet(MetricsCB):
    def _log(self, row):
        pass


class AsIs(nn.Module):
    """Predicts its input; the parameter is there to be trained."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + 0 * self.w


def cut(size, *arrays):
    return list(zip(*(a.split(size) for a in arrays), strict=True))


def measure(metrics, data, valid=None, loss=F.cross_entropy, cbs=(), n=1, count=None, **kwargs):
    """Run `metrics` over given predictions: the model hands its inputs on."""
    cbs = [TrainCB(), metrics, *cbs]
    learn = Learner(AsIs(), (data, valid), loss, 0.0, cbs, count=count)
    learn.fit(n, **kwargs)
    return learn


def labels(n=100, k=4):
    return torch.randn(n, k), torch.randint(0, k, (n,))


# ---- C034: the short last batch ----

HITS = ([1, 1, 1, 1], [1, 1, 0, 0], [0, 0])  # accuracies 1.0, 0.5 and 0.0


def hits_in_batches(size=None):
    hit = torch.tensor(sum(HITS, []))
    x = F.one_hot(1 - hit, 2).float() * 3  # the right class is 0
    y = torch.zeros(10, dtype=torch.long)
    parts = [4, 4, 2] if size is None else size
    return cut(parts, x, y), F.cross_entropy(x.double(), y).item()


def check_c034(metrics_class):
    for size in (None, 1, 3, 10):
        data, loss = hits_in_batches(size)
        learn = measure(metrics_class(accuracy, te.MulticlassAccuracy()), data, data)
        row = learn.history[0]
        for prefix in ("", "train_"):
            assert row[f"{prefix}accuracy"] == pytest.approx(0.6, abs=1e-6)
            assert row[f"{prefix}MulticlassAccuracy"] == pytest.approx(0.6, abs=1e-6)
        assert row["train_loss"] == pytest.approx(loss, abs=1e-6)
        assert row["valid_loss"] == pytest.approx(loss, abs=1e-6)


@pytest.mark.case("C034")
def test_a_short_last_batch_counts_by_its_items():
    check_c034(Quiet)


@pytest.mark.case("C034")
def test_plain_means_of_batch_values_would_be_noticed(monkeypatch):
    update = Mean.update
    monkeypatch.setattr(Mean, "update", lambda self, value, weight=1: update(self, value, 1))
    with pytest.raises(AssertionError):
        check_c034(Quiet)


# ---- C035: training and validation apart ----


def check_c035(metrics_class):
    x = F.one_hot(torch.zeros(150, dtype=torch.long), 2).float()
    y = torch.tensor([0] * 100 + [1] * 50)
    train, valid = cut(10, x[:100], y[:100]), cut(10, x[100:], y[100:])
    metrics = metrics_class(accuracy, torcheval=te.MulticlassAccuracy())
    learn = measure(metrics, train, valid, n=3)
    assert len(learn.history) == 3
    for row in learn.history:
        assert row["train_accuracy"] == row["train_torcheval"] == 1.0
        assert row["accuracy"] == row["torcheval"] == 0.0


@pytest.mark.case("C035")
def test_training_results_do_not_leak_into_validation():
    check_c035(Quiet)


@pytest.mark.case("C035")
def test_a_metric_that_is_not_reset_would_be_noticed():
    class Leaky(Quiet):
        def before_epoch(self, learn):
            self._measuring, self._split = True, None

    with pytest.raises(AssertionError):
        check_c035(Leaky)


# ---- C036: metrics that cannot be split over batches ----


def check_c036(f1, auroc, r2):
    torch.manual_seed(1)
    scores, y = labels(150, 3)
    y[:8] = 0  # batches of 4 with a single class
    p, yb = torch.rand(150), (torch.rand(150) > 0.5).long()
    yb[:8] = 1
    z = torch.randn(150) + p
    for size in (4, 64):
        got = [
            measure(Quiet(m=metric()), data, data, loss=no_loss).history[0]["m"]
            for metric, data in (
                (f1, cut(size, scores, y)),
                (auroc, cut(size, p, yb)),
                (r2, cut(size, p, z)),
            )
        ]
        want = [
            sk.f1_score(y, scores.argmax(1), average="macro"),
            sk.roc_auc_score(yb, p),
            sk.r2_score(z, p),
        ]
        assert got == pytest.approx(want, abs=1e-6)


def no_loss(preds, targs):
    return preds.mean()


SKLEARN = (
    lambda: skm(sk.f1_score, lambda p: p.argmax(1), average="macro"),
    lambda: skm(sk.roc_auc_score),
    lambda: skm(sk.r2_score),
)


@pytest.mark.case("C036")
@pytest.mark.parametrize(
    "kinds",
    [
        SKLEARN,
        (lambda: te.MulticlassF1Score(num_classes=3, average="macro"), te.BinaryAUROC, te.R2Score),
        (
            lambda: tm.F1Score(task="multiclass", num_classes=3, average="macro"),
            lambda: tm.AUROC(task="binary"),
            tm.R2Score,
        ),
    ],
    ids=["sklearn", "torcheval", "torchmetrics"],
)
def test_auroc_f1_and_r2_are_those_of_all_predictions(kinds):
    check_c036(*kinds)


@pytest.mark.case("C036")
def test_averages_over_batches_would_be_noticed():
    def by_batch(metric):
        def f(preds, targs):
            joined = metric()
            joined.update(preds, targs)
            return joined.compute()

        return lambda: f

    with pytest.raises(AssertionError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_c036(*map(by_batch, SKLEARN))


# ---- C037: where metrics live (with the meta device in the place of a GPU; see tests/gpu) ----


def check_c037(hand=None):
    x, y = torch.randn(6, 3, device="meta"), torch.zeros(6, dtype=torch.long, device="meta")
    for metric in (te.MulticlassAccuracy(), tm.MeanSquaredError()):
        update = Updater([metric]).update if hand is None else partial(hand, metric)
        update(x, y if isinstance(metric, te.MulticlassAccuracy) else x)
        assert metric.device.type == "meta"


@pytest.mark.case("C037")
def test_metric_objects_follow_the_data():
    check_c037()


@pytest.mark.case("C037")
def test_metric_objects_that_stay_would_be_noticed():
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        check_c037(hand=lambda metric, preds, targs: metric.update(preds, targs))


def test_a_metric_whose_state_the_device_cannot_hold_stays_on_the_cpu():
    class Float64(te.Mean):
        def to(self, device, *args, **kwargs):
            if torch.device(device).type != "cpu":
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
            return super().to(device)

        def update(self, preds, targs):
            self.seen = preds.device.type
            return super().update(preds)

    class Preds(torch.Tensor):  # data that claims to be on another device
        device = torch.device("mps")

    metric, x = Float64(), torch.ones(2).as_subclass(Preds)
    updater = Updater([metric])
    updater.update(x, x)
    updater.update(x, x)
    assert metric.compute() == 1 and metric.device.type == "cpu"


def test_results_are_python_floats():
    x, y = labels(10)
    metrics = Quiet(accuracy, te.MulticlassAccuracy(), tm.Accuracy("multiclass", num_classes=4))
    row = measure(metrics, cut(4, x, y)).history[0]
    assert {type(v) for k, v in row.items() if k not in ("epoch", "steps")} == {float}


# ---- C038: the order of the arguments ----


def check_c038(precision, recall):
    preds = torch.tensor([1] * 5 + [0] * 6)
    targs = torch.tensor([1] * 4 + [0] + [1] * 4 + [0] * 2)  # 4 TP, 1 FP, 4 FN
    data = [(preds[::2], targs[::2]), (preds[1::2], targs[1::2])]
    row = measure(
        Quiet(precision=precision, recall=recall), data, loss=lambda p, t: p.float().mean()
    ).history[0]
    assert row["train_precision"] == pytest.approx(0.8, abs=1e-6)
    assert row["train_recall"] == pytest.approx(0.5, abs=1e-6)


class Ratio:
    """A metric object of one's own: hits over what `of` selects."""

    def __init__(self, of):
        self.of = of
        self.reset()

    def reset(self):
        self.hits = self.all = 0

    def update(self, preds, targs):
        self.hits = self.hits + (preds * targs).sum()
        self.all = self.all + self.of(preds, targs).sum()

    def compute(self):
        return self.hits / self.all


@pytest.mark.case("C038")
@pytest.mark.parametrize(
    "kinds",
    [
        (skm(sk.precision_score), skm(sk.recall_score)),
        (te.BinaryPrecision(), te.BinaryRecall()),
        (tm.Precision("binary"), tm.Recall("binary")),
        (Ratio(lambda p, t: p), Ratio(lambda p, t: t)),
    ],
    ids=["sklearn", "torcheval", "torchmetrics", "own"],
)
def test_predictions_come_first_and_the_adapter_swaps(kinds):
    check_c038(*kinds)


@pytest.mark.case("C038")
def test_swapped_arguments_would_be_noticed():
    with pytest.raises(AssertionError):
        check_c038(
            skm(lambda t, p: sk.precision_score(p, t)), skm(lambda t, p: sk.recall_score(p, t))
        )


# ---- C149: nothing keeps the graph ----


class GraphCounter(Callback):
    order = Order.STOP

    def __init__(self):
        self.live = {}

    def cleanup_batch(self, learn):
        if learn.iter in (4, 49):
            gc.collect()
            tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
            self.live[learn.iter] = sum(t.grad_fn is not None for t in tensors)


def check_c149(metrics):
    x, y = labels(50 * 4)
    counter = GraphCounter()
    model = nn.Linear(4, 4)
    cbs = [TrainCB(), metrics, counter]
    Learner(model, (cut(4, x, y),), F.cross_entropy, 0.1, cbs).fit(1)
    assert counter.live[4] == counter.live[49]


@pytest.mark.usefixtures("new_objects_alone")
@pytest.mark.case("C149")
def test_recorded_losses_do_not_keep_the_graph():
    check_c149(Quiet(accuracy, ce=lambda p, t: F.cross_entropy(p, t)))


@pytest.mark.usefixtures("new_objects_alone")
@pytest.mark.case("C149")
def test_losses_kept_with_their_graph_would_be_noticed():
    class Keeper(Callback):
        def __init__(self):
            self.kept = []

        def after_loss(self, learn):
            self.kept.append(learn.loss)

    with pytest.raises(AssertionError):
        check_c149(Keeper())


# ---- the device is read once an epoch ----


class CountReads(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.reads += name in ("_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero")
        return func(*args, **(kwargs or {}))


def reads_of_a_pass(*metrics):
    reads = []

    class Between(Callback):
        order = Order.STOP

        def before_batch(self, learn):
            self.mode = CountReads().__enter__()

        def cleanup_batch(self, learn):
            self.mode.__exit__(None, None, None)
            reads.append(self.mode.reads)

    x, y = labels(200)
    measure(Quiet(*metrics), cut(2, x, y), cut(2, x, y), cbs=[Between()])
    return sum(reads)


def test_no_batch_reads_the_device():
    assert reads_of_a_pass(accuracy, rmse_of_top, te.MulticlassAccuracy()) == 0


def rmse_of_top(preds, targs):
    return mse(preds[:, 0], targs.float())


def test_a_read_would_be_noticed():
    assert reads_of_a_pass(read_accuracy) == 200


def read_accuracy(preds, targs):
    return accuracy(preds, targs).item()


# ---- joined updates ----


@pytest.mark.parametrize("size", SIZES)
def test_values_equal_scikit_learns_for_every_batch_size(size):
    x, y = labels(130)
    metrics = Quiet(
        accuracy=accuracy,
        top2=partial(accuracy, topk=2),
        f1=te.MulticlassF1Score(num_classes=4, average="macro"),
        confusion=te.MulticlassConfusionMatrix(4),
    )
    row = measure(metrics, cut(size, x, y), loss=F.cross_entropy).history[0]
    assert row["train_loss"] == pytest.approx(F.cross_entropy(x.double(), y).item(), abs=1e-6)
    assert row["train_accuracy"] == pytest.approx(sk.accuracy_score(y, x.argmax(1)), abs=1e-6)
    assert row["train_top2"] == pytest.approx(sk.top_k_accuracy_score(y, x, k=2), abs=1e-6)
    assert row["train_f1"] == pytest.approx(sk.f1_score(y, x.argmax(1), average="macro"), abs=1e-6)
    assert row["train_confusion"] == sk.confusion_matrix(y, x.argmax(1)).tolist()


class Recorded:
    """A metric object that keeps what it is given."""

    def __init__(self, joins=None):
        if joins is not None:
            self.joins = joins
        self.reset()

    def reset(self):
        self.calls = []

    def update(self, preds, targs):
        self.calls.append((preds.clone(), targs.clone()))

    def compute(self):
        return float(len(self.calls))


def test_a_metric_of_your_own_gets_each_batch_and_a_joining_one_gets_few():
    x, y = labels(60)
    own, joining = Recorded(), Recorded(joins=True)
    measure(Quiet(own=own, joining=joining), cut(2, x, y))
    assert len(own.calls) == 30 and len(joining.calls) == 2  # the first at once, the others joined
    for metric in (own, joining):
        assert torch.equal(torch.cat([preds for preds, _ in metric.calls]), x)
        assert torch.equal(torch.cat([targs for _, targs in metric.calls]), y)


def test_clones_are_bounded(monkeypatch):
    monkeypatch.setattr(update_module, "KEEP_BYTES", 500)
    x, y = labels(64)
    joining, seen = Recorded(joins=True), []
    updater = Updater([joining])
    for batch in [*cut(4, x, y), (x, y)]:  # 96 bytes each, then one that is too large
        updater.update(*batch)
        seen.append(sum(p.nbytes + t.nbytes for p, t, _ in updater.kept))
    updater.flush()
    assert max(seen) == 480
    assert torch.equal(torch.cat([preds for preds, _ in joining.calls]), torch.cat([x, x]))


def test_batches_of_other_shapes_are_not_joined():
    joining = Recorded(joins=True)
    updater = Updater([joining])
    for width in (3, 3, 5, 5, 3):
        updater.update(torch.ones(2, width), torch.ones(2))
    updater.flush()
    assert [tuple(p.shape) for p, _ in joining.calls] == [(2, 3), (2, 3), (4, 5), (2, 3)]


class Calls:
    """Accuracy as a user writes it, with a note of each call."""

    def __init__(self):
        self.sizes = []

    def __call__(self, preds, targs):
        self.sizes.append(len(preds))
        return (preds.argmax(1) == targs).float().mean()


def test_functions_that_join_are_called_on_joined_batches_with_the_same_value():
    x, y = labels(501)
    by_batch, joining = Calls(), averaged(joins=True)(Calls())
    metrics = Quiet(ours=accuracy, by_batch=by_batch, joining=joining)
    learn = measure(metrics, cut(8, x, y), cut(8, x, y))
    assert by_batch.sizes == 2 * [*62 * [8], 5] and joining.sizes == 2 * [8, 493]
    exact = (x.argmax(1) == y).double().mean().item()
    for name in metrics.metrics:
        assert learn.history[0][name] == pytest.approx(exact, abs=6e-8)


def test_a_loader_may_refill_its_buffers_under_functions_that_join():
    class Refilled:
        def __iter__(self):
            x, y = torch.empty(4, 4), torch.empty(4, dtype=torch.long)
            for xb, yb in data:
                yield x.copy_(xb), y.copy_(yb)

    data = cut(4, *labels(40))
    got = measure(Quiet(accuracy), Refilled()).history[0]["train_accuracy"]
    assert got == pytest.approx(measure(Quiet(by_hand=Calls()), data).history[0]["train_by_hand"])


def test_counts_that_are_no_rows_weigh_functions_that_join_too():
    x, y = labels(12)
    data, count = cut(4, x, y), lambda batch: 1 + int(batch[1].sum())
    joining = averaged(joins=True)(Calls())
    learn = measure(Quiet(accuracy, joining), data, count=count)
    hits = [(xb.argmax(1) == yb).double().mean() for xb, yb in data]
    weights = [count(batch) for batch in data]
    right = sum(h * w for h, w in zip(hits, weights, strict=True)) / sum(weights)
    assert joining.sizes == [4, 4, 4]
    assert learn.history[0]["train_accuracy"] == pytest.approx(right.item())


def test_functions_that_join_and_ignore_labels_weigh_by_what_counts():
    x, y = labels(60)
    y[torch.rand(60) < 0.5] = -1
    metrics = Quiet(partial(accuracy, ignore_index=-1))
    row = measure(metrics, cut(4, x, y), loss=partial(F.cross_entropy, ignore_index=-1)).history[0]
    right = (x.argmax(1) == y)[y != -1].double().mean().item()
    assert row["train_accuracy"] == pytest.approx(right, abs=6e-8)


def test_what_windows_count_is_updates_so_they_are_not_joined():
    window = te.WindowedMeanSquaredError(max_num_updates=2, enable_lifetime=False)
    x = torch.arange(6.0)
    row = measure(Quiet(w=window), cut(1, x, torch.zeros(6)), loss=no_loss).history[0]
    assert row["train_w"] == pytest.approx((4**2 + 5**2) / 2)


def test_tasks_in_the_first_dimension_are_not_joined():
    x, y = torch.rand(2, 12), (torch.rand(2, 12) > 0.5).long()
    data = [(x[:, i : i + 4], y[:, i : i + 4]) for i in (0, 4, 8)]
    row = measure(Quiet(te.BinaryAUROC(num_tasks=2)), data, loss=no_loss).history[0]
    want = [sk.roc_auc_score(y[i], x[i]) for i in (0, 1)]
    assert row["train_BinaryAUROC"] == pytest.approx(want, abs=1e-6)


def test_a_loader_may_refill_its_buffers():
    x, y = labels(40)
    bx, by = torch.empty(4, 4), torch.empty(4, dtype=torch.long)

    class Refilling:
        def __iter__(self):
            for xb, yb in cut(4, x, y):
                yield bx.copy_(xb), by.copy_(yb)

    metrics = Quiet(te.MulticlassAccuracy(), first=lambda p, t: t[0])
    row = measure(metrics, Refilling()).history[0]
    assert row["train_MulticlassAccuracy"] == pytest.approx(sk.accuracy_score(y, x.argmax(1)))
    assert row["train_first"] == y[::4].double().mean()


# ---- running means ----


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_are_exact_to_a_millionth_over_many_updates(monkeypatch, dtype):
    monkeypatch.setattr(mean_module, "wide", lambda device: dtype)
    mean, values, counts = Mean(), torch.rand(30_000) + 100, torch.randint(1, 9, (30_000,))
    for value, count in zip(values, counts.tolist(), strict=True):
        mean.update(value, count)
    want = np.average(values.double().numpy(), weights=counts.numpy())
    assert mean.compute().item() == pytest.approx(want, rel=2e-7)


def test_counts_may_be_tensors_and_a_batch_without_items_counts_for_nothing():
    x, y = labels(12)
    y[4:8] = -100  # the whole second batch: its loss is nan

    def count(batch):
        return (batch[1] != -100).sum()

    metrics = Quiet(partial(accuracy, ignore_index=-100))
    row = measure(metrics, cut(4, x, y), count=count).history[0]
    kept = y != -100
    assert row["train_loss"] == pytest.approx(F.cross_entropy(x[kept], y[kept]).item(), abs=1e-6)
    want = sk.accuracy_score(y[kept], x[kept].argmax(1))
    assert row["train_accuracy"] == pytest.approx(want, abs=1e-6)


def test_an_ignored_label_is_no_item_without_a_count_too():
    x, y = labels(12)
    y[5:8] = -100
    row = measure(Quiet(partial(accuracy, ignore_index=-100)), cut(4, x, y)).history[0]
    want = sk.accuracy_score(y[y != -100], x[y != -100].argmax(1))
    assert row["train_accuracy"] == pytest.approx(want, abs=1e-6)


def test_rmse_of_an_epoch_is_the_root_of_the_mean_over_all_items():
    x, y = torch.randn(10), torch.randn(10)
    row = measure(Quiet(rmse), cut(4, x, y), loss=F.mse_loss).history[0]
    assert row["train_rmse"] == pytest.approx(sk.root_mean_squared_error(y, x), abs=1e-6)


def test_values_that_are_no_scalars_are_averaged_and_shown():
    x, y = torch.randn(10, 2), torch.randn(10, 2)
    metrics = MetricsCB(per_output=lambda p, t: (p - t).abs().mean(0))
    row = measure(metrics, cut(4, x, y), loss=F.mse_loss).history[0]
    want = sk.mean_absolute_error(y, x, multioutput="raw_values")
    assert row["train_per_output"] == pytest.approx(want.tolist(), abs=1e-6)
    assert "train_per_output" in str(measure(metrics, cut(4, x, y), loss=F.mse_loss).history)


def test_half_precision_predictions_are_measured_in_float32():
    seen = []

    def kind(preds, targs):
        seen.append(preds.dtype)
        return preds.mean()

    x = torch.full((4, 2), 0.1, dtype=torch.bfloat16)
    measure(Quiet(kind), [(x, torch.zeros(4))], loss=lambda p, t: p.float().mean())
    assert seen == [torch.float32]


# ---- rows and columns ----


def test_rows_and_history_say_the_same():
    x, y = labels(20)
    learn = measure(metrics := Quiet(accuracy), cut(6, x, y), cut(6, x, y), n=2)
    assert learn.metrics is metrics
    assert [list(row) for row in metrics.rows] == [["epoch", "train", "accuracy", "loss"]] * 4
    assert [(r["epoch"], r["train"]) for r in metrics.rows] == [
        (0, "train"),
        (0, "eval"),
        (1, "train"),
        (1, "eval"),
    ]
    assert learn.history["train_accuracy"] == [r["accuracy"] for r in metrics.rows[::2]]
    assert learn.history["valid_loss"] == [r["loss"] for r in metrics.rows[1::2]]
    assert set(metrics.names) == set(learn.history.columns) - {"epoch", "steps", "time"}


def test_quiet_metrics_print_nothing_and_fill_the_history(capsys):
    data, _ = hits_in_batches()
    learn = measure(MetricsCB(accuracy, quiet=True), data)
    assert capsys.readouterr().out == ""
    assert "train_accuracy" in learn.history.columns


def test_a_row_is_printed_in_words(capsys):
    data, _ = hits_in_batches()
    measure(MetricsCB(accuracy), data)
    assert capsys.readouterr().out.startswith("epoch 0  train  accuracy 0.6000  loss ")


def test_whoever_replaces_log_shows_the_rows_instead(capsys):
    shown, metrics = [], MetricsCB()
    metrics._log = shown.append
    measure(metrics, cut(4, *labels(8)))
    assert shown == metrics.rows and capsys.readouterr().out == ""


def test_parts_of_a_loss_are_columns():
    def losses(preds, targs):
        return {"ce": F.cross_entropy(preds, targs), "kl": preds.mean()}

    x, y = labels(10)
    learn = measure(Quiet(accuracy), cut(4, x, y), cut(4, x, y), loss=losses)
    row = learn.history[0]
    assert row["train_kl"] == row["kl"] == pytest.approx(x.mean().item(), abs=1e-6)
    assert row["ce"] + row["kl"] == pytest.approx(row["valid_loss"], abs=1e-6)
    assert "kl" in learn.metrics.names
    with pytest.raises(ValueError, match="another column 'ce'"):
        measure(Quiet(ce=accuracy), cut(4, x, y), loss=losses)


def test_a_named_validation_set_has_columns_of_its_own():
    class Names(Callback):
        order = Order.PLACE

        def before_epoch(self, learn):
            learn.plan.valid_name = "old"

    x, y = labels(8)
    row = measure(Quiet(accuracy), cut(4, x, y), cut(4, x, y), cbs=[Names()]).history[0]
    assert {"train_loss", "train_accuracy", "old_loss", "old_accuracy"} <= set(row)


def test_a_metric_that_returns_a_dict_has_a_column_for_each_key():
    both = tm.MetricCollection({"a": tm.MeanSquaredError(), "b": tm.MeanAbsoluteError()})
    x, y = torch.randn(10), torch.randn(10)
    row = measure(Quiet(m=both), cut(4, x, y), loss=F.mse_loss).history[0]
    assert row["train_m_a"] == pytest.approx(row["train_loss"], abs=1e-6)
    assert row["train_m_b"] == pytest.approx(sk.mean_absolute_error(y, x), abs=1e-6)


# ---- what ends an epoch early ----


class RaiseAt(Callback):
    def __init__(self, event, error, batch=2):
        def raise_it(learn):
            if learn.iter == batch and learn.training:
                raise error

        setattr(self, event, raise_it)


def test_finished_batches_count_when_a_cancel_ends_the_epoch():
    x, y = labels(16)
    for error in (CancelEpochException, CancelFitException):
        cbs = [RaiseAt("before_batch", error)]
        learn = measure(Quiet(), cut(4, x, y), cbs=cbs)
        want = F.cross_entropy(x[:8], y[:8]).item()
        assert learn.history["train_loss"] == [pytest.approx(want, abs=1e-6)]
        assert len(learn.metrics.rows) == 1


def test_a_cancelled_batch_does_not_count():
    x, y = labels(12)
    learn = measure(Quiet(), cut(4, x, y), cbs=[RaiseAt("after_loss", CancelBatchException, 1)])
    keep = [0, 1, 2, 3, 8, 9, 10, 11]
    want = F.cross_entropy(x[keep], y[keep]).item()
    assert learn.history["train_loss"] == [pytest.approx(want, abs=1e-6)]


def test_an_epoch_without_finished_batches_gives_no_values():
    x, y = labels(12)
    cbs = [RaiseAt("before_batch", CancelEpochException, 0)]
    metrics = Quiet(accuracy, te.MulticlassAccuracy())
    learn = measure(metrics, cut(4, x, y), cut(4, x, y), cbs=cbs)
    assert [row["train"] for row in metrics.rows] == ["eval"]
    assert "train_loss" not in learn.history[0] and "valid_loss" in learn.history[0]


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_errors_and_interrupts_leave_no_row(error):
    x, y = labels(16)
    metrics = Quiet(accuracy)
    with pytest.raises(type(error)):
        measure(metrics, cut(4, x, y), cbs=[RaiseAt("before_batch", error)])
    assert metrics.rows == []
    assert len(measure(metrics, cut(4, x, y)).history) == 1


def test_a_cancel_after_the_row_does_not_make_a_second():
    class Stop(Callback):
        order = Order.STOP

        def after_epoch(self, learn):
            raise CancelFitException

    metrics = Quiet()
    measure(metrics, cut(4, *labels(8)), cbs=[Stop()])
    assert len(metrics.rows) == 1


# ---- losses that are not finite ----


def nan_in_validation_too(preds, targs):
    return preds.mean() * math.nan


def test_a_training_loss_that_is_not_finite_raises_and_names_the_epoch():
    with pytest.raises(FloatingPointError, match="training loss of epoch 0 .* loss is nan"):
        measure(Quiet(), cut(4, *labels(8)), loss=nan_in_validation_too)


def test_a_validation_loss_that_is_not_finite_warns_and_says_where_to_look():
    x, y = labels(8)
    data = [(x[:4], y[:4]), (x[4:], y[4:])]
    model = nn.Linear(4, 4)
    learn = Learner(model, (data, data), F.cross_entropy, 0.1, cbs=[TrainCB(), Quiet()])
    learn.on(
        "after_loss", lambda learn: setattr(learn, "loss", learn.loss * math.nan), training=False
    )
    with pytest.warns(UserWarning, match="validation loss of epoch 0 .* nan. Look for bad data"):
        learn.fit(1)


class Broken:
    """A loss that is nan from one training batch on, with a count of its calls."""

    def __init__(self, first):
        self.first, self.calls = first, 0

    def __call__(self, preds, targs):
        self.calls += 1
        return F.cross_entropy(preds, targs) * (math.nan if self.calls > self.first else 1)


@pytest.mark.parametrize("bar", [True, False])
@pytest.mark.parametrize(("first", "found"), [(0, 128), (127, 128), (128, 256), (200, 256)])
def test_a_loss_that_is_not_finite_is_found_every_128_updates(bar, first, found):
    loss = Broken(first)
    cbs = [ProgressCB()] if bar else []
    with pytest.raises(FloatingPointError, match=f"epoch 0 is not finite after {found} updates"):
        measure(Quiet(), cut(1, *labels(300)), loss=loss, cbs=cbs)
    assert loss.calls == found


def test_the_look_at_the_loss_goes_by_updates_not_by_batches_or_epochs():
    with pytest.raises(FloatingPointError, match="epoch 2 is not finite after 256 updates"):
        measure(Quiet(), cut(1, *labels(100)), loss=Broken(220), n=9)
    loss = Broken(150)
    with pytest.raises(FloatingPointError, match="epoch 0 is not finite after 128 updates"):
        measure(Quiet(), cut(1, *labels(300)), loss=loss, cbs=[GradAccumCB(2)])
    assert loss.calls == 256


def test_on_nan_warn_looks_at_the_end_of_the_epoch_alone():
    loss = Broken(3)
    with pytest.warns(UserWarning, match="training loss of epoch 0") as caught:
        measure(Quiet(on_nan="warn"), cut(1, *labels(300)), loss=loss)
    assert loss.calls == 300 and sum("not finite" in str(w.message) for w in caught) == 1


def test_a_part_that_is_not_finite_is_named():
    def losses(preds, targs):
        return {"fine": preds.mean(), "kl": preds.mean() / 0}

    with pytest.raises(FloatingPointError, match="kl is -?inf"):
        measure(Quiet(), cut(8, *labels(8)), loss=losses)


def test_on_nan_warn_goes_on_and_validation_only_warns():
    data = cut(4, *labels(8))
    with pytest.warns(UserWarning, match="training loss of epoch 1"):
        learn = measure(Quiet(on_nan="warn"), data, loss=nan_in_validation_too, n=2)
    assert len(learn.history) == 2
    with pytest.warns(UserWarning, match="validation loss of epoch 0"):
        measure(Quiet(), data, data, loss=nan_in_validation_too, train=False)
    with pytest.raises(ValueError, match="on_nan"):
        MetricsCB(on_nan="ignore")


@pytest.mark.parametrize("guard", [NonFiniteCB(), ClipGradCB(1.0), MixedPrecision("fp16"), None])
def test_a_loss_that_is_not_finite_only_warns_where_its_update_is_skipped(guard):
    data = cut(4, torch.randn(12, 3), torch.randn(12, 1))
    data[1][0][0] = math.nan
    model, guards = torch.nn.Linear(3, 1), [] if guard is None else [guard]
    learn = Learner(model, (data,), F.mse_loss, 0.1, [TrainCB(), Quiet(), *guards])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if guards and guard.skips_non_finite:
            learn.fit(1)
            assert math.isnan(learn.history[0]["train_loss"])
            assert learn.steps_done in (1, 2)  # a scaler begins with a scale that is too large
            assert any("training loss of epoch 0 is not" in str(w.message) for w in caught)
            assert all(p.isfinite().all() for p in model.parameters())
        else:
            with pytest.raises(FloatingPointError, match="training loss of epoch 0"):
                learn.fit(1)


# ---- names ----


def test_metrics_are_named_after_their_class_or_function():
    metrics = MetricsCB(
        te.MulticlassAccuracy(), te.MulticlassAccuracy, partial(accuracy, topk=2), skm(sk.f1_score)
    )
    assert list(metrics.metrics) == [
        "MulticlassAccuracy",
        "MulticlassAccuracy_2",
        "accuracy",
        "f1_score",
    ]
    assert list(metrics.all_metrics)[-1] == "loss" and metrics.all_metrics["loss"] is metrics.loss
    assert repr(metrics).startswith("MetricsCB(MulticlassAccuracy, ")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: MetricsCB(lambda p, t: 0), ValueError, "lambda"),
        (lambda: MetricsCB(loss=accuracy), ValueError, "'loss'"),
        (lambda: MetricsCB(a=accuracy, train_a=accuracy), ValueError, "'train_a'"),
        (lambda: MetricsCB(a=3), TypeError, "'a' is a int"),
    ],
)
def test_what_is_no_metric_or_has_no_name_is_refused_at_once(make, error, words):
    with pytest.raises(error, match=words):
        make()


# ---- targets ----


@pytest.mark.parametrize("value", [None, "high", {"a": 1.0, "b": 2.0}, [1.0, None]])
def test_a_function_without_a_number_is_named_at_its_first_batch(value):
    def mine(preds, targs):
        return value

    x, y = labels(8)
    with pytest.raises(TypeError, match=r"the metric mine returned .*let it return a number") as e:
        measure(Quiet(mine), cut(4, x, y))
    assert "batch 0" in e.value.__notes__[0]


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, np.asarray, torch.tensor, list])
def test_a_function_may_return_any_kind_of_number(kind):
    x, y = labels(10)

    def size(preds, targs):
        return kind([len(preds)] * 2 if kind is list else len(preds))

    value = measure(Quiet(size), cut(4, x, y)).history[0]["train_size"]
    assert value == ([3.6, 3.6] if kind is list else 3.6)  # (4 * 4 + 4 * 4 + 2 * 2) / 10


def test_several_targets_come_as_a_tuple_and_one_as_it_is():
    seen = []

    def look(preds, targs):
        seen.append(targs)
        return preds.mean()

    x, y = labels(4)
    measure(Quiet(look), [(x, y, y)], loss=lambda p, a, b: p.mean())
    assert isinstance(seen[0], tuple) and torch.equal(seen[0][1], y)
    learn = TrainLearner(nn.Linear(4, 4), ([(x, y)],), F.cross_entropy, 0.1, [Quiet(look)])
    learn.fit(1)
    assert seen[1] is y


def test_a_dict_batch_is_split_as_train_cb_says():
    x, y = labels(8)
    cbs = [TrainCB(inputs="image", targets="label"), Quiet(accuracy)]
    learn = Learner(AsIs(), ([{"image": x, "label": y}],), F.cross_entropy, 0.0, cbs)
    learn.fit(1)
    assert learn.history[0]["train_accuracy"] == pytest.approx(sk.accuracy_score(y, x.argmax(1)))


def test_metrics_without_targets_say_what_is_missing_and_the_loss_alone_needs_none():
    x = torch.randn(8, 2)
    train = [TrainCB()]
    with pytest.raises(ValueError, match="no targets: the batch is Tensor"):
        Learner(AsIs(), ([x],), lambda p: p.mean(), 0.0, [*train, Quiet(accuracy)]).fit(1)
    learn = Learner(AsIs(), ([x],), lambda p: p.mean(), 0.0, [*train, Quiet()])
    learn.fit(1)
    assert learn.history[0]["train_loss"] == pytest.approx(x.mean().item())
    own = Learner(nn.Module(), ([x], [x]), None, 0.0, [*train, Quiet(mse)])
    own.model.forward = lambda x: x.mean()
    with pytest.raises(ValueError, match="no predictions"):
        own.fit(1, train=False)


def test_mixed_targets_are_measured_by_their_larger_weight():
    x, y = labels(8)

    class Mixed:
        def __init__(self, labels):
            self.labels = labels

        def hard(self):
            return self.labels

    def loss(preds, targs):
        return F.cross_entropy(preds, targs.labels)

    row = measure(Quiet(accuracy), [(x, Mixed(y))], loss=loss).history[0]
    assert row["train_accuracy"] == pytest.approx(sk.accuracy_score(y, x.argmax(1)))


# ---- other learners, and the shorthand ----


def test_it_works_with_a_learner_from_a_notebook(capsys):
    class Small:
        def __init__(self, model, dl, cbs):
            self.model, self.dl, self.cbs, self.epoch = model, dl, cbs, 0

        def callback(self, name):
            for cb in sorted(self.cbs, key=lambda cb: cb.order):
                getattr(cb, name, lambda learn: None)(self)

        @with_cbs("batch")
        def one_batch(self):
            self.preds = self.model(self.batch[0])
            self.loss = F.cross_entropy(self.preds, self.batch[1])

        @with_cbs("epoch")
        def one_epoch(self):
            for batch in self.dl:
                self.batch = batch
                self.one_batch()

        def fit(self):
            self.callback("before_fit")
            self.one_epoch()

    x, y = labels(10)
    model = nn.Linear(4, 4)
    learn = Small(model, cut(4, x, y), [MetricsCB(accuracy, acc=te.MulticlassAccuracy())])
    learn.fit()
    assert "train" in capsys.readouterr().out
    row = learn.metrics.rows[0]
    with torch.no_grad():
        want = F.cross_entropy(model(x), y).item()
    assert row["loss"] == pytest.approx(want, abs=1e-6)
    assert row["accuracy"] == pytest.approx(row["acc"])


def test_a_subclass_may_replace_before_fit():
    class Mine(Quiet):
        def before_fit(self, learn):
            pass

    metrics = Mine(accuracy)
    measure(metrics, cut(4, *labels(8)))
    assert len(metrics.rows) == 1


@pytest.mark.parametrize("given", [accuracy, [accuracy], {"accuracy": te.MulticlassAccuracy()}])
def test_the_shorthand_takes_one_metric_a_list_or_a_dict(given):
    x, y = labels(8)
    learn = Learner(AsIs(), (cut(4, x, y),), F.cross_entropy, 0.0, metrics=given)
    assert [type(cb).__name__ for cb in learn.cbs] == [
        "TrainCB",
        "DeviceCB",
        "MetricsCB",
        "ProgressCB",
    ]
    assert list(learn.find(MetricsCB).metrics) == ["accuracy"]


# ---- resume ----


def several():
    """Four of torchmetrics, of which two share one state."""
    kinds = (tm.Accuracy, tm.Precision, tm.Recall, tm.AUROC)
    return tm.MetricCollection([kind("multiclass", num_classes=4) for kind in kinds])


@pytest.mark.parametrize(
    "make",
    [
        te.MulticlassAccuracy,
        lambda: te.MulticlassAUROC(num_classes=4),
        lambda: tm.Accuracy("multiclass", num_classes=4),
        several,
        lambda: tm.ClasswiseWrapper(tm.Accuracy("multiclass", num_classes=4, average="none")),
        lambda: tm.Accuracy("multiclass", num_classes=4) + tm.F1Score("multiclass", num_classes=4),
    ],
)
def test_an_epoch_that_is_resumed_in_the_middle_has_the_value_of_the_whole(make, tmp_path):
    x, y = labels(24)
    data = cut(4, x, y)

    def metrics():
        return Quiet(accuracy, obj=make(), joined=skm(sk.accuracy_score, lambda p: p.argmax(1)))

    class Save(Callback):
        def after_batch(self, learn):
            if learn.iter == 2:
                torch.save(learn.metrics.state_dict(), tmp_path / "state")

    whole = measure(metrics(), data, cbs=[Save()]).history[0]

    class Load(Callback):
        def before_fit(self, learn):
            learn.metrics.load_state_dict(torch.load(tmp_path / "state", weights_only=True))

    rest = measure(metrics(), data[3:], cbs=[Load()]).history[0]
    names = [name for name in whole if name.startswith("train_")]
    assert {"train_loss", "train_accuracy", "train_joined"} < set(names)
    assert [rest[name] for name in names] == [whole[name] for name in names]


WRAPPERS = {
    "least and most": lambda: tm.MinMaxMetric(tm.Accuracy("multiclass", num_classes=4)),
    "of the last batches": lambda: tm.wrappers.Running(tm.Accuracy("multiclass", num_classes=4), 3),
    "in a collection": lambda: tm.MetricCollection(
        {
            "a": tm.MinMaxMetric(tm.Accuracy("multiclass", num_classes=4)),
            "b": tm.wrappers.Running(tm.F1Score("multiclass", num_classes=4), 2),
        }
    ),
    "two deep": lambda: tm.MinMaxMetric(
        tm.wrappers.Running(tm.Accuracy("multiclass", num_classes=4), 2)
    ),
}


@pytest.mark.parametrize("make", WRAPPERS.values(), ids=WRAPPERS)
def test_a_resume_names_wrappers_that_forget_earlier_values(make):
    plain = tm.Accuracy("multiclass", num_classes=4)
    cb = MetricsCB(m=make(), classes=tm.ClasswiseWrapper(plain), plain=plain, own=accuracy)
    cb.load_state_dict(cb.state_dict())
    assert cb.differences == ["metrics: m forgets its values before the resume"]


def test_a_metric_that_cannot_be_saved_is_named():
    metrics = Quiet(own=Recorded())
    metrics._measuring = True
    with pytest.warns(UserWarning, match="'own' has no state_dict"):
        metrics.state_dict()


def test_a_copy_taken_in_mid_epoch_is_independent():
    copies = []

    class Copy(Callback):
        def after_batch(self, learn):
            if learn.iter == 1:
                copies.append(copy.deepcopy(learn.metrics, {id(learn): learn}))

    x, y = labels(16)
    learn = measure(Quiet(te.MulticlassAccuracy()), cut(4, x, y), cbs=[Copy()])
    (early,) = copies
    early.flush()
    assert early.metrics["MulticlassAccuracy"].num_total == 8
    assert learn.metrics.metrics["MulticlassAccuracy"].num_total == 16


# ---- F12, F15: how many items a batch has ----


class Pooled(nn.Module):
    """The mean of each item of a list or a PackedSequence."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x):
        items = unpack_sequence(x) if isinstance(x, PackedSequence) else x
        return torch.stack([torch.as_tensor(item).float().mean() for item in items]) * self.w


def ragged(make, y):
    """Batches of 3, 3 and 1 items of different sizes."""
    items = [torch.arange(2.0 + i).repeat(3, 1) for i in range(7)]
    return [(make(items[i : i + 3]), y[i : i + 3]) for i in (0, 3, 6)]


FORMS = {
    "list": list,
    "tuple": tuple,
    "packed": lambda items: pack_sequence([x.T for x in items], enforce_sorted=False),
}


def check_items(make):
    """Loss and metric are those of all seven items at once."""
    y = torch.arange(7.0) * 2
    data, model = ragged(make, y), Pooled()
    learn = Learner(model, (data, data), F.mse_loss, 0.0, [TrainCB(), Quiet(mse)])
    res = learn.validate()
    whole = F.mse_loss(torch.cat([model(x) for x, _ in data]), y).item()
    assert [res.loss, res["mse"]] == pytest.approx([whole] * 2)


@pytest.mark.case("F12")
@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_items_of_different_sizes_weigh_the_same(make):
    check_items(make)


@pytest.mark.case("F12")
@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_the_check_notices_a_count_of_rows_of_the_first_tensor(make, monkeypatch):
    rows = lambda batch, split: next(len(t) for t in tensors(batch))  # noqa: E731
    for module in (loop_module, metrics_module):
        monkeypatch.setattr(module, "batch_size", rows)
    with pytest.raises(AssertionError):
        check_items(make)


def disagreeing(*sizes):
    return [(torch.randn(2 * n, 1), torch.randn(n, 1)) for n in sizes]


def distance(preds, targs):
    return (preds.mean() - targs.mean()) ** 2


@pytest.mark.case("F12")
def test_equal_batches_of_unknown_numbers_of_items_warn_once():
    with pytest.warns(UserWarning, match="share no length.*count=") as caught:
        learn = measure(Quiet(), disagreeing(3, 3, 3), disagreeing(3, 3), distance, n=2)
    assert len(caught) == 1 and learn.history[0]["train_loss"] > 0


@pytest.mark.case("F12")
@pytest.mark.filterwarnings("ignore:the number of items")
def test_unequal_batches_of_unknown_numbers_of_items_ask_for_count():
    with pytest.raises(ValueError, match="count="):
        measure(Quiet(), disagreeing(3, 3, 2), loss=distance)
    half = [(torch.randn(4, 1), torch.randn(4, 1)), *disagreeing(3)]
    with pytest.raises(ValueError, match="count="):
        measure(Quiet(), half, loss=distance)
    measure(Quiet(), disagreeing(3, 3, 2), loss=distance, count=lambda batch: len(batch[1]))


def check_total(loss, **kwargs):
    """The loss shown of a sum is the mean over the items."""
    x, y = torch.randn(10, 1), torch.randn(10, 1)
    learn = measure(Quiet(), cut(4, x, y), cut(4, x, y), loss, **kwargs)
    shown = learn.history[0]["train_loss"], learn.history[0]["valid_loss"]
    assert shown == pytest.approx([F.mse_loss(x, y).item()] * 2)


@pytest.mark.case("F15")
@pytest.mark.parametrize(
    "loss", [nn.MSELoss(reduction="sum"), partial(F.mse_loss, reduction="sum"), F.mse_loss]
)
def test_the_loss_shown_is_a_mean_over_items_whatever_its_reduction(loss):
    check_total(loss)


@pytest.mark.case("F15")
def test_the_check_notices_a_loss_that_is_shown_as_sums(monkeypatch):
    monkeypatch.setattr(metrics_module, "adds_up", lambda learn: False)
    with pytest.raises(AssertionError):
        check_total(nn.MSELoss(reduction="sum"))


@pytest.mark.case("F15")
def test_a_get_loss_of_ones_own_is_left_alone():
    class Own(TrainCB):
        def get_loss(self, learn):
            learn.loss = learn.loss_func(learn.preds, learn.batch[1]) / len(learn.batch[1])

    x, y = torch.randn(10, 1), torch.randn(10, 1)
    total = nn.MSELoss(reduction="sum")
    learn = Learner(AsIs(), (cut(4, x, y), None), total, 0.0, [Own(), Quiet()])
    learn.fit(1)
    assert learn.history[0]["train_loss"] == pytest.approx(F.mse_loss(x, y).item())


# ---- F21: functions that are no means over items ----


def own_rmse(preds, targs):
    return (preds - targs).square().mean().sqrt()


def own_f1(preds, targs):
    return sk.f1_score(targs > 0, preds > 0)


def own_total(preds, targs):
    return (preds - targs).abs().sum()


def by_column(preds, targs):
    return (preds - targs).abs().mean(0)


def count_no_mean_warnings(metric, n=3, sizes=(4, 4, 2), **kwargs):
    """Return how many warnings a fit with a metric gives."""
    torch.manual_seed(0)
    x, y = torch.randn(sum(sizes), 2), torch.randn(sum(sizes), 2)
    data = list(zip(x.split(sizes), y.split(sizes), strict=True))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        measure(Quiet(m=metric), data, data, F.mse_loss, n=n, **kwargs)
    return sum("the metric m is no mean over items" in str(w.message) for w in caught)


@pytest.mark.case("F21")
@pytest.mark.parametrize("metric", [own_rmse, own_total, partial(torch.dist, p=2)])
def test_a_function_that_is_no_mean_over_items_warns_once(metric):
    assert count_no_mean_warnings(metric) == 1
    assert count_no_mean_warnings(metric, sizes=(4,)) == 0


@pytest.mark.case("F21")
@pytest.mark.parametrize(
    "metric", [F.l1_loss, F.mse_loss, by_column, rmse, skm(sk.mean_squared_error)]
)
def test_means_and_declared_metrics_are_silent(metric):
    assert count_no_mean_warnings(metric) == 0
    assert count_no_mean_warnings(metric, sizes=(1, 5, 3), count=lambda b: len(b[0])) == 0


@pytest.mark.case("F21")
def test_the_check_notices_nothing_where_no_batches_are_joined(monkeypatch):
    monkeypatch.setattr(mean_module.MeanCheck, "copied", lambda self, preds, targs: None)
    with pytest.raises(AssertionError):
        assert count_no_mean_warnings(own_rmse) == 1


class Fussy:
    """Draws, prints, counts its calls, changes its arguments, and takes no more than 4 items."""

    def __init__(self, most=99):
        self.most, self.calls = most, 0

    def __call__(self, preds, targs):
        self.calls += 1
        print("called")
        if len(preds) > self.most:
            raise RuntimeError("too many")
        noise = torch.rand(())
        return preds.sub_(targs).abs_().mean() + noise


@pytest.mark.case("F21")
@pytest.mark.parametrize("most", [4, 99])
def test_the_comparison_leaves_no_trace(most, capsys):
    metric, data = Fussy(most), [(torch.ones(4, 2), torch.zeros(4, 2)) for _ in range(3)]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn = measure(Quiet(m=metric), data, None, F.mse_loss)
    after = torch.rand(())
    torch.manual_seed(0)
    draws = [torch.rand(()) for _ in range(4)]
    assert metric.calls == 3 and capsys.readouterr().out.count("called") == 3
    assert learn.history[0]["train_m"] == pytest.approx(1 + sum(draws[:3]).item() / 3)
    assert after == draws[3]


# ---- K1: what a metric may return, and what a model may predict ----


class Returns:
    """A metric whose value is what it was given."""

    def __init__(self, value):
        self.value = value

    def update(self, preds, targs):
        pass

    def reset(self):
        pass

    def compute(self):
        return self.value


class Unfit:
    def __float__(self):
        raise RuntimeError("not a number")

    def __str__(self):
        return "unfit"


VALUES = {
    "nothing": (None, {"m": None}),
    "text": ("cat", {"m": "cat"}),
    "nested": ({"a": {"b": 1, "c": None}}, {"m_a_b": 1.0, "m_a_c": None}),
    "array": (np.array([1.0, 2.0]), {"m": [1.0, 2.0]}),
    "scalars of numpy": ((np.float32(1), np.array(2)), {"m": [1.0, 2.0]}),
    "whole": (torch.tensor([1, 2]), {"m": [1.0, 2.0]}),
    "complex": (torch.tensor(1 + 2j), {"m": "(1+2j)"}),
    "names": (["a", torch.tensor(1.0)], {"m": ["a", 1.0]}),
    "too large": (10**400, {"m": str(10**400)}),
    "object": (Unfit(), {"m": "unfit"}),
    "flag": (torch.tensor(True), {"m": 1.0}),
    "half": (torch.tensor(0.5, dtype=torch.bfloat16), {"m": 0.5}),
}


def check_value(value, columns, folder):
    """Whatever a metric returns, displays, loggers and checkpoints go on, and a resume does."""
    x, y = labels(8)
    cbs = [ProgressCB(plot=True), LogCB(1), CSVLoggerCB(folder / "a.csv"), CheckpointCB(folder)]
    cbs.append(JSONLLoggerCB(folder / "a.jsonl"))
    for resume in (None, True):
        learn = Learner(AsIs(), (cut(4, x, y), cut(4, x, y)), F.cross_entropy, 0.0)
        more = [TrainCB(), Quiet(m=Returns(value)), *cbs]
        learn.fit(3 if resume else 2, cbs=more, resume=resume)
        row = learn.history[-1]
        assert {name: row[name] for name in columns} == columns and learn.epoch == 1 + bool(resume)
        str(learn.history)


@pytest.mark.case("F06")
@pytest.mark.parametrize(("value", "columns"), VALUES.values(), ids=VALUES)
def test_a_metric_of_any_value_ends_no_fit(value, columns, tmp_path, capsys):
    check_value(value, columns, tmp_path)


@pytest.mark.case("F06")
def test_the_check_notices_values_that_must_be_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(mean_module, "as_numbers", float)
    with pytest.raises((AssertionError, TypeError)):
        check_value(*VALUES["nothing"], tmp_path)


PREDICTIONS = {
    "sparse": lambda x: x.detach().to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor([x[0].detach(), x[1, :1].detach()]),
    "jagged": lambda x: torch.nested.as_nested_tensor(list(x.detach()), layout=torch.jagged),
    "complex": lambda x: torch.complex(x, x),
    "a distribution": lambda x: torch.distributions.Normal(x, 1.0),
    "by name": lambda x: {"logits": x, "ids": ["a"]},
    "text": lambda x: ["a"] * len(x),
    "of eight bits": lambda x: x.to(torch.float8_e5m2),
    "a number": lambda x: x.sum(),
}


@pytest.mark.case("F06")
@pytest.mark.parametrize("predict", PREDICTIONS.values(), ids=PREDICTIONS)
def test_predictions_of_any_kind_reach_the_metrics(predict):
    class Predicts(TrainCB):
        def get_loss(self, learn):
            learn.loss, learn.preds = learn.model.w.square(), predict(learn.preds)

    seen = []
    see = lambda preds, targs: seen.append(type(preds)) or 1.0  # noqa: E731
    x, y = labels(8)
    cbs = [Predicts(), Quiet(m=Returns(1.0), see=see)]
    learn = Learner(AsIs(), (cut(4, x, y), None), None, 0.0, cbs)
    learn.fit(1)
    assert learn.history[0]["train_see"] == 1 and seen[:2] == [type(predict(x))] * 2


# ---- K2: what `count` may return ----

COUNTS = {
    "numpy": lambda n: np.int64(n),
    "an array": lambda n: np.array([n]),
    "a float": float,
    "a tensor": torch.tensor,
    "a row": lambda n: torch.tensor([n]),
    "bytes": lambda n: torch.tensor(40 * n, dtype=torch.uint8),
    "half": lambda n: torch.tensor(n, dtype=torch.float16),
    "of meaning": lambda n: torch.tensor(n > 0),
}


@pytest.mark.case("F12")
@pytest.mark.parametrize("name", COUNTS)
def test_a_count_of_any_type_weighs_batches_as_the_number_does(name):
    sizes = (4, 4, 4) if name == "of meaning" else (4, 5, 1)
    x = torch.randn(sum(sizes), 2)
    data = [(part, 2 * part) for part in x.split(sizes)]
    for cbs in ([], [GradAccumCB(2)]):
        used, models = [], []
        for count in (len, COUNTS[name]):
            model = AsIs()
            metrics = Quiet(mse=lambda p, t: F.mse_loss(p, t))
            counted = lambda batch, count=count: count(len(batch[0]))  # noqa: E731
            counted = (lambda batch: len(batch[0])) if count is len else counted
            learn = Learner(model, (data, data), F.mse_loss, 0.1, [TrainCB(), metrics, *cbs])
            learn.count = counted
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # an overflow would look like no mean
                learn.fit(2)
            used.append([row[c] for row in learn.history for c in ("train_loss", "mse")])
            models.append(model.w.item())
        assert used[0] == pytest.approx(used[1]) and models[0] == pytest.approx(models[1])


@pytest.mark.case("F12")
@pytest.mark.parametrize("n", [-8, math.nan, "8", [8], 1j, np.array([4, 4])])
def test_a_count_that_is_no_number_of_items_is_refused(n):
    x, y = labels(8)
    with pytest.raises(ValueError, match="count= returned .* to return a number of items"):
        measure(Quiet(), cut(4, x, y), count=lambda batch: n)


@pytest.mark.case("F12")
def test_the_check_notices_counts_that_are_used_as_they_come(monkeypatch):
    monkeypatch.setattr(loop_module, "as_count", lambda n: n)
    with pytest.raises((AssertionError, UserWarning)):
        test_a_count_of_any_type_weighs_batches_as_the_number_does("bytes")
