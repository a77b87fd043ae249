"""Where the time of a fit goes: TimerCB, ProfilerCB."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ..core.callback import Callback, owner_name
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

    The column `data_s` of the history has the seconds that each training epoch waited for data.
    Without it the loop measures nothing. On a GPU, CUDA events time the work, too; they are read
    once in 512 measurements.

    Args:
        hint: warn if more than this fraction of the training waits for data.

    Events: before_fit, before_epoch, before_batch, cleanup_batch, after_epoch, cleanup_fit
    Order:  ACCUMULATE
    Reads:  training, row
    Writes: row
    Syncs: on a GPU, once in 512 measurements
    """

    order = Order.ACCUMULATE  # a batch begins before the other handlers, and ends after them
    in_probe = False

    def __init__(self, hint: float = 0.5) -> None:
        self.hint = hint

    def before_fit(self, learn: Loop) -> None:
        """Start the clock."""
        self._sums: dict[tuple[str, str, str], list[float]] = {}  # calls, seconds, device seconds
        self._unread: list[tuple[list[float], Any, Any]] = []  # sums, CUDA events before and after
        self._waited = self._worked = 0.0
        self._on_gpu = torch.cuda.is_available()
        self._start = self._mark = perf_counter()  # the mark: when the last handler ended
        learn.wrap_handlers(self._timed)

    def before_epoch(self, learn: Loop) -> None:
        """From here on, or from the last handler on, the loader works."""
        self._mark, self._waited_before = perf_counter(), self._waited

    def before_batch(self, learn: Loop) -> None:
        """Measure how long the data took."""
        self._began = perf_counter()
        self._add("data", "loader", "next batch", self._began - self._mark)
        self._waited += (self._began - self._mark) * learn.training

    def cleanup_batch(self, learn: Loop) -> None:
        """Measure how long the batch took."""
        self._mark = perf_counter()
        self._worked += (self._mark - self._began) * learn.training

    def after_epoch(self, learn: Loop) -> None:
        """Put the wait for data into the row of the history."""
        if learn.training:
            learn.row = {**learn.row, "data_s": self._waited - self._waited_before}

    def cleanup_fit(self, learn: Loop) -> None:
        """Make the table, and warn if the data take most of the time."""
        self._read_device()
        vars(learn)["_timings"] = self._rows(perf_counter() - self._start)
        fraction = self._waited / max(self._waited + self._worked, 1e-9)
        if fraction > self.hint:
            warnings.warn(
                f"{fraction:.0%} of a step waits for data: raise num_workers or cache", stacklevel=2
            )

    def _timed(self, name: str, f: Callable) -> Callable:
        if (owner := getattr(f, "__self__", None)) is self:
            return f
        kind, who = "model" if name in ACTIONS else "callbacks", owner_name(f)

        @wraps(f, updated=())
        def run(*args: Any) -> Any:
            start, event = perf_counter(), self._device_event()
            try:
                return f(*args)
            finally:
                end = perf_counter()
                self._add(kind, who, name, end - start, event)
                if name != "before_batch":  # one in a lower slot is no end of the wait for data
                    self._mark = end

        vars(run)["__self__"] = owner  # whom notes on errors name
        return run

    def _add(self, kind: str, who: str, what: str, seconds: float, event: Any = None) -> None:
        sums = self._sums.setdefault((kind, who, what), [0, 0.0, 0.0])
        sums[0] += 1
        sums[1] += seconds
        if event is not None:
            self._unread.append((sums, event, self._device_event()))
            if len(self._unread) >= 512:
                self._read_device()

    def _device_event(self) -> Any:
        if not self._on_gpu:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read_device(self) -> None:
        if self._unread:
            self._unread[-1][2].synchronize()
        for sums, begin, end in self._unread:
            sums[2] += begin.elapsed_time(end) / 1000
        self._unread = []

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
