"""Confusion, worst items and figures by class, against scikit-learn and whole predictions."""

import gc
import io
import weakref
from collections import OrderedDict

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from minilearn import DataLoaders, Interpretation, Learner, MetricsCB, Pipeline, TrainCB
from minilearn.all import ActivationStats, accuracy
from tests.toys import Before, linear

CLASSES = ["ant", "bee", "cat", "dog", "never"]


def classifier(n=200, loss_func=F.cross_entropy, names=CLASSES, bs=16):
    """Vectors (6,) in five classes, the last of which never comes and is never predicted."""
    torch.manual_seed(2)
    x, y = torch.randn(n, 6), torch.randint(0, 4, (n,))
    model = linear(n_in=6, n_out=5)
    with torch.no_grad():
        model.bias[4] = -100
    dls = DataLoaders(None, DataLoader(TensorDataset(x, y), bs, shuffle=True))
    dls.pipeline = Pipeline(classes=names)
    return Learner(model, dls, loss_func, cbs=[TrainCB()]), x, y


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def test_the_confusion_matrix_and_the_figures_by_class_are_those_of_scikit_learn():
    learn, x, y = classifier()
    found, decided = Interpretation.from_learner(learn), learn.model(x).argmax(1)
    expected = confusion_matrix(y, decided, labels=range(5))
    assert np.array_equal(found.confusion.numpy(), expected)
    theirs = precision_recall_fscore_support(y, decided, labels=range(5), zero_division=0)
    table = found.per_class()
    assert table["class"] == CLASSES
    for name, values in zip(("precision", "recall", "f1", "support"), theirs, strict=True):
        np.testing.assert_allclose(table[name], values, rtol=1e-12)
    assert found.accuracy == pytest.approx((decided == y).float().mean().item())


def test_most_confused_are_sorted_and_named():
    learn, x, y = classifier()
    pairs = Interpretation.from_learner(learn).most_confused(min_count=5)
    table = confusion_matrix(y, learn.model(x).argmax(1), labels=range(5))
    np.fill_diagonal(table, 0)
    assert sum(n for *_, n in pairs) == table[table >= 5].sum()
    assert [n for *_, n in pairs] == sorted((n for *_, n in pairs), reverse=True)
    for actual, predicted, n in pairs:
        assert table[CLASSES.index(actual), CLASSES.index(predicted)] == n


def brier(preds, targs):
    """A loss without a form by sample."""
    return F.mse_loss(preds.softmax(1), F.one_hot(targs, preds.shape[1]).float())


@pytest.mark.parametrize(
    ("loss_func", "by_sample"),
    [
        (F.cross_entropy, F.cross_entropy),
        (nn.CrossEntropyLoss(label_smoothing=0.2), nn.CrossEntropyLoss(label_smoothing=0.2)),
        (brier, F.cross_entropy),
    ],
)
def test_top_losses_are_the_highest_of_the_whole_set(loss_func, by_sample):
    learn, x, y = classifier(loss_func=loss_func)
    if isinstance(by_sample, nn.Module):
        by_sample.reduction = "none"
        losses = by_sample(learn.model(x), y)
    else:
        losses = by_sample(learn.model(x), y, reduction="none")
    expected = losses.detach().topk(7)
    top = Interpretation.from_learner(learn, n_top=7).top
    assert [t.index for t in top] == expected.indices.tolist()
    assert [t.loss for t in top] == pytest.approx(expected.values.tolist(), rel=1e-5)
    assert all(torch.equal(t.input, x[t.index]) and t.target == y[t.index] for t in top)
    assert all(t.predicted == learn.model(x[t.index]).argmax() for t in top)


def test_a_loss_that_is_no_number_comes_first():
    learn, x, _ = classifier()
    x[11] = torch.nan
    assert Interpretation.from_learner(learn, n_top=2).top[0].index == 11


@pytest.mark.usefixtures("new_objects_alone")
def test_memory_is_bounded_by_the_items_that_are_kept():
    learn, *_ = classifier(n=400, bs=100)
    alive, most = [], []

    def watch(learn):
        alive.append(weakref.ref(learn.batch[0]))
        gc.collect()
        most.append(sum(ref() is not None for ref in alive))

    learn.on("before_batch", watch, order=5)
    found = Interpretation.from_learner(learn, n_top=3)
    assert len(most) == 4 and max(most) <= 2
    assert len(found.top) == 3
    assert all(t.input.untyped_storage().nbytes() == 6 * 4 for t in found.top)


def test_pixels_are_counted_and_negative_targets_are_left_out():
    torch.manual_seed(0)
    x, y = torch.randn(5, 2, 4, 4), torch.randint(-1, 3, (5, 4, 4))
    loss_func = nn.CrossEntropyLoss(ignore_index=-1)
    learn = Learner(nn.Conv2d(2, 3, 1), (None, [(x, y)]), loss_func, cbs=[TrainCB()])
    found = Interpretation.from_learner(learn)
    decided = learn.model(x).argmax(1)
    expected = confusion_matrix(y[y >= 0], decided[y >= 0], labels=range(3))
    assert np.array_equal(found.confusion.numpy(), expected)
    assert found.classes == [0, 1, 2]


def test_what_is_no_classifier_is_an_error_that_says_so():
    learn = Learner(linear(), (None, [(torch.zeros(2, 3), torch.zeros(2, 1))]), cbs=[TrainCB()])
    with pytest.raises(TypeError, match=r"logits \(B, K.*Tensor\[2, 1\]"):
        Interpretation.from_learner(learn)


def test_it_leaves_the_learner_as_it_was():
    learn, *_ = classifier()
    before = Before(learn)
    Interpretation.from_learner(learn)
    before.assert_nothing_left()


# ---- images ----


def pictures(channels=1):
    """A classifier of images, normalised by 0.5 and 0.25."""
    torch.manual_seed(3)
    x, y = torch.rand(12, channels, 6, 6), torch.randint(0, 3, (12,))
    stats = torch.full((channels,), 0.5), torch.full((channels,), 0.25)
    data = TensorDataset((x - 0.5) / 0.25, y)
    dls = DataLoaders(DataLoader(data, 4, shuffle=True), DataLoader(data, 4))
    dls.pipeline, (dls.mean, dls.std) = Pipeline(classes=["a", "b", "c"]), stats
    model = nn.Sequential(nn.Flatten(), linear(n_in=36 * channels, n_out=3))
    return Learner(model, dls, F.cross_entropy, cbs=[TrainCB()]), x, y


def shown(axs):
    return [(ax.get_title(), ax.images[0].get_array()) for ax in axs.flat if ax.images]


def test_the_confusion_plot_shows_counts_and_names():
    learn, *_ = classifier()
    found = Interpretation.from_learner(learn)
    ax = found.plot_confusion()
    assert [t.get_text() for t in ax.get_xticklabels()] == CLASSES
    assert sum(int(t.get_text()) for t in ax.texts) == 200
    ax = found.plot_confusion(normalize=True)
    assert sum(float(t.get_text()) for t in ax.texts) == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize("channels", [1, 3])
def test_top_losses_are_shown_in_their_own_colours(channels):
    learn, x, y = pictures(channels)
    found = Interpretation.from_learner(learn)
    (title, image), *_ = shown(found.plot_top_losses(4))
    top = found.top[0]
    expected = x[top.index].permute(1, 2, 0).squeeze(-1).numpy()
    np.testing.assert_allclose(image, expected, atol=1e-6)
    assert title == f"{'abc'[top.predicted]} / {'abc'[top.target]}\n{top.loss:.2f}"


def test_show_results_says_predicted_and_actual_and_marks_what_is_wrong():
    learn, x, y = pictures()
    axs = learn.show_results(max_n=3)
    decided = learn.model(learn.dls.valid.dataset.tensors[0]).argmax(1)
    titles = [f"{'abc'[p]} / {'abc'[t]}" for p, t in zip(decided[:3], y[:3], strict=True)]
    assert [title for title, _ in shown(axs)] == titles
    colours = [ax.title.get_color() for ax in axs.flat[:3]]
    assert colours == [
        "black" if p == t else "red" for p, t in zip(decided[:3], y[:3], strict=True)
    ]
    np.testing.assert_allclose(shown(axs)[0][1], x[0, 0].numpy(), atol=1e-6)


def test_show_batch_of_learner_and_loaders_show_images_with_their_classes():
    learn, x, y = pictures()
    rng = torch.get_rng_state()
    for show in (learn.show_batch, learn.dls.show_batch):
        for title, image in shown(show(max_n=4)):
            at = next(i for i in range(12) if np.allclose(image, x[i, 0], atol=1e-6))
            assert title == "abc"[y[at]]
    assert torch.equal(torch.get_rng_state(), rng)


@pytest.mark.case("F04")
def test_classes_and_metrics_with_dollars_can_be_plotted():
    names = ["$x^$", "a$", "$_$", "_d", r"\\frac$$"]
    learn, x, y = classifier(names=names)
    learn.dls.train = learn.dls.valid
    learn.add_cb(MetricsCB(quiet=True, **{"$a_$": accuracy, "_b": accuracy}))
    learn.lr = 0.1
    learn.fit(2)
    drawn = [learn.history.plot()[0].figure]
    drawn.append(Interpretation.from_learner(learn).plot_confusion().figure)
    stats = ActivationStats(lambda m: True)
    learn.model = nn.Sequential(OrderedDict({"$w^$": learn.model, "_w": nn.Identity()}))
    learn.fit(1, cbs=[stats])
    drawn.append(stats.plot_stats()[0].figure)
    for figure in drawn:
        figure.savefig(io.BytesIO(), format="png")
    ticks = [label.get_text() for label in drawn[1].axes[0].get_xticklabels()]
    assert [tick.strip().replace(r"\$", "$") for tick in ticks] == names
    shown = {text.get_text().strip() for text in drawn[2].legends[0].get_texts()}
    assert any(text.startswith(r"\$w^\$") for text in shown) and len(shown) == 3
