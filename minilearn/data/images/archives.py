"""Read the files of a .tar or .zip where they lie, without unpacking it."""

from __future__ import annotations

import os
import posixpath
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar, cast

T = TypeVar("T")

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
MEMORY_LIMIT = 4 * 2**30  # bytes of a compressed .tar, which has to be read from its beginning

TOO_LARGE = (
    "{path} is compressed, so it would be kept in memory, and holds more than 4 GiB. Decompress it "
    "to a plain .tar, which is read in place; pictures are compressed by themselves"
)

DAMAGED = "{path} is no archive, or a damaged one: {why}"


def is_archive(path: Path) -> bool:
    """Tell whether a file is named like an archive."""
    return path.name.lower().endswith(ARCHIVES)


def open_archive(path: Path) -> Archive:
    """Open an archive of any kind in ARCHIVES.

    Raises:
        ValueError: it is damaged, or a compressed .tar of more than 4 GiB.
    """
    if path.suffix.lower() == ".zip":
        kinds: list[type[Archive]] = [ZipArchive]
    else:  # what it really is decides, not whether the name ends in .gz
        kinds = [TarArchive, CompressedTarArchive]
    error: Exception | None = None
    for kind in kinds:
        try:
            return kind(path)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as e:
            error = e
    raise ValueError(DAMAGED.format(path=path, why=error)) from error


class Archive:
    """The files in an archive; it may be read from many threads and processes.

    Attributes:
        names: of the files, as the archive has them.
    """

    names: list[str]

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        raise NotImplementedError


class TarArchive(Archive):
    """A plain .tar: each file is a stretch of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with tarfile.open(path, "r:") as tar:
            self.places = {m.name: (m.offset_data, m.size) for m in tar if m.isfile()}
            self.places |= _linked(self.places, tar)
        if path.stat().st_size % tarfile.BLOCKSIZE:  # tarfile passes over half a header
            raise ValueError(DAMAGED.format(path=path, why="it ends in the middle of a block"))
        self.names = list(self.places)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        start, size = self.places[name]
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(size)


class CompressedTarArchive(Archive):
    """A compressed .tar, which has no way in but from its beginning: read once and kept."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.files: dict[str, bytes] = {}
        left = MEMORY_LIMIT
        with tarfile.open(path, "r:*") as tar:
            for member in filter(tarfile.TarInfo.isfile, tar):
                left -= member.size
                if left < 0:
                    raise ValueError(TOO_LARGE.format(path=path))
                self.files[member.name] = cast(IO[bytes], tar.extractfile(member)).read()
            self.files |= _linked(self.files, tar)
            while cast(IO[bytes], tar.fileobj).read(2**20):  # up to the checksum
                pass
        self.names = list(self.files)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return self.files[name]


def _linked(files: dict[str, T], tar: tarfile.TarFile) -> dict[str, T]:
    """Return, by its own name, the file that each link leads to; one that leads nowhere is none."""
    links = {
        m.name: m.linkname if m.islnk() else posixpath.join(posixpath.dirname(m.name), m.linkname)
        for m in tar.getmembers()
        if m.islnk() or m.issym()
    }
    paths = {name: posixpath.normpath(target) for name, target in links.items()}
    return {name: files[path] for name, path in paths.items() if path in files}


class ZipArchive(Archive):
    """A .zip, opened once in each process: its position in the file must not be shared."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
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


class Members:
    """Read files of several archives, each by (number of the archive, name)."""

    def __init__(self, archives: list[Archive]) -> None:
        self.archives = archives

    def __call__(self, place: tuple[int, str]) -> bytes:
        """Return the content of a file.

        Raises:
            OSError: the file is empty.
        """
        number, name = place
        return not_empty(self.archives[number].read(name))

    def labels(self) -> dict[tuple[int, PurePosixPath], str]:
        """Return what `.cls` files say, as WebDataset has them, by number and path less suffix."""
        return {
            (number, PurePosixPath(name).with_suffix("")): archive.read(name).decode().strip()
            for number, archive in enumerate(self.archives)
            for name in archive.names
            if name.endswith(".cls")
        }


def not_empty(data: bytes) -> bytes:
    """Return what a file holds.

    Raises:
        OSError: it holds nothing.
    """
    if not data:
        raise OSError("the file is empty")
    return data
