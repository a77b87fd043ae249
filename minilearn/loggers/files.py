"""Records of a run in files: CSV, JSON lines, TensorBoard's events."""

from __future__ import annotations

import csv
import io
import json
import os
import warnings
import zlib
from contextlib import suppress
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

from ..base.files import free, replaced, user_path
from ..core.history import in_order
from .base import LoggerCB, need, numbers

EVENTS = "events.out.tfevents.*"


class _FileCB(LoggerCB):
    _read: Any  # a method that returns the first `n` records of the file, None for all
    _line: Any  # one that returns the text of a record
    _stream: Any = None  # a pipe or a device, which stays open

    def __init__(self, path: str | Path, every: int | None = None) -> None:
        self.path = user_path(path)
        super().__init__(every)

    def _begin(self) -> None:
        super()._begin()
        self.file = self.path.absolute()  # the current folder may change
        self._sum: int | None = 0  # a checksum of all records that were written

    def _open(self) -> None:
        if self.scratch is not None:
            self.file = self.scratch / self.path.name
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(self.file) and (self.file.is_symlink() or not self.file.is_file()):
            self._stream = open(self.file, "ab", buffering=0, opener=without_waiting)
            return
        if records := self._before():
            self._replace(records)
        elif self.file.exists():  # no run is lost: the one before gets a number
            self.file.rename(free(self.file))

    def _before(self) -> list[Any]:
        """Return the records of a resumed fit; none where the file has not those that it wrote."""
        records: list[Any] = []
        if self.resumed_after is not None and self.file.exists():
            with suppress(ValueError, csv.Error):  # another program's
                records = self._read(self.written)
        found = reduce(_checksum, records, 0)
        if len(records) < self.written or self._sum not in (None, found):
            warnings.warn(
                f"{self.file} has not the {self.written} records from before the resume: those "
                "that follow begin a new file, and one of another run gets a number",
                stacklevel=2,
            )
            records, found, self.written = [], 0, 0
        self._sum = found
        return records

    def _write(self, record: dict[str, Any]) -> None:
        self._add(record)
        self._sum = _checksum(self._sum or 0, record)

    def _add(self, record: dict[str, Any]) -> None:
        self._append(self._line(record))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a logger, and a checksum of what is in the file."""
        return super().state_dict() | {"sum": self._sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after these records, if the file has them."""
        super().load_state_dict(state)
        self._sum = state.get("sum")

    def _append(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text.encode())
            return
        with self.file.open("ab", buffering=0) as file:  # one call, so a kill leaves no half line
            size, data = file.tell(), text.encode()
            if file.write(data) < len(data):
                file.truncate(size)
                raise OSError(f"no space left for {self.file}")

    def _close(self, error: BaseException | None) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _replace(self, records: list[Any]) -> None:
        if self._stream is not None:  # what was written cannot be changed
            self._append("".join(map(self._line, records)))
            return
        with replaced(self.file) as file:
            file.write("".join(map(self._line, records)).encode())


class JSONLLoggerCB(_FileCB):
    """Write each record to a file as a line of JSON; those of epochs have a `time`.

    A new fit renames the file of another (`log_1.jsonl`); a resumed one goes on in its own.

    >>> learn.fit(2, cbs=JSONLLoggerCB("records.jsonl"))

    Args:
        path: the file; to a pipe, a device or a link the records are appended as they come.
        every: updates between two records; None for the rows of the history alone.

    Events: before_fit, before_round, before_step, after_batch, after_round, cleanup_fit
    Order:  REPORT
    Reads:  scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history, levels,
            error
    Writes:
    Syncs: once in `every` updates
    """

    def _line(self, record: dict[str, Any]) -> str:
        return json.dumps(record, default=str) + "\n"

    def _read(self, n: int | None = None) -> list[Any]:
        with self.file.open() as file:
            return [json.loads(line) for line in islice(file, n)]


class CSVLoggerCB(_FileCB):
    """Write the records to a CSV file, numbers in full, nothing where one lacks a column.

    A new fit renames the file of another (`log_1.csv`); a resumed one goes on in its own.

    >>> learn.fit(2, cbs=CSVLoggerCB("history.csv", every=50))

    Args:
        path: the file; to a pipe, a device or a link the records are appended as they come.
        every: updates between two records; None for the rows of the history alone.

    Events: before_fit, before_round, before_step, after_batch, after_round, cleanup_fit
    Order:  REPORT
    Reads:  scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history, levels,
            error
    Writes:
    Syncs: once in `every` updates
    """

    def _open(self) -> None:
        self.columns: list[str] = []
        super()._open()

    def _add(self, record: dict[str, Any]) -> None:
        is_begun = self._stream is not None or self.file.exists()  # or else it was moved away
        if is_begun and set(record) <= set(self.columns):
            super()._add(record)
        else:
            before = self._read() if self._stream is None and self.file.exists() else ()
            self._replace([*before, record])

    def _replace(self, records: list[Any]) -> None:
        before = self.columns
        names = (name for record in records for name in record)
        self.columns = list(in_order(dict.fromkeys((*before, *names))))
        try:
            super()._replace([dict(zip(self.columns, self.columns, strict=True)), *records])
        except OSError:
            self.columns = before
            raise

    def _line(self, record: dict[str, Any]) -> str:
        text = io.StringIO()
        csv.DictWriter(text, self.columns, lineterminator="\n").writerow(record)
        return text.getvalue()

    def _read(self, n: int | None = None) -> list[Any]:
        with self.file.open(newline="") as file:
            return list(islice(csv.DictReader(file), n))


class TensorBoardCB(LoggerCB):
    """Write the records, figures and histograms as TensorBoard's events, numbers in float64.

    A fit moves the events of others into a folder `earlier_1`. A resumed one goes on and hides its
    events of later updates; the figures of a validation that is repeated are there twice.

    >>> learn.fit(2, cbs=TensorBoardCB("runs/a"))  # doctest: +SKIP

    Args:
        dir: the folder to point TensorBoard at.
        every: updates between two records; None for the rows of the history alone.

    Raises:
        ImportError: tensorboard is not installed.

    Events: before_fit, before_round, before_step, after_batch, after_round, cleanup_fit
    Order:  REPORT
    Reads:  scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history, levels,
            error
    Writes:
    Syncs: once in `every` updates
    """

    def __init__(self, dir: str | Path, every: int | None = 50) -> None:
        self.dir = user_path(dir)
        super().__init__(every)
        need("tensorboard")

    def _begin(self) -> None:
        super()._begin()
        self._folder = self.dir.absolute()  # the current folder may change
        self.files: list[str] = []  # the names of this run's

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = self._folder if self.scratch is None else self.scratch / "tensorboard"
        others = [f for f in sorted(folder.glob(EVENTS)) if f.name not in self.files]
        if others:
            (aside := free(folder / "earlier")).mkdir()
            for file in others:
                file.rename(aside / file.name)
        # as the first fit has an event 0, TensorBoard takes the next for a restart
        first_new = 0 if self.resumed_after is None else self.resumed_after + 1
        self.writer: Any = SummaryWriter(str(folder), purge_step=first_new)
        self.files = [file.name for file in sorted(folder.glob(EVENTS))]

    def _write(self, record: dict[str, Any]) -> None:
        for name, x in numbers(record):  # the new style has float64
            self.writer.add_scalar(name, x, record["steps"], new_style=True, double_precision=True)
        self.writer.flush()

    def _media(self, name: str, value: Any, step: int) -> None:
        add = self.writer.add_figure if hasattr(value, "savefig") else self.writer.add_histogram
        add(name, value, step)

    def _close(self, error: BaseException | None) -> None:
        self.writer.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a logger, and the names of this run's files."""
        return super().state_dict() | {"files": self.files}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the folder; files of other runs are moved into a folder of theirs."""
        super().load_state_dict(state)
        self.files = list(state.get("files", ()))


def _checksum(before: int, record: dict[Any, Any]) -> int:
    """Return the checksum after a record: the same for one that was read from a file again."""
    values = sorted(f"{k}={v}" for k, v in record.items() if v not in ("", None))
    return zlib.crc32(str(values).encode(), before)


def without_waiting(path: str, flags: int) -> int:
    """Open a pipe, or raise where nobody reads it yet: the fit must not wait for a reader."""
    at_once = getattr(os, "O_NONBLOCK", 0)  # Windows has none
    file = os.open(path, flags | at_once, 0o666)
    if at_once:
        os.set_blocking(file, True)  # a slow reader only slows the fit down
    return file
