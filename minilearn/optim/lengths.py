"""How long a fit is, for schedules; and whether a schedule is as long."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.optim import lr_scheduler


@dataclass(frozen=True)
class Lengths:
    """How long a fit is; what is unknown is None.

    Attributes:
        updates: updates in all.
        epochs: passes over the training data.
        per_epoch: updates in one epoch.
        unit: what one step of the schedule stands for: "update", "epoch" or "round".
    """

    updates: int | None = None
    epochs: int | None = None
    per_epoch: int | None = None
    unit: str = "update"

    @property
    def total(self) -> int | None:
        """The steps that the schedule will make."""
        return {"update": self.updates, "epoch": self.epochs}.get(self.unit)

    def value(self, name: str) -> int | None:
        """Return the length that a factory's parameter asks for."""
        if name == "epochs":
            return self.epochs
        if name == "steps_per_epoch":
            return self.per_epoch if self.unit == "update" else 1
        return self.total


def check_fits(sched: Any, lengths: Lengths) -> None:
    """Compare the length of a schedule with that of the fit.

    Raises:
        ValueError: it is, or has in it, a OneCycleLR that is too short: torch would end the fit in
            its middle.
    """
    sched, total = getattr(sched, "main", sched), lengths.total
    if total is None:
        return
    for cycle, steps in _one_cycles(sched, total):
        if cycle.total_steps < steps:
            own = "" if steps == total else f", {steps} of them with it"
            advice = _advice("total_steps") if cycle is sched else f"Give it total_steps={steps}"
            text = _unlike(cycle, "total_steps", lengths)
            raise ValueError(f"{text}{own}: the schedule would end first. {advice}.")
    found = [name for name in ("total_steps", "T_max") if hasattr(sched, name)]
    if isinstance(sched, lr_scheduler.PolynomialLR):
        found.append("total_iters")
    length: Any = found and getattr(sched, found[0])
    if length and length != total:
        what = "will not reach its end" if length > total else _after_end(sched)
        text = _unlike(sched, found[0], lengths)
        warnings.warn(f"{text}: the schedule {what}. {_advice(found[0])}.", stacklevel=2)


def _one_cycles(sched: Any, steps: int) -> Iterator[tuple[lr_scheduler.OneCycleLR, int]]:
    """Yield each OneCycleLR in a schedule of so many steps, and how many of them are its own."""
    if isinstance(sched, lr_scheduler.OneCycleLR):
        yield sched, steps
    # torch shows the parts of these nowhere else; where a version lacks them, a cycle in them that
    # is too short ends the fit itself, as in a loop by hand
    parts = getattr(sched, "_schedulers", ())
    if isinstance(sched, lr_scheduler.ChainedScheduler):
        for part in parts:
            yield from _one_cycles(part, steps)
    elif isinstance(sched, lr_scheduler.SequentialLR):
        begins = [0, *getattr(sched, "_milestones", ()), steps]
        if len(begins) == len(parts) + 1:
            for part, begin, end in zip(parts, begins, begins[1:], strict=True):
                yield from _one_cycles(part, min(end, steps) - begin)


def _unlike(sched: Any, name: str, lengths: Lengths) -> str:
    has = f"{type(sched).__name__} has {name}={getattr(sched, name)}"
    return f"{has}, and this fit makes {lengths.total} {lengths.unit}s"


def _advice(name: str) -> str:
    return f"Leave out {name} and it is taken from the fit"


def _after_end(sched: Any) -> str:
    rises = isinstance(sched, lr_scheduler.CosineAnnealingLR)
    return "rises again after its end" if rises else "stays at its last value after its end"
