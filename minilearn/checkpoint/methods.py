"""Methods of the Learner: resume a fit, save and load a checkpoint by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..base.files import user_path
from ..base.rank import rank
from ..base.seed import preserved_random_states
from ..base.text import did_you_mean, write_out
from ..core.learner import Loop
from ..core.stream import pick_loader
from ..distributed.barrier import connected
from ..distributed.ddp import is_sharded
from ..distributed.sync import Processes
from .callback import CheckpointCB
from .files import find, find_existing, read, write
from .fit_state import Resume, capture, completed, load_lasting
from .process_state import for_process
from .program import warn_of
from .sharded import save_shards


def resume_callbacks(self: Loop, resume: Any, cbs: list[Any]) -> list[Resume]:
    """Return the callback that continues a fit from a checkpoint; none where there is no file.

    Raises:
        FileNotFoundError: there is no such folder, and no CheckpointCB of the fit will make it.
    """
    savers = [cb for cb in (*cbs, *self.cbs) if isinstance(cb, CheckpointCB)]
    checkpoints = next((cb for cb in savers if not cb.weights_only), None)
    if resume is True:
        if checkpoints is None:
            raise ValueError(
                "resume=True looks in the folder of a CheckpointCB: add one, or name the folder"
            )
        resume = checkpoints.folder
    resume = user_path(resume)
    folders = [cb.folder.absolute() for cb in savers]
    if not (resume.exists() or resume.absolute() in folders):
        near = did_you_mean(str(resume), map(str, {cb.folder for cb in savers}))
        raise FileNotFoundError(f"resume={str(resume)!r}: there is no such folder or file{near}")
    processes = connected((*cbs, *self.cbs))
    found = find(resume) if processes is None else _find_together(resume, processes)
    say = write_out if rank() == 0 else lambda text: None
    if found is None:
        say(f"resume: there is no checkpoint in {resume} yet; the fit begins afresh\n")
        return []
    path, state = found[0], completed(found[1])
    say(f"resume: {path} (epoch {state['epoch']}, {state['steps']} updates)\n")
    state = for_process(state, processes, pick_loader(self.dls, True))
    return [Resume(state, exact=checkpoints is not None and checkpoints.exact)]


def _find_together(path: Path, processes: Processes) -> tuple[Path, dict[str, Any]] | None:
    """Let rank 0 search; the others read the file that it found."""
    found: list[Any] = []

    def search() -> str | None:
        found.append(find(path))
        return found[0] and str(found[0][0])

    name = processes.from_first(search)
    if found:
        return found[0]
    return None if name is None else (Path(name), read(Path(name)))


def save_checkpoint(self: Loop, path: str | Path) -> None:
    """Write a checkpoint by hand: after a fit, or during it in `after_batch` or `after_round`.

    Of several processes rank 0 writes, without asking the others for anything; sharded weights are
    written by all, to a folder.

    >>> learn.fit(1)
    >>> learn.save_checkpoint("one.ckpt")
    >>> learn.fit(3, resume="one.ckpt")

    Args:
        self: the Learner.
        path: the file; a `CheckpointCB` names its own `*.ckpt`.

    Raises:
        TypeError: a callback's state holds something else than tensors and simple types.
        OSError: the file cannot be written; what was there before is still there.
    """
    state = capture(self)
    if is_sharded(self.model):
        save_shards(self, state, user_path(path))
    elif rank() == 0:
        write(state, user_path(path))


def load_checkpoint(self: Loop, path: str | Path) -> None:
    """Load weights, optimizer, history and callbacks' states, without going on with the fit.

    To go on with it use `fit(..., resume=path)`; to train anew from these weights and this
    optimizer use `fit(..., reset_opt=False)`. The random states stay as they are.

    >>> learn.fit(1)
    >>> learn.save_checkpoint("one.ckpt")
    >>> learn.load_checkpoint("one.ckpt")

    Args:
        self: the Learner.
        path: a checkpoint, or a folder, whose newest usable checkpoint is loaded.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is corrupt, or belongs to another model or optimizer.
    """
    state = completed(find_existing(user_path(path))[1])
    with preserved_random_states():
        if self.opt is None and state["optimizer"] is not None and self.lr is not None:
            self.opt = self._new_opt(self.lr)
        warn_of(load_lasting(self, state))
