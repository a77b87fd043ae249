"""Schedules of timm in a fit: they are told the time, where torch's count it themselves."""

from __future__ import annotations

from typing import Any


class Told:
    """A schedule of timm that is stepped as torch's are.

    One step is one unit of its time, whatever its `t_in_epochs` says: an update in a
    `BatchSchedCB`, an epoch in an `EpochSchedCB`.

    Args:
        sched: has `step(t)` and `step_update(t)`, of which the one that it listens to is called.
    """

    def __init__(self, sched: Any) -> None:
        self.sched, self.optimizer, self.t = sched, sched.optimizer, 0
        self._tell(0)  # timm's own script does so before the first epoch

    def step(self, *metric: Any) -> None:
        """Go on by one unit."""
        self.t += 1
        self._tell(self.t, *metric)

    def state_dict(self) -> dict[str, Any]:
        """Return the time; all else follows from it."""
        return {"t": self.t}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a time."""
        self.t = state["t"]
        self._tell(self.t)

    def _tell(self, t: int, *metric: Any) -> None:
        (self.sched.step if self.sched.t_in_epochs else self.sched.step_update)(t, *metric)
