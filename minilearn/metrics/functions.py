"""Metric functions of (preds, targs), and an adapter for those of scikit-learn.

Each can be called on one batch; MetricsCB averages it over all items of an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .mean import averaged


def _counted(
    preds: Tensor, targs: Tensor, *, ignore_index: int | None = None, **_: Any
) -> Tensor | None:
    return None if ignore_index is None else (targs != ignore_index).sum()


@averaged(items=_counted, joins=True)
def accuracy(
    preds: Tensor, targs: Tensor, *, axis: int = 1, ignore_index: int | None = None, topk: int = 1
) -> Tensor:
    """Return the fraction of targets that the predictions hit.

    >>> accuracy(tensor([[0.9, 0.1], [0.2, 0.8]]), tensor([0, 0]))
    tensor(0.5000)

    Args:
        preds: logits or probabilities, shape (B, K, ...), or labels of the targets' shape.
        targs: labels, shape (B, ...), or probabilities of the predictions' shape.
        axis: the dimension of the K classes.
        ignore_index: a label that does not count, neither as a hit nor as an item.
        topk: a target is hit if it is among so many best predictions.

    Raises:
        ValueError: the shapes do not fit, or there is one output for two classes.
    """
    if targs.is_floating_point() and targs.shape == preds.shape and targs.dim() > axis:
        targs = targs.argmax(axis)
    hits = _hits(preds, targs, axis, topk)
    if ignore_index is None:
        return hits.float().mean()
    counted = targs != ignore_index
    return (hits & counted).sum() / counted.sum()


def _hits(preds: Tensor, targs: Tensor, axis: int, topk: int) -> Tensor:
    if preds.shape == targs.shape and not preds.is_floating_point():
        return preds == targs
    if preds.dim() == targs.dim() + 1 and preds.shape[axis] > 1:
        guesses = preds.argmax(axis) if topk == 1 else preds.topk(topk, axis).indices
        if topk == 1 and guesses.shape == targs.shape:
            return guesses == targs
        if topk > 1 and guesses.select(axis, 0).shape == targs.shape:
            return (guesses == targs.unsqueeze(axis)).any(axis)
    raise ValueError(
        f"accuracy needs targets (B, ...) and predictions (B, K, ...) with K > 1 at axis={axis}; "
        f"got {tuple(targs.shape)} and {tuple(preds.shape)}. Give axis=-1 where the classes come "
        "last; for outputs of yes or no use accuracy_multi."
    )


@averaged(joins=True)
def accuracy_multi(
    preds: Tensor, targs: Tensor, *, thresh: float = 0.5, sigmoid: bool = True
) -> Tensor:
    """Return the fraction of yes-or-no outputs that are right, as in multi-label classification.

    >>> accuracy_multi(tensor([[2.0, -1.0], [0.5, 3.0]]), tensor([[1, 0], [0, 1]]))
    tensor(0.7500)

    Args:
        preds: logits, any shape.
        targs: zeros and ones of that shape.
        thresh: the probability above which an output says yes.
        sigmoid: False where `preds` are probabilities.
    """
    _check_same_shape(preds, targs)
    probabilities = preds.sigmoid() if sigmoid else preds
    return ((probabilities > thresh) == (targs > 0.5)).float().mean()


def mae(preds: Tensor, targs: Tensor) -> Tensor:
    """Return the mean absolute error, over all outputs.

    >>> mae(tensor([[1.0], [2.0]]), tensor([[1.5], [2.5]]))
    tensor(0.5000)
    """
    _check_same_shape(preds, targs)
    return (preds - targs).abs().mean()


def mse(preds: Tensor, targs: Tensor) -> Tensor:
    """Return the mean squared error, over all outputs.

    >>> mse(tensor([[1.0], [2.0]]), tensor([[1.5], [2.5]]))
    tensor(0.2500)
    """
    _check_same_shape(preds, targs)
    return (preds - targs).square().mean()


@averaged(mse, finish=torch.sqrt)
def rmse(preds: Tensor, targs: Tensor) -> Tensor:
    """Return the root of the mean squared error; in MetricsCB, that of all items of an epoch.

    >>> rmse(tensor([[1.0], [2.0]]), tensor([[1.5], [2.5]]))
    tensor(0.5000)
    """
    return mse(preds, targs).sqrt()


def _check_same_shape(preds: Tensor, targs: Tensor) -> None:
    if preds.shape != targs.shape:  # (B, 1) and (B,) would broadcast to (B, B)
        raise ValueError(
            f"predictions {tuple(preds.shape)} and targets {tuple(targs.shape)} differ in shape: "
            "squeeze or unsqueeze one of them"
        )


def skm(func: Callable[..., Any], pred: Callable[[Any], Any] | None = None, **kwargs: Any) -> Any:
    """Make a metric of a function of scikit-learn, computed on all predictions of an epoch at once.

    Args:
        func: takes `(y_true, y_pred)` as numpy arrays, in scikit-learn's order.
        pred: turns predictions into what `func` expects, such as `lambda p: p.argmax(1)`.
        kwargs: go to `func`.

    >>> from sklearn.metrics import f1_score
    >>> MetricsCB(f1=skm(f1_score, lambda p: p.argmax(1), average="macro"))
    """
    return JoinedMetric(func, pred, kwargs)


class JoinedMetric:
    """A metric of all predictions of an epoch, kept on the CPU; see `skm`."""

    joins = True

    def __init__(
        self, func: Callable[..., Any], pred: Callable[[Any], Any] | None, kwargs: dict[str, Any]
    ) -> None:
        self.func, self.pred, self.kwargs = func, pred, kwargs
        self.__name__ = getattr(func, "__name__", type(func).__name__)
        self.reset()

    def reset(self) -> None:
        """Forget all predictions."""
        self.kept: list[Any] = []  # pairs of predictions and targets

    def update(self, preds: Tensor, targs: Tensor) -> None:
        """Keep a batch on the CPU."""
        if self.pred is not None:
            preds = self.pred(preds)
        self.kept.append((_to_cpu_later(preds), _to_cpu_later(targs)))
        self._device = preds.device

    def compute(self) -> Any:
        """Return the value of `func` on all predictions."""
        preds, targs = self._joined()
        return self.func(targs.numpy(), preds.numpy(), **self.kwargs)

    def _joined(self) -> Any:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)  # the copies have arrived
        joined = tuple(map(torch.cat, zip(*self.kept, strict=True)))
        self.kept = [joined]
        return joined

    def merge(self, parts: list[dict[str, Any]]) -> None:
        """Replace its own predictions by those of all processes."""
        self.kept = [(part["preds"], part["targs"]) for part in parts if part]
        self._device = torch.device("cpu")

    def state_dict(self) -> dict[str, Any]:
        """Return the predictions and targets so far."""
        return dict(zip(("preds", "targs"), self._joined(), strict=True)) if self.kept else {}

    part = state_dict  # what this process has, for `merge`

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.reset()
        if state:
            self.kept, self._device = [(state["preds"], state["targs"])], torch.device("cpu")


def _to_cpu_later(x: Tensor) -> Tensor:
    """Return a copy on the CPU that is complete once the device has been waited for."""
    return x.detach().to("cpu", non_blocking=True, copy=True)
