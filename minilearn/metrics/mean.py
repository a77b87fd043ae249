"""Running means, summed on the device of the data.

Nothing here waits for the device: `compute` returns a tensor.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..base.batch import describe
from ..callbacks.training import adds_up
from ..core.callback import attribute
from .mean_check import MeanCheck

FOLD_EVERY = 128  # values kept before they are summed, all with one stack


def wide(device: torch.device) -> torch.dtype:
    """Return the type for sums on `device`: float64 if it has that."""
    return torch.float32 if device.type == "mps" else torch.float64


class Mean:
    """The mean of scalars or tensors of one shape, weighted by counts of items.

    Values stay on their device. They are kept as they come and summed every `FOLD_EVERY` updates,
    in float64, or in compensated float32 where the device lacks it.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all values."""
        self._values: list[Any] = []
        self._weights: list[Any] = []
        self.total: Any = None  # sum of value times weight
        self.lost: Any = None  # what rounding took from `total`
        self.weight: Any = 0  # int (exact); a tensor on the device where the counts are tensors

    def update(self, value: Any, weight: Any = 1) -> None:
        """Add the value of `weight` items; one of 0 items is ignored."""
        large = False
        if isinstance(value, Tensor):
            value = value.detach() if value.requires_grad else value
            large = value.dim() > 0  # what is larger than a scalar is not worth its memory
        if isinstance(weight, Tensor) or weight:
            self._values.append(value)
            self._weights.append(weight)
            if large or len(self._values) >= FOLD_EVERY:
                self.fold()

    @property
    def any(self) -> bool:
        """Whether there is a value."""
        return self.total is not None or bool(self._values)

    def fold(self) -> None:
        """Sum the values that were kept."""
        if not self._values:
            return
        values = torch.stack([_as_tensor(value) for value in self._values])  # (k, ...)
        values = values.to(wide(values.device))
        exact = not any(isinstance(weight, Tensor) for weight in self._weights)
        if exact:
            weights = torch.tensor(self._weights)
        else:
            weights = torch.stack([_on(values.device, weight) for weight in self._weights])
        weights = _on(values.device, weights)  # (k,)
        column = weights.to(values.dtype).view(-1, *[1] * (values.dim() - 1))
        # the mean of no items is nan as a rule, and must not count
        self._add(torch.where(column == 0, 0, values * column).sum(0))
        self.weight = (sum(self._weights) if exact else weights.sum()) + self.weight
        self._values, self._weights = [], []

    def _add(self, part: Tensor) -> None:
        if self.total is None:
            self.total, self.lost = part, torch.zeros_like(part)
            return
        before = self.total.to(part.device)  # after a resume it is on the CPU
        self.total = before + part
        if part.dtype == torch.float32:  # Knuth's two-sum
            grown = self.total - before
            lost = (before - (self.total - grown)) + (part - grown)
            self.lost = self.lost.to(part.device) + lost.nan_to_num(0, 0, 0)

    def compute(self) -> Tensor:
        """Return the mean so far, nan where there are no values."""
        self.fold()
        if self.total is None:
            return torch.tensor(torch.nan)
        return (self.total + self.lost.to(self.total.device)) / self.weight

    def part(self) -> dict[str, Any]:
        """Return the sums of this process, for `merge`."""
        self.fold()
        return {"total": self.total, "lost": self.lost, "weight": self.weight}

    def merge(self, parts: list[dict[str, Any]]) -> None:
        """Replace its own sums by those of all processes, added in order of rank."""
        device = None if self.total is None else self.total.device
        self.reset()
        for part in parts:
            if part["total"] is not None:
                self._add(part["total"].to(device))
                self.lost = self.lost + part["lost"].to(device)
                self.weight = part["weight"] + self.weight

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, and the values not summed yet: now they could be rounded otherwise."""
        sums = {"total": self.total, "lost": self.lost, "weight": self.weight}
        return sums | {"values": list(self._values), "weights": list(self._weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the sums of `state_dict`."""
        self.reset()
        self.total, self.lost, self.weight = state["total"], state["lost"], state["weight"]
        self._values, self._weights = list(state["values"]), list(state["weights"])


def _on(device: torch.device, weight: Any) -> Tensor:
    return torch.as_tensor(weight).to(device, non_blocking=True)  # else it waits for the device


def _as_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


class FunctionMean(Mean):
    """The item-weighted mean of a function of (predictions, targets).

    A function whose value is no mean says with `@averaged` what to average instead.

    Attributes:
        joins: whether it may be called on several batches joined, see `averaged`.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        inner, keywords = (f.func, f.keywords) if isinstance(f, partial) else (f, {})
        self.f = partial(inner.averages, **keywords) if hasattr(inner, "averages") else f
        self.name = getattr(inner, "__name__", type(inner).__name__)
        self.finish = getattr(inner, "finish", None)
        items = getattr(inner, "items", None)
        self.items = partial(items, **keywords) if items else None
        self.joins, self.weighs = getattr(inner, "joins", False), takes_weights(inner)
        declared = self.weighs or any(hasattr(inner, n) for n in ("averages", "finish", "items"))
        self.check = None if declared else MeanCheck(self.f)
        super().__init__()

    def reset(self) -> None:
        """Forget all values."""
        super().reset()
        if self.check is not None:
            self.check.reset()

    def update(self, preds: Any, targs: Any, weight: Any, sample_weight: Any = None) -> None:
        """Call the function on a batch of `weight` items, or of samples with weights."""
        batch = None if self.check is None else self.check.copied(preds, targs)
        if sample_weight is None:
            value = self.f(preds, targs)
        else:
            value, weight = self.f(preds, targs, sample_weight=sample_weight), sample_weight.sum()
        if not isinstance(value, (Tensor, float, int)):
            value = self._number(value)
        elif isinstance(value, Tensor) and value.dim() and _by_item(value, preds, targs):
            raise ValueError(
                f"the metric {self.name} returned {describe(value)}, a value for each item of the "
                "batch, and is to return their mean: is a .mean() missing?"
            )
        elif isinstance(value, Tensor) and value._is_view():
            value = value.clone()  # else it would keep the batch, which a loader may refill
        own = None if self.items is None else self.items(preds, targs)
        super().update(value, weight if own is None else own)
        if self.check is not None:
            self.check.keep(batch, value, weight)

    def _number(self, value: Any) -> Tensor:
        try:
            return torch.tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as e:
            raise TypeError(
                f"the metric {self.name} returned {describe(value)}, which has no mean: let it "
                "return a number or a tensor, and make a metric of each of several values"
            ) from e

    def compute(self) -> Tensor:
        """Return the value of all batches so far."""
        value = super().compute()
        return value if self.finish is None else self.finish(value)


def _by_item(value: Tensor, preds: Any, targs: Any) -> bool:
    """Return whether a value is one of each item; not where it may be one of each class."""
    sizes = [tuple(x.shape) for x in (preds, targs) if isinstance(x, Tensor) and x.dim()]
    return len(value) > 1 and bool(sizes) and all(n == len(value) not in more for n, *more in sizes)


def takes_weights(f: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter for the weights of samples."""
    try:
        return "sample_weight" in inspect.signature(f).parameters
    except (TypeError, ValueError):  # it has no signature
        return False


def averaged(
    inner: Callable[..., Any] | None = None,
    *,
    finish: Callable[[Tensor], Tensor] | None = None,
    items: Callable[..., Any] | None = None,
    joins: bool = False,
) -> Callable[[Callable], Callable]:
    """Declare how a function of a batch becomes the value of an epoch.

    Args:
        inner: what to average in its place (the squared error for its root).
        finish: applied to that mean at the end (the root).
        items: called with the function's own arguments, returns how many items its value stands
            for, or None where that is the count of the batch.
        joins: whether its value for joined batches is the mean over all their items, as that of
            `accuracy` is. MetricsCB then keeps clones of at most 256 KiB and calls it on them
            joined, which saves most of its time. A mean of float32 values may differ by rounding.

    >>> @averaged(joins=True)
    ... def hits(preds, targs):
    ...     return (preds.argmax(1) == targs).float().mean()
    """

    def mark(f: Callable) -> Callable:
        f.finish, f.items, f.joins = finish, items, joins
        if inner is not None:
            f.averages = inner
        return f

    return mark


def columns_of(name: str, value: Any) -> dict[str, Any]:
    """Return a metric's value in Python numbers, several columns where it is a dict."""
    if isinstance(value, dict):
        return {k: v for key in value for k, v in columns_of(f"{name}_{key}", value[key]).items()}
    return {name: as_numbers(value)}


def as_numbers(value: Any) -> Any:
    """Return tensors and sequences of them as Python numbers; this waits for the device.

    What is no number, a metric may return anything, becomes text; None stays.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (tuple, list)):
        return [as_numbers(v) for v in value]
    try:
        return float(value)
    except Exception:  # it may have a `__float__`
        return value if value is None else str(value)


def loss_of(learn: Any) -> Any:
    """Return the mean loss of the items in the batch, whatever the reduction of the loss."""
    return per_item(learn.loss, learn.n_items) if adds_up(learn) else mean_loss(learn)


def mean_loss(learn: Any) -> Any:
    """Return the loss, or the mean of its elements, for a loss that is no sum over the items."""
    loss = learn.loss
    if isinstance(loss, Tensor) and (loss.dim() or attribute(learn, "loss_func") is None):
        return loss.mean()  # a new tensor: CUDA graphs overwrite what a compiled model returns
    return loss


def per_item(total: Any, n: Any) -> Any:
    """Return the sum over `n` items as their mean; as it is, where there are none or unknown."""
    return total / n if isinstance(n, Tensor) or n else total


def finite(value: Any) -> bool:
    """Return whether a number, and every number of a list, is finite."""
    return all(map(finite, value)) if isinstance(value, list) else math.isfinite(value)
