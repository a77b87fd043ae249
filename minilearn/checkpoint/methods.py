"""Resume a fit, and write or load a checkpoint by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minilearn.base.seed import preserved_random_states
from minilearn.core.learner import Loop
from minilearn.core.stream import pick_loader
from minilearn.distributed.sync import Processes

from ..base.rank import rank
from ..distributed.ddp import is_sharded
from .callback import CheckpointCB
from .files import is_there, newest_usable, read, write
from .process_state import for_process
from .sharded import save_shards
from .state import Resume, capture, load_lasting


def resume_callbacks(self: Loop, resume: Any, cbs: list[Any]) -> list[Resume]:
    """Return what lets a fit with `cbs` go on from a checkpoint; nothing where there is none."""
    saver = next((cb for cb in (*cbs, *self.cbs) if isinstance(cb, CheckpointCB)), None)
    if resume is True:
        if saver is None:
            raise ValueError(
                "resume=True looks in the folder of a CheckpointCB: add one, or name it"
            )
        resume = saver.folder
    together = (getattr(cb, "processes", None) for cb in (*cbs, *self.cbs))
    processes = next((p for p in together if p is not None), None)
    found = _find(Path(resume)) if processes is None else _find_together(Path(resume), processes)
    say = print if rank() == 0 else lambda text: None
    if found is None:
        say(f"resume: there is no checkpoint in {resume} yet; the fit begins afresh")
        return []
    path, state = found
    say(f"resume: {path} (epoch {state['epoch']}, {state['steps']} updates)")
    state = for_process(state, processes, pick_loader(self.dls, True))
    return [Resume(state, exact=saver is not None and saver.exact)]


def _find(path: Path) -> tuple[Path, dict[str, Any]] | None:
    in_folder = (path.is_dir() and not is_there(path)) or not path.suffix
    return newest_usable(path) if in_folder else (path, read(path))


def _find_together(path: Path, processes: Processes) -> tuple[Path, dict[str, Any]] | None:
    """Let the first process look, and all read what it found."""
    found: list[Any] = []

    def look() -> str | None:
        found.append(_find(path))
        return found[0] and str(found[0][0])

    name = processes.from_first(look)
    if name is None or found:
        return found[0] if found else None
    return Path(name), read(Path(name))


def save_checkpoint(self: Loop, path: str | Path) -> None:
    """Write a checkpoint by hand: after a fit, or in it in `after_batch` or `after_round`.

    Of several processes the first one writes, without asking the others for anything; sharded
    weights are written by all, to a folder.

    Args:
        self: the Learner.
        path: the file; a `CheckpointCB` names its own `*.ckpt`.

    Raises:
        TypeError: a callback's state is not of tensors and plain types.
        OSError: the file cannot be written; what was there before is still there.
    """
    state = capture(self)
    if is_sharded(self.model):
        save_shards(self, state, Path(path))
    elif rank() == 0:
        write(state, Path(path))


def load_checkpoint(self: Loop, path: str | Path) -> None:
    """Load weights, optimizer, history and callbacks' states, without going on with the fit.

    To go on with it use `fit(..., resume=path)`; to train anew from these weights and this
    optimizer `fit(..., reset_opt=False)`. The random states stay as they are.

    Args:
        self: the Learner.
        path: a checkpoint, or a folder of them, of which the newest usable one is taken.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, or of another model or optimizer.
    """
    found = _find(Path(path))
    if found is None:
        raise FileNotFoundError(f"there is no checkpoint in {path}")
    state = found[1]
    with preserved_random_states():
        if self.opt is None and state["optimizer"] is not None and self.lr is not None:
            self.opt = self._new_opt(self.lr)
        load_lasting(self, state)
