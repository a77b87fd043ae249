"""Records of a run in files: CSV, JSON lines, TensorBoard's events."""

from __future__ import annotations

import csv
import io
import json
import os
from itertools import count
from pathlib import Path
from typing import Any

from ..core.history import in_order
from .base import LoggerCB, need, numbers


class _FileCB(LoggerCB):
    _read: Any  # a method that returns the records of the file
    _line: Any  # one that returns the text of a record
    _stream: Any = None  # a pipe or a device, which stays open

    def __init__(self, path: str | Path, every: int | None = None) -> None:
        super().__init__(every)
        self.path = Path(path)

    def _open(self) -> None:
        self.file = self.path if self.scratch is None else self.scratch / self.path.name
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(self.file) and (self.file.is_symlink() or not self.file.is_file()):
            self._stream = open(self.file, "ab", buffering=0, opener=_without_waiting)
        elif self.resumed_after is not None and self.file.exists():
            self._replace(self._read()[: self.written])
        elif self.file.exists():  # no run is lost: the one before gets a number
            self.file.rename(free(self.file))

    def _write(self, record: dict[str, Any]) -> None:
        self._append(self._line(record))

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
        part = self.file.with_name(f"{self.file.name}.part")
        part.write_bytes("".join(map(self._line, records)).encode())
        part.replace(self.file)


class JSONLLoggerCB(_FileCB):
    """Write each record to a file as a line of JSON; those of epochs have a `time`.

    A new fit renames the file of another (`log_1.jsonl`); a resumed one goes on in it.

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

    def _read(self) -> list[Any]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


class CSVLoggerCB(_FileCB):
    """Write the records to a CSV file, numbers in full, nothing where one lacks a column.

    A new fit renames the file of another (`log_1.csv`); a resumed one goes on in it.

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

    def _write(self, record: dict[str, Any]) -> None:
        if set(record) <= set(self.columns):
            super()._write(record)
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

    def _read(self) -> list[Any]:
        with self.file.open(newline="") as file:
            return list(csv.DictReader(file))


class TensorBoardCB(LoggerCB):
    """Write the records, figures and histograms as TensorBoard's events, numbers in float64.

    A new fit moves the events of another into a folder `earlier_1`. A resumed one goes on and hides
    the events of later updates; the figures of a validation that is repeated are there twice.

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
        super().__init__(every)
        self.dir = Path(dir)
        need("tensorboard")

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = self.dir if self.scratch is None else self.scratch / "tensorboard"
        files = sorted(folder.glob("events.out.tfevents.*"))
        first_new = 0  # as the first fit has one, TensorBoard takes the next for a restart
        if self.resumed_after is not None:
            first_new = self.resumed_after + 1
        elif files:
            (aside := free(folder / "earlier")).mkdir()
            for file in files:
                file.rename(aside / file.name)
        self.writer: Any = SummaryWriter(str(folder), purge_step=first_new)

    def _write(self, record: dict[str, Any]) -> None:
        for name, x in numbers(record):  # the new style has float64
            self.writer.add_scalar(name, x, record["steps"], new_style=True, double_precision=True)
        self.writer.flush()

    def _media(self, name: str, value: Any, step: int) -> None:
        add = self.writer.add_figure if hasattr(value, "savefig") else self.writer.add_histogram
        add(name, value, step)

    def _close(self, error: BaseException | None) -> None:
        self.writer.close()


def _without_waiting(path: str, flags: int) -> int:
    """Open a pipe, or raise where nobody reads it yet: the fit must not wait for a reader."""
    at_once = getattr(os, "O_NONBLOCK", 0)  # Windows has none
    file = os.open(path, flags | at_once, 0o666)
    if at_once:
        os.set_blocking(file, True)  # a slow reader only slows the fit down
    return file


def free(path: Path) -> Path:
    """Return `path` with the first number that is not taken: `log_1.csv`."""
    paths = (path.with_name(f"{path.stem}_{n}{path.suffix}") for n in count(1))
    return next(p for p in paths if not p.exists())
