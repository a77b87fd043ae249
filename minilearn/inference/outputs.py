"""Join what the batches of a pass gave: in memory, or in a file that grows."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minilearn.base.batch import HALF, _like_mapping, _like_sequence, describe, map_batch

if TYPE_CHECKING:
    import numpy as np


def kept(x: Any, device: Any = "cpu") -> Any:
    """Return a copy of `x` that is ours: detached, on `device`, half precision as float32.

    Args:
        x: any structure; a loader may refill its tensors afterwards.
        device: where the copy lies; None for where `x` is.
    """

    def keep(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t if device is None else t.to(device)
        dtype = torch.float32 if t.dtype in HALF else t.dtype
        return t.detach().to(t.device if device is None else device, dtype, copy=True)

    return map_batch(keep, x)


def joined(parts: list[Any], sizes: list[int]) -> Any:
    """Join the parts of all batches into one structure of the same form.

    Tensors (B, ...) are concatenated to (N, ...). Where their other dimensions differ from batch to
    batch (sequences), and where a batch gave a list of B things (texts, boxes), the result is a
    list of N. Scalars of a batch are stacked.

    Args:
        parts: what each batch gave.
        sizes: B of each batch.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        return _concatenated(parts)
    if first is None:
        return None
    if isinstance(first, Mapping):
        columns = {key: joined([part[key] for part in parts], sizes) for key in first}
        return _like_mapping(first, columns)
    if isinstance(first, (list, str)) and not _same_heads(parts, sizes):
        return [item for part in parts for item in part]
    if isinstance(first, (tuple, list)):
        columns = [joined(list(column), sizes) for column in zip(*parts, strict=True)]
        return _like_sequence(first, columns)
    if dataclasses.is_dataclass(first):
        new = copy.copy(first)
        for field in dataclasses.fields(first):
            column = joined([getattr(part, field.name) for part in parts], sizes)
            object.__setattr__(new, field.name, column)
        return new
    return parts


def _concatenated(parts: list[Tensor]) -> Tensor | list[Tensor]:
    if parts[0].dim() == 0:
        return torch.stack(parts)
    if len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(parts)
    return [item for part in parts for item in part]


def _same_heads(parts: list[Any], sizes: list[int]) -> bool:
    """Return whether lists hold one thing for each output of a model, not for each sample."""
    return all(
        isinstance(part, list)
        and all(isinstance(x, Tensor) and x.dim() and len(x) == size for x in part)
        for part, size in zip(parts, sizes, strict=True)
    )


def opened(path: Path) -> np.ndarray:
    """Return the array in a `.npy` file, which is read from disk when it is asked for."""
    import numpy as np

    return np.load(path, mmap_mode="r")


class NpyWriter:
    """Write tensors one after the other into a `.npy` file, which is there when all is written.

    Only the batch in hand is in memory. The file is written under another name and renamed at the
    end; an error leaves an older file as it was.

    Args:
        path: of the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.partial = self.path.with_name(self.path.name + ".part")
        self.rows = 0
        self._form: Any = None  # type and shape behind N, known with the first batch
        self._file: Any = None

    def write(self, x: Any) -> None:
        """Append a tensor of shape (B, ...).

        Raises:
            TypeError: `x` is not one tensor.
            ValueError: its type, or its shape behind B, is not that of the first.
        """
        if not isinstance(x, Tensor) or x.dim() == 0:
            raise TypeError(
                f"{self.path.name} holds one tensor of shape (N, ...), and a batch gave "
                f"{describe(x)}: leave it out, choose a part with act=, or use iter_preds"
            )
        array = x.numpy()
        if self._form is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._form, self._file = (array.dtype, array.shape[1:]), self.partial.open("wb")
            self._write_header()
        if (array.dtype, array.shape[1:]) != self._form:
            raise ValueError(
                f"{self.path.name} holds {self._form[0]} of shape (N, *{self._form[1]}), and a "
                f"batch gave {describe(x)}: pad in the collate function, or use iter_preds"
            )
        self._file.write(array.tobytes())
        self.rows += len(array)

    def _write_header(self) -> None:
        from numpy.lib import format as npy

        dtype, shape = self._form
        header = {"shape": (self.rows, *shape), "fortran_order": False}
        # numpy leaves room for the first number to grow, so it can be written again in its place
        npy.write_array_header_1_0(self._file, {"descr": npy.dtype_to_descr(dtype), **header})

    def finish(self) -> None:
        """Close the file, and let it take its place."""
        self._file.seek(0)
        self._write_header()
        self._file.close()
        os.replace(self.partial, self.path)

    def abandon(self) -> None:
        """Remove what was written so far, if it is not finished."""
        if self._file is not None:
            self._file.close()
        self.partial.unlink(missing_ok=True)
