"""Join the outputs of many batches: in memory, or in a `.npy` file."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..base.batch import HALF, _like_mapping, _like_sequence, describe, map_batch


def kept(x: Any, device: Any = "cpu") -> Any:
    """Return a detached copy of `x`, half precision as float32.

    Args:
        x: any structure; a loader may refill its tensors afterwards.
        device: the device of the copy; None for the device of `x`.
    """

    def keep(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t if device is None else t.to(device)
        dtype = torch.float32 if t.dtype in HALF else t.dtype
        return t.detach().to(t.device if device is None else device, dtype, copy=True)

    return map_batch(keep, x)


def joined(parts: list[Any], sizes: list[int]) -> Any:
    """Join the outputs of all batches into one structure of the same form.

    Tensors (B, ...) are concatenated to (N, ...). Where their other dimensions differ from batch to
    batch (sequences), and where the output of a batch is a list of B items (texts, boxes), the
    result is a list of N. Scalars are stacked.

    Args:
        parts: the output of each batch.
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


def item_of(output: Any, i: int, n: int) -> Any:
    """Return the output for item `i` of a batch of `n`, by the rules of `joined`."""
    if isinstance(output, Mapping):
        columns = {key: item_of(value, i, n) for key, value in output.items()}
        return _like_mapping(output, columns)
    if isinstance(output, (list, str)) and not _same_heads([output], [n]):
        return output[i]
    if isinstance(output, (tuple, list)):
        return _like_sequence(output, [item_of(value, i, n) for value in output])
    return map_batch(lambda t: t[i] if t.dim() else t, output)


def _concatenated(parts: list[Tensor]) -> Tensor | list[Tensor]:
    if parts[0].dim() == 0:
        return torch.stack(parts)
    if len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(parts)
    return [item for part in parts for item in part]


def _same_heads(parts: list[Any], sizes: list[int]) -> bool:
    """Return whether lists hold a tensor for each output of a model, not for each sample."""
    return all(
        isinstance(part, list)
        and all(isinstance(x, Tensor) and x.dim() and len(x) == size for x in part)
        for part, size in zip(parts, sizes, strict=True)
    )


class NpyWriter:
    """Writes tensors one after the other into a `.npy` file; it keeps none of them in memory.

    Args:
        file: a file that is open for writing.
        name: what errors call it.

    Attributes:
        rows: how many were written.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.name, self.rows = file, name, 0
        self._form: Any = None  # type and shape after N, known with the first batch

    def write(self, x: Any) -> None:
        """Append a tensor of shape (B, ...).

        Raises:
            TypeError: `x` is not one tensor.
            ValueError: its type, or its shape after B, is not that of the first.
        """
        if not isinstance(x, Tensor) or x.dim() == 0:
            raise TypeError(
                f"{self.name} holds one tensor of shape (N, ...), and a batch gave "
                f"{describe(x)}: leave it out, choose a part with act=, or use iter_preds"
            )
        array = x.numpy()
        if self._form is None:
            self._form = array.dtype, array.shape[1:]
            self._write_header()
        if (array.dtype, array.shape[1:]) != self._form:
            raise ValueError(
                f"{self.name} holds {self._form[0]} of shape (N, *{self._form[1]}), and a "
                f"batch gave {describe(x)}: pad in the collate function, or use iter_preds"
            )
        self.file.write(array.tobytes())
        self.rows += len(array)

    def _write_header(self) -> None:
        from numpy.lib import format as npy

        dtype, shape = self._form
        header = {"shape": (self.rows, *shape), "fortran_order": False}
        # numpy reserves space for a larger first number, so `finish` can overwrite it
        npy.write_array_header_1_0(self.file, {"descr": npy.dtype_to_descr(dtype), **header})

    def finish(self) -> None:
        """Write the number of rows into the header."""
        self.file.seek(0)
        self._write_header()
