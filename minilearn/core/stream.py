"""Where batches come from, and how long a fit is.

Stands on batch. A loader is any iterable of batches, with or without a length; a `Stream` keeps its
place in one; a `Plan` says when passes, rounds and the fit end.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from .batch import n_batches

if TYPE_CHECKING:
    from .learner import Learner


def pick_loader(dls: Any, training: bool) -> Any:
    """Return the training or validation loader of `dls`, None where there is none.

    Args:
        dls: an object with `train` and `valid`, a Mapping with these keys, or a tuple or list of
            both.
        training: which of the two.
    """
    name, position = ("train", 0) if training else ("valid", 1)
    if hasattr(dls, "train"):
        return getattr(dls, name, None)
    if isinstance(dls, Mapping):
        return dls.get(name)
    if isinstance(dls, (tuple, list)):
        loader = dls[position] if len(dls) > position else None
        return None if isinstance(loader, int) else loader  # (0,) stands for no loaders
    return dls if training else None


def check_loader(dl: Any, training: bool) -> None:
    """Raise where `dl` cannot give a batch.

    Raises:
        ValueError: there is no loader, or it has no batches; says why.
    """
    phase = "training" if training else "validation"
    if dl is None:
        raise ValueError(
            f"there is no {phase} loader: give the Learner dls=DataLoaders(train, valid)"
        )
    if n_batches(dl) == 0:
        raise ValueError(no_batches(dl, phase))


def no_batches(dl: Any, phase: str) -> str:
    """Say that a loader gave nothing, and what is known about why."""
    dataset, known = getattr(dl, "dataset", None), []
    samples = n_batches(dataset) if dataset is not None else None
    if samples is not None:
        known.append(f"{samples} samples")
    for name in ("batch_size", "drop_last"):
        if hasattr(dl, name):
            known.append(f"{name}={getattr(dl, name)}")
    small = samples and getattr(dl, "drop_last", False)
    advice = "lower batch_size or set drop_last=False" if small else "check the data behind it"
    return f"the {phase} loader has no batches ({', '.join(known) or type(dl).__name__}): {advice}"


def set_epoch(dl: Any, epoch: int) -> None:
    """Tell samplers that shuffle by epoch, as torch.distributed's do, which one begins."""
    for owner in (getattr(dl, name, None) for name in ("sampler", "batch_sampler", "dataset")):
        if hasattr(owner, "set_epoch"):
            owner.set_epoch(epoch)


class Stream:
    """The batches of one loader; it keeps its place, so that a pass may stop and the next go on.

    Batches that a collate function left empty (None, or an empty list, tuple or dict) are skipped.

    Attributes:
        taken: batches drawn from the loader since it was last started.
        passes: how often the loader was exhausted.
    """

    def __init__(self, dl: Any, phase: str) -> None:
        self.dl, self.phase = dl, phase
        self.taken = self.passes = self._empty = 0
        self._batches: Iterator[Any] | None = None
        self._peeked: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        """Yield what is left of the loader; a new start where nothing is left."""
        if self._batches is None:
            self.taken = self._empty = 0
            self._batches = self._draw()
        while self._peeked:
            yield self._peeked.pop()
        for batch in self._batches:  # noqa: UP028  `yield from` would close it with this pass
            yield batch
        self._finish()

    def exhausted(self) -> bool:
        """Look one batch ahead, and return whether there was none."""
        if self._batches is None:
            return self.passes > 0
        if not self._peeked:
            self._peeked = list(islice(self._batches, 1))
            if not self._peeked:
                self._finish()
        return not self._peeked

    def close(self) -> None:
        """Let go of the loader's iterator, and with it of its worker processes."""
        if self._batches is not None:
            self._batches.close()
        self._batches, self._peeked = None, []

    def _draw(self) -> Iterator[Any]:
        draw = (
            _draw_quietly
            if isinstance(getattr(self.dl, "dataset", None), IterableDataset)
            else next
        )
        batches = iter(self.dl)
        while True:
            try:
                batch = draw(batches)
            except StopIteration:
                return
            except Exception as e:
                e.add_note(f"in the {self.phase} loader, batch {self.taken}")
                raise
            self.taken += 1
            if batch is None or (batch.__class__ in (list, tuple, dict) and not batch):
                self._empty += 1
            else:
                yield batch

    def _finish(self) -> None:
        self._batches = None
        self.passes += 1
        if self._empty:
            warnings.warn(
                f"{self._empty} empty batches of the {self.phase} loader were skipped", stacklevel=2
            )
        if self.taken == self._empty:
            raise ValueError(no_batches(self.dl, self.phase))
        declared = n_batches(self.dl)
        if declared is not None and self.taken > declared and self.passes == 1:
            warnings.warn(
                f"the {self.phase} loader gave {self.taken} batches and declares {declared}: with "
                "workers, an IterableDataset must share its work out (see "
                "torch.utils.data.get_worker_info), else every sample comes once a worker",
                stacklevel=2,
            )


def _draw_quietly(batches: Iterator[Any]) -> Any:
    """Keep torch from warning at each batch beyond the declared length: `Stream` says it once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Length of IterableDataset")
        return next(batches)


@dataclass
class Plan:
    """How long a fit is: in epochs or in updates, and how often it validates.

    Attributes:
        n_epochs: full passes over the training data, None where `n_steps` decides.
        n_steps: updates in all, None where `n_epochs` decides.
        every: validate after so many `unit`s.
        unit: "epoch" or "step". With "step" the stream of batches is cut into passes of `every`
            updates.
    """

    n_epochs: int | None
    n_steps: int | None = None
    every: int = 1
    unit: str = "epoch"

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
            n_epochs = _whole("n_epochs", 1 if n_epochs is None else n_epochs, least=0)
        else:
            n_steps = _whole("n_steps", n_steps, least=1)
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
        if self.n_steps is not None or n_batches is None:
            return self.n_steps
        if self.cuts:  # groups of an accumulation go on across the end of the data
            return ceil(self.n_epochs * n_batches / batches_per_step)
        return self.n_epochs * ceil(n_batches / batches_per_step)

    def epochs(self, learn: Learner) -> Iterable[int]:
        """Return the epoch of each round, in order, until the fit is done."""
        if self.n_steps is None and not self.cuts:
            return range(self.n_epochs)
        return self._rounds(learn)

    def _rounds(self, learn: Learner) -> Iterator[int]:
        for number in count():
            passes = learn.stream.passes if learn.stream else 0
            if self.n_steps is None and passes == self.n_epochs:
                return
            before = learn.steps_done
            yield passes if self.cuts else number
            if learn.steps_done == self.n_steps or (self.cuts and self._ends(learn.stream)):
                return
            self.check_progress(learn, before)

    def _ends(self, stream: Stream) -> bool:
        """Return whether the data are exhausted for the last time."""
        return self.n_steps is None and stream.exhausted() and stream.passes == self.n_epochs

    def batches(self, learn: Learner) -> Iterator[Any]:
        """Yield the batches of one training pass: to the end of the data, or to its last update."""
        stream, before = learn.stream, learn.steps_done
        stop = self.stop_after(before)
        while True:
            set_epoch(stream.dl, learn.epoch)
            for batch in stream:
                yield batch
                if learn.steps_done >= stop:
                    return
            if not self.cuts or stream.passes == self.n_epochs:
                return
            self.check_progress(learn, before)
            learn.epoch, before = stream.passes, learn.steps_done

    def check_progress(self, learn: Learner, before: int) -> None:
        """Raise where no update was made since `before`, so `n_steps` would never be reached."""
        if self.n_steps is not None and learn.steps_done == before:
            raise RuntimeError(
                f"a whole pass made no update, so n_steps={self.n_steps} would never be reached "
                f"({before} are done): every step was cancelled or skipped"
            )

    def is_last(self, learn: Learner) -> bool | None:
        """Return whether the batch in hand is the last of its pass, None where that is unknown."""
        stream = learn.stream
        if learn.training and learn.batches_per_step == 1 and stream is not None:
            if learn.steps_done + 1 == self.stop_after(learn.steps_done):
                return True
        if learn.training and self.cuts and (stream is None or stream.passes + 1 != self.n_epochs):
            return False if learn.batches_per_step == 1 else None
        return None if learn.pass_length is None else learn.iter + 1 >= learn.pass_length


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
    return _whole("every", n, least=1), unit


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more; got {value!r}")
    return int(value)
