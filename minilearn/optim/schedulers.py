"""Schedulers for a fit: torch's own, their lengths filled in; two more curves; previews.

A *factory* is called with an optimizer and returns a scheduler, as
`partial(lr_scheduler.CosineAnnealingLR, eta_min=1e-5)` does.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer, lr_scheduler

from .lengths import Lengths, check_fits
from .timm_schedules import Told

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Factory = Callable[..., Any]

FILLED = ("total_steps", "T_max", "total_iters", "t_initial", "epochs", "steps_per_epoch")
"""The parameters of a factory that tell a length: those not given are filled in from the fit."""


def build(factory: Factory, opt: Optimizer, lengths: Lengths) -> Any:
    """Make a scheduler for `opt`, and fill in the lengths that the factory asks for.

    Raises:
        ValueError: the factory needs a length that is unknown, or the schedule is shorter than the
            fit and would end it with an error.
    """
    if hasattr(factory, "build"):  # a warm-up fills in what stands inside it
        return factory.build(opt, lengths)
    filled = {name: lengths.value(name) for name in asked_lengths(factory)}
    unknown = [name for name, value in filled.items() if value is None]
    if unknown:
        raise ValueError(
            f"{factory_name(factory)} needs {', '.join(unknown)}, and the length of this fit is "
            f"unknown because its loader has none. Give fit n_steps=…, or the schedule "
            f"{unknown[0]}=…"
        )
    sched = factory(opt, **filled)
    if hasattr(sched, "step_update"):
        return Told(sched)
    check_fits(sched, lengths)
    return sched


def asked_lengths(factory: Factory) -> list[str]:
    """Return the parameters of `factory` that tell a length and were left open."""
    if hasattr(factory, "build"):
        return asked_lengths(factory.sched)
    try:
        params = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # no signature to be had
        return []
    given = set(FILLED) & set(getattr(factory, "keywords", {}))
    # torch gives total_iters a default of 5 iterations, which is nobody's choice
    torchs = getattr(factory, "func", factory).__module__.startswith("torch.")
    asked = [
        name
        for name in FILLED
        if name in params
        and name not in given
        and (params[name].default in (params[name].empty, None) or torchs)
    ]
    if "total_steps" in params:  # OneCycleLR takes either total_steps or epochs * steps_per_epoch
        product = ("epochs", "steps_per_epoch")
        dropped = ("total_steps",) if given & set(product) else product
        asked = [name for name in asked if name not in dropped]
    return asked


def factory_name(factory: Factory) -> str:
    """Return what a factory is called: the class or function inside partials."""
    inner = getattr(factory, "func", factory)
    return getattr(inner, "__name__", type(inner).__name__)


class Shadow(Optimizer):
    """An optimizer to run schedules on: the fields of another one's groups, and no weights."""

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
    """Make torch's OneCycleLR; groups keep the ratio of their rates, plain SGD stays plain.

    Args:
        opt: the optimizer; its momentum (beta 1) runs against the learning rate where it has some.
        total_steps: updates in all.
        max_lr: highest rate of the group with the largest one, or one for each group; by default
            the group's own rates.
        pct_start: the share of updates in which the rate rises.
        kwargs: those of OneCycleLR.

    Source: Smith & Topin 2017, "Super-Convergence" (arXiv:1708.07120).
    """
    if not isinstance(max_lr, Sequence):
        lrs = [float(group["lr"]) for group in opt.param_groups]
        scale = 1.0 if max_lr is None else max_lr / max(lrs)
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

    Args:
        opt: the optimizer.
        total_steps: updates in all.
        pct_start: the share of them with the full rate.
        div_final: what the rate is divided by at the end.

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
    """Make a schedule that keeps the rates as they are: something for a warm-up to lead to."""
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

    Args:
        sched: a factory, as `BatchSchedCB` takes; lengths left open are filled in with `n`.
        n: the number of steps.
        lr: the optimizer's learning rate.
        opt: an optimizer whose groups are taken as a model; it is not touched.
        steps_per_epoch: for factories that count in epochs.

    Raises:
        TypeError: `sched` is a scheduler already, which could not be run without moving it.
    """
    if not callable(sched):
        raise TypeError(
            f"give a factory, such as partial({type(sched).__name__}, …), not a scheduler: "
            "a preview must not move one that is in use"
        )
    like = torch.optim.SGD([torch.zeros(1)], lr, momentum=0.9) if opt is None else opt
    epochs = None if steps_per_epoch is None else math.ceil(n / steps_per_epoch)
    lengths = Lengths(n, epochs, steps_per_epoch)
    return [lrs[0] for lrs in shadow_lrs(partial(build, sched, lengths=lengths), like, n)]


def shadow_lrs(make: Factory, opt: Optimizer, n: int) -> list[list[float]]:
    """Return the rates of all groups at steps 0 to n - 1, of a schedule run beside `opt`."""
    shadow = Shadow(opt)
    sched = make(shadow)
    lrs = [shadow.lrs()]
    for _ in range(n - 1):
        shadow.step()
        sched.step()
        lrs.append(shadow.lrs())
    return lrs


def plot_sched(
    sched: Factory, n: int, lr: float = 1.0, *, ax: Axes | None = None, **kwargs: Any
) -> Axes:
    """Plot the learning rate of each of `n` steps, without any training.

    Args:
        sched: a factory, as `BatchSchedCB` takes.
        n: the number of steps.
        lr: the optimizer's learning rate.
        ax: where to plot; a new figure when it is not given.
        kwargs: those of `sched_lrs`.
    """
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1]
    ax.plot(sched_lrs(sched, n, lr, **kwargs))
    ax.set(title=factory_name(sched), xlabel="step", ylabel="learning rate")
    return ax
