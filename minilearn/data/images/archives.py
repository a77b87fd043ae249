"""Read files inside a .tar or .zip archive without unpacking it."""

from __future__ import annotations

import os
import posixpath
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

ARCHIVES = (".tar", ".zip")


class Archive(NamedTuple):
    """The files in an archive: their names, and a function that returns the content of one.

    Several threads and processes may read.
    """

    names: list[str]
    read: Callable[[str], bytes]


def open_archive(path: Path) -> Archive:
    """Open an archive.

    Raises:
        ValueError: it is corrupt, or a .tar that is compressed as a whole.
    """
    try:
        if path.suffix.lower() == ".zip":
            changed = path.stat().st_mtime_ns
            infos = _zip(path, changed, os.getpid()).infolist()
            names = dict.fromkeys(info.filename for info in infos if not info.is_dir())
            return Archive([*names], partial(_read_zip, path, changed))
        files = _index(path)
        return Archive(list(files), partial(_read_tar, path, files))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as e:
        raise ValueError(
            f"{path} is no archive, or a corrupt one ({e}); a compressed .tar has to be "
            "decompressed first"
        ) from e


@lru_cache(64)
def _zip(path: Path, changed: int, process: int) -> zipfile.ZipFile:
    """Open a .zip, once in each process, as processes must not share its file position."""
    return zipfile.ZipFile(path)


def _read_zip(path: Path, changed: int, name: str) -> bytes:
    return _zip(path, changed, os.getpid()).read(name)


def _index(path: Path) -> dict[str, tuple[int, int]]:
    """Return the first byte and the size of each file in a .tar, and of those that links name."""
    files, links = {}, {}
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            if member.isfile():
                files[member.name] = member.offset_data, member.size
            elif member.islnk() or member.issym():
                folder = posixpath.dirname(member.name) if member.issym() else ""
                target = posixpath.join(folder, member.linkname)
                links[member.name] = posixpath.normpath(target)
    if path.stat().st_size % tarfile.BLOCKSIZE:  # tarfile ignores half a header
        raise tarfile.TarError("it ends in the middle of a block")
    return files | {name: files[target] for name, target in links.items() if target in files}


def _read_tar(path: Path, files: dict[str, tuple[int, int]], name: str) -> bytes:
    start, size = files[name]
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


def read_member(archives: Sequence[Archive], ref: tuple[int, str]) -> bytes:
    """Return the content of a file by (index of the archive, name)."""
    number, name = ref
    return archives[number].read(name)
