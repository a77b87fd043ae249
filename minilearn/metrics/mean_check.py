"""See whether a metric function is a mean over items, so that its batch values may be averaged."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import Tensor

from ..base.batch import is_dense
from ..base.seed import preserved_random_states

MOST_BYTES = 16 * 1024**2  # of the two batches that are joined
TOLERANCE = 1e-5  # of the values; rounding moves a mean by less


def both_have_rows(preds: Any, targs: Any) -> bool:
    """Return whether both are tensors that can be joined with those of another batch."""
    both = isinstance(preds, Tensor) and isinstance(targs, Tensor)
    return both and all(is_dense(x) and x.dim() > 0 for x in (preds, targs))


class MeanCheck:
    """Compares, once, a function of two batches joined with the weighted mean of its two values.

    It changes nothing: the function is called on copies, at the end of an epoch, and what it
    raises, prints or draws then is undone.

    Args:
        f: a function of (preds, targs).
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f, self.done = f, False
        self.reset()

    def reset(self) -> None:
        """Begin a new epoch."""
        self._batches: list[Any] = []  # predictions, targets, value and weight of at most two

    def copied(self, preds: Any, targs: Any) -> Any:
        """Return copies of a batch, before the function sees it; None where they cannot serve."""
        if self.done or len(self._batches) == 2:
            return None
        if not both_have_rows(preds, targs):
            return None
        fits = 2 * (preds.nbytes + targs.nbytes) <= MOST_BYTES
        return (preds.clone(), targs.clone()) if fits else None

    def keep(self, batch: Any, value: Any, weight: Any) -> None:
        """Keep what `copied` returned, with the value of the function."""
        if batch is not None:
            self._batches.append((*batch, value, weight))

    def warn(self, name: str) -> None:
        """Warn, at the end of an epoch, if the function is no mean; this waits for the device."""
        if self.done or len(self._batches) < 2:
            return
        batches, self.done = self._batches, True
        self.reset()
        try:
            mean, both = (torch.as_tensor(v).cpu().double() for v in self._values(*batches))
            alike = torch.allclose(mean, both, rtol=TOLERANCE, atol=TOLERANCE / 10)
        except Exception:  # nothing is known of the function, and the fit does not need this
            return
        if alike or not (mean.isfinite() & both.isfinite()).all():
            return
        warnings.warn(
            f"the metric {name} is no mean over items: the mean over two batches is "
            f"{mean.tolist()}, and the value of both together {both.tolist()}. Its columns are "
            "means over batches. Use skm(function), or a metric object, which sees all items",
            stacklevel=2,
        )

    def _values(self, first: Any, second: Any) -> tuple[Any, Any]:
        """Return the weighted mean of two values, and the value of both batches together."""
        (*one, value, weight), (*other, value_2, weight_2) = first, second
        joined = [torch.cat(pair) for pair in zip(one, other, strict=True)]
        with preserved_random_states(), warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            both = copy.deepcopy(self.f)(*joined)
        return (value * weight + value_2 * weight_2) / (weight + weight_2), both
