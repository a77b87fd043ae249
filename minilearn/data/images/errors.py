"""Files that cannot be read: counted, reported in one warning, an error above a limit."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from minilearn.base.text import few

FEW = 20  # images of a stream to read before a fraction of them means something


class ImageError(ValueError):
    """An image could not be read and `on_error` is "raise", or too many could not."""


class FileError(NamedTuple):
    """Why an image could not be read; worker processes send it to the main process.

    Attributes:
        row: of the image in its split.
        name: of the file.
        reason: why it could not be read.
        trace: the traceback.
    """

    row: int
    name: str
    reason: str
    trace: str

    @classmethod
    def of(cls, row: int, name: str, error: Exception) -> FileError:
        """Return an exception as a `FileError`."""
        return cls(row, name, reason_of(error), "".join(traceback.format_exception(error)))


@dataclass
class ErrorLog:
    """The errors of one split.

    Args:
        split: its name.
        total: the number of images in the split; None for a stream, where those read count.
        on_error: "skip" or "raise".
        max_errors: the fraction of a split, 0..1, above which they are an error anyway.
        found: the errors by row.
        read: how many images of the current epoch were read.
        reported: how many errors were.
    """

    split: str
    total: int | None = None
    on_error: str = "skip"
    max_errors: float = 0.1
    found: dict[int, FileError] = field(default_factory=dict)
    read: int = 0
    reported: int = 0

    def add(self, errors: Sequence[FileError]) -> None:
        """Record errors.

        Raises:
            ImageError: there are too many, or `on_error` is "raise".
        """
        if errors and self.on_error == "raise":
            error = ImageError(f"{errors[0].name}: {errors[0].reason}")
            error.add_note(errors[0].trace)
            raise error
        self.found |= {error.row: error._replace(trace="") for error in errors}
        total = max(self.read, FEW) if self.total is None else self.total
        if len(self.found) > self.max_errors * total:
            self.reported = len(self.found)
            raise ImageError(
                f"{self.text()}. That is more than max_errors={self.max_errors} allows; "
                "repair or remove these files, or raise max_errors"
            )

    def reasons(self) -> dict[str, str]:
        """Return the reasons by file name, in the order of the data set."""
        return {error.name: error.reason for _, error in sorted(self.found.items())}

    def text(self) -> str:
        """Return the number of errors and the first few."""
        of = "" if self.total is None else f" of {self.total:,}"
        listed = [f"{name} ({reason})" for name, reason in self.reasons().items()]
        return f"{len(self.found):,}{of} images of {self.split!r} could not be read: {few(listed)}"


def report(*logs: ErrorLog) -> None:
    """Warn once about the errors that were not reported yet."""
    new = [log.text() for log in logs if len(log.found) > log.reported]
    for log in logs:
        log.reported = len(log.found)
    if new:
        left_out = "They are left out; dls.summary() lists them"
        warnings.warn(f"{'; '.join(new)}. {left_out}", stacklevel=2)


def reason_of(error: Exception) -> str:
    """Return the message of an error in one line, without the names of objects in memory."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, LookupError):  # its text is only a key or an index
        return f"{type(error).__name__}: {text}"
    return "this is no image" if "cannot identify image file" in text else text
