"""Files that are not as they were written: one error names the file, what was seen, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DamagedFile(ValueError):
    """A file is incomplete, or not as it was written."""


@contextmanager
def reading(path: str | Path, kind: str, advice: str = "Copy it again.") -> Iterator[None]:
    """Make one error of all that reading a damaged file can raise.

    Args:
        path: the file.
        kind: what it should be, "checkpoint" say.
        advice: what to do, as a sentence.

    Raises:
        DamagedFile: something was raised; names the file and says what.
        FileNotFoundError, PermissionError: as they are, since they say it themselves.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError, DamagedFile):
        raise
    except Exception as e:  # of json, zipfile, pickle, torch: each has its own kinds
        raise DamagedFile(f"{path} is no complete {kind}: {_reason(e)}. {advice}") from e


def _reason(error: Exception) -> str:
    text = (str(error).splitlines() or [""])[0].rstrip(" .")
    kind = type(error).__name__
    return f"{kind}: {text}" if isinstance(error, (KeyError, TypeError)) else text or kind
