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

from ..base.batch import map_batch, n_rows
from ..base.seed import preserved_random_states
from ..base.text import write_out
from ..callbacks.handlers import LambdaCB
from ..callbacks.limits import Shortened
from ..core.callback import as_callbacks
from ..core.events import Order
from ..core.learner import Loop
from ..core.nested import inner, participants
from ..core.position import own_copy, undo_position
from ..core.stream import check_loader, pick_loader


def dry_run(self: Loop, cbs: Any = None, lr: float | slice | None = None) -> None:
    """Run one batch of training and one of validation with all callbacks, then undo all of it.

    Schedules are made for the whole fit; files are written to a temporary folder, and what is
    printed is not shown. Afterwards weights, buffers, optimizer, counters, history, random states
    and callbacks are as they were. An error is raised as in the fit, with its location.

    >>> learn.dry_run()

    Args:
        self: the Learner.
        cbs: further callbacks of the fit.
        lr: its learning rate.
    """

    def shorten(learn: Loop) -> None:  # LimitBatchesCB would shorten the schedules, too
        learn.dl = Shortened(learn.dl, 1)

    limit = LambdaCB(before_epoch=shorten, order=Order.ACCUMULATE)
    cbs = [*self.cbs_of_fit(), *as_callbacks(cbs), limit]
    with tempfile.TemporaryDirectory() as folder, inner(self, cbs, trains=True):
        self.nesting = self.nesting._replace(scratch=Path(folder))
        with contextlib.redirect_stdout(io.StringIO()):
            self.fit(1, lr=lr)
        phases = "training and validation" if self.dls.valid is not None else "training"
    write_out(f"dry run: one batch of {phases} went through {len(cbs) - 1} callbacks\n")


def find_batch_size(self: Loop, start: int = 32, limit: int = 4096) -> int:
    """Return the largest batch size that fits into memory, of `start` and its doubles or halves.

    Each is tried with two training steps on copies of the first batch's samples; then all is as it
    was. Other batches that a loader keeps in memory are not counted: choose a size a little below.
    On a CPU choose a `limit` with care, since other programs share its memory.

    >>> learn.find_batch_size(start=8, limit=16)

    Args:
        self: the Learner.
        start: the first size to try.
        limit: the largest.

    Raises:
        ValueError: not 1 <= start <= limit, or there is no training loader.
        RuntimeError: not even one sample fits.
    """
    if not 1 <= start <= limit:
        raise ValueError(f"give 1 <= start <= limit, got {start} and {limit}")
    check_loader(dl := pick_loader(self.dls, True), True)
    undo = undo_position(dl)
    with preserved_random_states():  # a loader of torch draws a seed
        batch = next(iter(own_copy(dl)))
    undo()
    fits = _fits(self, batch, size := start)
    while fits and size * 2 <= limit and _fits(self, batch, size * 2):
        size *= 2
    while not fits and size > 1:
        fits = _fits(self, batch, size := size // 2)
    if not fits:
        raise RuntimeError("not even one sample fits into memory: use a smaller model or input")
    return size


def _fits(learn: Loop, batch: Any, size: int) -> bool:
    n = n_rows(batch)
    samples = torch.arange(size) % n

    def resized(x: Any) -> Any:
        whole = isinstance(x, Tensor) and x.dim() and len(x) == n
        return x[samples.to(x.device)] if whole else x

    loader = [map_batch(resized, batch)] * 2  # the second update has the optimizer's state
    try:
        with inner(learn, participants(learn), train=loader, trains=True):
            learn.fit(1, valid=False)
        return True
    except RuntimeError as e:  # torch.OutOfMemoryError is one, and other devices raise others
        if "out of memory" not in str(e) and "can't allocate memory" not in str(e):
            raise
    gc.collect()  # after `except`: the traceback of the error holds what was in memory
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False
