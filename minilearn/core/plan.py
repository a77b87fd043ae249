"""How long a fit is, where its epochs and rounds end, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from math import ceil, inf
from typing import Any

from ..base.text import whole
from .stream import Stream, set_epoch


class Plan:
    """How long a fit is, in epochs or in updates, how often it validates, and how far it has come.

    Args:
        n_epochs: full passes over the training data; None is 1, or unknown with `n_steps`.
        n_steps: updates in all.
        valid_every: validate after every k epochs, or after every k updates with `(k, "step")`:
            the batches are then cut into epochs of k updates.

    Attributes:
        train_dl: the training loader; of several processes, this one's shard of it.
        n_batches: batches in a training epoch, None when unknown.
        epochs: the epoch of each round that is left.
        epoch: full passes made over the training data before this one.
        steps_done: updates made.
        steps_before: updates made before the current batch.
        needs_grads: whether an update needs a gradient.
        in_group: whether GradAccumCB holds the gradients of a group of batches for an update to
            come; then nobody else clears them.
        stream: the training batches, with their position; None before the first of them.
        has_grads: whether the backward pass of this batch is done, and its gradients are unspent.
        trained: whether the training epoch of this round was run before a resume.
        first_batch: batches of this epoch that were run before a resume, which sets it.
        length: batches in the current epoch, None when unknown.
        valid_name: the name of a further validation set, while it is run.
        warned: what this fit has already warned of.
        lr: the learning rate that this call of `fit` was given.
        lr_seen: the Learner's own rate when a fit used it last.
        valid: whether rounds have a validation.
        frozen: modules that stay in eval mode.
        options: the options of each parameter group that the program asked for.
        described: what the modules were made with, as checkpoints say; None where none is written.

    Raises:
        ValueError: an amount is not a whole number, or both amounts are given.
    """

    def __init__(
        self, n_epochs: int | None = None, n_steps: int | None = None, valid_every: Any = None
    ) -> None:
        if n_epochs is not None and n_steps is not None:
            raise ValueError(f"give n_epochs or n_steps, not both (got {n_epochs} and {n_steps})")
        every = 1 if valid_every is None else valid_every
        self.every, self.unit = parse_every(every, ("epoch", "step"))
        if n_steps is None:
            n_epochs = whole("n_epochs", 1 if n_epochs is None else n_epochs, least=0)
        else:
            n_steps = whole("n_steps", n_steps)
        self.n_epochs, self.n_steps = n_epochs, n_steps
        self.train_dl: Any = None
        self.n_batches: int | None = None
        self.batches_per_step = 1  # or a function of the epoch
        self.epochs: Iterable[int] = self._epochs(0)
        self.epoch: Any = None
        self.steps_done = self.steps_before = self.first_batch = 0
        self.needs_grads = self.in_group = self.has_grads = self.trained = False
        self.stream: Any = None
        self.length: int | None = None
        self.valid_name: str | None = None
        self.warned: set[Any] = set()
        self.lr: Any = None
        self.lr_seen: Any = None
        self.valid = True
        self.frozen: list[Any] = []
        self.options: list[dict[str, Any]] | None = None
        self.described: dict[str, Any] | None = None
        self._resumed: int | None = None  # updates before the batch that a resume goes on from

    def start_at(
        self, epoch: int, steps_done: int, *, trained: bool = False, resumed: int | None = None
    ) -> None:
        """Go on from the position of another fit.

        Args:
            epoch: of the first round.
            steps_done: updates made.
            trained: whether the training epoch of that round is done.
            resumed: inside a training epoch, the updates made before its next batch.
        """
        self.steps_done, self.trained, self._resumed = steps_done, trained, resumed
        self.epochs = self._epochs(epoch)

    @property
    def settings(self) -> dict[str, Any]:
        """What the fit was asked for."""
        return {name: getattr(self, name) for name in ("n_epochs", "n_steps", "every", "unit")}

    @property
    def cuts(self) -> bool:
        """Whether epochs are cut out of the stream of batches, instead of following the data."""
        return self.unit == "step"

    @property
    def batches_per_step(self) -> int:
        """Batches for an update in this epoch; more than 1 with accumulation."""
        return self.batches_in(self.epoch or 0)

    @batches_per_step.setter
    def batches_per_step(self, size: int | Callable[[int], int]) -> None:
        self._group_size = size

    def batches_in(self, epoch: int) -> int:
        """Return the batches for an update in an epoch."""
        return self._group_size if isinstance(self._group_size, int) else self._group_size(epoch)

    @property
    def total_steps(self) -> int | None:
        """The updates that the fit will make, None where that is unknown."""
        n, size = self.n_batches, self._group_size
        if self.n_steps is not None or self.n_epochs is None or n is None:
            return self.n_steps
        if not isinstance(size, int):
            return (
                None
                if self.cuts
                else sum(ceil(n / self.batches_in(e)) for e in range(self.n_epochs))
            )
        if self.cuts:  # groups of an accumulation go on across the end of the data
            return ceil(self.n_epochs * n / size)
        return self.n_epochs * ceil(n / size)

    def stop_after(self, steps_done: int) -> float:
        """Return the number of updates at which the training epoch that begins now must end."""
        cut = (steps_done // self.every + 1) * self.every if self.cuts else inf
        return min(cut, inf if self.n_steps is None else self.n_steps)

    def validates(self, epoch: int) -> bool:
        """Return whether the round in `epoch` has a validation."""
        return self.cuts or (epoch + 1) % self.every == 0

    def _epochs(self, first: int) -> Iterable[int]:
        """Return the epoch of each round, in order from `first`, until the fit is done."""
        if self.n_epochs is not None and not self.cuts:
            return range(first, self.n_epochs)
        return self._rounds(first)

    def _rounds(self, first: int) -> Iterator[int]:
        idle = 0
        for number in count(first):
            if self._resumed is None and not self.trained and self._is_over(first):
                return
            if idle >= self._patience():
                raise RuntimeError(self._no_end(f"{idle} rounds in a row"))
            before = self.steps_done
            yield (self.stream.passes if self.stream else first) if self.cuts else number
            idle = 0 if self.steps_done > before else idle + 1

    def _is_over(self, first: int) -> bool:
        """Look ahead, and return whether the last update is made, or the data are exhausted."""
        if self.steps_done == self.n_steps or not self.cuts:
            return self.steps_done == self.n_steps
        if self.stream is None:
            return first == self.n_epochs
        return self.stream.exhausted() and self.stream.passes == self.n_epochs

    def _patience(self) -> int:
        """Return how many epochs in a row may make no update: two, or as many as are short.

        One may be cancelled on purpose, and a scaler skips updates until its scale fits: a hundred
        would-be updates are enough for either.
        """
        taken = self.stream.taken if self.stream else 0
        return max(2, ceil(100 * self.batches_per_step / max(taken, 1)))

    def open_stream(self, dl: Any) -> Stream:
        """Return the stream of training batches, a new one where the old one cannot go on."""
        if self.stream is None or (self.stream.fresh and not self.cuts):
            self.stream = Stream(dl, "training", self.warned)
        return self.stream

    def batches(self) -> Iterator[Any]:
        """Yield the batches of one training epoch: to the end of the data, or to the last update.

        Raises:
            RuntimeError: no update comes from all the data, so `n_steps` would never be reached.
        """
        before = self.steps_done if self._resumed is None else self._resumed
        stream, stop, idle, self._resumed = self.stream, self.stop_after(before), 0, None
        while self.steps_done < stop:  # a resume may have nothing left of the epoch
            before = self.steps_done if stream.fresh else -1
            set_epoch(stream.dl, self.epoch)
            for batch in stream:
                self.steps_before = self.steps_done
                yield batch
                if self.steps_done >= stop:
                    return
            if not self.cuts or stream.passes == self.n_epochs:
                return
            idle = idle + 1 if self.steps_done == before else 0
            if self.n_steps is not None and idle >= self._patience():
                raise RuntimeError(self._no_end(f"{idle} epochs over all the data"))
            self.epoch = stream.passes

    def _no_end(self, what: str) -> str:
        amount = f"n_steps={self.n_steps}" if self.n_steps else f"n_epochs={self.n_epochs}"
        return (
            f"{what} made no update, so {amount} would never be reached ({self.steps_done} updates "
            "are done). Look for a callback that cancels every step, epoch or round."
        )

    def is_last(self, training: bool, iteration: int) -> bool | None:
        """Return whether a batch is the last of its epoch, None where that is unknown."""
        n, stream = self.length, self.stream
        if not training:
            return None if n is None else iteration + 1 >= n
        if stream is None:
            return None
        by_batch = self.batches_per_step == 1  # an update a batch, so updates can be foreseen
        if by_batch and self.steps_before + 1 == self.stop_after(self.steps_before):
            return True
        goes_on = self.cuts and stream.passes + 1 != self.n_epochs
        at_end = False if goes_on else None if n is None else stream.taken >= n
        return at_end if at_end or by_batch or self.stop_after(0) == inf else None


def parse_every(every: Any, units: tuple[str, ...]) -> tuple[int, str]:
    """Read `n` or `(n, unit)`; a number alone is in the first of `units`.

    Raises:
        ValueError: the number is not whole and positive, or the unit is unknown.
    """
    n, unit = every if isinstance(every, (tuple, list)) and len(every) == 2 else (every, units[0])
    if unit not in units:
        raise ValueError(
            f"unknown unit in {every!r}; use a number or one of {[(1, u) for u in units]}"
        )
    return whole("every", n), unit
