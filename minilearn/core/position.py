"""The position in a loader: saved when an epoch begins, and found again without loading data."""

from __future__ import annotations

import copy
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..base.batch import n_batches
from ..base.seed import generator_state, is_generator, load_generator_state

STATEFUL = ("state_dict", "load_state_dict")
NUMBERS = ("seed", "drawn", "epoch")  # of our loaders, and of those that count like them


def generators(dl: Any) -> list[Any]:
    """Return the generators that a loader and its samplers own, under whatever name."""
    found, owners = {}, [dl]
    for owner in owners:
        found |= {id(x): x for x in getattr(owner, "__dict__", {}).values() if is_generator(x)}
        samplers = [getattr(owner, name, None) for name in ("sampler", "batch_sampler")]
        owners += [s for s in samplers if s is not None and not any(s is o for o in owners)]
    return list(found.values())


def loader_state(dl: Any) -> dict[str, Any]:
    """Return what decides about a loader's next epoch: seeds, epoch, states of generators."""
    dl = unwrapped(dl)
    state = {name: vars(dl)[name] for name in NUMBERS if name in getattr(dl, "__dict__", {})}
    return state | {"generators": [generator_state(g) for g in generators(dl)]}


def load_loader_state(dl: Any, state: dict[str, Any]) -> None:
    """Let the next epoch of a loader be that of `loader_state`."""
    dl = unwrapped(dl)
    for name in NUMBERS:
        if name in state and name in getattr(dl, "__dict__", {}):
            setattr(dl, name, state[name])
    for generator, saved in zip(generators(dl), state["generators"], strict=False):
        load_generator_state(generator, saved)


def unwrapped(dl: Any) -> Any:
    """Return the loader inside those that serve a part of it."""
    while "dl" in getattr(dl, "__dict__", {}):
        dl = vars(dl)["dl"]
    return dl


def own_state(dl: Any) -> dict[str, Any] | None:
    """Return the state of a loader, or of the stream that it reads, None where it has none."""
    owner = _with_state(dl)
    if owner is None:
        return None
    generator = getattr(owner, "generator", None)
    of_loader = generator.get_state() if isinstance(generator, torch.Generator) else None
    return {"position": owner.state_dict(), "generator": of_loader}


def skip_batches(dl: Any, n: int, own: dict[str, Any] | None, exact: bool = False) -> Iterator[Any]:
    """Iterate over a loader after its first `n` batches.

    The random states must be those of its start. The caller restores them afterwards.

    Args:
        dl: the loader, in the state in which it began.
        n: the number of batches to skip.
        own: what `own_state` returned after them.
        exact: load the skipped batches of torch's DataLoader, instead of skipping their indices.
    """
    owner = None if own is None else _with_state(dl)
    is_over = n >= (n_batches(dl) or math.inf)
    if is_over and owner is not None and not isinstance(owner, DataLoader):
        warnings.warn(
            f"the checkpoint was saved at the end of the data: the {type(owner).__name__} starts "
            "anew. That is not exact where it would go on from its last position.",
            stacklevel=2,
        )
        return iter(())
    if hasattr(dl, "shortened_to"):
        return islice(skip_batches(dl.dl, n, own, exact), max(dl.shortened_to - n, 0))
    if own is not None and owner is not None:
        if type(owner).__module__.startswith("datasets."):
            warnings.warn(
                "samples in a shuffle buffer of datasets are not kept: where there is one, the "
                "resumed fit is not exact",
                stacklevel=2,
            )
        return _load_own_state(dl, owner, own)
    if callable(getattr(dl, "batches", None)):  # one of ours: order and random numbers have seeds
        return dl.batches(n)
    counts = isinstance(dl, DataLoader) and not isinstance(dl.dataset, IterableDataset)
    if counts and not exact:
        return _skip_indices(dl, n)
    if not counts and not isinstance(dl, Sequence):
        warnings.warn(
            f"the {type(dl).__name__} of the training data has no state: {n} batches are read and "
            "dropped to find its position. Random numbers that it draws may differ; give it "
            "state_dict and load_state_dict, or a method batches(start).",
            stacklevel=2,
        )
    batches = iter(dl)
    deque(islice(batches, n), maxlen=0)
    return batches


def _load_own_state(dl: Any, owner: Any, own: dict[str, Any]) -> Iterator[Any]:
    if getattr(getattr(owner, "sampler", None), "replacement", False):
        warnings.warn(
            "the sampler of the training data draws with replacement, several times an epoch: the "
            "resumed fit is not exact",
            stacklevel=2,
        )
    owner.load_state_dict(own["position"])
    batches = iter(dl)
    if own["generator"] is not None:  # torchdata's loader leaves it short of one draw, which gives
        owner.generator.set_state(own["generator"])  # the next epoch another order
    return batches


def _with_state(dl: Any) -> Any:
    """Return what can save and load its position: the loader, or the stream that it reads."""
    if hasattr(dl, "shortened_to"):
        return _with_state(dl.dl)
    if all(hasattr(dl, name) for name in STATEFUL):
        return dl
    dataset = getattr(dl, "dataset", None)  # its copies in workers have other states
    streams = isinstance(dl, DataLoader) and isinstance(dataset, IterableDataset)
    has_state = streams and not dl.num_workers and all(hasattr(dataset, name) for name in STATEFUL)
    return dataset if has_state else None


def _skip_indices(dl: DataLoader, n: int) -> Iterator[Any]:
    if dl.num_workers:
        warnings.warn(
            "random numbers that the data set draws in the workers of torch's DataLoader are not "
            "repeated in this epoch. If it draws some, use a SeededLoader, or "
            "CheckpointCB(exact=True), which loads the batches before again.",
            stacklevel=2,
        )
    rest = _Rest(dl.sampler if dl.batch_sampler is None else dl.batch_sampler, n)
    batches = iter(with_indices(dl, rest))
    rest.drop()  # without workers nobody has asked for an index yet
    return batches


def with_indices(dl: DataLoader, indices: Any) -> DataLoader:
    """Return a copy of a loader that fetches these indices, or batches of them."""
    own = own_copy(dl)  # which lets nobody set these
    vars(own)["sampler" if dl.batch_sampler is None else "batch_sampler"] = indices
    return own


class _Rest:
    """Indices after the first `n`, which are drawn when the first is asked for."""

    def __init__(self, indices: Any, n: int) -> None:
        self.indices, self.n = indices, n
        self._iterator: Iterator[Any] = iter(())  # until iteration begins

    def __len__(self) -> int:
        return max(len(self.indices) - self.n, 0)

    def __iter__(self) -> Iterator[Any]:
        self._iterator = iter(self.indices)
        return self

    def __next__(self) -> Any:
        self.drop()
        return next(self._iterator)

    def drop(self) -> None:
        n, self.n = self.n, 0
        deque(islice(self._iterator, n), maxlen=0)


def own_copy(dl: Any) -> Any:
    """Return a copy of a loader that counts epochs or keeps workers; others as they are."""
    if not _is_copied(dl):
        return dl
    own = copy.copy(dl)
    if "dl" in vars(own):  # it serves the batches of another
        own.dl = own_copy(own.dl)
    if isinstance(dl, DataLoader):  # it lets nobody set these; living workers serve one iterator
        vars(own).update(persistent_workers=False, _iterator=None)
    return own


def _is_copied(dl: Any) -> bool:
    return isinstance(dl, DataLoader) or hasattr(dl, "epoch")


def undo_position(dl: Any) -> Callable[[], None]:
    """Note where a loader and its generators are; return what puts them back there."""
    states = [(g, generator_state(g)) for g in generators(dl)]
    has_state = all(hasattr(dl, name) for name in STATEFUL) and not _is_copied(dl)
    position = dl.state_dict() if has_state else None

    def undo() -> None:
        for generator, state in states:
            load_generator_state(generator, state)
        if position is not None:
            dl.load_state_dict(position)

    return undo
