"""Where the time of a fit goes: TimerCB."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any

from ..core.callback import Callback, owner_name
from ..core.events import ACTIONS, Order
from ..core.history import History
from ..core.learner import Loop


def timings_of(learn: Loop) -> History:
    """Return where the last fit with a `TimerCB` spent its time, a row for each who and what.

    Columns: `who` (a callback, the owner of an action, "loader"), `what` (an event, an action,
    "next batch"), `calls`, `seconds`, and `fraction` of the fit. The first rows sum up "model" (the
    five actions), "callbacks", "data", and the rest, "loop".

    Raises:
        AttributeError: there was no TimerCB.
    """
    if (found := vars(learn).get("_timings")) is None:
        raise AttributeError("nothing was timed: fit(..., cbs=TimerCB()) first")
    return found


class TimerCB(Callback):
    """Time every handler, every action and the wait for data; `learn.timings` shows the table.

    The column `data_s` of the history has the seconds that each training epoch waited for data.
    Without it the loop measures nothing. The times are those of Python: a GPU works on while they
    stop, and whatever waits for it takes long. See `torch.profiler` for the times of kernels.

    >>> learn.fit(1, cbs=TimerCB())
    >>> learn.timings

    Args:
        hint: warn if more than this fraction of the training waits for data.

    Events: before_fit, before_epoch, before_batch, cleanup_batch, after_epoch, cleanup_fit
    Order:  ACCUMULATE
    Reads:  training, row
    Writes: row
    """

    order = Order.ACCUMULATE  # a batch begins before the other handlers, and ends after them
    in_probe = False

    def __init__(self, hint: float = 0.5) -> None:
        self.hint = hint

    def before_fit(self, learn: Loop) -> None:
        """Start the clock."""
        self._sums: dict[tuple[str, str, str], list[float]] = {}  # calls, seconds
        self._waited = self._worked = 0.0
        self._start = self._mark = perf_counter()  # the mark: when the last handler ended
        learn.wrap_handlers(self._timed)

    def before_epoch(self, learn: Loop) -> None:
        """Begin to measure the wait for data: from here, or from the last handler on."""
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
            start = perf_counter()
            try:
                return f(*args)
            finally:
                end = perf_counter()
                self._add(kind, who, name, end - start)
                if name != "before_batch":  # one in a lower slot is no end of the wait for data
                    self._mark = end

        vars(run)["__self__"] = owner  # whom notes on errors name
        return run

    def _add(self, kind: str, who: str, what: str, seconds: float) -> None:
        sums = self._sums.setdefault((kind, who, what), [0, 0.0])
        sums[0] += 1
        sums[1] += seconds

    def _rows(self, total: float) -> History:
        kinds = {(kind, "all"): [0, 0.0] for kind in ("model", "callbacks", "data")}
        for (kind, _, _), (calls, seconds) in self._sums.items():
            kinds[kind, "all"][0] += calls
            kinds[kind, "all"][1] += seconds
        kinds["loop", "all"] = [1, total - sum(seconds for _, seconds in kinds.values())]
        details = sorted(self._sums.items(), key=lambda item: -item[1][1])
        found = [*kinds.items(), *((key[1:], sums) for key, sums in details)]
        return History(
            {"who": who, "what": what, "calls": n, "seconds": s, "fraction": s / total}
            for (who, what), (n, s) in found
        )
