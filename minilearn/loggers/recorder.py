"""Hyper-parameters over the updates of a fit: RecorderCB."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.modes import is_training
from ..base.plotting import as_written, subplots
from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop
from ..optim.param_sched import get_option


class RecorderCB(Callback):
    """Record values once an update, such as the learning rate that it used.

    Args:
        names: hyper-parameters to record: "lr", "mom" (momentum, or the first beta), "wd" (weight
            decay), or any key of a parameter group.
        groups: record a list with the value of each parameter group, instead of the first one's.
        columns: also put the last record of each training epoch into the history, and so into the
            table: `RecorderCB("lr", columns=True)`.
        functions: what to record by name: a function of this callback, whose `pg` is a parameter
            group, or a hyper-parameter as in `names`.

    Attributes:
        recs: the values by name. Device values are read at the end of the fit.
        pg: the parameter group that is being recorded.

    >>> rec = RecorderCB("mom", lr=lambda cb: cb.pg["lr"])

    Events: before_fit, after_step, after_batch, after_epoch, cleanup_fit
    Order:  METRICS
    Reads:  opt, training, row
    Writes: row
    """

    order = Order.METRICS

    def __init__(
        self, *names: str, groups: bool = False, columns: bool = False, **functions: Any
    ) -> None:
        self.functions: dict[str, Any] = {**{name: name for name in names}, **functions}
        for f in self.functions.values():
            if not callable(f) and not isinstance(f, str):
                raise TypeError(
                    f"RecorderCB records functions of itself and names such as 'lr', not {f!r}; "
                    "write RecorderCB(lr=lambda cb: cb.pg['lr']) or RecorderCB('lr')"
                )
        self.groups, self.columns, self.pg, self._by_update = groups, columns, None, True
        self.recs: dict[str, list[Any]] = {name: [] for name in self.functions}

    def before_fit(self, learn: Loop) -> None:
        """Begin new records."""
        self.recs = {name: [] for name in self.functions}
        self.pg = (getattr(learn.opt, "param_groups", None) or [None])[0]
        self._by_update = hasattr(type(learn), "steps_done")

    def after_step(self, learn: Loop) -> None:
        """Record what the last update used."""
        if self._by_update:
            self._record(learn.opt)

    def after_batch(self, learn: Loop) -> None:
        """Record each batch where your own learner does not count updates."""
        if not self._by_update and is_training(learn):
            self._record(learn.opt)

    def after_epoch(self, learn: Loop) -> None:
        """Put the last records into the row of this round, if the row is to have them."""
        if self.columns and learn.training:
            learn.row = learn.row | {n: _as_numbers(v[-1]) for n, v in self.recs.items() if v}

    def cleanup_fit(self, learn: Loop) -> None:
        """Read what was recorded as tensors."""
        self.recs = {name: _as_numbers(values) for name, values in self.recs.items()}

    def _record(self, opt: Any) -> None:
        groups = _param_groups(opt)
        for name, f in self.functions.items():
            values = []
            for group in groups if self.groups else groups[:1]:
                self.pg = group
                value = f(self) if callable(f) else get_option(group, f)
                values.append(value.detach().clone() if isinstance(value, Tensor) else value)
            self.recs[name].append(values if self.groups else values[0])
        self.pg = groups[0]

    def plot(self) -> np.ndarray:
        """Plot each record over the updates, and return the axes, one for each name.

        Raises:
            ValueError: nothing was recorded.
        """
        recs = {name: _as_numbers(values) for name, values in self.recs.items() if values}
        if not recs:
            raise ValueError("nothing was recorded: call plot() after a fit that trained")
        axes = subplots(1, len(recs), figsize=(4.5 * len(recs), 3))[1]
        for ax, (name, values) in zip(axes, recs.items(), strict=True):
            lines = ax.plot(range(1, len(values) + 1), values)
            ax.set(title=as_written(name), xlabel="update")
            ax.grid(alpha=0.3)
            if len(lines) > 1:
                ax.legend(lines, [f"group {i}" for i in range(len(lines))])
        return axes

    def state_dict(self) -> dict[str, Any]:
        """Return the records."""
        return {"recs": {name: _as_numbers(values) for name, values in self.recs.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the records that `state_dict` returned."""
        self.recs = {name: list(state["recs"].get(name, [])) for name in self.functions}

    def __repr__(self) -> str:
        """Show what is recorded."""
        return f"RecorderCB({', '.join(self.functions)})"


def _param_groups(opt: Any) -> list[dict[str, Any]]:
    groups = getattr(opt, "param_groups", None)
    if not groups:
        raise ValueError(
            f"RecorderCB reads the optimizer's param_groups, and {type(opt).__name__} has none; "
            "take RecorderCB out, or use a torch.optim.Optimizer"
        )
    return groups


def _as_numbers(values: Any) -> Any:
    """Return `values` with its tensors as numbers, read from the device together if alike."""
    if isinstance(values, Tensor):
        return values.tolist()
    if not isinstance(values, (list, tuple)):
        return values
    if values and all(isinstance(v, Tensor) and v.shape == values[0].shape for v in values):
        return torch.stack(list(values)).tolist()
    return [_as_numbers(v) for v in values]
