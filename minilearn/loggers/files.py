"""The rows of a run in files: CSV, JSON lines, TensorBoard's events."""

from __future__ import annotations

import csv
import io
import json
from itertools import count
from pathlib import Path
from typing import Any

from minilearn.core.history import in_order

from .base import LoggerCB, need, numbers


class _FileCB(LoggerCB):
    _read: Any  # each kind of file reads its rows,
    _line: Any  # and writes one

    def __init__(self, path: str | Path, every: int | None = None) -> None:
        super().__init__(every)
        self.path = Path(path)

    def _open(self) -> None:
        self.file = self.path if self.scratch is None else self.scratch / self.path.name
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if self.resumed and self.file.exists():
            self._replace(self._read()[: self.written])
        elif self.file.exists():  # a run is never lost: the one before gets a number
            self.file.rename(free(self.file))

    def _append(self, text: str) -> None:
        with self.file.open("ab", buffering=0) as file:  # one call, so a kill leaves no half line
            size, data = file.tell(), text.encode()
            if file.write(data) < len(data):
                file.truncate(size)
                raise OSError(f"no room left for {self.file}")

    def _replace(self, rows: list[Any]) -> None:
        part = self.file.with_name(f"{self.file.name}.part")
        part.write_bytes("".join(map(self._line, rows)).encode())
        part.replace(self.file)


class JSONLLoggerCB(_FileCB):
    """Write one JSON object a row to a file; epoch rows are those with a `time`.

    A new fit keeps the file of another under a number (`log_1.jsonl`); a resumed one goes on in it.

    Args:
        path: the file.
        every: also a row every so many updates.

    Events: before_fit, before_step, after_batch, after_round, cleanup_fit
    Order:  REPORT
    Reads:  scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history, levels,
            error, valid_name
    Writes:
    Syncs: once in `every` updates
    """

    def _write(self, row: dict[str, Any]) -> None:
        self._append(self._line(row))

    def _line(self, row: dict[str, Any]) -> str:
        return json.dumps(row, default=str) + "\n"

    def _read(self) -> list[Any]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


class CSVLoggerCB(_FileCB):
    """Write the rows to a CSV file, numbers in full, nothing where a row lacks a column.

    A new fit keeps the file of another under a number (`log_1.csv`); a resumed one goes on in it.

    Args:
        path: the file.
        every: also a row every so many updates.

    Events: before_fit, before_step, after_batch, after_round, cleanup_fit
    Order:  REPORT
    Reads:  scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history, levels,
            error, valid_name
    Writes:
    Syncs: once in `every` updates
    """

    def _open(self) -> None:
        self.columns: list[str] = []
        super()._open()

    def _write(self, row: dict[str, Any]) -> None:
        if set(row) <= set(self.columns):
            self._append(self._line(row))
        else:
            self._replace([*(self._read() if self.file.exists() else ()), row])

    def _replace(self, rows: list[Any]) -> None:
        before, self.columns = self.columns, list(in_order({k: None for row in rows for k in row}))
        try:
            super()._replace([dict(zip(self.columns, self.columns, strict=True)), *rows])
        except OSError:
            self.columns = before
            raise

    def _line(self, row: dict[str, Any]) -> str:
        text = io.StringIO()
        csv.DictWriter(text, self.columns, lineterminator="\n").writerow(row)
        return text.getvalue()

    def _read(self) -> list[Any]:
        with self.file.open(newline="") as file:
            return list(csv.DictReader(file))


class TensorBoardCB(LoggerCB):
    """Write the rows, figures and histograms as TensorBoard's events, numbers in full (float64).

    A new fit moves events of another into a folder `earlier_1`; a resumed one goes on with them.

    Args:
        dir: the folder to point TensorBoard at.
        every: also a row every so many updates.

    Raises:
        ImportError: tensorboard is not installed.

    Events: before_fit, before_step, after_batch, after_round, cleanup_fit
    Order:  REPORT
    Reads:  scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history, levels,
            error, valid_name
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
        if self.resumed:
            keep_events(files, self.written)
        elif files:
            (aside := free(folder / "earlier")).mkdir()
            for file in files:
                file.rename(aside / file.name)
        self.writer: Any = SummaryWriter(str(folder))

    def _write(self, row: dict[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]  protobuf's
        from torch.utils.tensorboard.summary import scalar

        double = {"new_style": True, "double_precision": True}  # the old style has float32
        values = [v for name, x in numbers(row) for v in scalar(name, x, **double).value]
        self.writer.file_writer.add_summary(Summary(value=values), row["steps"])
        self.writer.flush()

    def _media(self, name: str, value: Any, step: int) -> None:
        add = self.writer.add_figure if hasattr(value, "savefig") else self.writer.add_histogram
        add(name, value, step)
        self.written += 1  # an event, too

    def _close(self, error: BaseException | None) -> None:
        self.writer.close()


def free(path: Path) -> Path:
    """Return `path` with the first number that is not taken: `log_1.csv`."""
    paths = (path.with_name(f"{path.stem}_{n}{path.suffix}") for n in count(1))
    return next(p for p in paths if not p.exists())


def keep_events(files: list[Path], n: int) -> None:
    """Take out of event files what came after their first `n` events with values."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  protobuf's
    from tensorboard.summary.writer.record_writer import RecordWriter

    for path in files:
        part = path.with_name("part")
        with part.open("wb") as file:
            for event in RawEventFileLoader(str(path)).Load():
                if n or not Event.FromString(event).HasField("summary"):
                    RecordWriter(file).write(event)
                    n -= Event.FromString(event).HasField("summary")
        part.replace(path)
