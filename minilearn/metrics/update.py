"""What a metric is, and how metric objects are updated: on joined batches if that is the same.

It names classes of torcheval and torchmetrics, and imports neither.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from ..base.batch import to_device
from ..base.foreign_names import public_names
from ..base.lazy import LazyName
from ..base.text import did_you_mean
from .mean import FunctionMean, takes_weights
from .mean_check import both_have_rows

HISTORIES = ("torchmetrics.wrappers.minmax", "torchmetrics.wrappers.running")
KEEP_BYTES = 256 * 1024  # clones of predictions and targets kept for one joined update
KEEP_BATCHES = 64  # more of them save nothing: their memory would be cold

JOINING = (
    "torcheval.metrics.classification.",
    "torcheval.metrics.regression.",
    "torchmetrics.classification.",
    "torchmetrics.regression.",
)
"""Modules whose metrics may be updated on joined batches (not those of windows and rates)."""

RESERVED = ("loss", "epoch", "steps", "time", "train", "valid_loss", "weights")


def metrics_by_name(ms: tuple, metrics: dict[str, Any]) -> dict[str, Any]:
    """Give each metric the name of its column: its class, its function, or its keyword.

    Raises:
        ValueError: a metric has no name, or the name of another column.
    """
    found = {}
    for m in ms:
        inner = getattr(m, "func", m)  # of a partial
        name = first = getattr(inner, "__name__", type(inner).__name__)
        if name == "<lambda>":
            raise ValueError("a lambda names no column: write metrics={'my_name': lambda …}")
        number = 1
        while name in found or name in metrics:
            name, number = f"{first}_{number + 1}", number + 1
        found[name] = m
    found |= metrics
    for name in found:
        check_name(name, found.keys() - {name})
    return found


def check_name(name: str, others: Iterable[str]) -> None:
    """Raise if the column `name` would hide another."""
    if name in (*RESERVED, *others, *(f"train_{other}" for other in others)):
        raise ValueError(f"the history has another column {name!r}: choose another name")


def as_metric(name: str, m: Any) -> Any:
    """Return an object with `update`, `compute` and `reset` for whatever counts as a metric.

    Raises:
        TypeError: `m` is no metric.
    """
    if isinstance(m, (type, LazyName)):
        try:
            m = m()
        except TypeError as e:  # it needs arguments
            raise TypeError(f"metric {name!r} is a class: write {m.__name__}(…), since {e}") from e
    if all(callable(getattr(m, method, None)) for method in ("update", "compute", "reset")):
        return m
    if callable(m):
        return FunctionMean(m)
    if isinstance(m, str):
        near = "" if m in public_names() else did_you_mean(m, public_names(), n=1)
        raise TypeError(f"metrics has the text {m!r}: write it without quotes, an object{near}")
    raise TypeError(
        f"metric {name!r} is a {type(m).__name__}: give a function of (preds, targs), or an "
        "object with update, compute and reset"
    )


class Updater:
    """Updates metrics, on joined batches where that gives the same value.

    The first batch is not joined, so that a metric that cannot use it raises there. Later ones of
    metrics that join (`JOINING`, or an attribute `joins = True`) wait as clones of at most
    `KEEP_BYTES`, and are concatenated into one update. Functions join where an item is a row.
    """

    def __init__(self, metrics: Iterable[Any]) -> None:
        metrics = list(metrics)
        self.joining = [m for m in metrics if joins(m)]
        self.functions = [m for m in self.joining if isinstance(m, FunctionMean)]
        self.objects = [m for m in self.joining if not isinstance(m, FunctionMean)]
        self.others = [m for m in metrics if not joins(m)]
        self.weighing = {
            id(m) for m in metrics if getattr(m, "weighs", True) and takes_weights(m.update)
        }
        self.reset()

    def reset(self) -> None:
        """Drop the batches that wait."""
        self.begun, self.kept, self.bytes, self._kind = False, [], 0, None
        self._on_cpu: set[int] = set()  # metrics whose state the device of the data cannot hold

    def update(self, preds: Any, targs: Any, n: Any = None, weight: Any = None) -> None:
        """Update all metrics with a batch of `n` items, now or later; at once with weights."""
        for metric in self.others:
            self._update(metric, preds, targs, weight)
        if self.joining:
            self._join(preds, targs, n, weight)
        self.begun = True

    def _join(self, preds: Any, targs: Any, n: Any, weight: Any) -> None:
        kind = _kind(preds, targs, n)
        size = KEEP_BYTES if kind is None else preds.nbytes + targs.nbytes
        full = self.bytes + size > KEEP_BYTES or len(self.kept) >= KEEP_BATCHES
        if self.kept and (full or kind != self._kind):
            self.flush()
        at_once = not self.begun or size >= KEEP_BYTES or weight is not None
        by_row = kind is not None and kind.by_row and not at_once
        if not by_row:
            for function in self.functions:
                function.update(preds, targs, n, weight if id(function) in self.weighing else None)
        if at_once:
            for metric in self.objects:
                self._update(metric, preds, targs, weight)
        elif by_row or self.objects:  # clones, because a loader may refill its buffers
            self.kept.append((preds.clone(), targs.clone(), by_row))
            self.bytes, self._kind = self.bytes + size, kind

    def flush(self) -> None:
        """Update the metrics with what waits."""
        kept, self.kept, self.bytes = self.kept, [], 0
        if not kept:
            return
        all_preds, all_targs, by_row = zip(*kept, strict=True)
        preds, targs = torch.cat(all_preds), torch.cat(all_targs)
        for function in self.functions if by_row[0] else ():
            function.update(preds, targs, len(preds))
        for metric in self.objects:
            self._update(metric, preds, targs)

    def state_dict(self) -> dict[str, Any]:
        """Return what waits."""
        return {"begun": self.begun, "kept": list(self.kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what waited."""
        self.begun, self.kept = state["begun"], [tuple(kept) for kept in state["kept"]]
        self.bytes = sum(preds.nbytes + targs.nbytes for preds, targs, _ in self.kept)
        for preds, targs, by_row in self.kept[-1:]:
            self._kind = _kind(preds, targs, len(preds) if by_row else None)

    def _update(self, metric: Any, preds: Any, targs: Any, weight: Any = None) -> None:
        """Update `metric` on the device of the data, or on the CPU if its state has to be there."""
        device = getattr(preds, "device", None)
        if device is not None and getattr(metric, "device", device) != device:
            try:
                if id(metric) not in self._on_cpu:
                    metric.to(device)
            except TypeError:  # MPS has no float64
                metric.to("cpu")
                self._on_cpu.add(id(metric))
        if id(metric) in self._on_cpu:
            preds, targs, weight = to_device((preds, targs, weight), "cpu")
        weighs = weight is not None and id(metric) in self.weighing
        metric.update(preds, targs, **({"sample_weight": weight} if weighs else {}))


def joins(metric: Any) -> bool:
    """Return whether one update on joined batches equals an update on each."""
    known = type(metric).__module__.startswith(JOINING) and getattr(metric, "num_tasks", 1) == 1
    return getattr(metric, "joins", known)


class Kind(NamedTuple):
    """What batches share that may be joined: shapes of an item, types, devices."""

    preds: tuple[Any, ...]
    targs: tuple[Any, ...]
    by_row: bool  # whether an item is a row


def _kind(preds: Any, targs: Any, n: Any) -> Kind | None:
    """Return the kind of a batch of `n` items, None where it cannot be joined."""
    if not both_have_rows(preds, targs):
        return None
    p, t = preds.shape, targs.shape
    if p[0] != t[0]:
        return None
    of_preds, of_targs = (p[1:], preds.dtype, preds.device), (t[1:], targs.dtype, targs.device)
    return Kind(of_preds, of_targs, type(n) is int and n == p[0])


def saved_state(name: str, metric: Any) -> Any:
    """Return what a metric has collected, None (with a warning) if it cannot say."""
    if hasattr(metric, "metric_state"):  # torchmetrics leaves it out of state_dict
        # a collection before its members: asked for its state, it brings theirs up to date
        return {name: copy.deepcopy(m.metric_state) for name, m in _with_state(metric)}
    if hasattr(metric, "state_dict"):
        return metric.state_dict()
    warnings.warn(
        f"metric {name!r} has no state_dict: a resume from the middle of an epoch begins it anew",
        stacklevel=2,
    )
    return None


def restore_state(metric: Any, state: Any) -> None:
    """Let a metric go on from `saved_state`."""
    if hasattr(metric, "metric_state"):
        for name, m in _with_state(metric):
            for key in getattr(m, "_defaults", ()):  # a collection has none of its own
                setattr(m, key, copy.deepcopy(state[name][key]))
            m._update_count = 1  # else compute warns that nothing was collected
    elif state is not None:
        metric.load_state_dict(state)


def _with_state(metric: Any) -> list[tuple[str, Any]]:
    """Return a metric of torchmetrics and those inside it, each with a state of its own."""
    modules = metric.named_modules() if hasattr(metric, "metric_state") else ()
    return [(name, m) for name, m in modules if hasattr(m, "metric_state")]


def keeps_history(metric: Any) -> bool:
    """Return whether a metric holds what no state has: values of earlier epochs or batches."""
    return any(type(m).__module__ in HISTORIES for _, m in _with_state(metric))
