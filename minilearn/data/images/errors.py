"""Files that cannot be read: counted, reported in one warning, an error above a limit."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torch.utils.data import get_worker_info

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
        trace: the traceback, if the error ends the run.
    """

    row: int
    name: str
    reason: str
    trace: str = ""


@dataclass(frozen=True)
class ErrorPolicy:
    """What happens to images that cannot be read.

    Args:
        on_error: "skip" or "raise".
        max_errors: the fraction of a split, 0..1, above which they are an error anyway.

    Raises:
        ValueError: `on_error` is unknown, or `max_errors` is out of range.
    """

    on_error: str = "skip"
    max_errors: float = 0.1

    def __post_init__(self) -> None:
        if self.on_error not in ("skip", "raise"):
            raise ValueError(f"on_error is skip or raise, got {self.on_error!r}")
        if not 0 <= self.max_errors <= 1:
            raise ValueError(f"max_errors is a fraction of the images, 0 to 1: {self.max_errors}")


class ErrorLog:
    """The errors of one split.

    Args:
        split: its name.
        policy: what happens to images that cannot be read.
        total: the number of images in the split; None for a stream, where those read count.

    Attributes:
        found: the errors by row.
        read: how many images of the current epoch were read.
    """

    def __init__(self, split: str, policy: ErrorPolicy, total: int | None = None) -> None:
        self.split, self.policy, self.total = split, policy, total
        self.found: dict[int, FileError] = {}
        self.read = 0
        self._reported = 0

    def add(self, errors: Iterable[FileError]) -> None:
        """Record errors.

        Raises:
            ImageError: there are too many, or `on_error` is "raise".
        """
        errors = list(errors)
        if errors and self.policy.on_error == "raise":
            raise _image_error(errors[0])
        self.found |= {error.row: error for error in errors}
        total = max(self.read, FEW) if self.total is None else self.total
        if len(self.found) > self.policy.max_errors * total:
            self._reported = len(self.found)
            raise ImageError(
                f"{self.text()}. That is more than max_errors={self.policy.max_errors} allows; "
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
    new = [log for log in logs if len(log.found) > log._reported]
    if new:
        for log in new:
            log._reported = len(log.found)
        warnings.warn(
            f"{'; '.join(log.text() for log in new)}. They are left out; dls.summary() lists them",
            stacklevel=2,
        )


def reason_of(error: Exception) -> str:
    """Return the message of an error in one line, without the names of objects in memory."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, LookupError):  # its text is only a key or an index
        return f"{type(error).__name__}: {text}"
    return "this is no image" if "cannot identify image file" in text else text


def file_error(row: int, name: str, error: Exception, policy: ErrorPolicy) -> FileError:
    """Return an exception as a `FileError`.

    Raises:
        ImageError: `on_error` is "raise", and this is the main process.
    """
    found = FileError(row, name, reason_of(error))
    if policy.on_error != "raise":
        return found
    if get_worker_info() is None:
        raise _image_error(found) from error
    return found._replace(trace="".join(traceback.format_exception(error)))


def _image_error(found: FileError) -> ImageError:
    """Return the exception that names the file."""
    error = ImageError(f"{found.name}: {found.reason}")
    if found.trace:
        error.add_note(f"in a worker process:\n{found.trace}")
    return error
