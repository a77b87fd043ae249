"""Checks before a long run: `learn.dry_run` and `learn.find_batch_size`."""

from __future__ import annotations

import contextlib
import gc
import io
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minilearn.base.batch import batch_size, map_batch
from minilearn.core.callback import as_callbacks
from minilearn.core.learner import Loop
from minilearn.core.nested import inner, participants
from minilearn.core.stream import check_loader, pick_loader

from ..callbacks.limits import LimitBatchesCB


def dry_run(self: Loop, cbs: Any = None, lr: float | slice | None = None) -> None:
    """Run one batch of training and one of validation through everything, then undo all of it.

    All callbacks take part, and schedules are made for the whole fit; what writes files writes them
    to a temporary folder, and what is printed meanwhile is not shown. Afterwards weights, buffers,
    optimizer, counters, history, random states and callbacks are as they were. Errors come as they
    would in the fit, with the place where they happened.

    Args:
        self: the Learner.
        cbs: further callbacks that the fit will be given.
        lr: the learning rate that it will be given.
    """
    cbs = [*self.cbs, *as_callbacks(cbs), _OneBatch(1, 1)]
    with tempfile.TemporaryDirectory() as folder, inner(self, cbs, trains=True):
        self.scratch = Path(folder)
        with contextlib.redirect_stdout(io.StringIO()):
            self.fit(1, lr=lr)
        passes = "training and validation" if self.dls.valid is not None else "training"
    print(f"dry run: one batch of {passes} went through {len(cbs) - 1} callbacks")


class _OneBatch(LimitBatchesCB):
    """Shortens the passes and leaves the length of the fit, which schedules are made for."""

    def before_fit(self, learn: Loop) -> None:
        pass


def find_batch_size(self: Loop, start: int = 32, limit: int = 4096) -> int:
    """Return the largest batch size that fits into memory, of `start` and its doubles or halves.

    Each is tried with two real training steps, on samples of the first batch as often as it takes;
    then all is as it was. What lies in memory beside (other batches on their way) is not tried, so
    leave some room. On a CPU, whose memory is not its own, choose a `limit` with care.

    Args:
        self: the Learner.
        start: the first size to be tried.
        limit: the largest.

    Raises:
        ValueError: `start` or `limit` makes no sense, or there is no training loader.
        RuntimeError: not even one sample fits.
    """
    if not 1 <= start <= limit:
        raise ValueError(f"give 1 <= start <= limit, got {start} and {limit}")
    check_loader(dl := pick_loader(self.dls, True), True)
    batch = next(iter(dl))
    fits = _fits(self, batch, size := start)
    while fits and size * 2 <= limit and _fits(self, batch, size * 2):
        size *= 2
    while not fits and size > 1:
        fits = _fits(self, batch, size := size // 2)
    if not fits:
        raise RuntimeError("not even one sample fits into memory: use a smaller model or input")
    return size


def _fits(learn: Loop, batch: Any, size: int) -> bool:
    n = batch_size(batch)
    samples = torch.arange(size) % n

    def resized(x: Any) -> Any:
        whole = isinstance(x, Tensor) and x.dim() and len(x) == n
        return x[samples.to(x.device)] if whole else x

    loader = [map_batch(resized, batch)] * 2  # the second meets the optimizer's state
    try:
        with inner(learn, participants(learn), train=loader, trains=True):
            learn.fit(1, valid=False)
        return True
    except RuntimeError as e:  # torch.OutOfMemoryError is one, and other devices raise others
        if "out of memory" not in str(e) and "can't allocate memory" not in str(e):
            raise
    gc.collect()  # out here the error is gone, whose traceback holds what was in memory
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False
