"""Schedulers for a fit: torch's own, with their lengths filled in; two more curves; previews.

A *factory* is called with an optimizer and returns a scheduler, as
`partial(lr_scheduler.CosineAnnealingLR, eta_min=1e-5)` does.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler

from ..base.plotting import new_axes, quiet
from ..base.seed import preserved_random_states

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Factory = Callable[..., Any]

FILLED = ("total_steps", "T_max", "total_iters", "t_initial", "epochs", "steps_per_epoch")
"""The parameters of a factory that are lengths: those not given are filled in from the fit."""
MOST_TRIED = 20_000  # steps; to try them takes a fraction of a second


@dataclass(frozen=True)
class Lengths:
    """How long a fit is; what is unknown is None.

    Attributes:
        updates: updates in all.
        epochs: passes over the training data.
        per_epoch: updates in one epoch.
        unit: how often the schedule steps: once an "update", "epoch" or "round".
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
        per_epoch = self.per_epoch if self.unit == "update" else 1
        return {"epochs": self.epochs, "steps_per_epoch": per_epoch}.get(name, self.total)


def build(factory: Factory, opt: Optimizer, lengths: Lengths) -> Any:
    """Make a scheduler for `opt`, and fill in the lengths that the factory asks for.

    Raises:
        ValueError: the factory needs a length that is unknown.
    """
    if hasattr(factory, "build"):  # a warm-up fills in the lengths of the schedule inside it
        return factory.build(opt, lengths)
    filled = {name: lengths.value(name) for name in asked_lengths(factory)}
    unknown = [name for name, value in filled.items() if value is None]
    if unknown:
        raise ValueError(
            f"{factory_name(factory)} needs {', '.join(unknown)}, and the length of this fit is "
            f"unknown: its loader has none. Give fit n_steps=…, or the schedule {unknown[0]}=…"
        )
    sched = factory(opt, **filled)
    return TimmScheduler(sched) if hasattr(sched, "step_update") else sched


def asked_lengths(factory: Factory) -> list[str]:
    """Return the parameters of `factory` that are lengths and were not given."""
    if hasattr(factory, "build"):
        return asked_lengths(factory.sched)
    try:
        params = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # it has no signature
        return []
    given = set(FILLED) & set(getattr(factory, "keywords", {}))
    # torch gives total_iters a default of 5 iterations, which is nobody's choice
    is_torchs = str(getattr(factory, "func", factory).__module__).startswith("torch.")
    asked = [
        name
        for name in FILLED
        if name in params
        and name not in given
        and (is_torchs or params[name].default in (inspect.Parameter.empty, None))
    ]
    if "total_steps" in params:  # OneCycleLR takes either total_steps or epochs * steps_per_epoch
        product = ("epochs", "steps_per_epoch")
        dropped = ("total_steps",) if given & set(product) else product
        asked = [name for name in asked if name not in dropped]
    return asked


def check_factory(factory: Any) -> None:
    """Raise where somebody gives a scheduler: it belongs to one optimizer, and a fit makes its own.

    Raises:
        TypeError: `factory` cannot be called.
    """
    if not callable(factory):
        name = type(factory).__name__
        raise TypeError(f"give a factory, partial(lr_scheduler.{name}, …), not a scheduler")


def is_factory(fn: Any) -> bool:
    """Return whether a function makes a scheduler: the first that it takes is the optimizer."""
    try:
        return next(iter(inspect.signature(fn).parameters), "") in ("opt", "optimizer")
    except (TypeError, ValueError):  # it has no signature
        return False


def factory_name(factory: Factory) -> str:
    """Return the name of the class or function inside a factory."""
    inner = getattr(factory, "func", factory)
    return getattr(inner, "__name__", type(inner).__name__)


def set_lr(group: dict[str, Any], lr: float) -> None:
    """Set the rate of a parameter group; a rate that is a tensor (in a CUDA graph) is filled."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


class TimmScheduler:
    """Steps a schedule of timm as torch's are stepped.

    One step is one unit of its time, whatever its `t_in_epochs` says: an update in a
    `BatchSchedCB`, an epoch in an `EpochSchedCB`.

    Args:
        sched: has `step(t)` and `step_update(t)`, of which the one that it listens to is called.
    """

    def __init__(self, sched: Any) -> None:
        self.sched, self.optimizer, self.t = sched, sched.optimizer, 0
        self._update(0)  # timm's own script does so before the first epoch

    def step(self, *metric: Any) -> None:
        """Go on by one unit."""
        self.t += 1
        self._update(self.t, *metric)

    def state_dict(self) -> dict[str, Any]:
        """Return the time; all else follows from it."""
        return {"t": self.t}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a time."""
        self.t = state["t"]
        self._update(self.t)

    def _update(self, t: int, *metric: Any) -> None:
        (self.sched.step if self.sched.t_in_epochs else self.sched.step_update)(t, *metric)


class DummyOptimizer(Optimizer):
    """An optimizer to try schedules on: it has the options of another one, and no weights."""

    def __init__(self, like: Optimizer) -> None:
        groups = [
            {name: value for name, value in group.items() if name != "params"}
            | {"params": [torch.zeros(1)], "lr": float(group["lr"])}
            for group in like.param_groups
        ]
        super().__init__(groups, dict(like.defaults))

    def step(self, closure: Any = None) -> None:
        """Do nothing; schedulers want it called before their own steps."""

    def lrs(self) -> list[float]:
        """Return the learning rate of each group."""
        return [group["lr"] for group in self.param_groups]


def one_cycle(
    opt: Optimizer,
    total_steps: int,
    max_lr: float | Sequence[float] | None = None,
    pct_start: float = 0.3,
    **kwargs: Any,
) -> lr_scheduler.OneCycleLR:
    """Make torch's OneCycleLR; groups keep the ratio of their rates, plain SGD gets no momentum.

    Args:
        opt: the optimizer; its momentum (beta 1) runs against the learning rate where it has some.
        total_steps: updates in all.
        max_lr: highest rate of the group with the largest one, or one for each group; by default
            the group's own rates.
        pct_start: the fraction of updates in which the rate rises.
        kwargs: passed to OneCycleLR.

    Source: Smith & Topin 2017, "Super-Convergence" (arXiv:1708.07120).
    """
    if not isinstance(max_lr, Sequence):
        lrs = [float(group["lr"]) for group in opt.param_groups]
        scale = 1.0 if max_lr in (None, max(lrs)) else max_lr / max(lrs)
        max_lr = [lr * scale for lr in lrs]
    has_momentum = all(group.get("momentum") or "betas" in group for group in opt.param_groups)
    kwargs.setdefault("cycle_momentum", has_momentum)
    if math.isclose(pct_start * total_steps, 1):  # torch divides by zero where one update rises
        pct_start *= 1 + 1e-6
    return lr_scheduler.OneCycleLR(opt, list(max_lr), total_steps, pct_start=pct_start, **kwargs)


def flat_cos(
    opt: Optimizer, total_steps: int, pct_start: float = 0.75, div_final: float = 1e5
) -> lr_scheduler.LambdaLR:
    """Make a schedule that keeps the rate, then lowers it along a cosine to `1 / div_final` of it.

    >>> lrs = sched_lrs(partial(flat_cos, total_steps=8), 8)
    >>> [round(lr, 2) for lr in lrs]
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]

    Args:
        opt: the optimizer.
        total_steps: updates in all.
        pct_start: the fraction of them with the full rate.
        div_final: the rate ends at its start divided by this.

    Source: fastai, `Learner.fit_flat_cos`.
    """
    end = 1 / div_final

    def factor(step: int) -> float:
        done = min(step / total_steps, 1.0)
        if done <= pct_start:
            return 1.0
        along = (done - pct_start) / (1 - pct_start)
        return end + (1 - end) * (1 + math.cos(math.pi * along)) / 2

    return lr_scheduler.LambdaLR(opt, factor)


def constant(opt: Optimizer) -> lr_scheduler.LambdaLR:
    """Make a schedule that keeps the rates as they are, for a warm-up alone.

    >>> learn.fit(1, cbs=BatchSchedCB(warmup(constant, 3)))
    """
    return lr_scheduler.LambdaLR(opt, lambda step: 1.0)


def sched_lrs(
    sched: Factory,
    n: int,
    lr: float = 1.0,
    *,
    opt: Optimizer | None = None,
    steps_per_epoch: int | None = None,
) -> list[float]:
    """Return the learning rates of the first group at steps 0 to n - 1, without any training.

    >>> sched_lrs(partial(lr_scheduler.StepLR, step_size=2), 4)
    [1.0, 1.0, 0.1, 0.1]

    Args:
        sched: a factory, as `BatchSchedCB` takes; lengths that it was not given are `n`.
        n: the number of steps.
        lr: the optimizer's learning rate.
        opt: an optimizer whose groups are copied; it is not touched.
        steps_per_epoch: for factories that count in epochs.

    Raises:
        TypeError: `sched` is a scheduler; running it would move it.
    """
    check_factory(sched)
    like = torch.optim.SGD([torch.zeros(1)], lr, momentum=0.9) if opt is None else opt
    epochs = None if steps_per_epoch is None else math.ceil(n / steps_per_epoch)
    lengths = Lengths(n, epochs, steps_per_epoch)
    return [lrs[0] for lrs in group_lrs(partial(build, sched, lengths=lengths), like, n)]


def group_lrs(make: Factory, opt: Optimizer, n: int) -> list[list[float]]:
    """Return the rates of all groups at steps 0 to n - 1; `opt` itself is not touched."""
    dummy = DummyOptimizer(opt)
    sched = make(dummy)
    lrs = [dummy.lrs()]
    for _ in range(n - 1):
        dummy.step()
        sched.step()
        lrs.append(dummy.lrs())
    return lrs


def check_length(factory: Factory, opt: Optimizer, lengths: Lengths, done: int, state: Any) -> None:
    """Step a schedule on a dummy optimizer, as often as the fit will.

    Only the steps can show that a schedule ends too early, wherever in it the cause may be.

    Args:
        factory: makes the schedule.
        opt: the optimizer of the fit.
        lengths: of the fit. Where the number of steps is unknown, or very large, nothing is tried.
        done: the steps that a resumed schedule made before.
        state: its state, None for a new schedule.

    Raises:
        ValueError: it cannot be stepped so often.
    """
    total = lengths.total
    if total is None or total > MOST_TRIED:
        return
    with preserved_random_states(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the schedule of the fit itself will give them
        step = 0
        try:
            sched = build(factory, dummy := DummyOptimizer(opt), lengths)
            if state is not None:
                sched.load_state_dict(copy.deepcopy(state))
            step = done
            while step < total:
                dummy.step()
                sched.step()
                step += 1
        except Exception as e:
            if step == 0:  # it may need a gradient or a metric
                return
            raise ValueError(
                f"{factory_name(factory)} cannot make {total} steps, one for each {lengths.unit} "
                f"of this fit: {str(e) or type(e).__name__}. Make it as long, or leave out "
                "its length (total_steps=…), and it is taken from the fit."
            ) from e


def plot_sched(
    sched: Factory, n: int, lr: float = 1.0, *, ax: Axes | None = None, **kwargs: Any
) -> Axes:
    """Plot the learning rate of each of `n` steps, without any training.

    >>> plot_sched(partial(lr_scheduler.CosineAnnealingLR, T_max=100), 100)

    Args:
        sched: a factory, as `BatchSchedCB` takes.
        n: the number of steps.
        lr: the optimizer's learning rate.
        ax: where to plot; a new figure when it is not given.
        kwargs: `opt` and `steps_per_epoch` of `sched_lrs`.
    """
    ax = ax or new_axes((6.5, 3.5))
    ax.plot(sched_lrs(sched, n, lr, **kwargs))
    ax.set(title=factory_name(sched), xlabel="step", ylabel="learning rate")
    return quiet(ax)
