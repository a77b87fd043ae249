"""Schedules of anything: ParamSchedCB, and the options of parameter groups by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.text import did_you_mean
from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop

SHORT = {"wd": "weight_decay", "mom": "momentum"}


class ParamSchedCB(Callback):
    """Set options of all parameter groups before each update, as functions of progress.

    Progress is the fraction of the fit's updates that are done, from 0 for the first one to just
    below 1 for the last. `mom` is short for `momentum`, or the first of `betas`; `wd` for
    `weight_decay`.

    Args:
        factor: the functions return factors of each group's own value, instead of values for all.
        options: functions by option: `weight_decay=lambda p: 0.1 * (1 - p)`.

    Raises:
        ValueError: before the first update: the groups have no such option; they have different
            values and would lose them; the length of the fit is unknown.

    Events: before_fit, before_epoch, after_step
    Order:  SCHEDULE
    Reads:  training, opt, steps_done, n_steps
    Writes:
    """

    order = Order.SCHEDULE

    def __init__(self, *, factor: bool = False, **options: Callable[[float], Any]) -> None:
        self.factor, self.options, self._begun = factor, options, False

    def before_fit(self, learn: Loop) -> None:
        """Wait for the first training epoch."""
        self._begun = False

    def before_epoch(self, learn: Loop) -> None:
        """Set the values of the first update."""
        if learn.training and not self._begun:
            self._begin(learn)
            self._set(learn)

    def after_step(self, learn: Loop) -> None:
        """Set the values of the next update."""
        self._set(learn)

    def _begin(self, learn: Loop) -> None:
        if learn.n_steps is None:
            raise ValueError(
                f"{self!r} needs the length of the fit, and the loader has none: give fit n_steps=…"
            )
        for name in self.options:
            bases = [_base(group, name) for group in learn.opt.param_groups]
            if not self.factor and any(base != bases[0] for base in bases):
                raise ValueError(
                    f"the groups differ in {name} ({bases}), and one value for all would undo "
                    "that; give factor=True and a function of factors"
                )
        self._begun = True

    def _set(self, learn: Loop) -> None:
        total: Any = learn.n_steps  # known, or the fit would not have begun
        progress = min(learn.steps_done / total, 1.0)
        for name, fn in self.options.items():
            value = fn(progress)
            for group in learn.opt.param_groups:
                set_option(group, name, _base(group, name) * value if self.factor else value)

    def __repr__(self) -> str:
        """Show the options."""
        return f"ParamSchedCB({', '.join(self.options)})"


def _base(group: dict[str, Any], name: str) -> Any:
    # kept in the group, as torch's initial_lr is: a second fit and a resume start from it
    return group.setdefault(f"initial_{name}", get_option(group, name))


def get_option(group: dict[str, Any], name: str) -> Any:
    """Return an option of a parameter group, also by its short name.

    Raises:
        ValueError: the group has no such option; near names are suggested.
    """
    if name == "mom" and "betas" in group:
        return group["betas"][0]
    key = SHORT.get(name, name)
    if key in group and key != "params":
        return group[key]
    names = [n for n in group if n != "params" and not n.startswith("initial_")]
    hint = did_you_mean(name, names)
    raise ValueError(f"the optimizer's groups have no {name!r}{hint}; there are {', '.join(names)}")


def set_option(group: dict[str, Any], name: str, value: Any) -> None:
    """Set an option of a parameter group, also by its short name."""
    if name == "mom" and "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group[SHORT.get(name, name)] = value
