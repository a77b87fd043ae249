"""The rows of a run as lines of text: LogCB and setup_logger, on Python's own logging."""

from __future__ import annotations

import logging
import math
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from minilearn.base.batch import n_batches
from minilearn.core.history import format_value
from minilearn.core.stream import pick_loader

from ..base.rank import rank as this_rank
from ..insight.timing import memory_mb
from ..metrics.callback import MetricsCB
from ..metrics.mean import check_on_nan, tell_not_finite, where_skipped
from ..progress.terminal import take_log
from .base import LoggerCB

if TYPE_CHECKING:
    from minilearn.core.learner import Loop

COLOURS = {logging.WARNING: "\033[33m", logging.ERROR: "\033[31m", logging.CRITICAL: "\033[31m"}


class LogCB(LoggerCB):
    """Write a line every so many updates, and one a round, to the console and to a file.

    A line has the means over the last `window` batches of the losses and of what `learn.log` was
    given, learning rates, seconds a batch (`batch_s`) and those of them that waited for data
    (`data_s`), items a second, the most memory so far (MiB) and the time left, validations
    included. The file goes on where it ends; a resumed fit says so. The first of several processes
    prints, and each has a file of its own (`log_rank1.txt`). While a fit runs, a MetricsCB does not
    print its rows.

    Args:
        every: so many updates.
        path: a file `*.txt` or `*.log`, or a folder for `log.txt`; None for the console alone.
        window: so many batches.
        on_nan: "raise" where a loss since the line before was not finite, or "warn" and go on.

    Raises:
        FloatingPointError: a loss was not finite; says epoch, update and losses by name.

    Events: before_fit, before_epoch, before_batch, before_step, after_batch, after_epoch,
            after_round, cleanup_fit
    Order:  REPORT
    Reads:  cbs, scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history,
            levels, error, n_items, n_steps, n_batches, iter, dls, plan,
            batches_per_step, valid_name
    Writes:
    Syncs: once in `every` updates
    """

    writes_everywhere = True

    def __init__(
        self,
        every: int = 50,
        path: str | Path | None = None,
        window: int = 20,
        on_nan: str = "raise",
    ) -> None:
        self.window, self.path, self.on_nan = window, path, check_on_nan(on_nan)
        super().__init__(every)

    def before_fit(self, learn: Loop) -> None:
        """Open the file, and start the clocks."""
        super().before_fit(learn)
        path = self.scratch if self.scratch and self.path else self.path
        before = list(logging.getLogger("minilearn").handlers)
        self.logger = setup_logger("minilearn", path)
        self._mine = [h for h in self.logger.handlers if path and h not in before]
        printing = [cb for cb in learn.cbs if isinstance(cb, MetricsCB) and "_log" not in vars(cb)]
        self._taken_logs = ExitStack()
        for cb in printing:
            self._taken_logs.enter_context(take_log(cb))
        self._data = self._spent = self._items = self._batches = 0  # since the line before
        self._train = self._valid = 0.0  # seconds in this fit, and of what:
        self._updates = self._validations = 0
        self._met_nan = False

    def before_epoch(self, learn: Loop) -> None:
        """Start the clock of the pass."""
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
            self._items, self._batches = self._items + learn.n_items, self._batches + 1
            super().after_batch(learn)
            if not self._batches:  # a line was written
                self._check_finite(learn)

    def after_epoch(self, learn: Loop) -> None:
        """Note how long the pass took."""
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
        self.logger.info("going on behind update %d; lines above may tell of more", self._step)

    def cleanup_fit(self, learn: Loop) -> None:
        """Write the last row, and close the file."""
        super().cleanup_fit(learn)
        self._taken_logs.close()
        for handler in self._mine:
            self.logger.removeHandler(handler)
            handler.close()

    def update_row(self, learn: Loop) -> dict[str, Any]:
        """Return the row with times and memory, and look at the losses."""
        row, n = super().update_row(learn), self._batches
        speed = float(self._items) / max(self._spent, 1e-9)
        self._where = f"batch {learn.iter + 1}/{learn.plan.length or '?'}"
        row |= {"data_s": self._data / n, "batch_s": self._spent / n, "items_per_s": speed}
        row |= {"memory_mb": memory_mb(), "left": self._time_left(learn, self._spent / n)}
        self._data = self._spent = self._items = self._batches = 0
        return row

    def _time_left(self, learn: Loop, batch_s: float) -> str:
        if learn.n_steps is None:
            return "?"
        updates = learn.n_steps - learn.steps_done
        done = self._updates + learn.steps_done - self._first
        step_s = (self._train + perf_counter() - self._start) / done
        a_round = learn.plan.every
        if not learn.plan.cuts:
            a_round *= (learn.n_batches or math.inf) / learn.plan.batches_per_step
        a_validation = (n_batches(pick_loader(learn.dls, False)) or 0) * batch_s / 3  # a guess
        if self._validations:
            a_validation = self._valid / self._validations
        rounds = math.ceil(learn.n_steps / a_round) - math.ceil(learn.steps_done / a_round) + 1
        seconds = updates * step_s + rounds * a_validation
        return str(timedelta(seconds=round(seconds)))

    def _write(self, row: dict[str, Any]) -> None:
        place = "done" if "time" in row else self._where
        values = (f"{k} {format_value(v)}" for k, v in row.items() if k != "epoch")
        self.logger.info("  ".join([f"epoch {row['epoch']} {place}", *values]))

    def _check_finite(self, learn: Loop) -> None:
        names = [n for n in {"loss": 0, **(learn.loss_parts or {})} if n in self.storage]
        bad = [n for n in names if not math.isfinite(self.storage[n].global_sum)]
        if self._met_nan or not bad:
            return
        self._met_nan = True
        values = ", ".join(f"{name} {self.storage[name].latest}" for name in names)
        message = (
            f"{' and '.join(bad)} of the training became infinite or NaN by epoch {learn.epoch}, "
            f"update {learn.steps_done}: {values} there"
        )
        tell_not_finite(message, where_skipped(learn, self.on_nan), "LogCB")


def setup_logger(
    name: str | None = None,
    output: str | Path | None = None,
    rank: int | None = None,
    log_level: int = logging.INFO,
    color: bool = True,
) -> logging.Logger:
    """Set up a logger for the console and a file, and return it; a second call adds nothing twice.

    Levels are shown but for INFO, in colour on a terminal. Only the first process prints.

    Args:
        name: of the logger; None for the root of all.
        output: a file `*.txt` or `*.log`, or a folder, in which it is `log.txt`; the other
            processes write to `log_rank1.txt` and so on.
        rank: the number of this process, by default the environment's `RANK`.
        log_level: what is less is not shown.
        color: whether to use colours.
    """
    rank = this_rank() if rank is None else rank
    logger = logging.getLogger(name)
    logger.setLevel(log_level)
    logger.propagate = False
    if rank == 0 and not any(isinstance(h, _Console) for h in logger.handlers):
        logger.addHandler(_Console(color))
    if output is not None:
        path = Path(output).absolute()
        path = path if path.suffix in (".txt", ".log") else path / "log.txt"
        path = path.with_stem(f"{path.stem}_rank{rank}") if rank else path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not any(getattr(h, "baseFilename", None) == str(path) for h in logger.handlers):
            handler = logging.FileHandler(path, delay=True)
            handler.setFormatter(_Format(False))
            logger.addHandler(handler)
    return logger


class _Console(logging.StreamHandler):
    """Prints where `sys.stdout` points at the time, so that redirections are heeded."""

    def __init__(self, color: bool) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_Format(color))

    @property
    def stream(self) -> Any:
        return sys.stdout


class _Format(logging.Formatter):
    def __init__(self, color: bool) -> None:
        super().__init__("%(message)s", datefmt="%m/%d %H:%M:%S")
        self.color = color

    def format(self, record: logging.LogRecord) -> str:
        place = f"[{self.formatTime(record, self.datefmt)} {record.name}]: "
        level = "" if record.levelno == logging.INFO else f"{record.levelname}: "
        if self.color and sys.stdout.isatty():
            place = f"\033[32m{place}\033[0m"
            level = level and f"{COLOURS.get(record.levelno, '')}{level}\033[0m"
        return place + level + super().format(record)
