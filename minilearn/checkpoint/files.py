"""Checkpoint files: complete or absent, and safe to open.

A checkpoint is one file that `torch.load(path, weights_only=True)` opens: tensors and simple types.
Of these, 50 and more rows of a history are one string of JSON, which `read` unpacks.
It is written under a temporary name and then renamed, so a kill at any byte leaves what was there.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..base.files import CorruptFileError, check_format, check_zip, reading, replaced

SUFFIX, SAFE = ".ckpt", ".safetensors"
STATE = "state.ckpt"  # in the folder of a sharded checkpoint
SIMPLE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
MANY, ROWS = 50, "rows as JSON"  # fewer rows stay a list
LISTS = {tuple: tuple, set: set, frozenset: set, deque: list, torch.Size: tuple}


def serialisable(x: Any, path: str = "state", memo: dict | None = None) -> Any:
    """Return a copy of `x` in simple types and CPU tensors; shared storage stays shared.

    Raises:
        TypeError: something in `x` is neither; names its path.
    """
    memo = {} if memo is None else memo
    if isinstance(x, Tensor):
        return _on_cpu(x, memo)
    if type(x) in SIMPLE:
        return x
    if type(x) is list and (rows := _packed(x)) is not None:
        return rows
    if isinstance(x, Mapping):
        kind = Counter if isinstance(x, Counter) else dict
        return kind(
            {serialisable(k, path): serialisable(v, f"{path}.{k}", memo) for k, v in x.items()}
        )
    if isinstance(x, (list, *LISTS)):
        kind = next((to for of, to in LISTS.items() if isinstance(x, of)), list)
        return kind(serialisable(v, f"{path}[{i}]", memo) for i, v in enumerate(x))
    for base in (bool, int, float, str):  # their subclasses: enums, numpy's float64
        if isinstance(x, base):
            return base(x)
    if isinstance(x, os.PathLike):
        return os.fspath(x)
    if (tolist := getattr(x, "tolist", None)) is not None:
        try:
            return torch.from_numpy(x.copy())
        except TypeError:  # a scalar; or strings, objects. A date does not become a number
            if isinstance(plain := tolist(), (list, *SIMPLE)):
                return serialisable(plain, path, memo)
    raise TypeError(
        f"{path} is a {type(x).__name__}: a checkpoint holds tensors, numbers, strings, lists and "
        "dicts. Let state_dict return those."
    )


def _packed(rows: list) -> dict[str, str] | None:
    """Return many rows or floats as one string of JSON, None for any other list.

    `torch.save` calls a function for each number, and histories and records grow with the fit.
    """
    if len(rows) < MANY or not {*map(type, rows)} <= {dict, float}:
        return None
    try:
        text = json.dumps(rows)
    except TypeError:  # a tensor, say
        return None
    same = repr(json.loads(text)) == repr(rows)  # JSON has no tuples, and strings as keys only
    return {ROWS: text} if same else None


def _unpacked(x: Any) -> Any:
    """Return `x` with the rows that `_packed` made one string."""
    if type(x) is dict:
        return json.loads(x[ROWS]) if ROWS in x else {k: _unpacked(v) for k, v in x.items()}
    return [_unpacked(value) for value in x] if type(x) is list else x


def _on_cpu(x: Tensor, memo: dict) -> Tensor:
    x = x.detach()
    if x.layout != torch.strided:
        return x.to("cpu", copy=True)
    key = (x.device, x.data_ptr(), x.shape, x.stride(), x.dtype)
    if key not in memo or not x.numel():
        memo[key] = x, x.to("cpu", copy=True)  # keep x, so that its address is not used again
    return memo[key][1]


def write(state: Any, path: Path, overwrite: bool = True) -> None:
    """Write a serialisable state to `path`.

    Raises:
        FileExistsError: there is a file, and `overwrite` is False.
        OSError: the disk is full, for example; what was at `path` before is still there.
    """
    with replaced(path, overwrite) as file:
        target: Any = _Target(file)
        try:
            torch.save(state, target)
        except Exception:
            if target.error is not None:
                raise target.error from None
            raise


class _Target:
    """A file for `torch.save`, which keeps the error that torch would hide."""

    def __init__(self, file: Any) -> None:
        self.file, self.flush, self.error = file, file.flush, None

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except OSError as e:
            self.error = self.error or e
            raise


def read(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint, its tensors on the CPU.

    Raises:
        CorruptFileError: it is incomplete, no checkpoint, or was changed since it was written.
        NewerFormatError: a newer minilearn wrote it.
    """
    if (path / STATE).is_file():
        return read(path / STATE) | {"shards": os.fspath(path)}
    with reading(path, "checkpoint", "Use an older one, or copy it again."):
        check_zip(path)
        state = _unpacked(torch.load(path, map_location="cpu", weights_only=True))
    if not isinstance(state, dict) or "minilearn" not in state:
        raise CorruptFileError(f"{path} is no checkpoint of minilearn; for weights use learn.load")
    check_format(path, "checkpoint", state.get("format", 1))
    return state


def is_checkpoint(path: Path) -> bool:
    """Return whether a checkpoint is at `path`: a file, or a folder of shards."""
    return path.is_file() or (path / STATE).is_file()


def holds_run(path: Path, run: str) -> bool:
    """Return whether a checkpoint or weights are at `path`, and belong to the run of this name."""
    if not is_checkpoint(path):
        return False
    file = path / STATE if path.is_dir() else path
    try:  # mapped: the tensors are not read
        if path.suffix == SAFE:
            from safetensors import safe_open

            with safe_open(path, "pt") as weights:
                return (weights.metadata() or {}).get("run") == run
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return any(saved.get("run") == run for saved in state["callbacks"].values())
    except Exception:  # it is corrupt
        return False


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the last written first."""
    files = [f for f in folder.glob(f"*{SUFFIX}") if is_checkpoint(f)]
    return sorted(files, key=lambda f: (f.stat().st_mtime_ns, f.name), reverse=True)


def newest_usable(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest complete checkpoint of a folder; warn of corrupt ones.

    Raises:
        CorruptFileError: there are checkpoints, and none is usable.
    """
    files = newest_first(folder)
    for file in files:
        try:
            return file, read(file)
        except CorruptFileError as e:
            warnings.warn(f"{e}; the one before is used", stacklevel=2)
    if files:
        raise CorruptFileError(f"none of the {len(files)} checkpoints in {folder} can be used")
    return None


def find(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return path and state of a checkpoint, or of the newest usable one in a folder."""
    if is_checkpoint(path) or (path.suffix and not path.is_dir()):
        return path, read(path)
    return newest_usable(path)


def find_existing(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return what `find` finds; raise FileNotFoundError where a folder has no checkpoint."""
    found = find(path)
    if found is None:
        raise FileNotFoundError(f"there is no checkpoint in {path}")
    return found


def remove(path: Path) -> None:
    """Remove an old checkpoint; where that fails, warn."""
    try:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except OSError as e:
        warnings.warn(f"an old checkpoint could not be removed: {e}", stacklevel=2)


class Background:
    """Runs one task at a time beside the training; the next call raises what a task raised."""

    def __init__(self) -> None:
        self._task: Future[None] | None = None

    def run(self, task: Callable[[], None]) -> None:
        """Start a task when the one before is done."""
        self.join()
        pool = ThreadPoolExecutor(1, "minilearn checkpoint")
        self._task = pool.submit(task)
        pool.shutdown(wait=False)  # which lets the task run to its end

    def check(self) -> None:
        """Raise what the last task raised, if it is done."""
        if self._task is not None and self._task.done():
            self.join()

    def join(self) -> None:
        """Wait for the task, and raise what it raised."""
        if self._task is not None:
            wait([self._task])
            task, self._task = self._task, None
            task.result()
