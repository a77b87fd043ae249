"""Options of parameter groups as functions of progress: momentum, betas, weight decay, rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minilearn.base.text import did_you_mean
from minilearn.core.callback import Callback
from minilearn.core.events import Order

from ..core.learner import Loop

SHORT = {"wd": "weight_decay", "mom": "momentum"}


class ParamSchedCB(Callback):
    """Set fields of all parameter groups before each update, as functions of progress.

    Progress is the share of the fit's updates that are done, from 0 for the first one to just below
    1 for the last. `mom` stands for `momentum`, or the first of `betas`, `wd` for `weight_decay`.

    Args:
        factor: the functions give factors of each group's own value, instead of values for all.
        fields: functions by field: `weight_decay=lambda p: 0.1 * (1 - p)`.

    Raises:
        ValueError: before the first update: the groups have no such field; they have different
            values and would lose them; the length of the fit is unknown.

    Events: before_fit, before_epoch, after_step
    Order:  SCHEDULE
    Reads:  training, opt, steps_done, n_steps
    Writes:
    """

    order = Order.SCHEDULE

    def __init__(self, *, factor: bool = False, **fields: Callable[[float], Any]) -> None:
        self.factor, self.fields = factor, fields
        self._begun = False

    def before_fit(self, learn: Loop) -> None:
        """Wait for the first training pass."""
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
        for name in self.fields:
            bases = [self._keep_base(group, name) for group in learn.opt.param_groups]
            if not self.factor and any(base != bases[0] for base in bases):
                raise ValueError(
                    f"the groups differ in {name} ({bases}), and one value for all would undo "
                    "that; give factor=True and a function of factors"
                )
        self._begun = True

    def _keep_base(self, group: dict[str, Any], name: str) -> Any:
        # in the group, as torch keeps its initial_lr: a second fit and a resume start from it
        return group.setdefault(f"initial_{name}", get_field(group, name))

    def _set(self, learn: Loop) -> None:
        total: Any = learn.n_steps  # known, or the fit would not have begun
        progress = min(learn.steps_done / total, 1.0)
        for name, fn in self.fields.items():
            value = fn(progress)
            for group in learn.opt.param_groups:
                set_field(group, name, group[f"initial_{name}"] * value if self.factor else value)

    def __repr__(self) -> str:
        """Show the fields."""
        return f"ParamSchedCB({', '.join(self.fields)})"


def get_field(group: dict[str, Any], name: str) -> Any:
    """Return a field of a parameter group, also by its short name.

    Raises:
        ValueError: the group has no such field; near names are listed.
    """
    if name == "mom" and "betas" in group:
        return group["betas"][0]
    key = SHORT.get(name, name)
    if key in group and key != "params":
        return group[key]
    names = [n for n in group if n != "params" and not n.startswith("initial_")]
    hint = did_you_mean(name, names)
    raise ValueError(f"the optimizer's groups have no {name!r}{hint}; there are {', '.join(names)}")


def set_field(group: dict[str, Any], name: str, value: Any) -> None:
    """Set a field of a parameter group, also by its short name."""
    if name == "mom" and "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group[SHORT.get(name, name)] = value
