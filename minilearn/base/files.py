"""Files: one error for every corrupt one, and writing that touches no file of others."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

# What each kind of file is written as; a change that older versions cannot read adds one.
FORMATS = {"checkpoint": 1, "export": 1, "weights": 1}


def version_of(package: str, unknown: Any = "unknown") -> Any:
    """Return the version of a package; `unknown` where it is not installed: in a zip, say."""
    try:
        return version(package)
    except PackageNotFoundError:
        return unknown


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


# ---- files of others ----


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return a path, `~` at its start being the user's home folder."""
    return Path(os.path.expanduser(path))


def free(path: Path) -> Path:
    """Return `path` with the first number that is not taken: `log_1.csv`."""
    paths = (path.with_name(f"{path.stem}_{n}{path.suffix}") for n in count(1))
    return next(p for p in paths if not os.path.lexists(p))


@contextmanager
def replaced(path: Path, overwrite: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file that gets the name `path` when all of it is on the disk.

    A link stays one: what it leads to is replaced.

    Raises:
        FileExistsError: there is a file, and `overwrite` is False; or a folder, pipe or device.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if overwrite:
        path = Path(os.path.realpath(path))
        if path.exists() and not path.is_file():
            raise FileExistsError(f"{path} is no file, and is left alone: name another one")
    part = path.with_name(f".{path.name[:40]}.{os.urandom(4).hex()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path) if overwrite else _rename_exclusively(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    if os.name == "posix":  # see that the new name is on the disk, too
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _rename_exclusively(part: Path, path: Path) -> None:
    """Rename a file unless the new name is taken; of two processes one succeeds."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        path.open("xb").close()
        os.replace(part, path)
    else:
        part.unlink()
