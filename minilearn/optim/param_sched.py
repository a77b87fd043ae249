"""Schedules of anything: ParamSchedCB, and the options of parameter groups by name."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor

from ..base.text import did_you_mean
from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop
from .schedulers import is_factory, sched_lrs

SHORT = {"wd": "weight_decay", "mom": "momentum"}
UNITS = ("progress", "step", "epoch")


class ParamSchedCB(Callback):
    """Move options of the optimizer, or attributes of anything, as functions of time.

    >>> ParamSchedCB(weight_decay=lambda progress: 0.1 * (1 - progress))
    >>> dropout = nn.Dropout(0.5)  # a layer of the model
    >>> ParamSchedCB(dropout, by="epoch", p=lambda epoch: 0.5 if epoch < 3 else 0.1)
    >>> ParamSchedCB(lr=partial(lr_scheduler.CosineAnnealingLR, T_max=100))

    Values are set before the first update, and after each one for the next. What is not an option
    of the optimizer gets its value from before the fit back when the fit ends.

    Args:
        of: None for all parameter groups, the number of one of them, an object (a module, a loss, a
            callback) whose attributes are meant, or a list of these.
        by: what the functions get: "progress", the fraction of the fit's updates that are done,
            from 0 for the first one to just below 1 for the last; "step", the number of updates
            done; "epoch", the number of the epoch.
        factor: the functions return factors of each one's own value, instead of values for all.
        options: functions by name. `mom` is short for `momentum`, or the first of `betas`; `wd` for
            `weight_decay`. A factory of torch's schedules moves the value as it would a learning
            rate, by updates or by epochs; its length is taken from the fit.

    Raises:
        ValueError: `by` is none of the three; or before the first update: there is no such option;
            the values differ and would become one; the length of the fit is needed and unknown.

    Events: before_fit, before_epoch, before_batch, after_step, cleanup_fit
    Order:  SCHEDULE
    Reads:  training, opt, epoch, steps_done, n_epochs, n_steps
    Writes:

    Source: fastai's ParamScheduler, ignite's ParamScheduler and ParamGroupScheduler.
    """

    order = Order.SCHEDULE

    def __init__(
        self,
        of: Any = None,
        *,
        by: str = "progress",
        factor: bool = False,
        **options: Callable[..., Any],
    ) -> None:
        if by not in UNITS:
            raise ValueError(f"by is one of {', '.join(UNITS)}; got {by!r}")
        self._of, self.by, self.factor, self.options = of, by, factor, options
        self._epoch: int | None = None  # for which values were set; None before the first
        self._found: dict[int, tuple[Any, dict[str, Any]]] = {}  # attributes before the fit, by id
        self._curves: dict[tuple[str, int], list[float]] = {}  # of torch's schedules

    def before_fit(self, learn: Loop) -> None:
        """Wait for the first training epoch."""
        self._epoch, self._found, self._curves = None, {}, {}

    def before_epoch(self, learn: Loop) -> None:
        """Set the values of the first update."""
        if learn.training:
            if self._epoch is None:
                self._begin(learn)
            self._set(learn)

    def before_batch(self, learn: Loop) -> None:
        """Follow the epoch, where a new one began without an event."""
        if learn.training and learn.epoch != self._epoch:
            self._set(learn)

    def after_step(self, learn: Loop) -> None:
        """Set the values of the next update."""
        self._set(learn)

    def cleanup_fit(self, learn: Loop) -> None:
        """Give attributes back their values."""
        for target, values in self._found.values():
            vars(target).pop("as_given", None)
            for name, value in values.items():
                setattr(target, name, value)

    def _begin(self, learn: Loop) -> None:
        self._total: Any = learn.n_epochs if self.by == "epoch" else learn.n_steps
        self._schedules = {name for name, fn in self.options.items() if is_factory(fn)}
        if self._total is None and (self._schedules or self.by == "progress"):
            raise ValueError(
                f"{self!r} needs the length of the fit, and the loader has none: give fit n_steps=…"
            )
        targets = self._targets(learn)
        own = (x for x in targets if not isinstance(x, dict))
        self._found = {
            id(x): (x, {name: get_option(x, name) for name in self.options}) for x in own
        }
        for target, _ in self._found.values():
            if isinstance(target, Callback):
                vars(target)["as_given"] = copy.copy(target)  # for a checkpoint to describe
        for name in self.options.keys() - (self.options if self.factor else self._schedules):
            bases = [self._base(target, name) for target in targets]
            if any(base != bases[0] for base in bases):
                raise ValueError(
                    f"the groups differ in {name} ({bases}), and one value for all would undo "
                    "that; give factor=True and a function of factors"
                )

    def _targets(self, learn: Loop) -> list[Any]:
        several = learn.opt.param_groups if self._of is None else self._of
        several = several if isinstance(several, (list, tuple)) else [several]
        return [learn.opt.param_groups[x] if isinstance(x, int) else x for x in several]

    def _base(self, target: Any, name: str) -> Any:
        if not isinstance(target, dict):
            return self._found[id(target)][1][name]
        value = get_option(target, name)
        # kept in the group, as torch's initial_lr is: a second fit and a resume start from it
        return target.setdefault(f"initial_{name}", getattr(value, "tolist", lambda: value)())

    def _set(self, learn: Loop) -> None:
        self._epoch, total = learn.epoch, self._total
        done = learn.epoch if self.by == "epoch" else learn.steps_done
        at = min(done / total, 1.0) if self.by == "progress" and total else done
        for name, fn in self.options.items():
            value = None if name in self._schedules else fn(at)
            for i, target in enumerate(self._targets(learn)):
                base = self._base(target, name)
                if name in self._schedules:
                    if (name, i) not in self._curves:
                        self._curves[name, i] = sched_lrs(fn, total, base)
                    curve = self._curves[name, i]
                    set_option(target, name, curve[min(done, len(curve) - 1)])
                else:
                    set_option(target, name, base * value if self.factor else value)

    def __repr__(self) -> str:
        """Show the options."""
        return f"ParamSchedCB({', '.join(self.options)})"


def combine_scheds(lengths: Sequence[float], fns: Sequence[Callable[[float], Any]]) -> Any:
    """Return one function that is each of several in turn, for `ParamSchedCB`.

    >>> rise, fall = lambda p: p, lambda p: (1 + math.cos(math.pi * p)) / 2
    >>> ParamSchedCB(factor=True, lr=combine_scheds([0.3, 0.7], [rise, fall]))

    Args:
        lengths: of each part, in what the function will get: fractions of the fit, or steps.
        fns: functions of the progress within their part, from 0 to 1.

    Raises:
        ValueError: a length is not above 0, or there are not as many lengths as functions.
    """
    if len(lengths) != len(fns) or not lengths or min(lengths) <= 0:
        raise ValueError(f"give a length above 0 for each function; got {lengths} for {len(fns)}")
    starts = [0, *accumulate(lengths)]

    def combined(t: float) -> Any:
        i = min(bisect_right(starts, t), len(fns)) - 1
        return fns[i](min((t - starts[i]) / lengths[i], 1.0))

    return combined


def get_option(target: Any, name: str) -> Any:
    """Return an option of a parameter group, also by its short name, or an attribute.

    Raises:
        ValueError: there is no such option or attribute; near names are suggested.
    """
    if not isinstance(target, dict):
        if hasattr(target, name):
            return getattr(target, name)
        kind = type(target).__name__
        raise ValueError(f"{kind} has no attribute {name!r}{did_you_mean(name, dir(target))}")
    if name == "mom" and "betas" in target:
        return target["betas"][0]
    key = SHORT.get(name, name)
    if key in target and key != "params":
        return target[key]
    names = [n for n in target if n != "params" and not n.startswith("initial_")]
    hint = did_you_mean(name, names)
    raise ValueError(f"the optimizer's groups have no {name!r}{hint}; there are {', '.join(names)}")


def set_option(target: Any, name: str, value: Any) -> None:
    """Set an option of a parameter group, also by its short name, or an attribute."""
    if not isinstance(target, dict):
        setattr(target, name, value)
    elif name == "mom" and "betas" in target:
        target["betas"] = (value, *target["betas"][1:])
    elif isinstance(found := target[SHORT.get(name, name)], Tensor):  # in a CUDA graph
        found.fill_(value)
    else:
        target[SHORT.get(name, name)] = value
