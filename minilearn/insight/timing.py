"""Where the time of a fit goes: TimerCB, ProfilerCB."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ..core.callback import Callback, CleanUp, call, owner_name
from ..core.events import ACTIONS, Order
from ..core.history import History
from ..core.learner import Loop


def timings_of(learn: Loop) -> History:
    """Return where the last fit with a `TimerCB` spent its time, a row for each who and what.

    Columns: `who` (a callback, the owner of an action, "loader"), `what` (an event, an action,
    "next batch"), `calls`, `seconds`, on a GPU `device_seconds`, and `fraction` of the fit. The
    first rows sum up "model" (the five actions), "callbacks", "data", and the rest, "loop".

    Raises:
        AttributeError: there was no TimerCB.
    """
    if (found := vars(learn).get("_timings")) is None:
        raise AttributeError("nothing was timed: fit(..., cbs=TimerCB()) first")
    return found


class TimerCB(Callback):
    """Time every handler, every action and the wait for data; `learn.timings` shows the table.

    Without it the loop measures nothing. On a GPU, CUDA events time the work, too; they are read
    once in 512 measurements.

    Args:
        hint: warn if more than this fraction of the training waits for data.

    Events: before_fit, before_epoch, cleanup_fit
    Order:  ACCUMULATE
    Reads:  training
    Writes:
    Syncs: on a GPU, once in 512 measurements
    """

    order = Order.ACCUMULATE
    in_probe = False

    def __init__(self, hint: float = 0.5) -> None:
        self.hint = hint

    def before_fit(self, learn: Loop) -> None:
        """Start the clock."""
        self._sums: dict[tuple[str, str, str], list[float]] = {}  # calls, seconds, device seconds
        self._unread: list[tuple[list[float], Any, Any]] = []  # sums, CUDA events before and after
        self._table, self._waited, self._worked = None, 0.0, 0.0
        self._on_gpu = torch.cuda.is_available()
        self._start = self._mark = perf_counter()
        self._wrap(learn)

    def before_epoch(self, learn: Loop) -> None:
        """Time new callbacks, too."""
        self._wrap(learn)
        self._epoch_begins(learn)

    def cleanup_fit(self, learn: Loop) -> None:
        """Make the table, and warn if the data take most of the time."""
        self._read_device()
        vars(learn)["_timings"] = self._rows(perf_counter() - self._start)
        fraction = self._waited / max(self._waited + self._worked, 1e-9)
        if fraction > self.hint:
            warnings.warn(
                f"{fraction:.0%} of a step waits for data: raise num_workers or cache", stacklevel=2
            )

    def _wrap(self, learn: Loop) -> None:
        if learn._table is self._table:
            return
        table = {
            event: tuple(self._timed(handler, event, learn) for handler in handlers)
            for event, handlers in learn._table.items()
        }
        table["before_epoch"] += (self._epoch_begins,)  # then the loader works
        table["before_batch"] = (self._data_came, *table["before_batch"])
        table["cleanup_batch"] += (self._batch_ends,)
        learn._keep_table(table)
        self._table = table
        for action in ACTIONS:
            if action in vars(learn):
                who = type(learn.owner(action)).__name__
                vars(learn)[action] = self._timer(vars(learn)[action], "model", who, action, learn)

    def _timed(self, handler: Callable, event: str, learn: Loop) -> Callable:
        if isinstance(handler, CleanUp):
            return CleanUp(event, tuple(self._timed(m, event, learn) for m in handler.methods))
        return self._timer(handler, "callbacks", owner_name(handler), event, learn)

    def _timer(self, f: Callable, kind: str, who: str, what: str, learn: Loop) -> Callable:
        @wraps(f, updated=())
        def run(*args: Any) -> Any:
            start, mark = perf_counter(), self._device_mark()
            try:  # by `call`, in whose frames a nested run finds who is running
                return call(f, args, f"{who}.{what}", learn)
            finally:
                self._add(kind, who, what, perf_counter() - start, mark)

        # errors are noted with the owner's name
        vars(run)["__self__"] = getattr(f, "__self__", None)
        return run

    def _add(self, kind: str, who: str, what: str, seconds: float, mark: Any = None) -> None:
        sums = self._sums.setdefault((kind, who, what), [0, 0.0, 0.0])
        sums[0] += 1
        sums[1] += seconds
        if mark is not None:
            self._unread.append((sums, mark, self._device_mark()))
            if len(self._unread) >= 512:
                self._read_device()

    def _device_mark(self) -> Any:
        if not self._on_gpu:
            return None
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def _read_device(self) -> None:
        if self._unread:
            self._unread[-1][2].synchronize()
        for sums, begin, end in self._unread:
            sums[2] += begin.elapsed_time(end) / 1000
        self._unread = []

    def _data_came(self, learn: Loop) -> None:
        now = perf_counter()
        self._add("data", "loader", "next batch", now - self._mark)
        self._waited += (now - self._mark) * learn.training
        self._mark = now

    def _batch_ends(self, learn: Loop) -> None:
        now = perf_counter()
        self._worked += (now - self._mark) * learn.training
        self._mark = now

    def _epoch_begins(self, learn: Loop) -> None:
        self._mark = perf_counter()

    def _rows(self, total: float) -> History:
        kinds = {kind: [0, 0.0, 0.0] for kind in ("model", "callbacks", "data")}
        for (kind, _, _), sums in self._sums.items():
            kinds[kind] = [a + b for a, b in zip(kinds[kind], sums, strict=True)]
        rest = total - sum(seconds for _, seconds, _ in kinds.values())
        rows = History()
        for kind, sums in {**kinds, "loop": [1, rest, 0.0]}.items():
            rows.append(self._row(kind, "all", sums, total))
        details = sorted(self._sums.items(), key=lambda item: -item[1][1])
        rows += [self._row(who, what, sums, total) for (_, who, what), sums in details]
        return rows

    def _row(self, who: str, what: str, sums: list[float], total: float) -> dict[str, Any]:
        device = {"device_seconds": sums[2]} if self._on_gpu else {}
        row = {"who": who, "what": what, "calls": sums[0], "seconds": sums[1], **device}
        return row | {"fraction": sums[1] / total}


class ProfilerCB(Callback):
    """Record some training batches with torch.profiler, in a file `trace.json` for Perfetto.

    Args:
        steps: the first training batch to record, counted from 0, and the one to stop before.
        dir: the folder for the file.
        options: for `torch.profiler.profile`, such as record_shapes or with_stack.

    Attributes:
        profile: torch's object, for `profile.key_averages()`; None before the first fit.

    Raises:
        ValueError: `steps` are not two rising numbers.

    Events: before_fit, cleanup_batch, cleanup_fit
    Order:  ACCUMULATE
    Reads:  scratch, training
    Writes:
    """

    order = Order.ACCUMULATE
    in_probe = False

    def __init__(
        self, steps: tuple[int, int] = (10, 13), dir: str | Path = ".", **options: Any
    ) -> None:
        first, stop = steps
        if not 0 <= first < stop:
            raise ValueError(f"steps=(first, stop) are two rising numbers, got {steps!r}")
        self.steps, self.dir, self.options = steps, Path(dir), options
        self.profile: Any = None  # torch's, in a fit

    def before_fit(self, learn: Loop) -> None:
        """Start the profiler, which waits, and warms up for one batch."""
        first, stop = self.steps
        plan = torch.profiler.schedule(
            wait=max(first - 1, 0), warmup=min(first, 1), active=stop - first, repeat=1
        )
        path = (learn.scratch or self.dir) / "trace.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.profile = torch.profiler.profile(
            schedule=plan,
            on_trace_ready=lambda profile: profile.export_chrome_trace(str(path)),
            **self.options,
        )
        self.profile.start()
        self._runs = True

    def cleanup_batch(self, learn: Loop) -> None:
        """Count the batch."""
        if learn.training and self._runs:
            self.profile.step()

    def cleanup_fit(self, learn: Loop) -> None:
        """Stop, and write what there is of a fit that was shorter."""
        if self.profile is not None and self._runs:
            self._runs = False
            self.profile.stop()
