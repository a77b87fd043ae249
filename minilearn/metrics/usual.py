"""What `Learner(..., metrics=...)` is short for.

Stands on the callbacks that it lists.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from minilearn.base.lazy_method import method_of
from minilearn.core.callback import Callback
from minilearn.core.learner import Learner
from minilearn.core.patched import Patched

from ..callbacks.device import DeviceCB
from ..callbacks.training import TrainCB
from .callback import MetricsCB


@method_of(Patched)
def _usual_cbs(self: Learner, metrics: Any) -> list[Callback]:
    """Return the usual callbacks with one metric, a list of them, or a dict by name."""
    from ..progress.callback import ProgressCB

    if isinstance(metrics, Mapping):
        measured = MetricsCB(**metrics)
    elif isinstance(metrics, Iterable) and not hasattr(metrics, "update"):
        measured = MetricsCB(*metrics)
    else:
        measured = MetricsCB(metrics)
    return [TrainCB(), DeviceCB(), measured, ProgressCB()]
