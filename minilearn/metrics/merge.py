"""Merge the metrics of several processes, so that each has the values of all the data."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from ..base.batch import map_batch
from ..distributed.sync import Processes


def check_mergeable(metrics: Mapping[str, Any]) -> None:
    """Raise if the values of a metric cannot be merged.

    Raises:
        TypeError: names the metric, and says what it lacks.
    """
    for name, metric in metrics.items():
        if not any(hasattr(metric, way) for way in ("merge", "merge_state", "sync")):
            raise TypeError(
                f"metric {name!r} is a {type(metric).__name__}, which several processes cannot "
                "merge: give it a method merge_state(metrics), or use a function of (preds, targs)"
            )


def merge_all(metrics: Mapping[str, Any], processes: Processes) -> None:
    """Merge every metric over all processes; torchmetrics (with a `sync`) does so by itself.

    Args:
        metrics: the same metrics by name on all processes; means may be missing on some.
        processes: those that share the data.
    """
    ours = {n: m for n, m in metrics.items() if hasattr(m, "merge") or not hasattr(m, "sync")}
    found = processes.gather({name: _part(m) for name, m in ours.items()})
    for name, metric in ours.items():
        parts = [of_process[name] for of_process in found if name in of_process]
        if hasattr(metric, "merge"):
            metric.merge(parts)
        else:
            metric.reset()
            metric.merge_state(parts)


def _part(metric: Any) -> Any:
    """Return what a metric of this process adds to the merged one, on the CPU."""
    if hasattr(metric, "merge"):
        return map_batch(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, metric.part())
    part = copy.deepcopy(metric)
    if hasattr(part, "_prepare_for_merge_state"):  # torcheval joins its lists of tensors
        part._prepare_for_merge_state()
    return part.to("cpu") if hasattr(part, "to") else part
