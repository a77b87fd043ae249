"""Try everything once before it counts: `learn.dry_run`."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

from minilearn.core.callback import as_callbacks
from minilearn.core.learner import Loop
from minilearn.core.nested import inner

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
        self.nesting = self.nesting._replace(scratch=Path(folder))
        with contextlib.redirect_stdout(io.StringIO()):
            self.fit(1, lr=lr)
        passes = "training and validation" if self.dls.valid is not None else "training"
    print(f"dry run: one batch of {passes} went through {len(cbs) - 1} callbacks")


class _OneBatch(LimitBatchesCB):
    """Shortens the passes and leaves the length of the fit, which schedules are made for."""

    def before_fit(self, learn: Loop) -> None:
        pass
