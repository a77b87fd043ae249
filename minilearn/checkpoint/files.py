"""Checkpoint files: complete or not there, and nothing in them can run code.

A checkpoint is one file that `torch.load(path, weights_only=True)` opens: tensors and plain types.
It is written beside its place, then renamed, so a kill at any byte leaves the file before.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import warnings
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

import torch
from torch import Tensor

from minilearn.base.files import DamagedFile, reading

SUFFIX = ".ckpt"
STATE = "state.ckpt"  # in the folder of a sharded checkpoint
OWNER = ".owner"  # who writes to a folder
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
LISTS = {tuple: tuple, set: set, frozenset: set, deque: list, torch.Size: tuple}


def plain(x: Any, path: str = "state", memo: dict | None = None) -> Any:
    """Return a copy of `x` in plain types and tensors in host memory; shared storage stays shared.

    Raises:
        TypeError: something in `x` is neither; names its place.
    """
    memo = {} if memo is None else memo
    if isinstance(x, Tensor):
        return _on_host(x, memo)
    if type(x) in PLAIN:
        return x
    if isinstance(x, Mapping):
        kind = Counter if isinstance(x, Counter) else dict
        return kind({plain(k, path): plain(v, f"{path}.{k}", memo) for k, v in x.items()})
    if isinstance(x, (list, *LISTS)):
        kind = next((to for of, to in LISTS.items() if isinstance(x, of)), list)
        return kind(plain(v, f"{path}[{i}]", memo) for i, v in enumerate(x))
    for base in (bool, int, float, str):  # their subclasses: enums, numpy's float64
        if isinstance(x, base):
            return base(x)
    if isinstance(x, os.PathLike):
        return os.fspath(x)
    if hasattr(x, "tolist"):  # a scalar or an array of numpy
        x = _of_numpy(x, path, memo)
        if isinstance(x, (Tensor, list, *PLAIN)):
            return x
    raise TypeError(
        f"{path} is a {type(x).__name__}: a checkpoint holds tensors, numbers, strings, lists and "
        "dicts. Let state_dict return those."
    )


def _of_numpy(x: Any, path: str, memo: dict) -> Any:
    if not getattr(x, "shape", ()):
        return x.item()  # of a date or a long double no plain number
    try:
        return torch.from_numpy(x.copy())
    except TypeError:  # strings or objects
        return plain(x.tolist(), path, memo)


def _on_host(x: Tensor, memo: dict) -> Tensor:
    x = x.detach()
    if x.layout != torch.strided:
        return x.to("cpu", copy=True)
    key = (x.device, x.data_ptr(), x.shape, x.stride(), x.dtype)
    if key not in memo or not x.numel():
        memo[key] = x, x.to("cpu", copy=True)  # with x, so that nothing else gets its address
    return memo[key][1]


def write(state: Any, path: Path) -> None:
    """Write a plain state to `path`.

    Raises:
        OSError: the disk is full, or the like; what was at `path` before is still there.
    """
    with replaced(path) as file:
        _save(state, file)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when all of it is on the disk, and not before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    _sync_folder(path.parent)


class _Target:
    """A file for torch to write to, which remembers the error that torch makes its own."""

    def __init__(self, file: Any) -> None:
        self.file, self.error = file, None

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except OSError as e:
            self.error = self.error or e
            raise

    def flush(self) -> None:
        self.file.flush()


def _save(state: Any, file: Any) -> None:
    target: Any = _Target(file)
    try:
        torch.save(state, target)
    except Exception:
        if target.error is not None:
            raise target.error from None
        raise


def _sync_folder(folder: Path) -> None:
    """See that the new name is on the disk, too; Windows does so by itself."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint, its tensors in host memory.

    Raises:
        DamagedFile: it is incomplete, no checkpoint, or was changed since it was written.
    """
    if (path / STATE).is_file():
        return read(path / STATE) | {"shards": os.fspath(path)}
    with reading(path, "checkpoint", "Use an older one, or copy it again."):
        with zipfile.ZipFile(path) as archive:  # torch does not look at the checksums
            broken = archive.testzip()
        if broken is not None:
            raise DamagedFile(f"{path} is damaged: {broken} is not what was written")
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or "minilearn" not in state:
        raise DamagedFile(f"{path} holds no checkpoint of minilearn; weights alone: learn.load")
    return state


def is_there(path: Path) -> bool:
    """Return whether a checkpoint is at `path`: a file, or a folder of shards."""
    return path.is_file() or (path / STATE).is_file()


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the last written first."""
    files = [(f.stat().st_mtime_ns, f.name, f) for f in folder.glob(f"*{SUFFIX}") if is_there(f)]
    return [f for *_, f in sorted(files, reverse=True)]


def newest_usable(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest whole checkpoint of a folder; a warning names those that are damaged.

    Raises:
        DamagedFile: there are checkpoints, and none is usable.
    """
    files = newest_first(folder)
    for file in files:
        try:
            return file, read(file)
        except DamagedFile as e:
            warnings.warn(f"{e}; the one before is used", stacklevel=2)
    if files:
        raise DamagedFile(f"none of the {len(files)} checkpoints in {folder} can be used")
    return None


def remove(path: Path) -> None:
    """Remove a file that is no longer kept; that it cannot be removed is worth a warning only."""
    try:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except OSError as e:
        warnings.warn(f"an old checkpoint could not be removed: {e}", stacklevel=2)


def claim(folder: Path, run: str, resuming: bool) -> None:
    """Note in a folder who writes to it; warn where somebody else does, or did."""
    folder.mkdir(parents=True, exist_ok=True)
    note, process = folder / OWNER, {"run": run, "pid": os.getpid(), "host": platform.node()}
    with suppress(OSError, ValueError):
        other = json.loads(note.read_text())
        if _runs(other):
            warnings.warn(
                f"process {other['pid']} saves to {folder} at the same time: take another folder, "
                "or a resume may go on from its checkpoints",
                stacklevel=2,
            )
    if not resuming and (there := newest_first(folder)):
        warnings.warn(
            f"{folder} holds {len(there)} checkpoints of another fit. They stay, but a resume will "
            "take the newest of all: use resume=True to go on from them, or another folder.",
            stacklevel=2,
        )
    note.write_text(json.dumps(process))


def release(folder: Path, run: str) -> None:
    """Take the note away, if it is still this run's."""
    note = folder / OWNER
    with suppress(OSError, ValueError):
        if json.loads(note.read_text())["run"] == run:
            note.unlink()


def _runs(process: dict[str, Any]) -> bool:
    """Return whether another process of this machine is alive."""
    elsewhere = process["host"] != platform.node() or process["pid"] == os.getpid()
    if elsewhere or os.name != "posix":  # on Windows the question itself would end it
        return False
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class Background:
    """Runs one task at a time beside the training; an error comes out at the next call."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def run(self, task: Callable[[], None]) -> None:
        """Start a task, when the one before is done."""
        self.join()
        self._thread = Thread(target=self._run, args=(task,), name="minilearn checkpoint")
        self._thread.start()

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as e:
            self._error = e

    def check(self) -> None:
        """Raise what the last task raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def join(self) -> None:
        """Wait for the task, and raise what it raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()
