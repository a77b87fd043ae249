"""One error for every corrupt file: it names the file and says what is wrong and what to do."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CorruptFileError(ValueError):
    """A file is incomplete, or was changed since it was written."""


@contextmanager
def reading(path: str | Path, kind: str, advice: str = "Copy it again.") -> Iterator[None]:
    """Turn whatever reading a corrupt file raises into one kind of error.

    Args:
        path: the file.
        kind: what it should be, such as "checkpoint".
        advice: what to do, as a sentence.

    Raises:
        CorruptFileError: something was raised; names the file and the reason.
        FileNotFoundError, PermissionError: unchanged, since they are clear already.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError, CorruptFileError):
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
