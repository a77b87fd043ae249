"""Save a fit as it goes, so that it can go on from there: CheckpointCB."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minilearn.base.text import whole
from minilearn.core.callback import Callback
from minilearn.core.events import Order
from minilearn.core.plan import parse_every

from ..base.rank import rank
from ..callbacks.monitor import Monitor
from ..core.events import CancelBatchException, CancelException, CancelFitException
from ..distributed.barrier import Requests, processes_of
from ..distributed.ddp import is_sharded
from .files import SUFFIX, Background, claim, release, remove, write
from .process_state import tell_states
from .sharded import save_shards
from .signals import Signals
from .state import Resume, capture

if TYPE_CHECKING:
    from minilearn.core.learner import Loop


class CheckpointCB(Callback, Requests):
    """Save checkpoints into a folder; `fit(..., resume=True)` goes on from the newest, to the bit.

    A checkpoint is taken when a round and all its work is done, or between two updates. It is
    copied to host memory, and written while the training goes on. A signal ends the program with
    its usual exit status, after the step in hand and a checkpoint; a second one ends it at once.

    Args:
        folder: where to; made if need be. File names tell epoch, updates and the monitored value.
        every: a number of epochs (rounds), or `(n, "step")` (updates), `(n, "minutes")`.
        keep: how many to keep: the newest, or the best where something is monitored; None for all.
            Files that this run did not make are left alone.
        monitor: a column of the history, such as "accuracy". A round with one of the `keep` best
            values is saved whatever `every` says; one whose value is not finite is not saved.
        mode: "min" or "max"; "min" where the name ends in "loss".
        save_last: save at the end of the fit whatever `every` says; where something is monitored,
            keep the newest beside the best.
        on_exception: save what there was when an error ends the fit of one process alone.
        signals: what to listen to, by name; only in the main thread, only during a fit. With
            "SIGINT" Ctrl-C saves, too.
        background: False to write before the training goes on.
        exact: on a resume within a pass of torch's own DataLoader, load again what was read, so
            that random numbers of its workers are repeated.

    Attributes:
        files: what this run has written and kept, oldest first: [name, value].

    Raises:
        ValueError: an argument makes no sense, or there is no direction for `monitor`.
        OSError: the file before could not be written.

    Events: before_fit, after_step, cleanup_batch, after_round, cleanup_round, after_fit,
        cleanup_fit
    Order:  SAVE
    Reads:  everything
    Writes:
    """

    order = Order.SAVE

    def __init__(
        self,
        folder: str | Path,
        every: Any = 1,
        keep: int | None = 3,
        monitor: str | None = None,
        mode: str | None = None,
        *,
        save_last: bool = True,
        on_exception: bool = True,
        signals: Sequence[str] = ("SIGTERM", "SIGUSR1"),
        background: bool = True,
        exact: bool = False,
    ) -> None:
        self.every, self.unit = parse_every(every, ("epoch", "step", "minutes"))
        self.keep = None if keep is None else whole("keep", keep, of="files (None keeps all)")
        self.folder, self.save_last = Path(folder), save_last
        self.monitor: Any = None if monitor is None else Monitor(monitor, mode)
        self.on_exception, self.background, self.exact = on_exception, background, exact
        # Windows has no SIGUSR1
        self._numbers = [getattr(signal, name) for name in signals if hasattr(signal, name)]
        self._where, self._writer = self.folder, Background()
        self._forget()

    def _forget(self, together: bool = False) -> None:
        self.signals = Signals(self._numbers, together)
        self.run, self.files, self._resumed = os.urandom(6).hex(), [], False
        self._due, self._value = False, None
        self._saved: tuple | None = None  # what the newest file holds: updates and place
        if self.monitor is not None:
            self.monitor.reset()

    # ---- events ----

    def before_fit(self, learn: Loop) -> None:
        """Claim the folder, and listen to signals."""
        self._forget(together=processes_of(learn) is not None)
        self._where, self._clock = self.folder, time.monotonic()
        if learn.scratch is not None:
            self._where = learn.scratch / self.folder.name
            return
        if rank() == 0:
            claim(self.folder, self.run, learn.find(Resume) is not None)
        if rank() == 0 or self.signals.together:
            self.signals.listen()

    def after_step(self, learn: Loop) -> None:
        """See whether it is time to save, and whether the last file could be written."""
        self._writer.check()
        if self.unit == "step":
            self._due |= learn.steps_done % self.every == 0
        elif self.unit == "minutes":
            self._due |= time.monotonic() >= self._clock + 60 * self.every

    def cleanup_batch(self, learn: Loop) -> None:
        """Save between two updates, when all others are done with the batch."""
        if not (self._due or self.signals.number) or learn.plan.in_group:
            return
        if not isinstance(learn.error, (type(None), CancelBatchException)):
            return  # the pass is about to end
        if learn.training and (self.signals.number or self.save_last or self.monitor is None):
            self._save(learn)
        if self.signals.number:
            self.signals.leave()  # a validation is made again: it has not changed anything

    def after_round(self, learn: Loop) -> None:
        """Read the monitored value."""
        self._value = None if self.monitor is None else self.monitor.read(learn)

    def cleanup_round(self, learn: Loop) -> None:
        """Save the round, when all others are done with it; or what an error left of it."""
        value, self._value = self._value, None
        if isinstance(learn.error, (type(None), CancelException)):
            self._end_round(learn, value)
        elif isinstance(learn.error, Exception):
            # weights that are not finite are no good to go on from
            alone = not self.signals.together  # what all were at, one cannot know
            if self.on_exception and alone and not isinstance(learn.error, FloatingPointError):
                self._save(learn)
        elif self.signals.number and not learn.training:
            self._save(learn)

    def _end_round(self, learn: Loop, value: float | None) -> None:
        rounds = len(learn.history) if learn.plan.cuts else learn.epoch + 1
        due = self._due or (self.unit == "epoch" and rounds % self.every == 0)
        due |= self.save_last and isinstance(learn.error, CancelFitException)
        if value is not None:
            is_best = self.monitor.update(value)
            finite = is_best or abs(value) < float("inf")
            due = finite and ((due and self.save_last) or self._is_among_best(value))
        elif self.monitor is not None:
            due &= self.save_last
        if due or self.signals.number:
            self._save(learn, value)
        if self.signals.number:
            self.signals.leave()

    def after_fit(self, learn: Loop) -> None:
        """Save the end."""
        is_saved = learn.iter is None or self._saved == (learn.steps_done, "round")
        if self.save_last and not is_saved and self._is_sound(learn):
            self._save(learn)

    def cleanup_fit(self, learn: Loop) -> None:
        """Wait for the last file, and give signals back to whom they belonged."""
        self.signals.give_back()
        try:
            self._writer.join()
        finally:
            if self._where == self.folder:
                release(self.folder, self.run)
        if self.signals.number and isinstance(learn.error, (type(None), CancelException)):
            self.signals.leave()

    def _is_sound(self, learn: Loop) -> bool:
        """Return whether the last round's value, if there is one, is finite."""
        value = learn.history[-1].get(self.monitor.name) if self.monitor is not None else None
        return value is None or abs(value) < float("inf")

    # ---- several processes ----

    def request(self, learn: Loop) -> float:
        """Return the number of the signal that this process heard, and a half if it is to save."""
        return (self.signals.heard[0] if self.signals.heard else 0) + 0.5 * self._due

    def answer(self, learn: Loop, level: str, requests: list[float]) -> None:
        """Act on a signal that any process heard, and tell what a checkpoint will need of all."""
        self.signals.number, self._due = int(max(requests)) or None, requests[0] % 1 > 0
        if self.signals.number or requests[0] % 1 or level == "round":
            tell_states(learn)

    # ---- files ----

    def _save(self, learn: Loop, value: float | None = None) -> None:
        sharded = is_sharded(learn.model)  # then each process writes its part
        if rank() and not sharded:
            return
        self._due, self._clock = False, time.monotonic()
        name = self._name(learn, value)
        self.files = [f for f in self.files if f[0] != name] + [[name, value]]
        state = capture(learn)
        self._saved = state["steps"], state["place"]
        doomed = self._doomed()
        self.files = [f for f in self.files if f[0] not in doomed]
        if sharded:
            save_shards(learn, state, self._where / name)
            self._remove([] if rank() else doomed)
            return
        task = partial(self._write, state, name, doomed)
        self._writer.run(task) if self.background else task()

    def _write(self, state: dict[str, Any], name: str, doomed: list[str]) -> None:
        write(state, self._where / name)
        self._remove(doomed)

    def _remove(self, doomed: list[str]) -> None:
        for old in doomed:
            remove(self._where / old)

    def _name(self, learn: Loop, value: float | None) -> str:
        stem = f"epoch{learn.epoch:03}-step{learn.steps_done:07}"
        if value is not None:
            what = re.sub(r"[^0-9A-Za-z_.+-]+", "_", self.monitor.name)
            stem += f"-{what[:100]}={value:.6g}"
        name, number = stem + SUFFIX, 1
        while self._is_taken(name, learn):
            number += 1
            name = f"{stem}-{number}{SUFFIX}"
        return name

    def _is_taken(self, name: str, learn: Loop) -> bool:
        """Return whether a file is somebody else's: of another run, or saver of this fit."""
        savers = [cb for cb in learn.cbs if isinstance(cb, CheckpointCB) and cb is not self]
        if any(cb._where == self._where and name in dict(cb.files) for cb in savers):
            return True  # though it may not be written yet
        mine = self._resumed or name in dict(self.files)
        return not mine and (self._where / name).exists()

    def _ranked(self) -> list[list[Any]]:
        """Return the files with a value, the best first, of equal ones the older first."""
        sign = -1 if self.monitor is not None and self.monitor.mode == "max" else 1
        return sorted((f for f in self.files if f[1] is not None), key=lambda f: sign * f[1])

    def _is_among_best(self, value: float) -> bool:
        ahead = sum(not self._beats(value, f[1]) for f in self._ranked())
        return self.keep is None or ahead < self.keep

    def _beats(self, a: float, b: float) -> bool:
        return a > b if self.monitor.mode == "max" else a < b

    def _doomed(self) -> list[str]:
        if self.keep is None:
            return []
        kept = self.files[-self.keep :]
        if self.monitor is not None:
            kept = self._ranked()[: self.keep] + (self.files[-1:] if self.save_last else [])
        return [name for name, _ in self.files if not any(name == f[0] for f in kept)]

    @property
    def best(self) -> Path | None:
        """The file with the best value so far, None where there is none."""
        ranked = self._ranked()
        return self.folder / ranked[0][0] if ranked else None

    # ---- a resume ----

    def state_dict(self) -> dict[str, Any]:
        """Return the run, its files and the best value."""
        monitor = None if self.monitor is None else self.monitor.state_dict()
        place = os.fspath(self.folder.absolute())
        return {"run": self.run, "folder": place, "files": self.files, "monitor": monitor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with that run; its files are this one's where the folder is the same."""
        if state["folder"] == os.fspath(self.folder.absolute()):
            self._resumed, self.files = True, [list(f) for f in state["files"]]
        if self.monitor is not None and state["monitor"] is not None:
            self.monitor.load_state_dict(state["monitor"])

    def __repr__(self) -> str:
        """Show the folder and how often it is written to."""
        return f"CheckpointCB({str(self.folder)!r}, every=({self.every}, {self.unit!r}))"
