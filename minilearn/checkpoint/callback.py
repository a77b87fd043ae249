"""CheckpointCB: save a fit as it goes, so that it can go on from there."""

from __future__ import annotations

import math
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..base.files import user_path
from ..base.foreign_names import known_keywords
from ..base.rank import rank
from ..base.state_dict import fit_modules, keep, loss_parameters
from ..base.text import few, whole
from ..callbacks.monitor import Monitor
from ..core.callback import Callback
from ..core.events import CancelBatchException, CancelException, CancelFitException, Order
from ..core.learner import Loop
from ..core.plan import parse_every
from ..distributed.barrier import Requests, processes_of
from ..distributed.ddp import is_sharded
from .files import SUFFIX, Background, holds_run, is_checkpoint, newest_first, remove, write
from .fit_state import Resume, capture, find_position
from .process_state import gather_states
from .program import describe_modules
from .sharded import save_shards
from .signals import Signals
from .weights import SAFE, write_weights


class CheckpointCB(Callback, Requests):
    """Save checkpoints into a folder; `fit(..., resume=True)` goes on from the newest, to the bit.

    A checkpoint is taken after a round or between two updates. It is copied to the CPU, and written
    while the training goes on. After a signal the program finishes the current update, saves, and
    ends with its usual exit status; a second signal ends it at once.

    >>> learn.fit(3, cbs=CheckpointCB("runs/a", every=(10, "minutes")))
    >>> learn.fit(5, cbs=CheckpointCB("runs/a"), resume=True)  # two more, in a new process too

    Args:
        folder: where to save; made where it is missing. A file's name has the epoch, the number of
            updates and the monitored value. Files of other runs are never overwritten or deleted.
        every: a number of epochs (rounds), or `(n, "step")` (updates), `(n, "minutes")`.
        keep: how many to keep: the newest, or the best where something is monitored; None for all.
        monitor: a column of the history, such as "accuracy". A round with one of the `keep` best
            values is saved whatever `every` says; one whose value is not finite is not saved.
        mode: "min" or "max"; "min" where the name ends in "loss", "max" with `score`.
        score: monitor what this function of the Learner returns after each round.
        weights_only: save the weights alone, as `learn.save` does: no fit can go on from them. Of
            several CheckpointCBs `resume=True` asks one that saves more.
        name: a pattern for the file's name: "{epoch:03}-{accuracy:.4f}" has the number of an epoch
            and the column of its row; there are "{steps}" and "{value}", the monitored value, too.
            Within an epoch, where a column is not known yet, the usual name is used; also, with a
            warning, where a column holds no number for the pattern.
        save_last: save at the end of the fit whatever `every` says; where something is monitored,
            keep the newest beside the best.
        on_exception: save the current state when an error ends the fit of a single process.
        signals: names of the signals to handle, only in the main thread and during a fit. With
            "SIGINT" Ctrl-C saves, too.
        background: False to write before the training goes on.
        exact: on a resume within an epoch over torch's own DataLoader, load again what was read, so
            that random numbers of its workers are repeated.

    Attributes:
        files: what this run has written and kept, oldest first: [name, value].

    Raises:
        ValueError: an argument makes no sense, or there is no direction for `monitor`.
        KeyError: nobody provides the column `monitor`, or one in `name`.
        OSError: the file before could not be written.

    Events: before_fit, before_epoch, after_step, cleanup_batch, after_round, cleanup_round,
        after_fit, cleanup_fit
    Order:  SAVE
    Reads:  everything
    Writes:
    """

    order = Order.SAVE

    @known_keywords()
    def __init__(
        self,
        folder: str | Path,
        every: Any = 1,
        keep: int | None = 3,
        monitor: str | None = None,
        mode: str | None = None,
        *,
        score: Callable[[Loop], float] | None = None,
        weights_only: bool = False,
        name: str | None = None,
        save_last: bool = True,
        on_exception: bool = True,
        signals: Sequence[str] = ("SIGTERM", "SIGUSR1"),
        background: bool = True,
        exact: bool = False,
    ) -> None:
        self.every, self.unit = parse_every(every, ("epoch", "step", "minutes"))
        self.keep = None if keep is None else whole("keep", keep, of="files (None keeps all)")
        self.folder, self.save_last = user_path(folder), save_last
        if monitor is not None and score is not None:
            raise ValueError("give monitor= (a column) or score= (a function), not both")
        if name is not None and re.search(r"[/\\\0]", name):
            raise ValueError(f"name is a pattern for a file's name in {folder}, got {name!r}")
        self.monitor: Any = None if monitor is None else Monitor(monitor, mode)
        if score is not None:
            self.monitor = Monitor("score", mode or "max", score=score)
        self.weights_only, self.name = weights_only, name
        self.suffix = SAFE if weights_only else SUFFIX
        if weights_only:  # clean-up is in reverse order: a whole checkpoint knows of these files
            self.order = Order.SAVE + 1
        self.on_exception, self.background, self.exact = on_exception, background, exact
        # Windows has no SIGUSR1
        self._numbers = [getattr(signal, name) for name in signals if hasattr(signal, name)]
        self._where, self._writer = self.folder, Background()
        self._reset()

    def _reset(self, together: bool = False) -> None:
        self.signals = Signals(self._numbers, together)
        self.run, self.files = os.urandom(6).hex(), []
        self._times: dict[str, int | None] = {}  # when each file was written
        self._due, self._value, self._last, self._undos = False, None, None, []
        self._saved: tuple | None = None  # what the newest file holds: updates and place
        if self.monitor is not None:
            self.monitor.reset()

    # ---- events ----

    def before_fit(self, learn: Loop) -> None:
        """Make the folder, and handle signals."""
        self._reset(together=processes_of(learn) is not None)
        learn.plan.described = describe_modules(learn)
        if self.monitor is not None:
            self.monitor.check(learn)
        if is_sharded(learn.model) and (names := [*loss_parameters(learn)]):
            raise ValueError(
                f"checkpoints of sharded weights hold the model alone, and {few(names)} would be "
                "lost: use Learner(..., train_loss=False), or make them parameters of the model"
            )
        self._where, self._clock = self.folder.absolute(), time.monotonic()
        if learn.scratch is not None:
            self._where = learn.scratch / self.folder.name
            return
        if rank() == 0:
            self._prepare_folder(learn)
        if rank() == 0 or self.signals.together:
            self.signals.listen()

    def _prepare_folder(self, learn: Loop) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise PermissionError(f"{self.folder} cannot be written to: name another folder")
        if learn.find(Resume) is None and (others := newest_first(self.folder)):
            warnings.warn(
                f"{self.folder} holds {len(others)} checkpoints of another fit. They stay, but a "
                "resume will take the newest of all: use resume=True to go on from them, or "
                "another folder.",
                stacklevel=2,
            )

    def before_epoch(self, learn: Loop) -> None:
        """Note the buffers: a validation that is broken off may move them, and is made again."""
        if learn.valid_name is None:
            modules = [] if learn.training else fit_modules(learn).values()
            self._undos = [keep(module, weights=False) for module in modules]

    def after_step(self, learn: Loop) -> None:
        """Check whether it is time to save, and whether the last file could be written."""
        self._writer.check()
        if self.unit == "step":
            self._due |= learn.steps_done % self.every == 0
        elif self.unit == "minutes":
            self._due |= time.monotonic() >= self._clock + 60 * self.every

    def cleanup_batch(self, learn: Loop) -> None:
        """Save between two updates, when all other callbacks have finished the batch."""
        if not (self._due or self.signals.number) or learn.plan.in_group:
            return
        if not isinstance(learn.error, (type(None), CancelBatchException)):
            return  # the epoch is about to end
        if learn.training and (self.signals.number or self.save_last or self.monitor is None):
            self._save(learn)
        if self.signals.number:
            self.signals.leave()  # a validation is made again: it has not changed anything

    def after_round(self, learn: Loop) -> None:
        """Read the monitored value; see that the row has what the file's name asks for."""
        self._value = None if self.monitor is None else self.monitor.read(learn)
        if not learn.training:
            self._stem(learn, self._value)

    def cleanup_round(self, learn: Loop) -> None:
        """Save the round when all other callbacks have finished it, or what an error left of it."""
        value, self._value = self._value, None
        self._last = value
        if isinstance(learn.error, (type(None), CancelException)):
            self._end_round(learn, value)
            return
        for undo in self._undos:
            undo()
        if isinstance(learn.error, Exception):
            # nothing can go on from weights that are not finite
            alone = not self.signals.together  # this process does not know the others' state
            if self.on_exception and alone and not isinstance(learn.error, FloatingPointError):
                self._save(learn)
        elif self.signals.number and not learn.training:
            self._save(learn)

    def _end_round(self, learn: Loop, value: float | None) -> None:
        rounds = len(learn.history) if learn.plan.cuts else learn.epoch + 1
        due = self._due or (self.unit == "epoch" and rounds % self.every == 0)
        due |= self.save_last and isinstance(learn.error, CancelFitException)
        if value is not None:
            self.monitor.update(value)
            wanted = (due and self.save_last) or self._is_among_best(value)
            due = wanted and math.isfinite(value)
        elif self.monitor is not None:
            due &= self.save_last
        if due or self.signals.number:
            self._save(learn, value)
        if self.signals.number:
            self.signals.leave()

    def after_fit(self, learn: Loop) -> None:
        """Save a checkpoint at the end of the fit."""
        is_saved = learn.iter is None or self._saved == (learn.steps_done, "round")
        is_finite = self._last is None or math.isfinite(self._last)
        if self.save_last and not is_saved and is_finite:
            self._save(learn)

    def cleanup_fit(self, learn: Loop) -> None:
        """Wait for the last file, and restore the signal handlers."""
        self.signals.give_back()
        self._writer.join()
        if self.signals.number and isinstance(learn.error, (type(None), CancelException)):
            self.signals.leave()

    # ---- several processes ----

    def request(self, learn: Loop) -> float:
        """Return the number of the signal of this process, plus a half if it is to save."""
        return (self.signals.received[0] if self.signals.received else 0) + 0.5 * self._due

    def answer(self, learn: Loop, level: str, requests: list[float]) -> None:
        """Act on a signal of any process, and exchange what a checkpoint needs of each process."""
        self.signals.number, self._due = int(max(requests)) or None, requests[0] % 1 > 0
        if self.signals.number or requests[0] % 1 or level == "round":
            gather_states(learn)

    # ---- files ----

    def _save(self, learn: Loop, value: float | None = None) -> None:
        sharded = is_sharded(learn.model)  # then each process writes its shard
        if rank() and not sharded:
            return
        self._writer.join()
        self._due, self._clock = False, time.monotonic()
        name = self._name(learn, value)
        overwrite = name in dict(self.files)  # the same update, saved before its validation
        self.files = [f for f in self.files if f[0] != name] + [[name, value]]
        self._saved = learn.steps_done, find_position(learn)
        old = self._to_delete()
        self.files = [f for f in self.files if f[0] not in old]
        if self.weights_only:
            try:
                write_weights(learn, self._where / name, overwrite=overwrite, run=self.run)
            except FileExistsError:
                self.files[-1][0] = name = self._apart(name)
                write_weights(learn, self._where / name, run=self.run)
        elif sharded:
            save_shards(learn, capture(learn), self._where / name, overwrite)
        else:
            file, taken = self.files[-1], time.time_ns()
            task = partial(self._write, capture(learn), file, old, overwrite, taken)
            self._writer.run(task) if self.background else task()
            return
        self._times[name] = _written(self._where / name)
        self._remove(old)

    def _write(
        self, state: dict[str, Any], file: list, old: list[str], overwrite: bool, taken: int
    ) -> None:
        try:
            write(state, self._where / file[0], overwrite)
            # the newest is the one that was taken last, in whatever order they are written
            os.utime(self._where / file[0], ns=(taken, taken))
        except FileExistsError:  # another process has just taken the name
            file[0] = self._apart(file[0])
            own = next(s for s in state["callbacks"].values() if s.get("run") == self.run)
            own["files"][-1][0] = file[0]
            self._write(state, file, old, overwrite, taken)
        else:
            self._times[file[0]] = _written(self._where / file[0])
            self._remove(old)

    def _apart(self, name: str) -> str:
        return f"{name.removesuffix(self.suffix)}-{self.run[:4]}{self.suffix}"

    def _remove(self, old: list[str]) -> None:
        for name in old:
            # an absolute one is in the folder that a resume came from; and others may have put
            # something of theirs in the place of ours
            is_ours = _written(self._where / name) == self._times.pop(name, 0)
            if is_ours and not (rank() or Path(name).is_absolute()):
                remove(self._where / name)

    def _name(self, learn: Loop, value: float | None) -> str:
        stem = f"epoch{learn.epoch:03}-step{learn.steps_done:07}"
        if value is not None:
            what = re.sub(r"[^0-9A-Za-z_.+-]+", "_", self.monitor.name)
            stem += f"-{what[:100]}={value:.6g}"
        with suppress(KeyError):  # within an epoch a column may be unknown yet
            stem = self._stem(learn, value) or stem
        name, number = stem + self.suffix, 1
        while self._is_taken(name, learn):
            number += 1
            name = f"{stem}-{number}{self.suffix}"
        return name

    def _stem(self, learn: Loop, value: float | None) -> str | None:
        """Return the name that the pattern makes, None where there is no pattern."""
        if self.name is None:
            return None
        known = {**learn.row, "epoch": learn.epoch, "steps": learn.steps_done}
        known |= {} if value is None else {"value": value}
        try:
            stem = self.name.format(**known).removesuffix(self.suffix)
            return re.sub(r"[/\\\0]", "_", stem)  # a metric may be text
        except KeyError as e:
            raise KeyError(
                f"name={self.name!r}: there is no {e}; there are {', '.join(known)}"
            ) from e
        except (TypeError, ValueError) as e:
            warnings.warn(f"name={self.name!r}: {e}; the usual name is used", stacklevel=2)
            return None

    def _is_taken(self, name: str, learn: Loop) -> bool:
        """Return whether a file belongs to another run, or to another callback of this fit."""
        if name in dict(self.files):
            return False
        others = [cb for cb in learn.cbs if isinstance(cb, CheckpointCB) and cb is not self]
        waiting = any(cb._where == self._where and name in dict(cb.files) for cb in others)
        return waiting or os.path.lexists(self._where / name)

    def _ranked(self, *more: list[Any]) -> list[list[Any]]:
        """Return the files with a value, the best first, and of equal ones the older first."""
        known = [f for f in (*self.files, *more) if f[1] is not None]
        is_max = self.monitor is not None and self.monitor.mode == "max"
        return sorted(known, key=lambda f: f[1], reverse=is_max)

    def _is_among_best(self, value: float) -> bool:
        new = [None, value]
        return new in self._ranked(new)[: self.keep]

    def _to_delete(self) -> list[str]:
        if self.keep is None:
            return []
        kept = self.files[-self.keep :]
        if self.monitor is not None:  # the newest stays, too: a signal or an error may end the fit
            kept = self._ranked()[: self.keep] + self.files[-1:]
        return [f[0] for f in self.files if f not in kept]

    @property
    def best(self) -> Path | None:
        """The file with the best value so far, None where there is none."""
        ranked = self._ranked()
        return self.folder / ranked[0][0] if ranked else None

    # ---- a resume ----

    def state_dict(self) -> dict[str, Any]:
        """Return the run's identity, its files and the best value."""
        monitor = None if self.monitor is None else self.monitor.state_dict()
        folder = os.fspath(self._where.absolute())
        return {"run": self.run, "folder": folder, "files": self.files, "monitor": monitor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a run, and with those of its files that still exist.

        They are found by name in this folder, wherever it was; those that stayed in another folder
        may be the best, but are not deleted from there.
        """
        self.run, self.files = state["run"], []
        for name, value in state["files"]:
            other = Path(state["folder"], name)
            here = self.folder / name
            if holds_run(here, self.run):
                self.files.append([name, value])
                self._times[name] = _written(here)
            elif is_checkpoint(other) and other.resolve() != here.resolve():
                self.files.append([os.fspath(other), value])
        if self.monitor is not None and state["monitor"] is not None:
            self.monitor.load_state_dict(state["monitor"])

    def __repr__(self) -> str:
        """Show the folder and the interval."""
        return f"CheckpointCB({str(self.folder)!r}, every=({self.every}, {self.unit!r}))"


def _written(path: Path) -> int | None:
    """Return when a file was written, None where there is none."""
    with suppress(OSError):
        return os.lstat(path).st_mtime_ns
    return None
