"""Loaders, and streams of batches that know their position in one.

A loader is any iterable of batches, with or without a length.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, ValuesView
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ..base.arguments import VALID_SPLITS
from ..base.batch import is_empty, n_batches
from ..base.seed import random_states, restore_random_states
from .position import load_loader_state, loader_state, own_state, skip_batches, unwrapped


def pick_loader(dls: Any, training: bool) -> Any:
    """Return the training or validation loader of `dls`, None where there is none.

    Args:
        dls: an object with `train` and `valid`, a Mapping with the keys "train" and one of
            `VALID_SPLITS`, a tuple or list of both, or a training loader.
        training: which of the two.
    """
    name, position = ("train", 0) if training else ("valid", 1)
    if hasattr(dls, "train"):
        return getattr(dls, name, None)
    if isinstance(dls, Mapping):
        names = ("train",) if training else VALID_SPLITS
        return next((dls[name] for name in names if name in dls), None)
    if isinstance(dls, (tuple, list)) and not _is_loader(dls):
        loader = dls[position] if len(dls) > position else None
        return None if isinstance(loader, int) else loader  # (0,) stands for no loaders
    return dls if training else None


def _is_loader(dls: Any) -> bool:
    """Return whether a list holds batches: then it is a training loader.

    Batches are dicts, tuples of tensors, and, where there are more than two, lists of them.
    """
    first = dls[0] if type(dls) is list and dls else None
    if not isinstance(first, tuple) and not (type(first) is list and len(dls) > 2):
        return isinstance(first, Mapping)
    return any(isinstance(x, (Tensor, Mapping)) for x in first)


def check_loader(dl: Any, training: bool, dls: Any = None) -> None:
    """Raise where `dl`, of `dls`, cannot give a batch.

    Raises:
        ValueError: there is no loader, or it has no batches; says why.
    """
    phase = "training" if training else "validation"
    if dl is None and getattr(dls, "test", None) is not None:
        raise ValueError(
            f"there is no {phase} loader, dls.test alone: images have classes where they are in "
            "class folders, or labels= says them"
        )
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
    advice = "lower batch_size or set drop_last=False" if small else "check its data"
    if isinstance(dl, Iterator):
        advice = "it is used up: give a list, or an object whose __iter__ begins anew"
    return f"the {phase} loader has no batches ({', '.join(known) or type(dl).__name__}): {advice}"


def begin_fit(dls: Any) -> None:
    """Tell each loader that has a method `begin_fit` that a fit begins: ours draw a new order."""
    named = [dls[name] for name in getattr(dls, "named", ())]
    for dl in (pick_loader(dls, True), pick_loader(dls, False), *named):
        if callable(begin := getattr(unwrapped(dl), "begin_fit", None)):
            begin()


def set_epoch(dl: Any, epoch: int) -> None:
    """Give the epoch to the samplers and data sets that follow it, also inside a Subset, say.

    Living workers would keep an old copy of such a data set: the next epoch starts new ones.
    """
    data = epoch_followers(getattr(dl, "dataset", None))
    samplers = [getattr(dl, name, None) for name in ("sampler", "batch_sampler")]
    for owner in [*epoch_followers(*samplers), *data]:
        owner.set_epoch(epoch)
    if data and isinstance(loader := unwrapped(dl), DataLoader):
        loader._iterator = None


def epoch_followers(*owners: Any) -> list[Any]:
    """Return what has a method `set_epoch`: samplers or data sets, or those that they are made of.

    Each stands in the list once: a loader's batch sampler holds its sampler.
    """
    found, seen, todo = [], set(), [*owners]
    while todo:
        part = todo.pop(0)
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        if hasattr(part, "set_epoch"):
            found.append(part)
            continue
        several = getattr(part, "datasets", ())  # of a ConcatDataset; a dict in a StackDataset
        several = several.values() if isinstance(several, Mapping) else several
        todo += several if isinstance(several, (list, tuple, ValuesView)) else ()
        todo += [getattr(part, name, None) for name in ("dataset", "sampler")]
    return found


class Stream:
    """The batches of one loader; it keeps its position, so that an epoch may stop within it.

    Batches that a collate function left empty (see `is_empty`) are skipped.

    Args:
        dl: the loader.
        phase: what messages call it.
        warned: what this fit has warned of; added to.

    Attributes:
        taken: batches drawn from the loader since it was last started.
        passes: how often the loader was exhausted.
    """

    def __init__(self, dl: Any, phase: str, warned: set[Any] | None = None) -> None:
        self.dl, self.phase = dl, phase
        self._warned = set() if warned is None else warned
        self.taken = self.passes = self._empty = 0
        self._batches: Any = None  # a generator, until the loader is exhausted
        self._peeked: list[Any] = []
        self._began: Any = None  # the loader's and the random states at its start

    def __iter__(self) -> Iterator[Any]:
        """Yield what is left of the loader; a new start where nothing is left."""
        if self._batches is None:
            self.taken = self._empty = 0
            if self.phase == "training":  # what a resume needs to come back here
                self._began = loader_state(self.dl), random_states()
            self._batches = self._draw()
        while self._peeked:
            yield self._peeked.pop()
        for batch in self._batches:  # noqa: UP028  `yield from` would close it with this epoch
            yield batch
        self._finish()

    @property
    def fresh(self) -> bool:
        """Whether the next batch will be the loader's first."""
        return self._batches is None

    @property
    def begun(self) -> bool:
        """Whether the loader has begun to give batches, and has not come to its end."""
        return self._began is not None

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
        """Drop the loader's iterator, and with it its worker processes."""
        if self._batches is not None:
            self._batches.close()
        self._batches, self._peeked = None, []

    def state_dict(self) -> dict[str, Any]:
        """Return the position: how the loader began, and how many batches it gave."""
        taken = self.taken - len(self._peeked)
        state = {"taken": taken, "passes": self.passes, "empty": self._empty}
        if self.begun:
            state |= {
                "loader": self._began[0],
                "random": self._began[1],
                "own": own_state(self.dl),
                "length": getattr(self.dl, "shortened_to", None),
            }
        return state

    def load_state_dict(self, state: dict[str, Any], exact: bool = False) -> None:
        """Go on from that position; the random states are not restored.

        Args:
            state: what `state_dict` returned, of an equal loader.
            exact: see `skip_batches`.
        """
        self.taken, self.passes, self._empty = state["taken"], state["passes"], state["empty"]
        if "loader" in state:
            self._began = state["loader"], state["random"]
            load_loader_state(self.dl, state["loader"])
            restore_random_states(state["random"])
            self._batches = self._draw(skip_batches(self.dl, self.taken, state["own"], exact))

    def _draw(self, batches: Iterator[Any] | None = None) -> Iterator[Any]:
        streams = isinstance(getattr(self.dl, "dataset", None), IterableDataset)
        draw = _draw_quietly if streams else next
        batches = iter(self.dl) if batches is None else batches
        exhausted = False
        try:
            while True:
                try:
                    batch = draw(batches)
                except StopIteration:
                    exhausted = True
                    return
                except Exception as e:
                    e.add_note(f"in the {self.phase} loader, batch {self.taken}")
                    raise
                self.taken += 1
                if is_empty(batch):
                    self._empty += 1
                else:
                    yield batch
        finally:
            if not exhausted and callable(close := getattr(batches, "close", None)):
                close()

    def _finish(self) -> None:
        self._batches = self._began = None
        self.passes += 1
        if self._empty:
            batches = "1 empty batch" if self._empty == 1 else f"{self._empty} empty batches"
            warnings.warn(f"{batches} of the {self.phase} loader were skipped", stacklevel=2)
        if self.taken == self._empty and not getattr(self.dl, "may_be_empty", False):
            raise ValueError(no_batches(self.dl, self.phase))
        self._check_length()

    def _check_length(self) -> None:
        """Say, once a fit, that the loader's length is not what it gave."""
        declared, key = n_batches(self.dl), (self.phase, id(self.dl))
        is_shard = hasattr(self.dl, "may_be_empty")
        ends_early = is_shard and self.taken < (declared or 0)  # with the shortest
        if declared in (None, self.taken) or key in self._warned or ends_early:
            return
        self._warned.add(key)
        why = "what is planned by its length, a schedule say, will not fit"
        if self.taken > declared and getattr(self.dl, "num_workers", 0) > 1:
            why = (
                "with workers, an IterableDataset must share its work out (see "
                "torch.utils.data.get_worker_info), else every sample comes once a worker"
            )
        warnings.warn(
            f"the {self.phase} loader gave {self.taken} batches and declares {declared}: {why}",
            stacklevel=3,
        )


class WrappedLoader:
    """A loader around another one, whose length and other attributes it has.

    Args:
        dl: the other one.
    """

    def __init__(self, dl: Any) -> None:
        self.dl = dl

    def __iter__(self) -> Iterator[Any]:
        """Start the next epoch."""
        return iter(self.dl)

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.dl)

    def __getattr__(self, name: str) -> Any:
        if name == "dl" or name.startswith("__"):  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.dl, name)


class Unshared(WrappedLoader):
    """A loader that each process runs over for itself, without the others."""


def _draw_quietly(batches: Iterator[Any]) -> Any:
    """Keep torch from warning at each batch beyond the declared length: `Stream` warns once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Length of IterableDataset")
        return next(batches)
