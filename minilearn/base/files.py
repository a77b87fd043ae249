"""One error for every corrupt file: it names the file and says what is wrong and what to do."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# What each kind of file is written as; a change that older versions cannot read adds one.
FORMATS = {"checkpoint": 1, "export": 1, "weights": 1}


class CorruptFileError(ValueError):
    """A file is incomplete, or was changed since it was written."""


class NewerFormatError(ValueError):
    """A newer minilearn wrote the file, in a format that this one does not know."""


def check_format(path: str | Path, kind: str, found: Any) -> None:
    """Raise an error where a file has a newer format than this minilearn reads.

    Args:
        path: the file.
        kind: a key of FORMATS.
        found: the number in the file.

    Raises:
        CorruptFileError: it is no number.
        NewerFormatError: it is larger than the number in FORMATS.
    """
    if not str(found).isdigit():
        raise CorruptFileError(f"{path} says that it has format {found!r}, which is no number")
    if int(found) > FORMATS[kind]:
        raise NewerFormatError(
            f"{path} has {kind} format {found}, and this minilearn reads formats up to "
            f"{FORMATS[kind]}: a newer version wrote it. Update minilearn."
        )


@contextmanager
def reading(path: str | Path, kind: str, advice: str = "Copy it again.") -> Iterator[None]:
    """Turn whatever reading a corrupt file raises into one kind of error.

    Args:
        path: the file.
        kind: what it should be, such as "checkpoint".
        advice: what to do, as a sentence.

    Raises:
        CorruptFileError: something was raised; names the file and the reason.
        FileNotFoundError, PermissionError, NewerFormatError: unchanged, since they are clear.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError, CorruptFileError, NewerFormatError):
        raise
    except Exception as e:  # json, zipfile, pickle and torch each raise their own kinds
        raise CorruptFileError(f"{path} is no complete {kind}: {_reason(e)}. {advice}") from e


def check_zip(path: str | Path) -> None:
    """Compare the parts of a zip archive with their checksums, which torch does not.

    Raises:
        BadZipFile: it is no archive, or a part was changed.
    """
    with zipfile.ZipFile(path) as archive:
        if (part := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"{part} is not what was written")


def _reason(error: Exception) -> str:
    text = (str(error).splitlines() or [""])[0].rstrip(" .")
    kind = type(error).__name__
    return f"{kind}: {text}" if isinstance(error, (KeyError, TypeError)) else text or kind
