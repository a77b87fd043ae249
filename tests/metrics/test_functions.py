"""The metric functions, against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from minilearn.metrics.functions import accuracy, accuracy_multi, mae, mse, rmse, skm
from minilearn.metrics.mean import FunctionMean


def test_accuracy_equals_scikit_learns():
    x, y = torch.randn(50, 5), torch.randint(0, 5, (50,))
    assert accuracy(x, y).item() == pytest.approx(sk.accuracy_score(y, x.argmax(1)))
    for k in (2, 3):
        want = sk.top_k_accuracy_score(y, x, k=k, labels=range(5))
        assert accuracy(x, y, topk=k).item() == pytest.approx(want)
    assert accuracy(x.argmax(1), y) == accuracy(x, y)


@pytest.mark.parametrize("topk", [1, 2])
def test_accuracy_finds_the_classes_on_any_axis_and_leaves_out_a_label(topk):
    x, y = torch.randn(6, 4, 3, 2), torch.randint(0, 4, (6, 3, 2))
    y[2:, 1] = -100
    flat, labels = x.movedim(1, -1).reshape(-1, 4), y.flatten()
    kept = labels != -100
    want = sk.top_k_accuracy_score(labels[kept], flat[kept], k=topk, labels=range(4))
    args = {"ignore_index": -100, "topk": topk}
    assert accuracy(x, y, **args).item() == pytest.approx(want)
    assert accuracy(x.movedim(1, -1), y, axis=-1, **args).item() == pytest.approx(want)


def test_accuracy_takes_probabilities_as_targets():
    x, y = torch.randn(20, 3), torch.randn(20, 3).softmax(1)
    want = sk.accuracy_score(y.argmax(1), x.argmax(1))
    assert accuracy(x, y).item() == pytest.approx(want)


@pytest.mark.parametrize(
    ("preds", "targs"),
    [((8, 1), (8,)), ((8,), (8,)), ((8, 5, 3), (8, 5)), ((8, 1), (8, 1)), ((8, 3), (7,))],
)
def test_accuracy_refuses_shapes_that_it_would_have_to_guess_at(preds, targs):
    with pytest.raises(ValueError, match="accuracy needs"):
        accuracy(torch.randn(preds), torch.zeros(targs, dtype=torch.long))


def test_accuracy_multi_equals_a_count():
    x, y = torch.randn(9, 4), torch.randint(0, 2, (9, 4))
    want = np.mean((1 / (1 + np.exp(-x.numpy())) > 0.3) == y.numpy())
    assert accuracy_multi(x, y, thresh=0.3).item() == pytest.approx(want)
    assert accuracy_multi(x.sigmoid(), y, thresh=0.3, sigmoid=False).item() == pytest.approx(want)


def test_errors_equal_scikit_learns():
    x, y = torch.randn(30), torch.randn(30)
    assert mae(x, y).item() == pytest.approx(sk.mean_absolute_error(y, x), abs=1e-6)
    assert mse(x, y).item() == pytest.approx(sk.mean_squared_error(y, x), abs=1e-6)
    assert rmse(x, y).item() == pytest.approx(sk.root_mean_squared_error(y, x), abs=1e-6)


@pytest.mark.parametrize("f", [mae, mse, rmse, accuracy_multi])
def test_shapes_that_would_broadcast_are_refused(f):
    with pytest.raises(ValueError, match="differ in shape"):
        f(torch.randn(8, 1), torch.randn(8))


def test_a_function_of_scikit_learn_gets_all_predictions_and_its_keywords():
    x, y = torch.randn(30, 3), torch.randint(0, 3, (30,))
    metric = skm(sk.f1_score, lambda p: p.argmax(1), average="macro")
    for preds, targs in zip(x.split(7), y.split(7), strict=True):
        metric.update(preds, targs)
    assert metric.compute() == sk.f1_score(y, x.argmax(1), average="macro")
    metric.reset()
    metric.update(x[:5], y[:5])
    assert metric.compute() == sk.f1_score(y[:5], x[:5].argmax(1), average="macro")


def test_a_function_that_returns_a_value_for_each_item_is_an_error_that_names_it():
    def hits(preds, targs):
        return (preds.argmax(1) == targs).float()

    def by_class(preds, targs):
        return preds.softmax(1).mean(0)

    preds, targs = torch.randn(32, 10), torch.randint(0, 10, (32,))
    with pytest.raises(ValueError, match=r"the metric hits returned .*is a \.mean\(\) missing"):
        FunctionMean(hits).update(preds, targs, 32)
    for n in (32, 10):  # of 10 items and 10 classes nobody knows which they are
        FunctionMean(by_class).update(preds[:n], targs[:n], n)
