"""How long a fit is, and where its passes and rounds end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from math import ceil, inf
from typing import Any

from ..base.text import whole
from .state import LoopState
from .stream import set_epoch


@dataclass
class Plan:
    """How long a fit is: in epochs or in updates, and how often it validates.

    Attributes:
        n_epochs: full passes over the training data, None where `n_steps` decides.
        n_steps: updates in all, None where `n_epochs` decides.
        every: validate after so many `unit`s.
        unit: "epoch" or "step". With "step" the stream of batches is cut into passes of `every`
            updates.
        met: updates that were made before the batch in hand.
        resumed: the same, of the batch that a resume goes on behind.
    """

    n_epochs: int | None
    n_steps: int | None = None
    every: int = 1
    unit: str = "epoch"
    met: int = 0
    resumed: int | None = None

    @classmethod
    def of(cls, n_epochs: int | None, n_steps: int | None, valid_every: Any) -> Plan:
        """Make a plan of the arguments of `fit`.

        Raises:
            ValueError: an amount is not a whole number, or both amounts are given.
        """
        if n_epochs is not None and n_steps is not None:
            raise ValueError(f"give n_epochs or n_steps, not both (got {n_epochs} and {n_steps})")
        every, unit = parse_every(1 if valid_every is None else valid_every, ("epoch", "step"))
        if n_steps is None:
            n_epochs = whole("n_epochs", 1 if n_epochs is None else n_epochs, least=0)
        else:
            n_steps = whole("n_steps", n_steps)
        return cls(n_epochs, n_steps, every, unit)

    @property
    def cuts(self) -> bool:
        """Whether passes are cut out of the stream of batches, instead of following the data."""
        return self.unit == "step"

    def stop_after(self, steps_done: int) -> float:
        """Return the number of updates at which the training pass that begins now must end."""
        cut = (steps_done // self.every + 1) * self.every if self.cuts else inf
        return min(cut, inf if self.n_steps is None else self.n_steps)

    def validates(self, epoch: int) -> bool:
        """Return whether the round in `epoch` has a validation."""
        return self.cuts or (epoch + 1) % self.every == 0

    def total_steps(self, n_batches: int | None, batches_per_step: int) -> int | None:
        """Return how many updates the fit will make, None where the loader has no length."""
        if self.n_steps is not None or self.n_epochs is None or n_batches is None:
            return self.n_steps
        if self.cuts:  # groups of an accumulation go on across the end of the data
            return ceil(self.n_epochs * n_batches / batches_per_step)
        return self.n_epochs * ceil(n_batches / batches_per_step)

    def epochs(self, learn: Any, first: int = 0) -> Iterable[int]:
        """Return the epoch of each round, in order from `first`, until the fit is done."""
        if self.n_epochs is not None and not self.cuts:
            return range(first, self.n_epochs)
        return self._rounds(learn, first)

    def _rounds(self, learn: LoopState, first: int) -> Iterator[int]:
        idle = 0
        for number in count(first):
            if self.resumed is None and not learn.trained and self._is_over(learn, first):
                return
            if idle >= self._patience(learn):
                raise RuntimeError(self._no_end(f"{idle} rounds in a row", learn.steps_done))
            before = learn.steps_done
            passes = learn.stream.passes if learn.stream else first
            yield passes if self.cuts else number
            idle = 0 if learn.steps_done > before else idle + 1

    def _is_over(self, learn: LoopState, first: int) -> bool:
        """Look ahead, and return whether the last update is made, or the data are exhausted."""
        if learn.steps_done == self.n_steps or not self.cuts:
            return learn.steps_done == self.n_steps
        if learn.stream is None:
            return first == self.n_epochs
        return learn.stream.exhausted() and learn.stream.passes == self.n_epochs

    def _patience(self, learn: LoopState) -> int:
        """Return how many passes in a row may make no update: two, or as many as are short.

        One may be cancelled on purpose, and a scaler skips updates until its scale fits: a hundred
        would-be updates are enough for either.
        """
        taken = learn.stream.taken if learn.stream else 0
        return max(2, ceil(100 * learn.batches_per_step / max(taken, 1)))

    def batches(self, learn: Any) -> Iterator[Any]:
        """Yield the batches of one training pass: to the end of the data, or to its last update.

        Raises:
            RuntimeError: no update comes from all the data, so `n_steps` would never be reached.
        """
        met, self.resumed = learn.steps_done if self.resumed is None else self.resumed, None
        stream, stop, idle = learn.stream, self.stop_after(met), 0
        while learn.steps_done < stop:  # a resume may have nothing left of the pass
            before = learn.steps_done if stream.fresh else -1
            set_epoch(stream.dl, learn.epoch)
            for batch in stream:
                self.met = learn.steps_done
                yield batch
                if learn.steps_done >= stop:
                    return
            if not self.cuts or stream.passes == self.n_epochs:
                return
            idle = idle + 1 if learn.steps_done == before else 0
            if self.n_steps is not None and idle >= self._patience(learn):
                raise RuntimeError(self._no_end(f"{idle} passes over all the data", before))
            learn.epoch = stream.passes

    def _no_end(self, what: str, steps_done: int) -> str:
        amount = f"n_steps={self.n_steps}" if self.n_steps else f"n_epochs={self.n_epochs}"
        return (
            f"{what} made no update, so {amount} would never be reached ({steps_done} updates are "
            "done). Look for a callback that cancels every step, pass or round."
        )

    def is_last(self, learn: LoopState) -> bool | None:
        """Return whether the batch in hand is the last of its pass, None where that is unknown."""
        n, stream = learn.pass_length, learn.stream
        if not learn.training:
            return None if n is None else learn.iter + 1 >= n
        if stream is None:
            return None
        by_batch = learn.batches_per_step == 1  # an update a batch, so updates can be foreseen
        if by_batch and self.met + 1 == self.stop_after(self.met):
            return True
        goes_on = self.cuts and stream.passes + 1 != self.n_epochs
        at_end = False if goes_on else None if n is None else stream.taken >= n
        return at_end if at_end or by_batch or self.stop_after(0) == inf else None


def parse_every(every: Any, units: tuple[str, ...]) -> tuple[int, str]:
    """Read `n` or `(n, unit)`; a bare number is in the first of `units`.

    Raises:
        ValueError: the number is not whole and positive, or the unit is unknown.
    """
    n, unit = every if isinstance(every, (tuple, list)) and len(every) == 2 else (every, units[0])
    if unit not in units:
        raise ValueError(
            f"unknown unit in {every!r}; use a number or one of {[(1, u) for u in units]}"
        )
    return whole("every", n), unit
