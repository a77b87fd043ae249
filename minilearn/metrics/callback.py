"""Losses and metrics of each pass: MetricsCB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from minilearn.base.batch import HALF, batch_size, describe, map_batch
from minilearn.base.modes import is_training
from minilearn.core.callback import Callback
from minilearn.core.events import Order
from minilearn.core.history import format_value
from minilearn.distributed.barrier import processes_of
from minilearn.distributed.sync import Processes

from ..base.rank import rank
from ..core.events import CancelException
from .mean import (
    FunctionMean,
    Mean,
    check_on_nan,
    columns_of,
    finite,
    loss_of,
    tell_not_finite,
    where_skipped,
)
from .merge import check_mergeable, merge_all
from .update import (
    Feed,
    as_metric,
    check_name,
    memory,
    moved,
    named,
    remember,
    restore_state,
    saved_state,
)

if TYPE_CHECKING:
    from minilearn.core.learner import Loop


class MetricsCB(Callback):
    """Measure the loss and any metrics over each training and validation pass.

    A metric is a torcheval or torchmetrics object, any object with `update(preds, targs)`,
    `compute()` and `reset()`, or a function of `(preds, targs)`, whose values are averaged with the
    number of items. Each pass begins anew. Values are read from the device once a pass.

    Args:
        ms: metrics that are named after their class or function (`MulticlassAccuracy`, then
            `MulticlassAccuracy_2`).
        on_nan: "raise" where the training loss of a pass is not finite, or "warn" and go on; a
            warning it is where a `NonFiniteCB`, a clip or a scaler skips such updates.
        quiet: print no rows; the history has them.
        metrics: metrics by name.

    Attributes:
        rows: one dict a pass: `epoch`, `train` ("train" or "eval"), the metrics, `loss`.
        metrics: the metrics by name.
        all_metrics: the same and the mean loss, which is also `loss`.

    Raises:
        TypeError: something is no metric.
        ValueError: a metric has no name, or one that a column of the history has.
        FloatingPointError: the training loss of a pass is not finite, and its updates were made.

    Events: before_fit, before_epoch, after_batch, after_epoch, cleanup_epoch
    Order:  METRICS
    Reads:  training, valid_name, epoch, batch, n_items, preds, loss, loss_parts, loss_func, row,
            error, cbs
    Writes: metrics, row
    """

    order = Order.METRICS
    per_process = True  # the sums of a pass are those of its part

    def __init__(
        self, *ms: Any, on_nan: str = "raise", quiet: bool = False, **metrics: Any
    ) -> None:
        self.on_nan, self.quiet, self.rows = check_on_nan(on_nan), quiet, []
        self.metrics = {name: as_metric(name, m) for name, m in named(ms, metrics).items()}
        self._made = {name: memory(m) for name, m in self.metrics.items()}
        self.loss = Mean()
        self.all_metrics = {**self.metrics, "loss": self.loss}
        self.parts: dict[str, Mean] = {}  # of the losses that are sums of named parts
        self.functions = [m for m in self.metrics.values() if isinstance(m, FunctionMean)]
        objects = [m for m in self.metrics.values() if not isinstance(m, FunctionMean)]
        self.feed = Feed(objects) if objects else None
        self._measuring, self._split, self._counts = False, None, False
        self._seen: dict[str, None] = {}
        self._resumed: Any = None  # the state that a resume gave

    # ---- events ----

    def before_fit(self, learn: Loop) -> None:
        """Begin new rows, and let others find this as `learn.metrics`."""
        learn.metrics, self.rows, self._resumed = self, [], None
        if processes_of(learn) is not None:
            check_mergeable(self.metrics)

    def before_epoch(self, learn: Loop) -> None:
        """Forget the pass before."""
        for metric in self.all_metrics.values():
            metric.reset()
        if self.feed:
            self.feed.reset()
        self.parts, self._measuring = {}, True
        # the attributes of a bare learner are few; what it has is found out once a pass
        owner = learn.owner("get_loss") if hasattr(learn, "owner") else None
        self._split = getattr(owner, "split", None)
        self._counts = hasattr(type(learn), "n_items")
        if self._resumed is not None:
            self._resume()

    def after_batch(self, learn: Loop) -> None:
        """Take the loss and the predictions of a finished batch."""
        n = learn.n_items if self._counts else batch_size(learn.batch)
        self._take_losses(learn, n)
        if self.metrics:
            preds, targs = _in_float32(learn.preds), self._targets(learn)
            for metric in self.functions:
                metric.update(preds, targs, n)
            if self.feed:
                self.feed.update(preds, targs)

    def after_epoch(self, learn: Loop) -> None:
        """Read the values of the pass, and publish them."""
        if self._measuring:
            self._measuring = False
            self._publish(learn)

    def cleanup_epoch(self, learn: Loop) -> None:
        """Do so too where a cancel ended the pass; an error leaves no row."""
        if isinstance(getattr(learn, "error", None), CancelException):
            self.after_epoch(learn)
        self._measuring = False

    # ---- a batch ----

    def _take_losses(self, learn: Loop, n: Any) -> None:
        loss = loss_of(learn)
        if isinstance(loss, (Tensor, float, int)):
            self.loss.update(loss, n)
        for name, part in (getattr(learn, "loss_parts", None) or {}).items():
            if name != "loss":
                self._part(name).update(part, n)

    def _part(self, name: str) -> Mean:
        if name not in self.parts:
            check_name(name, self.metrics)
            self.parts[name] = Mean()
        return self.parts[name]

    def _targets(self, learn: Loop) -> Any:
        """Return what the loss was compared with: one target as it is, several as a tuple."""
        if self._split is not None:
            targs = self._split(learn.batch)[2]
        elif isinstance(learn.batch, (tuple, list)):
            targs = learn.batch[1:2]  # x, y, *_ of any learner
        else:
            targs = ()
        if learn.preds is None or not len(targs):
            missing = "predictions" if learn.preds is None else "targets"
            raise ValueError(
                f"metrics compare predictions with targets, and there are no {missing}: the batch "
                f"is {describe(learn.batch)}. Name the targets, TrainCB(targets=...), let the "
                "model return (preds, loss), or use MetricsCB() for the loss alone."
            )
        return _hard(targs[0]) if len(targs) == 1 else tuple(map(_hard, targs))

    # ---- a pass ----

    def flush(self) -> None:
        """Work off what was put aside, so that `compute()` of every metric is up to date."""
        if self.feed:
            self.feed.flush()

    def _publish(self, learn: Loop) -> None:
        training = is_training(learn)
        values = self._values(processes_of(learn))
        if not values:
            return
        row = {"epoch": learn.epoch, "train": "train" if training else "eval", **values}
        self.rows.append(row)
        columns = self._columns(learn, values, training)
        self._seen.update(dict.fromkeys(columns))
        if hasattr(learn, "row"):
            learn.row = {**learn.row, **columns}
        self._log(row)
        on_nan = where_skipped(learn, self.on_nan) if training else "warn"
        self._check_finite(learn.epoch, values, training, on_nan)

    def _values(self, processes: Processes | None) -> dict[str, Any]:
        """Return the values of the pass as Python numbers, nothing where no batch was finished."""
        self.flush()
        begun, values = self.feed is not None and self.feed.begun, {}
        if processes is not None:
            found = processes.gather((begun, list(self.parts)))
            begun = any(has for has, _ in found)
            for name in (name for _, names in found for name in names):
                self._part(name)  # a process without a batch has none
        means = {**self.metrics, **self.parts, "loss": self.loss}
        if processes is not None:
            merge_all(means, processes)
        for name, metric in means.items():
            if metric.any if isinstance(metric, Mean) else begun:
                values.update(columns_of(name, metric.compute()))
        return values

    def _columns(self, learn: Loop, values: dict[str, Any], training: bool) -> dict[str, Any]:
        """Return the values under their names in the history."""
        part = "train" if training else getattr(learn, "valid_name", None)
        prefix = "" if part is None else f"{part}_"
        loss = f"{prefix}loss" if part is not None else "valid_loss"
        return {loss if name == "loss" else prefix + name: v for name, v in values.items()}

    @property
    def names(self) -> list[str]:
        """The columns that this adds to the history, as far as they are known yet."""
        metrics = list(self.metrics)
        known = ["train_loss", "valid_loss", *(f"train_{name}" for name in metrics), *metrics]
        return list(dict.fromkeys([*known, *self._seen]))

    def _log(self, row: dict[str, Any]) -> None:
        """Show a row; a ProgressCB puts its own in the place of this."""
        if self.quiet or rank():
            return
        values = [f"{k} {format_value(v)}" for k, v in row.items() if k not in ("epoch", "train")]
        print("  ".join([f"epoch {row['epoch']}", f"{row['train']:5}", *values]))

    def _check_finite(
        self, epoch: int, values: dict[str, Any], training: bool, on_nan: str
    ) -> None:
        losses = {name: values[name] for name in (*self.parts, "loss") if name in values}
        bad = [f"{name} is {v}" for name, v in losses.items() if not finite(v)]
        if not bad:
            return
        phase = "training" if training else "validation"
        message = f"the {phase} loss of epoch {epoch} is not finite: {', '.join(bad)}"
        tell_not_finite(message, on_nan, "MetricsCB")

    # ---- a resume ----

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, and the sums of the pass in hand, which stays as it is."""
        state: dict[str, Any] = {"rows": [dict(r) for r in self.rows], "measuring": self._measuring}
        kept = {name: moved(m, self._made[name]) for name, m in self.metrics.items()}
        state["memory"] = {name: numbers for name, numbers in kept.items() if numbers}
        if self._measuring:
            state["metrics"] = {name: saved_state(name, m) for name, m in self.all_metrics.items()}
            state["parts"] = {name: mean.state_dict() for name, mean in self.parts.items()}
            state["feed"] = None if self.feed is None else self.feed.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there in this pass, or with the next; to be called after `before_fit`."""
        self._resumed, self.rows = state, [dict(row) for row in state["rows"]]
        if self._measuring:
            self._resume()
        else:
            self._remember(state)

    def _remember(self, state: dict[str, Any]) -> None:
        for name, kept in state.get("memory", {}).items():
            remember(self.metrics[name], kept)

    def _resume(self) -> None:
        state, self._resumed = self._resumed, None
        if state["measuring"]:
            for name, saved in state["metrics"].items():
                restore_state(self.all_metrics[name], saved)
            self._remember(state)
            for name, saved in state["parts"].items():
                self._part(name).load_state_dict(saved)
            if self.feed:
                self.feed.load_state_dict(state["feed"])

    def __repr__(self) -> str:
        """Show the names of the metrics."""
        return f"MetricsCB({', '.join(self.metrics)})"


def _in_float32(preds: Any) -> Any:
    if isinstance(preds, Tensor):
        preds = preds.detach() if preds.requires_grad else preds
        return preds.float() if preds.dtype in HALF else preds
    return map_batch(lambda x: _in_float32(x) if isinstance(x, Tensor) else x, preds)


def _hard(target: Any) -> Any:
    """Return the labels of a target that is mixed of several (R20)."""
    return target.hard() if type(target) is not Tensor and hasattr(target, "hard") else target
