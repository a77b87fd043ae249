"""Files that cannot be read: counted, named in one summary, and not more than a share."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torch.utils.data import get_worker_info

from .items import shortened

RULES = ("skip", "raise", "replace")
FEW = 20  # of a stream: so many are read before a share means something


class PictureError(ValueError):
    """A picture could not be read and the rule is "raise", or more than the stated share."""


class Fault(NamedTuple):
    """What happened to a picture, as a worker process reports it.

    Attributes:
        row: its place in the split.
        name: of the file.
        reason: why it could not be read.
        instead: the row of the picture taken in its place.
        trace: where it happened, if that ends the run.
    """

    row: int
    name: str
    reason: str
    instead: int | None = None
    trace: str = ""


@dataclass(frozen=True)
class Rule:
    """What becomes of a picture that cannot be read.

    Args:
        on_error: "skip", "raise" or "replace".
        max_errors: the share of a split, 0..1, above which it is an error all the same.

    Raises:
        ValueError: the rule is unknown, or this is no share.
    """

    on_error: str = "skip"
    max_errors: float = 0.1

    def __post_init__(self) -> None:
        if self.on_error not in RULES:
            raise ValueError(f"on_error is one of {', '.join(RULES)}, got {self.on_error!r}")
        if not 0 <= self.max_errors <= 1:
            raise ValueError(f"max_errors is a share of the pictures, 0 to 1: {self.max_errors}")


class FaultLog:
    """The faults of one split.

    Args:
        split: its name.
        rule: what becomes of faulty pictures.
        total: how many pictures the split has; None for a stream, whose share is of those read.

    Attributes:
        found: the faults by row.
        read: pictures of a stream that were read so far.
    """

    def __init__(self, split: str, rule: Rule, total: int | None = None) -> None:
        self.split, self.rule, self.total = split, rule, total
        self.found: dict[int, Fault] = {}
        self.read = 0
        self._reported = 0

    def add(self, faults: Iterable[Fault]) -> None:
        """Take note of faults.

        Raises:
            PictureError: there are too many, or the rule is "raise".
        """
        faults = list(faults)
        if faults and self.rule.on_error == "raise":
            raise _failed(faults[0])
        self.found |= {fault.row: fault for fault in faults}
        total = max(self.read, FEW) if self.total is None else self.total
        if len(self.found) > self.rule.max_errors * total:
            self._reported = len(self.found)
            raise PictureError(
                f"{self.text()}. That is more than max_errors={self.rule.max_errors} allows; mend "
                "or remove these files, or raise max_errors"
            )

    def reasons(self) -> dict[str, str]:
        """Return why, by the name of the file, in the order of the data set."""
        return {fault.name: fault.reason for _, fault in sorted(self.found.items())}

    def text(self) -> str:
        """Say how many there are, and name the first."""
        of = "" if self.total is None else f" of {self.total:,}"
        listed = [f"{name} ({reason})" for name, reason in self.reasons().items()]
        return (
            f"{len(self.found):,}{of} pictures of {self.split!r} could not be read: "
            f"{shortened(listed)}"
        )


def report(*logs: FaultLog) -> None:
    """Warn once of faults that were not reported yet."""
    new = [log for log in logs if len(log.found) > log._reported]
    if new:
        done = {"skip": "left out", "replace": "replaced by the next readable one"}
        for log in new:
            log._reported = len(log.found)
        warnings.warn(
            f"{'; '.join(log.text() for log in new)}. They are {done[new[0].rule.on_error]}; "
            "dls.summary() lists them",
            stacklevel=2,
        )


def reason_of(error: Exception) -> str:
    """Return what an error says, in one line, without the names of objects in memory."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, LookupError):  # says a key or an index alone
        return f"{type(error).__name__}: {text}"
    return "this is no picture" if "cannot identify image file" in text else text


def fault_of(row: int, name: str, error: Exception, rule: Rule) -> Fault:
    """Return the fault that an error is, from a worker process also where it ends the run.

    Raises:
        PictureError: the rule is "raise", and this is the main process.
    """
    fault = Fault(row, name, reason_of(error))
    if rule.on_error != "raise":
        return fault
    if get_worker_info() is None:
        raise _failed(fault) from error
    return fault._replace(trace="".join(traceback.format_exception(error)))


def _failed(fault: Fault) -> PictureError:
    """Return the error that names the file."""
    error = PictureError(f"{fault.name}: {fault.reason}")
    if fault.trace:
        error.add_note(f"in a worker process:\n{fault.trace}")
    return error
