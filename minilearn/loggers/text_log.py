"""Records of a run as lines of text: LogCB and setup_logger, on Python's own logging."""

from __future__ import annotations

import logging
import math
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ..base.batch import n_batches
from ..base.files import user_path
from ..base.rank import rank as this_rank
from ..base.text import is_terminal, write_out
from ..core.history import format_value
from ..core.learner import Loop
from ..core.stream import pick_loader
from ..metrics.callback import MetricsCB
from ..progress.terminal import redirected_log
from .base import LoggerCB
from .files import without_waiting

COLOURS = {logging.WARNING: "\033[33m", logging.ERROR: "\033[31m", logging.CRITICAL: "\033[31m"}


class LogCB(LoggerCB):
    """Write a line every `every` updates, and one a round, to the console and to a file.

    A line has the means over the last `window` batches of the losses and of what `learn.log` was
    given, learning rates, seconds a batch (`batch_s`) and how many of them it waited for data
    (`data_s`), items a second, the peak of memory so far (MiB) and the time left, validations
    included. The file is appended to; a resumed fit says so. Rank 0 prints, and each process has a
    file of its own (`log_rank1.txt`). While a fit runs, a MetricsCB does not print its rows.

    >>> learn.fit(2, cbs=LogCB(every=100, path="log.txt"))

    Args:
        every: updates between two lines.
        path: a file `*.txt` or `*.log`, or a folder for `log.txt`; None for the console alone.
        window: batches in a mean.
        median: show the medians of the losses instead, as detectron2 does.

    Events: before_fit, before_round, before_epoch, before_batch, before_step, after_batch,
            after_epoch, after_round, cleanup_fit
    Order:  REPORT
    Reads:  cbs, scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history,
            levels, error, n_items, n_steps, n_batches, iter, dls, plan,
            batches_per_step, valid_name, stopped, depth
    Writes:
    Syncs: once in `every` updates
    """

    writes_everywhere = True
    logs_stop = True

    def __init__(
        self,
        every: int = 50,
        path: str | Path | None = None,
        window: int = 20,
        *,
        median: bool = False,
    ) -> None:
        self.window, self.path, self.smooth = window, path, "median" if median else True
        super().__init__(every)

    def before_fit(self, learn: Loop) -> None:
        """Open the file, and start the clocks."""
        super().before_fit(learn)
        path = self.scratch if self.scratch and self.path else self.path
        before = list(logging.getLogger("minilearn").handlers)
        self.logger = setup_logger("minilearn")
        self._guard(setup_logger, "minilearn", path)
        self._own_handlers = [h for h in self.logger.handlers if path and h not in before]
        self._redirected = ExitStack()
        for cb in learn.cbs:
            if isinstance(cb, MetricsCB) and cb.prints_rows():
                self._redirected.enter_context(redirected_log(cb))
        self._clear()
        self._train = self._valid = 0.0  # seconds in this fit, and of what:
        self._updates = self._validations = 0

    def _clear(self) -> None:
        """Begin the sums of the next line."""
        self._data = self._spent = self._items = self._batches = 0

    def before_epoch(self, learn: Loop) -> None:
        """Start the clock of a training epoch or validation."""
        self._start = self._mark = perf_counter()
        self._first = learn.steps_done

    def before_batch(self, learn: Loop) -> None:
        """Note how long the data took."""
        if learn.training:
            self._data += perf_counter() - self._mark

    def after_batch(self, learn: Loop) -> None:
        """Note how long the batch took, and write a line if it is time."""
        if learn.training:
            now = perf_counter()
            self._spent, self._mark = self._spent + now - self._mark, now
            items = learn.n_items
            self._items = self._items + (math.nan if items is None else items)
            self._batches += 1
            super().after_batch(learn)

    def after_epoch(self, learn: Loop) -> None:
        """Note how long the training epoch or validation took."""
        seconds = perf_counter() - self._start
        if learn.training:
            self._train += seconds
            self._updates += learn.steps_done - self._first
        else:
            self._valid += seconds
            self._validations += learn.valid_name is None  # named sets belong to the same one

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on, and say so: the run that was killed may have written more."""
        super().load_state_dict(state)
        self.logger.info("going on after update %d; lines above may be of later ones", self._step)

    def cleanup_fit(self, learn: Loop) -> None:
        """Write the last line, and why the fit ended early; close the file."""
        super().cleanup_fit(learn)
        if learn.stopped is not None and not learn.depth:
            self.logger.info(learn.stopped)
        self._redirected.close()
        for handler in self._own_handlers:
            self.logger.removeHandler(handler)
            handler.close()

    def update_record(self, learn: Loop) -> dict[str, Any]:
        """Return the record with times and memory."""
        record, n = super().update_record(learn), self._batches
        self._where = f"batch {learn.iter + 1}/{learn.plan.length or '?'}"
        record |= {"data_s": self._data / n, "batch_s": self._spent / n}
        record["items_per_s"] = float(self._items) / max(self._spent, 1e-9)
        record |= {"memory_mb": peak_memory(), "left": self._time_left(learn, self._spent / n)}
        self._clear()
        return record

    def _time_left(self, learn: Loop, batch_s: float) -> str:
        if learn.n_steps is None:
            return "?"
        done = self._updates + learn.steps_done - self._first
        step_s = (self._train + perf_counter() - self._start) / done
        a_round = learn.plan.every
        if not learn.plan.cuts:
            a_round *= (learn.n_batches or math.inf) / learn.plan.batches_per_step
        a_validation = (n_batches(pick_loader(learn.dls, False)) or 0) * batch_s / 3  # a guess
        if self._validations:
            a_validation = self._valid / self._validations
        rounds = math.ceil(learn.n_steps / a_round) - math.ceil(learn.steps_done / a_round) + 1
        seconds = (learn.n_steps - learn.steps_done) * step_s + rounds * a_validation
        return str(timedelta(seconds=round(seconds)))

    def _write(self, record: dict[str, Any]) -> None:
        where = "done" if "time" in record else self._where
        values = (f"{k} {format_value(v)}" for k, v in record.items() if k != "epoch")
        self.logger.info("  ".join([f"epoch {record['epoch']} {where}", *values]))


def peak_memory() -> float | None:
    """Return the most memory that was in use, in MiB; None where the system does not say."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def setup_logger(
    name: str | None = None,
    output: str | Path | None = None,
    rank: int | None = None,
    log_level: int = logging.INFO,
    color: bool = True,
) -> logging.Logger:
    """Set up a logger for the console and a file, and return it; a second call adds nothing twice.

    Levels other than INFO are shown, in colour on a terminal. Only rank 0 prints.

    >>> logger = setup_logger("mine", "logs")
    >>> logger.info("it begins")

    Args:
        name: of the logger; None for the root logger.
        output: a file `*.txt` or `*.log`, or a folder for `log.txt`; other ranks write to
            `log_rank1.txt` and so on.
        rank: of this process, by default the environment's `RANK`.
        log_level: lower levels are not shown.
        color: whether to use colours.
    """
    rank = this_rank() if rank is None else rank
    logger = logging.getLogger(name)
    logger.setLevel(log_level)
    logger.propagate = False
    if rank == 0 and not any(isinstance(h, _Console) for h in logger.handlers):
        logger.addHandler(console := _Console())
        console.setFormatter(_Format(color))
    if output is not None:
        path = user_path(output).absolute()
        is_file = not path.is_dir() if path.exists() else path.suffix in (".txt", ".log")
        path = path if is_file else path / "log.txt"
        if rank and (path.is_file() or not path.exists()):  # a device may be shared
            path = path.with_stem(f"{path.stem}_rank{rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not any(getattr(h, "baseFilename", None) == str(path) for h in logger.handlers):
            handler = _File(path, delay=True)
            handler.setFormatter(_Format(False))
            logger.addHandler(handler)
    return logger


class _Console(logging.Handler):
    """Prints to what `sys.stdout` is at the time, so that redirections work."""

    def emit(self, record: logging.LogRecord) -> None:
        write_out(f"{self.format(record)}\n")


class _File(logging.FileHandler):
    """A file, or a pipe that somebody reads."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, opener=without_waiting)


class _Format(logging.Formatter):
    def __init__(self, color: bool) -> None:
        super().__init__("%(message)s", datefmt="%m/%d %H:%M:%S")
        self.color = color

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"[{self.formatTime(record, self.datefmt)} {record.name}]: "
        level = "" if record.levelno == logging.INFO else f"{record.levelname}: "
        if self.color and is_terminal():
            prefix = f"\033[32m{prefix}\033[0m"
            level = level and f"{COLOURS.get(record.levelno, '')}{level}\033[0m"
        return prefix + level + super().format(record)
