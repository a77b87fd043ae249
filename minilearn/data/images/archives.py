"""Read files inside a .tar or .zip archive without unpacking it."""

from __future__ import annotations

import contextlib
import os
import posixpath
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
MEMORY_LIMIT = 4 * 2**30  # bytes of a compressed .tar, which can only be read from its start

TOO_LARGE = (
    "{path} is compressed, so it would be kept in memory, and holds more than 4 GiB. Decompress it "
    "to a plain .tar, which is read in place; images are compressed already"
)

CORRUPT = "{path} is no archive, or a corrupt one: {why}"


def is_archive(path: Path) -> bool:
    """Return whether a file is named like an archive."""
    return path.name.lower().endswith(ARCHIVES)


def open_archive(path: Path) -> Archive:
    """Open an archive of any type in ARCHIVES.

    Raises:
        ValueError: it is corrupt, or a compressed .tar of more than 4 GiB.
    """
    try:
        if path.suffix.lower() == ".zip":
            return ZipArchive(path)
        with contextlib.suppress(tarfile.ReadError):  # names do not always tell compression
            return TarArchive(path)
        return TarArchive(path, compressed=True)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as e:
        raise ValueError(CORRUPT.format(path=path, why=e)) from e


class TarArchive:
    """A .tar; a compressed one has no random access, so it is read once and kept in memory."""

    def __init__(self, path: Path, compressed: bool = False) -> None:
        self.path, left = path, MEMORY_LIMIT
        self.files: dict[str, Any] = {}  # name -> content, or first byte and size in a plain .tar
        with tarfile.open(path, "r:*" if compressed else "r:") as tar:
            for member in filter(tarfile.TarInfo.isfile, tar):
                self.files[member.name] = member.offset_data, member.size
                if compressed:
                    left -= member.size
                    if left < 0:
                        raise ValueError(TOO_LARGE.format(path=path))
                    self.files[member.name] = cast(IO[bytes], tar.extractfile(member)).read()
            self.files |= _linked(self.files, tar)
            while compressed and cast(IO[bytes], tar.fileobj).read(2**20):  # up to the checksum
                pass
        if not compressed and path.stat().st_size % tarfile.BLOCKSIZE:
            # tarfile ignores half a header
            raise ValueError(CORRUPT.format(path=path, why="it ends in the middle of a block"))
        self.names = list(self.files)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        found = self.files[name]
        if isinstance(found, bytes):
            return found
        with self.path.open("rb") as file:
            file.seek(found[0])
            return file.read(found[1])


def _linked(files: dict[str, Any], tar: tarfile.TarFile) -> dict[str, Any]:
    """Return the target of each link by the link's own name; dangling links are left out."""
    links = {
        m.name: m.linkname if m.islnk() else posixpath.join(posixpath.dirname(m.name), m.linkname)
        for m in tar.getmembers()
        if m.islnk() or m.issym()
    }
    targets = {name: posixpath.normpath(target) for name, target in links.items()}
    return {name: files[target] for name, target in targets.items() if target in files}


class ZipArchive:
    """A .zip, opened once in each process, as processes must not share its file position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: tuple[int, zipfile.ZipFile] | None = None
        self.names = [info.filename for info in self._zip().infolist() if not info.is_dir()]

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return self._zip().read(name)

    def _zip(self) -> zipfile.ZipFile:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), zipfile.ZipFile(self.path)
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}


# Several threads and processes may `read` the files in `names`.
Archive = TarArchive | ZipArchive


def read_member(archives: Sequence[Archive], ref: tuple[int, str]) -> bytes:
    """Return the content of a file by (index of the archive, name).

    Raises:
        OSError: the file is empty.
    """
    number, name = ref
    return not_empty(archives[number].read(name))


def webdataset_labels(archives: Sequence[Archive]) -> dict[tuple[int, PurePosixPath], str]:
    """Return the labels in WebDataset's `.cls` files, by archive index and path less suffix."""
    return {
        (number, PurePosixPath(name).with_suffix("")): archive.read(name).decode().strip()
        for number, archive in enumerate(archives)
        for name in archive.names
        if name.endswith(".cls")
    }


def not_empty(data: bytes) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it is empty.
    """
    if not data:
        raise OSError("the file is empty")
    return data
