"""Schedules in a fit: torch's schedulers per update, per epoch and on a plateau.

A schedule moves after the recorder has seen the rate that an update used, and before checkpoints
are saved.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from torch.optim import Optimizer, lr_scheduler

from ..base.text import differences
from ..callbacks.monitor import Monitor
from ..core.callback import Callback
from ..core.events import CancelEpochException, CancelRoundException, Order
from ..core.learner import Loop
from .schedulers import (
    Factory,
    Lengths,
    asked_lengths,
    build,
    check_factory,
    check_length,
    factory_name,
    set_lr,
)
from .warmup import WarmupLR

RATES = ("lr", "initial_lr", "max_lr", "min_lr")


def fit_lengths(learn: Loop, unit: str) -> Lengths:
    """Return how long the fit is, for a schedule that steps once a `unit`."""
    updates, epochs, per_epoch = learn.n_steps, learn.n_epochs, learn.n_batches
    if per_epoch is not None:
        per_epoch = math.ceil(per_epoch / learn.plan.batches_per_step)
        if epochs is None and updates is not None:
            epochs = math.ceil(updates / per_epoch)
    return Lengths(updates, epochs, per_epoch, unit)


class BaseSchedCB(Callback):
    """Make a scheduler for the fit's optimizer; subclasses say when it steps, with `_step(learn)`.

    Lengths that the factory asks for and that were not given (`total_steps`, `T_max`,
    `total_iters`, `epochs`, `steps_per_epoch`) are taken from the fit. If a loader has more batches
    than its length says, the schedule keeps its last value, with a warning.

    Args:
        sched: a factory, `partial(lr_scheduler.OneCycleLR, max_lr=0.1)` say. It is called with the
            optimizer; before that with a copy of its options, to see how long the schedule is.

    Attributes:
        schedo: the scheduler of the running or the last fit.

    Raises:
        TypeError: `sched` is a scheduler instead of a factory, or the optimizer is not torch's.
        ValueError: before the first update: a length is unknown, or the schedule ends too early.

    Events: before_fit, before_epoch, after_step, cleanup_fit
    Order:  SCHEDULE
    Reads:  training, opt, n_steps, n_epochs, n_batches, plan
    Writes:
    """

    order = Order.SCHEDULE
    unit: ClassVar[str] = "update"

    def __init__(self, sched: Factory) -> None:
        check_factory(sched)
        self.sched = sched
        self.schedo: Any = None
        self.steps = 0  # how often the scheduler was, or would have been, stepped
        self._running = False
        self._limit: int | None = None
        self._state: Any = None  # loaded, and not used yet

    def before_fit(self, learn: Loop) -> None:
        """Forget the last fit's scheduler; the new one waits for a training epoch."""
        self.schedo, self.steps, self._running = None, 0, False

    def before_epoch(self, learn: Loop) -> None:
        """Make the scheduler, before the first training epoch or to go on with a state."""
        if (learn.training or self._state is not None) and not self._running:
            self._make(learn)

    def after_step(self, learn: Loop) -> None:
        """Let a warm-up that counts updates move on."""
        if isinstance(self.schedo, WarmupLR):
            self.schedo.tick()

    def cleanup_fit(self, learn: Loop) -> None:
        """Note the rates that a next schedule on this optimizer starts from."""
        if self._running:
            for group, lr in zip(self._opt.param_groups, self._base, strict=False):
                group["initial_lr"] = lr
        self._running = False

    def _make(self, learn: Loop) -> None:
        self._opt = opt = learn.opt
        lengths = fit_lengths(learn, self.unit)
        if not isinstance(opt, Optimizer):
            raise TypeError(
                f"{self!r} needs a torch.optim.Optimizer, and this fit has {type(opt).__name__}: "
                "derive it from that class, or leave the schedule out"
            )
        # an earlier fit's schedule has left them at its end; a resumed one began with what it saved
        rates = [group.get("initial_lr", group["lr"]) for group in opt.param_groups]
        if self._state is not None:
            asked = [options["lr"] for options in learn.plan.options or ()]
            rates = self._state["base"] if learn.plan.lr is None else asked
        for group, rate in zip(opt.param_groups, rates, strict=False):
            set_lr(group, rate)
        self._base = [float(group["lr"]) for group in opt.param_groups]
        done, saved = (self._state[k] for k in ("steps", "schedule")) if self._state else (0, None)
        check_length(self.sched, opt, lengths, done, saved)  # first: the last one made is the fit's
        self.schedo = build(self.sched, opt, lengths)
        self._running, self._stepped = True, False
        main = getattr(self.schedo, "main", self.schedo)
        own = getattr(main, "total_steps", None)
        self._limit = lengths.total if asked_lengths(self.sched) else own
        if self._state is not None:
            self._restore(keep_rates=learn.plan.lr is not None)
        if isinstance(main, lr_scheduler.ReduceLROnPlateau) and self.unit != "round":
            raise TypeError(
                "ReduceLROnPlateau needs a value to watch: use PlateauCB('valid_loss', patience=…)"
            )

    def _step(self, learn: Loop) -> None:
        """Move the schedule on by one step, if this is a training epoch."""
        if learn.training:
            self._advance()

    def _advance(self, *args: Any) -> None:
        self.steps += 1
        if self._limit is not None and self.steps > self._limit:
            if self.steps == self._limit + 1:
                warnings.warn(
                    f"the schedule has {self._limit} steps and the loader more batches than its "
                    "length says: the learning rate stays at its last value. Give fit n_steps=…",
                    stacklevel=2,
                )
        elif self._stepped:
            self.schedo.step(*args)
        else:
            self._stepped = True
            with warnings.catch_warnings():
                # no update before it: the epoch was cancelled, or all of it was done at a resume
                warnings.filterwarnings("ignore", message=".*lr_scheduler.step")
                self.schedo.step(*args)

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state, and the options that it may have set."""
        if self.schedo is None:
            return {}
        names = (*RATES, "momentum", "betas", "max_momentum", "base_momentum")
        groups = [{k: g[k] for k in names if k in g} for g in self._opt.param_groups]
        kind = type(getattr(self.schedo, "main", self.schedo)).__name__
        state = {"kind": kind, "steps": self.steps, "base": self._base, "groups": groups}
        return state | {"schedule": state_of(self.schedo)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned: now, or when the next fit makes its scheduler."""
        self._state = state or None
        if self._state is not None and self._running:
            self._restore()

    def _restore(self, keep_rates: bool = False) -> None:
        state, self._state = self._state, None
        fresh, saved = state_of(self.schedo), state["schedule"]
        self.differences = schedule_differences(
            self.schedo, fresh, saved, asked_lengths(self.sched)
        )
        kind = type(getattr(self.schedo, "main", self.schedo)).__name__
        self.differences += differences(state, {"kind": kind}, "schedule")
        factors = [1.0] * len(state["base"])
        if keep_rates:  # fit(lr=...) of this call wins
            bases = zip(_bases(fresh, self._base), _bases(saved, state["base"]), strict=False)
            factors = [new / old if old else 1.0 for new, old in bases]
        self.steps = state["steps"]
        self._base = [rate * f for rate, f in zip(state["base"], factors, strict=False)]
        getattr(self.schedo, "load_state_dict", vars(self.schedo).update)(_scaled(saved, factors))
        if not hasattr(self.schedo, "state_dict"):
            self.differences += [f"{kind} has no state_dict: it goes on with its numbers alone"]
        groups = zip(self._opt.param_groups, state["groups"], factors, strict=False)
        for group, options, factor in groups:
            if not keep_rates:
                peaks = {name: group[name] for name in ("max_lr", "min_lr") if name in group}
                self.differences += differences(options, peaks)
            rates = {name: options[name] * factor for name in RATES if name in options}
            set_lr(group, rates["lr"])
            group.update(options | rates | {"lr": group["lr"]})

    def __repr__(self) -> str:
        """Show the factory."""
        return f"{type(self).__name__}({factory_name(self.sched)})"


def state_of(sched: Any) -> dict[str, Any]:
    """Return the state of a scheduler; of one without `state_dict` the numbers that it keeps."""
    if hasattr(sched, "state_dict"):
        return sched.state_dict()
    return {name: x for name, x in vars(sched).items() if isinstance(x, (int, float))}


def _bases(state: dict[str, Any], otherwise: list[float]) -> list[float]:
    return state.get("main", state).get("base_lrs", otherwise)


def _scaled(state: Any, factors: list[float]) -> Any:
    """Return the state of a schedule, and of its parts, with the rates scaled group by group."""
    if isinstance(state, list):
        return [_scaled(part, factors) for part in state]
    if type(state) is not dict:  # the milestones of a MultiStepLR are a Counter
        return state
    return {
        name: [rate * f for rate, f in zip(value, factors, strict=False)]
        if name in ("base_lrs", "_last_lr", "lrs")
        else _scaled(value, factors)
        for name, value in state.items()
    }


def schedule_differences(
    sched: Any, here: dict[str, Any], saved: dict[str, Any], asked: list[str]
) -> list[str]:
    """Return a line for each setting of a schedule that is not the one that was saved.

    Args:
        sched: the schedule.
        here: its state when it was made.
        saved: the state in the checkpoint.
        asked: names of lengths that come from the fit.
    """
    if "main" in here:
        return schedule_differences(sched.main, here["main"], saved["main"], asked)
    lines = []
    parts = (x.get("_schedulers", ()) for x in (vars(sched), here, saved))
    for part, own, theirs in zip(*parts, strict=False):
        lines += schedule_differences(part, own, theirs, asked)
    given = inspect.signature(type(sched).__init__).parameters.keys() - {"last_epoch", *asked}
    settings = {name: here[name] for name in here if name.lstrip("_") in given}
    return lines + differences(saved, settings, f"{type(sched).__name__} {{}}")


class BatchSchedCB(BaseSchedCB):
    """Step a schedule once an update; a batch that makes no update does not count.

    >>> sched = partial(lr_scheduler.CosineAnnealingLR, T_max=5 * len(dls.train))
    >>> learn.fit(5, cbs=BatchSchedCB(sched))

    Events: before_fit, before_epoch, after_step, cleanup_fit
    Order:  SCHEDULE
    Reads:  training, opt, n_steps, n_epochs, n_batches, plan
    Writes:
    """

    def after_step(self, learn: Loop) -> None:
        """Step the schedule."""
        self._step(learn)


class EpochSchedCB(BaseSchedCB):
    """Step a schedule once an epoch over the training data, also where that was cancelled.

    It follows `learn.epoch`, also where `valid_every` cuts the data into shorter epochs.

    >>> learn.fit(5, cbs=EpochSchedCB(partial(lr_scheduler.StepLR, step_size=2)))

    Events: before_fit, before_epoch, before_batch, after_step, cleanup_epoch, cleanup_fit
    Order:  SCHEDULE
    Reads:  training, opt, n_steps, n_epochs, n_batches, plan, epoch, error
    Writes:
    """

    unit = "epoch"

    def before_batch(self, learn: Loop) -> None:
        """Catch up, where a new pass over the data began without an event."""
        if learn.training and learn.epoch > self.steps:
            self._follow(learn.epoch)

    def cleanup_epoch(self, learn: Loop) -> None:
        """Step, unless an error or the end of the fit broke off the epoch."""
        counts = isinstance(learn.error, (type(None), CancelEpochException, CancelRoundException))
        if learn.training and self._running and counts and not learn.plan.cuts:
            self._follow(learn.epoch + 1)

    def _follow(self, epoch: int) -> None:
        while self.steps < epoch:
            self._advance()


class PlateauCB(BaseSchedCB):
    """Lower the learning rate when a column of the history stops getting better.

    It looks after each validation; a round without one does not count.

    >>> learn.fit(5, cbs=PlateauCB("valid_loss", factor=0.5, patience=1))

    Args:
        monitor: the column to watch, such as "valid_loss" or "accuracy".
        mode: "min" or "max"; "min" where the name ends in "loss".
        warmup: wraps the schedule, as `partial(warmup, n=500)` does.
        kwargs: those of torch's ReduceLROnPlateau: `factor`, `patience`, `threshold`, `min_lr`, ...

    Raises:
        KeyError: nobody provides such a column.

    Events: before_fit, before_epoch, after_step, after_round, cleanup_fit
    Order:  SCHEDULE
    Reads:  training, opt, n_steps, n_epochs, n_batches, plan, row, cbs, dls, loss_func
    Writes:
    """

    unit = "round"

    def __init__(
        self,
        monitor: str,
        mode: str | None = None,
        *,
        warmup: Callable[[Factory], Factory] | None = None,
        **kwargs: Any,
    ) -> None:
        self.monitor = Monitor(monitor, mode)
        sched = partial(lr_scheduler.ReduceLROnPlateau, mode=self.monitor.mode, **kwargs)
        super().__init__(sched if warmup is None else warmup(sched))

    def before_fit(self, learn: Loop) -> None:
        """Forget the best value of the last fit."""
        super().before_fit(learn)
        self.monitor.reset()
        self.monitor.check(learn)

    def after_round(self, learn: Loop) -> None:
        """Step with the value of this round's validation."""
        value = self.monitor.read(learn)
        if value is not None and self._running:
            self._advance(value)

    def __repr__(self) -> str:
        """Show what is watched."""
        return f"PlateauCB({self.monitor.name!r}, {self.monitor.mode!r})"
