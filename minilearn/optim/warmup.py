"""Warm-up around any schedule, per update, per epoch or on a plateau.

The schedule runs on a dummy optimizer from the first step on; the warm-up reads its rates there and
writes its own into the real one, so neither disturbs the other.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.optim import Optimizer

from .schedulers import DummyOptimizer, Factory, Lengths, build, group_lrs, set_lr

FORMS = ("auto", "factor", "fix")
UNITS = ("step", "epoch")


def warmup(
    sched: Factory, n: float, unit: str = "step", form: str = "auto", start: float = 0.0
) -> Warmup:
    """Wrap a factory of a schedule so that its rates rise slowly at first.

    With a = t / n at update t, `base` the optimizer's rate, `regular(t)` what the schedule gives:

    - "auto": base * start * (1 - a) + regular(n) * a, a line that meets the schedule at n;
    - "factor": regular(t) * (start * (1 - a) + a), which shows the schedule's own steps;
    - "fix": start * (1 - a) + base * a, a line to the base; where the schedule has left the base by
      then, the rate jumps at n.

    >>> sched_lrs(warmup(constant, 4), 6)
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]

    Args:
        sched: a factory, as `BatchSchedCB` takes; `constant` for a warm-up alone.
        n: the length of the warm-up, 0 for none.
        unit: "step" (updates) or "epoch".
        form: one of the three forms.
        start: the first rate with "fix", else the fraction of the rate to begin with.

    Raises:
        ValueError: an argument is out of range.

    Source: core-pytorch-utils, LRWarmupScheduler; "auto" is detectron2's, "factor" is mmcv's.
    """
    if form not in FORMS or unit not in UNITS:
        raise ValueError(f"form is one of {FORMS} and unit of {UNITS}; got {form!r} and {unit!r}")
    if n < 0 or start < 0:
        raise ValueError(f"n and start are 0 or more; got n={n} and start={start}")
    return Warmup(sched, n, unit, form, start)


@dataclass(frozen=True)
class Warmup:
    """A factory of warmed-up schedulers; `warmup` makes and documents it."""

    sched: Factory
    n: float
    unit: str
    form: str
    start: float

    def __call__(self, opt: Optimizer) -> Any:
        """Make the scheduler for a loop of your own, with every length given."""
        return self.build(opt, Lengths())

    def build(self, opt: Optimizer, lengths: Lengths) -> Any:
        """Make the scheduler, and fill in its lengths."""
        make = partial(build, self.sched, lengths=lengths)
        n = self._steps(lengths)
        if n == 0:
            return make(opt)
        by_update = lengths.unit == "round" or (lengths.unit == "epoch" and self.unit == "step")
        total = lengths.updates if by_update else lengths.total
        if total is not None and n > total:
            warnings.warn(f"the warm-up takes {n} steps, and the fit makes {total}", stacklevel=2)
        steps: int | None = n  # of the schedule, until the warm-up ends
        if by_update:
            per_epoch = lengths.per_epoch if lengths.unit == "epoch" else None
            steps = n // per_epoch if per_epoch else None
        end = None
        if self.form == "auto" and steps is not None:
            end = group_lrs(make, opt, min(steps, lengths.total or steps) + 1)[-1]
        return WarmupLR(opt, make, self, n, end, by_update)

    def _steps(self, lengths: Lengths) -> int:
        """Return the length: in epochs around a per-epoch schedule, else in updates."""
        if self.unit == "step" or lengths.unit == "epoch":
            return math.ceil(self.n)
        if lengths.per_epoch is None:
            raise ValueError(
                f"a warm-up of {self.n} epochs needs a loader with a length; give unit='step'"
            )
        return math.ceil(self.n * lengths.per_epoch)


class WarmupLR:
    """A scheduler that follows another one, and is below it for the first n steps.

    Args:
        opt: its rates are set.
        make: makes the schedule to follow, for a `DummyOptimizer` of the optimizer.
        settings: the form and the start of the warm-up.
        n: its length.
        end: the schedule's rates at n; None if they are unknown, and its present ones serve.
        by_update: `tick` moves the warm-up, once an update; `step` moves only the schedule.
    """

    def __init__(
        self, opt: Optimizer, make: Factory, settings: Warmup, n: int, end: Any, by_update: bool
    ) -> None:
        self.optimizer, self.settings, self.n, self.end = opt, settings, n, end
        self.by_update, self.t = by_update, 0
        self.dummy = DummyOptimizer(opt)
        self.main = make(self.dummy)
        self.base_lrs = [g.get("initial_lr", g["lr"]) for g in self.dummy.param_groups]
        self._apply()

    def step(self, *args: Any) -> None:
        """Move the schedule on by a step, and the warm-up with it; a plateau gives its metric."""
        self.dummy.step()
        self.main.step(*args)
        self.t += not self.by_update
        self._apply()

    def tick(self) -> None:
        """Move the warm-up on by an update, where the schedule moves less often."""
        if self.by_update and self.t < self.n:
            self.t += 1
            self._apply()

    def get_last_lr(self) -> list[float]:
        """Return the learning rate of each group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    @property
    def last_epoch(self) -> int:
        """The steps that the schedule has made."""
        return self.main.last_epoch

    def _lrs(self) -> list[float]:
        regular = self.dummy.lrs()
        if self.t >= self.n:
            return regular
        a, start = self.t / self.n, self.settings.start
        if self.settings.form == "factor":
            return [lr * (start * (1 - a) + a) for lr in regular]
        if self.settings.form == "fix":
            return [start * (1 - a) + base * a for base in self.base_lrs]
        ends = zip(self.base_lrs, self.end or regular, strict=False)
        return [base * start * (1 - a) + end * a for base, end in ends]

    def _apply(self) -> None:
        groups = zip(self.optimizer.param_groups, self.dummy.param_groups, strict=False)
        for (group, dummy), lr in zip(groups, self._lrs(), strict=False):  # groups may be added
            set_lr(group, lr)
            if getattr(self.main, "cycle_momentum", False):
                group.update({k: dummy[k] for k in ("momentum", "betas") if k in dummy})

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, the schedule's state and its rates."""
        return {"t": self.t, "main": self.main.state_dict(), "lrs": self.dummy.lrs()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.t = state["t"]
        self.main.load_state_dict(state["main"])
        for group, lr in zip(self.dummy.param_groups, state["lrs"], strict=False):
            group["lr"] = lr
        self._apply()
