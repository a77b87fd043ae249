"""Fewer batches: for a quick look, and to see whether a model can learn at all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import Tensor

from ..base.batch import map_batch, n_batches
from ..base.text import whole
from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop
from ..core.stream import WrappedLoader


class LimitBatchesCB(Callback):
    """Run only the first batches of each epoch and validation. Schedules follow.

    >>> learn.fit(1, cbs=LimitBatchesCB(train=0.1, valid=5))

    Args:
        train: how many batches of a training epoch, or which fraction: 10 are ten batches, 0.1 is a
            tenth (rounded, one at least). None for all.
        valid: likewise for validation.

    Raises:
        ValueError: a limit is neither a positive whole number nor a fraction up to 1; or it is a
            fraction and the loader has no length.

    Events: before_fit, before_epoch
    Order:  ACCUMULATE
    Reads:  plan, training, dl
    Writes: dl
    """

    order = Order.ACCUMULATE  # before anyone counts batches
    in_probe = False  # get_preds and validate take all batches

    def __init__(self, train: int | float | None = None, valid: int | float | None = None) -> None:
        self.limits = {True: _checked("train", train), False: _checked("valid", valid)}

    def before_fit(self, learn: Loop) -> None:
        """Lower the number of batches of the fit."""
        plan = learn.plan
        if self.limits[True] is not None and plan.n_batches is not None:
            plan.n_batches = _how_many(self.limits[True], plan.n_batches, "training")

    def before_epoch(self, learn: Loop) -> None:
        """Shorten the loader of this epoch or validation."""
        limit, phase = self.limits[learn.training], "training" if learn.training else "validation"
        if limit is not None:
            learn.dl = Shortened(learn.dl, _how_many(limit, n_batches(learn.dl), phase))

    def __repr__(self) -> str:
        """Show the limits."""
        return f"LimitBatchesCB(train={self.limits[True]}, valid={self.limits[False]})"


class Shortened(WrappedLoader):
    """The first `n` batches of a loader."""

    def __init__(self, dl: Any, n: int) -> None:
        super().__init__(dl)
        self.shortened_to = n

    def __len__(self) -> int:
        """Return the number of batches; of a loader without a length, the most there can be."""
        declared = n_batches(self.dl)
        return self.shortened_to if declared is None else min(self.shortened_to, declared)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches; whoever stops before their end closes the loader's iterator."""
        batches = iter(self.dl)
        try:
            yield from islice(batches, self.shortened_to)
        except GeneratorExit:
            if callable(close := getattr(batches, "close", None)):
                close()
            raise


def _checked(name: str, limit: Any) -> Any:
    if limit is None or (isinstance(limit, float) and 0 < limit <= 1):
        return limit
    return whole(name, limit, of=f"batches (or a fraction, 0.1; for none use fit({name}=False))")


def _how_many(limit: int | float, length: int | None, phase: str) -> int:
    if not isinstance(limit, float):
        return limit if length is None else min(limit, length)
    if length is None:
        raise ValueError(f"the {phase} loader has no length: give a number of batches, not {limit}")
    return max(1, round(limit * length))


class OverfitCB(Callback):
    """Train on the same few batches in every epoch: a model that can learn brings their loss to 0.

    They are the first batches of the training loader, drawn when the first fit begins and kept for
    later fits.

    >>> learn.fit(10, cbs=OverfitCB(1))

    Args:
        n: how many batches.
        valid: also validate on them, instead of on the validation loader.

    Attributes:
        batches: the batches, None before the first fit.

    Raises:
        ValueError: `n` is below 1, or there is no training loader.

    Events: before_fit, before_epoch
    Order:  ACCUMULATE
    Reads:  plan, n_batches, training
    Writes: dl
    """

    order = Order.ACCUMULATE
    in_probe = False

    def __init__(self, n: int = 1, valid: bool = False) -> None:
        self.n, self.valid = whole("n", n, of="batches"), valid
        self.batches: Any = None  # a list, once a fit began

    def before_fit(self, learn: Loop) -> None:
        """Draw the batches, once, and lower the number of batches of the fit."""
        train = learn.plan.train_dl
        if self.batches is None:
            if train is None:
                raise ValueError("OverfitCB takes batches of the training loader: there is none")
            self.batches = [_clone(batch) for batch in islice(iter(train), self.n)]
        if learn.n_batches is not None or n_batches(train) is None:
            learn.plan.n_batches = len(self.batches)

    def before_epoch(self, learn: Loop) -> None:
        """Replace the loader by the kept batches."""
        if learn.training or self.valid:
            learn.dl = Kept(self.batches)

    def __repr__(self) -> str:
        """Show the number of batches."""
        return f"OverfitCB({self.n}{', valid=True' if self.valid else ''})"


class Kept:
    """Batches in memory, handed out as copies that a transform may change in place.

    Args:
        batches: any structures.
    """

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        """Yield a copy of each."""
        return map(_clone, self.batches)


def _clone(batch: Any) -> Any:
    return map_batch(lambda x: x.clone() if isinstance(x, Tensor) else x, batch)
