"""The position in a loader: saved when an epoch begins, and found again without loading data."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

STATEFUL = ("state_dict", "load_state_dict")


def generators(dl: Any) -> list[torch.Generator]:
    """Return the generators that a loader draws its order from."""
    owners = [dl, getattr(dl, "sampler", None), getattr(dl, "batch_sampler", None)]
    owners.append(getattr(owners[-1], "sampler", None))
    found = [getattr(owner, "generator", None) for owner in owners]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def loader_state(dl: Any) -> dict[str, Any]:
    """Return what decides about the next pass of a loader: seed, epoch, states of generators."""
    dl = _unwrapped(dl)
    state = {
        name: vars(dl)[name] for name in ("seed", "epoch") if name in getattr(dl, "__dict__", {})
    }
    return state | {"generators": [g.get_state() for g in generators(dl)]}


def load_loader_state(dl: Any, state: dict[str, Any]) -> None:
    """Let the next pass of a loader be that of `loader_state`."""
    dl = _unwrapped(dl)
    for name in ("seed", "epoch"):
        if name in state and name in getattr(dl, "__dict__", {}):
            setattr(dl, name, state[name])
    for generator, saved in zip(generators(dl), state["generators"], strict=False):
        generator.set_state(saved)


def _unwrapped(dl: Any) -> Any:
    """Return the loader inside those that serve a part of it."""
    while "dl" in getattr(dl, "__dict__", {}):
        dl = vars(dl)["dl"]
    return dl


def own_state(dl: Any) -> dict[str, Any] | None:
    """Return the place that a loader, or the streamed data set behind it, can tell by itself."""
    owner = _teller(dl)
    if owner is None:
        return None
    generator = getattr(owner, "generator", None)
    of_loader = generator.get_state() if isinstance(generator, torch.Generator) else None
    return {"place": owner.state_dict(), "generator": of_loader}


def behind(dl: Any, n: int, told: dict[str, Any] | None, exact: bool = False) -> Iterator[Any]:
    """Begin the pass of a loader behind its first `n` batches.

    The random states are to be those of the pass's beginning; they are drawn from as the batches
    before would have it, and restored by the caller.

    Args:
        dl: the loader, in the state in which the pass began.
        n: the number of batches to leave out.
        told: what `own_state` returned there.
        exact: find the place of torch's DataLoader by loading, not by counting.
    """
    if hasattr(dl, "shortened_to"):
        return islice(behind(dl.dl, n, told, exact), max(dl.shortened_to - n, 0))
    if told is not None and (owner := _teller(dl)) is not None:
        owner.load_state_dict(told["place"])
        batches = iter(dl)
        if told["generator"] is not None:  # torchdata's loader leaves it short of one draw, which
            owner.generator.set_state(told["generator"])  # gives the next pass another order
        return batches
    if callable(getattr(dl, "batches", None)):  # one of ours: order and random numbers have seeds
        return dl.batches(n)
    counts = isinstance(dl, DataLoader) and not isinstance(dl.dataset, IterableDataset)
    if counts and not exact:
        return _behind_indices(dl, n)
    if not counts and not isinstance(dl, Sequence):
        warnings.warn(
            f"the {type(dl).__name__} of the training data cannot tell its place: {n} batches are "
            "read and dropped to find it. Random numbers that it draws may differ; give it "
            "state_dict and load_state_dict, or a method batches(start).",
            stacklevel=2,
        )
    batches = iter(dl)
    deque(islice(batches, n), maxlen=0)
    return batches


def use_up(dl: Any, told: dict[str, Any] | None) -> None:
    """Let the next pass of a loader be a new one, where `behind` left nothing of the one in hand.

    A stream may keep a place that it is given until it is iterated, and its next pass would begin
    there, at the end: so it is iterated here. One that starts over each time is then ready; one
    that goes on wherever it was left is given the place again.

    Args:
        dl: the loader.
        told: what `own_state` returned.
    """
    owner = _teller(dl)
    if told is None or owner is None or isinstance(owner, DataLoader):  # whose `iter` takes it up
        return
    states = []
    for _ in range(3):  # the first from that place, the next two from the start, or further on
        next(iter(owner), None)
        states.append(repr(owner.state_dict()))
    if states[1] != states[2]:
        owner.load_state_dict(told["place"])


def _teller(dl: Any) -> Any:
    if hasattr(dl, "shortened_to"):
        return _teller(dl.dl)
    if all(hasattr(dl, name) for name in STATEFUL):
        return dl
    dataset = getattr(dl, "dataset", None)  # a copy of it in each worker tells nothing here
    streams = isinstance(dl, DataLoader) and isinstance(dataset, IterableDataset)
    tells = streams and not dl.num_workers and all(hasattr(dataset, name) for name in STATEFUL)
    return dataset if tells and not _has_buffer(dataset) else None


def _has_buffer(dataset: Any) -> bool:
    """Return whether Hugging Face shuffles samples in a buffer, which its state lacks."""
    part = getattr(dataset, "_ex_iterable", None)
    while part is not None and "BufferShuffled" not in type(part).__name__:
        part = getattr(part, "ex_iterable", None)
    return part is not None


def _behind_indices(dl: DataLoader, n: int) -> Iterator[Any]:
    if dl.num_workers:
        warnings.warn(
            "random numbers that the data set draws in the workers of torch's DataLoader are not "
            "repeated in this pass. If it draws some, use a SeededLoader, or "
            "CheckpointCB(exact=True), which loads the batches before again.",
            stacklevel=2,
        )
    name = "sampler" if dl.batch_sampler is None else "batch_sampler"
    rest = _Rest(getattr(dl, name), n)
    own = object.__new__(type(dl))  # the loader lets nobody set these
    vars(own).update(vars(dl) | {name: rest, "_iterator": None, "persistent_workers": False})
    batches = iter(own)
    rest.drop()  # without workers nobody has asked for an index yet
    return batches


class _Rest:
    """Indices behind the first `n`, which are drawn when the first is asked for."""

    def __init__(self, indices: Any, n: int) -> None:
        self.indices, self.n = indices, n
        self._iterator: Iterator[Any] = iter(())  # until a pass begins

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
    """Return a copy of a loader with a count of passes, or with workers that stay, of its own."""
    if not _is_copied(dl):
        return dl
    own = copy.copy(dl)
    if "dl" in vars(own):  # it serves the batches of another
        own.dl = own_copy(own.dl)
    if isinstance(dl, DataLoader):  # it lets nobody set these; living workers serve one pass
        vars(own).update(persistent_workers=False, _iterator=None)
    return own


def _is_copied(dl: Any) -> bool:
    return isinstance(dl, DataLoader) or hasattr(dl, "epoch")


def undo_position(dl: Any) -> Callable[[], None]:
    """Note where a loader and its generators are; return what puts them back there."""
    states = [(g, g.get_state()) for g in generators(dl)]
    tells = hasattr(dl, "state_dict") and hasattr(dl, "load_state_dict") and not _is_copied(dl)
    position = dl.state_dict() if tells else None

    def undo() -> None:
        for generator, state in states:
            generator.set_state(state)
        if position is not None:
            dl.load_state_dict(position)

    return undo
