"""Schedules by name: `schedule`."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from torch.optim import lr_scheduler

from ..base.text import did_you_mean
from ..nn.registry import named_object
from ..nn.timm_models import TIMM, timm_module
from .schedulers import Factory, constant, flat_cos, one_cycle

SCHEDULES: dict[str, Factory] = {
    # as in fit_one_cycle
    "one_cycle": partial(one_cycle, pct_start=0.25, div_factor=25.0, final_div_factor=1e5 / 25.0),
    "flat_cos": flat_cos,
    "cosine": lr_scheduler.CosineAnnealingLR,
    "linear": partial(lr_scheduler.PolynomialLR, power=1.0),
    "none": constant,
}


def schedule(name: str, **arguments: Any) -> Factory:
    """Return the factory of a schedule, for `BatchSchedCB`, by its name.

    >>> learn.fit(5, cbs=BatchSchedCB(schedule("cosine", eta_min=1e-5)))

    Args:
        name: "one_cycle" (as `fit_one_cycle` has it), "flat_cos", "cosine", "linear" or "none";
            "timm/cosine", "timm/tanh", "timm/poly", "timm/step", "timm/multistep", … of timm where
            that is installed, whose `t_initial` is filled in; or "package.module:factory".
        arguments: passed to the schedule.

    Raises:
        ValueError: there is no such name, or it does not take these arguments; near ones are
            suggested.
        ImportError: timm is not installed.
    """
    factory = _found(name)
    known = inspect.signature(factory).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        for key in arguments:
            if key not in known:
                raise ValueError(f"schedule {name!r} takes no {key!r}{did_you_mean(key, known)}")
    return partial(factory, **arguments) if arguments else factory


def _found(name: str) -> Factory:
    if name in SCHEDULES:
        return SCHEDULES[name]
    if ":" in name:
        return named_object(name)
    theirs = _timms() if name.startswith(TIMM) else {}
    if name not in theirs:
        known = [*SCHEDULES, *theirs]
        raise ValueError(
            f"no schedule {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}"
            + ("" if theirs else ", timm/NAME and package.module:factory")
        )
    return theirs[name]


def _timms() -> dict[str, Factory]:
    end, theirs = "LRScheduler", vars(timm_module("timm.scheduler"))
    classes = {n: c for n, c in theirs.items() if n.endswith(end)}
    classes.pop("PlateauLRScheduler")  # it needs a value; PlateauCB does that
    return {f"{TIMM}{n.removesuffix(end).lower()}": c for n, c in classes.items()}
