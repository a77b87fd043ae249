"""The part of a checkpoint that differs between processes: random states and running means.

Rank 0 writes checkpoints; the others send it their part at the end of a batch or round, before
anything is saved.
"""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from ..base.seed import (
    RandomStates,
    preserved_random_states,
    random_states,
    restore_random_states,
    set_seed,
)
from ..base.text import without_address
from ..core.learner import Loop
from ..core.stream import pick_loader
from ..data.seeded import derive_seed, draw_seed
from ..distributed.barrier import processes_of
from ..distributed.sync import Processes
from .files import serialisable
from .program import arguments_of


def gather_states(learn: Loop) -> None:
    """Exchange the parts of all processes; all must call this."""
    own = {
        name: cb.state_dict()
        for name, cb in named_cbs(learn.cbs)
        if getattr(cb, "per_process", False)
    }
    mine = {"at": _moment(learn), "random": random_states()._asdict(), "callbacks": own}
    processes: Any = processes_of(learn)
    file = io.BytesIO()  # pickle cannot read numpy's unsigned integers back
    torch.save(serialisable(mine), file)
    parts = processes.gather(file.getvalue())
    processes.states = [torch.load(io.BytesIO(part), weights_only=True) for part in parts]


def of_processes(learn: Loop) -> dict[str, Any] | None:
    """Return the parts of all processes for a checkpoint, None where there is one process."""
    processes = processes_of(learn)
    if processes is None:
        return None
    states = processes.states
    fresh = bool(states) and states[processes.rank]["at"] == _moment(learn)
    group = processes.n * _batch_size(pick_loader(learn.dls, True))
    return {"n": processes.n, "group": group, "states": states if fresh else []}


def for_process(state: dict[str, Any], processes: Processes | None, dl: Any) -> dict[str, Any]:
    """Return the state with which this process goes on.

    Args:
        state: the state in a checkpoint.
        processes: those that go on, None where there is one.
        dl: the training loader.
    """
    saved = state.get("processes") or {"n": 1, "group": _batch_size(dl), "states": []}
    rank, n = (0, 1) if processes is None else (processes.rank, processes.n)
    if n == saved["n"] == 1:
        return state
    if n == saved["n"] and saved["states"]:
        mine = saved["states"][rank]
        return state | {
            "random": mine["random"],
            "callbacks": state["callbacks"] | mine["callbacks"],
        }
    if rank == 0:
        warnings.warn(_difference(saved["n"], n), stacklevel=2)
    state = state | {"random": _own_random_states(state["random"], rank)}
    return state if n == saved["n"] else _moved(state, saved["group"], n * _batch_size(dl))


def _difference(before: int, now: int) -> str:
    if before == now:
        return (
            "the checkpoint was saved by hand in rank 0, and lacks the random states of "
            "the others: the fit goes on, but not to the bit"
        )
    return (
        f"{before} processes made the checkpoint, and here are {now}: the fit goes on with the "
        "same weights, but in another order of samples and with other random numbers"
    )


def _own_random_states(state: dict[str, Any], rank: int) -> dict[str, Any]:
    if rank == 0:
        return state
    with preserved_random_states():
        restore_random_states(unpacked(state))
        set_seed(derive_seed(draw_seed(), rank))
        return random_states()._asdict()


def _moved(state: dict[str, Any], group: int, new_group: int) -> dict[str, Any]:
    """Convert the position in an epoch to other numbers of samples in a step of all processes."""
    settings = {k: v for k, v in state["settings"].items() if k not in ("model", "loss")}
    state = begun_anew(state) | {"data": {}, "program": {}, "settings": settings}
    if state["position"] != "training":
        return state
    stream = state["stream"] | {"taken": state["stream"]["taken"] * group // new_group}
    return state | {"stream": stream, "batches": state["batches"] * group // new_group}


def begun_anew(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state without running means, for an epoch that begins anew."""
    callbacks = {
        name: saved | {"measuring": False} if "measuring" in saved else saved
        for name, saved in state["callbacks"].items()
    }
    return state | {"callbacks": callbacks}


def _moment(learn: Loop) -> list[Any]:
    return [learn.steps_done, learn.epoch, learn.iter]


def _batch_size(dl: Any) -> int:
    return getattr(dl, "batch_size", None) or 1


def named_cbs(cbs: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the callbacks that have a state; those of one class get numbered names."""
    seen: Counter[str] = Counter()
    for cb in cbs:
        if hasattr(cb, "state_dict") and hasattr(cb, "load_state_dict"):
            name = type(cb).__name__
            seen[name] += 1
            yield name if seen[name] == 1 else f"{name} {seen[name]}", cb


def settings_of(cb: Any) -> dict[str, str]:
    """Return its class, and what a callback was made with, as far as it keeps or shows it."""
    cb = getattr(cb, "as_given", cb)  # a ParamSchedCB may move its attributes
    kept = arguments_of(cb) | {"repr": cb, "class": type(cb)}
    return {name: without_address(value) for name, value in kept.items()}


def match(
    saved: dict[str, dict[str, str]], here: dict[str, Any]
) -> tuple[dict[str, str], list[str]]:
    """Find out which callback of a checkpoint each callback is: of one class by its settings.

    Args:
        saved: settings by name, as `named_cbs` and `settings_of` gave them.
        here: the callbacks by name.

    Returns:
        The saved names by the names here, and a line for each class where nothing tells several
        callbacks apart, and their number has changed.
    """
    found: dict[str, str] = {}
    lines = []
    for kind in dict.fromkeys(type(cb).__name__ for cb in here.values()):
        theirs = {name: made for name, made in saved.items() if name.split()[0] == kind}
        ours = {name: settings_of(cb) for name, cb in here.items() if type(cb).__name__ == kind}
        pairs = [(mine, name) for mine in ours for name in theirs]
        for mine, name in sorted(
            pairs, key=lambda p: _alike(ours[p[0]], theirs[p[1]]), reverse=True
        ):
            if mine not in found and name not in found.values():
                found[mine] = name
        distinct = all(len({*map(str, x.values())}) == len(x) for x in (ours, theirs))
        if theirs and len(ours) != len(theirs) and not distinct:
            lines.append(
                f"nothing tells {', '.join(max(ours, theirs, key=len))} apart: there were "
                f"{len(theirs)} of class {kind} and are {len(ours)} now, which take the saved "
                "states in order. Let __init__ keep its arguments as attributes."
            )
    return found, lines


def _alike(ours: dict[str, str], theirs: dict[str, str]) -> tuple[bool, int]:
    """Return how much the settings of two callbacks agree; what they watch comes first."""
    equal = [name for name in ours if ours[name] == theirs.get(name)]
    return "monitor" in equal, len(equal)


def unpacked(saved: dict[str, Any]) -> RandomStates:
    """Return the random states of a checkpoint without those of devices that are not here."""
    states = RandomStates(**saved)
    if states.device is not None and not _fits_here(states.device):
        warnings.warn("the random states of the checkpoint's devices do not fit here", stacklevel=2)
        return states._replace(device=None)
    return states


def _fits_here(states: Any) -> bool:
    if isinstance(states, list):
        return len(states) == torch.cuda.device_count()
    return torch.backends.mps.is_available()
