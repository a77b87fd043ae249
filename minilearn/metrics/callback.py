"""Losses and metrics of each epoch over a loader: MetricsCB."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from fastcore.basics import noop
from torch import Tensor

from ..base.batch import HALF, batch_size, counted, describe, is_number, map_batch, tensors
from ..base.modes import is_training
from ..base.rank import rank
from ..base.text import differences, write_out
from ..callbacks.training import adds_up
from ..core.callback import Callback, attribute
from ..core.events import CancelException, Order
from ..core.history import format_value
from ..core.learner import Loop
from ..distributed.barrier import processes_of
from ..distributed.sync import Processes
from .mean import FunctionMean, Mean, as_numbers, columns_of, finite, mean_loss, per_item
from .merge import check_mergeable, merge_all
from .update import (
    Updater,
    as_metric,
    check_name,
    keeps_history,
    metrics_by_name,
    restore_state,
    saved_state,
)

CHECK_EVERY = 128  # updates between two looks at the training loss, see `_check_early`


class MetricsCB(Callback):
    """Measure the loss and any metrics over each training epoch and validation.

    A metric is a torcheval or torchmetrics object, any object with `update(preds, targs)`,
    `compute()` and `reset()`, or a function of `(preds, targs)`, whose values are averaged over the
    items. A function, or an `update`, with a third parameter `sample_weight` gets the weights that
    `TrainCB(sample_weight=...)` names; a function is averaged by them. Where an `update` calls them
    otherwise, as torcheval's `BinaryAUROC` does, a subclass asks for them: `def update(self, input,
    target, sample_weight): super().update(input, target, weight=sample_weight)`. Each epoch and
    validation begins anew. Values are read from the device at its end; the training loss is looked
    at in between, see `on_nan`. What `learn.log` was given is measured in the same way.

    >>> cbs = [TrainCB(), MetricsCB(accuracy, top2=partial(accuracy, topk=2))]
    >>> Learner(model, dls, F.cross_entropy, cbs=cbs).fit(1)

    Args:
        ms: metrics that are named after their class or function (`MulticlassAccuracy`, then
            `MulticlassAccuracy_2`).
        on_nan: "raise" if the training loss of an epoch is not finite, or "warn" and go on. It is
            read every 128 updates and at the end of the epoch; of several processes, at the end
            alone. It only warns, at the end, where a `NonFiniteCB`, a clip or a scaler skips such
            updates.
        quiet: print no rows; the history has them.
        metrics: metrics by name.

    Attributes:
        rows: one dict for each training epoch or validation: `epoch`, `train` ("train" or "eval"),
            the metrics, `loss`.
        metrics: the metrics by name.
        all_metrics: the same and the mean loss, which is also `loss`.

    Raises:
        TypeError: something is no metric.
        ValueError: a metric has no name, or the name of another column of the history.
        FloatingPointError: the training loss of an epoch is not finite, and its updates were made.
        ValueError: the batches of an epoch differ in shape, and their number of items is unknown.

    Events: before_fit, before_epoch, after_batch, after_epoch, cleanup_epoch
    Order:  METRICS
    Reads:  training, valid_name, epoch, steps_done, count, batch, n_items, preds, loss, loss_parts,
            loss_func, row, error, cbs
    Writes: metrics, row
    Syncs:  once in 128 updates
    """

    order = Order.METRICS
    per_process = True  # each process measures its shard

    def __init__(
        self, *ms: Any, on_nan: str = "raise", quiet: bool = False, **metrics: Any
    ) -> None:
        if on_nan not in ("raise", "warn"):
            raise ValueError(f"on_nan is 'raise' or 'warn', got {on_nan!r}")
        self.on_nan, self.quiet, self.rows = on_nan, quiet, []
        self.metrics = {n: as_metric(n, m) for n, m in metrics_by_name(ms, metrics).items()}
        self.loss = Mean()
        self.all_metrics = {**self.metrics, "loss": self.loss}
        self.parts: dict[str, Mean] = {}  # of losses that are sums of named parts
        self.logged: dict[str, Mean] = {}  # what `learn.log` was given
        self.functions = [m for m in self.metrics.values() if _by_batch(m)]
        self.updater = Updater(m for m in self.metrics.values() if not _by_batch(m))
        self._measuring, self._split, self._warned = False, None, False
        self._adds_up = self._counts_rows = False  # what holds for an epoch, see before_epoch
        self._checked: int | None = None  # updates made at the last look at the loss
        self._unknown: Any = None  # the shapes of the batches, while their items are unknown
        self._seen: dict[str, None] = {}
        self._resumed: Any = None  # the state that a resume gave

    # ---- events ----

    def before_fit(self, learn: Loop) -> None:
        """Begin new rows, and let others find this as `learn.metrics`."""
        learn.metrics, self.rows, self._resumed, self._warned = self, [], None, False
        if processes_of(learn) is not None:
            check_mergeable(self.metrics)
            for metric in self.functions:
                metric.check = None  # a function may use all processes, which must call it alike

    def before_epoch(self, learn: Loop) -> None:
        """Reset all metrics."""
        for metric in (*self.all_metrics.values(), self.updater):
            metric.reset()
        self.parts, self.logged, self._measuring, self._unknown = {}, {}, True, None
        owner = attribute(learn, "owner")("get_loss")
        self._split = getattr(owner, "split", None)
        self._weight_of = getattr(owner, "weight_of", noop)
        self._adds_up = adds_up(learn)
        usual = getattr(type(learn), "n_items", Loop.n_items) is Loop.n_items
        self._counts_rows = usual and attribute(learn, "count") is None
        watches = is_training(learn) and self.on_nan == "raise" and not skips_bad_updates(learn)
        alone = processes_of(learn) is None  # several find it together, at the end of the epoch
        steps = attribute(learn, "steps_done") if watches and alone else None
        self._checked = None if steps is None else steps // CHECK_EVERY
        if self._resumed is not None:
            self._resume()

    def after_batch(self, learn: Loop) -> None:
        """Update the means and metrics with a finished batch."""
        n = self._items(learn)
        loss = per_item(learn.loss, n) if self._adds_up else mean_loss(learn)
        if isinstance(loss, (Tensor, float, int)):
            self.loss.update(loss, n)
        if parts := attribute(learn, "loss_parts"):
            for name, part in parts.items():
                if name != "loss":
                    mean = self._mean(name, self.parts)
                    mean.update(per_item(part, n) if self._adds_up else part, n)
        if self.metrics:
            preds, targs = map_batch(_in_float32, learn.preds), self._targets(learn)
            for metric in self.functions:
                weight = self._weight_of(learn.batch) if metric.weighs else None
                metric.update(preds, targs, n, weight)
            weight = self._weight_of(learn.batch) if self.updater.weighing else None
            self.updater.update(preds, targs, n, weight)
        if self._checked is not None and learn.steps_done // CHECK_EVERY > self._checked:
            self._check_early(learn)

    def after_epoch(self, learn: Loop) -> None:
        """Compute the values, and publish them."""
        if self._measuring:
            self._measuring = False
            self._publish(learn)

    def cleanup_epoch(self, learn: Loop) -> None:
        """Complete the row where a cancel ended the epoch; an error leaves none."""
        if isinstance(attribute(learn, "error"), CancelException):
            self.after_epoch(learn)
        self._measuring = False

    # ---- a batch ----

    def _items(self, learn: Loop) -> Any:
        """Return the number of items; where it is unknown all batches must be alike, and weigh 1.

        Raises:
            ValueError: it is unknown, and the mean over the items depends on it.
        """
        n = batch_size(learn.batch, self._split) if self._counts_rows else learn.n_items
        if n is not None and self._unknown is None:
            return n
        shapes = [describe(x) for x in tensors(learn.batch)]
        alike = self._unknown == shapes if self._unknown is not None else not self.loss.any
        if not alike or self._adds_up:
            counted(None, learn.batch, "MetricsCB weighs batches by their items")
        self._unknown = shapes
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the number of items in a batch is unknown: it is {describe(learn.batch)}, whose "
                "inputs and targets share no length. Each batch weighs the same; if that is not "
                "so, give the Learner count=, a function of a batch",
                stacklevel=2,
            )
        return 1

    def _mean(self, name: str, means: dict[str, Mean]) -> Mean:
        if name not in means:
            check_name(name, (*self.metrics, *self.parts, *self.logged))
            means[name] = Mean()
        return means[name]

    def add(self, learn: Loop, values: dict[str, Any]) -> None:
        """Keep what `learn.log` was given: means over the epoch, or the row's own values.

        Args:
            learn: the Learner.
            values: numbers and tensors with one element by name; others are ignored.
        """
        part = None if "epoch" not in learn.levels else self._part(learn)
        n = learn.n_items if "batch" in learn.levels else 1
        for name, value in values.items():
            if not is_number(value):
                continue
            if isinstance(value, Tensor):
                value = value.detach().clone().reshape(())  # without what it is a view of
            if self._measuring:
                self._mean(name, self.logged).update(value, 1 if n is None else n)
            elif "round" in learn.levels:
                check_name(name, self.metrics)
                learn.row[_column(name, part)] = float(value)

    def _targets(self, learn: Loop) -> Any:
        """Return what the loss compares predictions with: one target, or a tuple of several."""
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

    # ---- the end of an epoch ----

    def running(self, learn: Loop) -> dict[str, float]:
        """Return the metrics of the running epoch so far, those of this process; nothing changes.

        Of several processes, only means are returned: metric objects may ask the others.
        """
        now, parts = copy.copy(self), ("metrics", "parts", "updater")
        vars(now).update(copy.deepcopy({name: getattr(self, name) for name in parts}))
        if processes_of(learn) is not None:
            now.metrics = {n: m for n, m in now.metrics.items() if isinstance(m, Mean)}
        values = now._values(None)
        return {n: v for n, v in values.items() if n != "loss" and isinstance(v, float)}

    def flush(self) -> None:
        """Make the updates that wait, so that `compute()` of every metric is up to date."""
        self.updater.flush()

    def _publish(self, learn: Loop) -> None:
        training = is_training(learn)
        values = self._values(processes_of(learn))
        if not values:
            return
        row = {"epoch": learn.epoch, "train": "train" if training else "eval", **values}
        if not training and "weights" in getattr(learn, "row", ()):  # they are averages
            row["weights"] = learn.row["weights"]
        self.rows.append(row)
        part = self._part(learn)
        columns = {_column(name, part): value for name, value in values.items()}
        self._seen.update(dict.fromkeys(columns))
        if hasattr(learn, "row"):
            learn.row = {**learn.row, **columns}
        self._log(row)
        for name, metric in self.metrics.items():
            if isinstance(metric, FunctionMean) and metric.check is not None:
                metric.check.warn(name)
        self._check_finite(learn, values, training)

    def _part(self, learn: Loop) -> str | None:
        return "train" if is_training(learn) else attribute(learn, "valid_name")

    def _values(self, processes: Processes | None) -> dict[str, Any]:
        """Return the values as Python numbers, nothing if no batch was finished."""
        self.flush()
        begun, values = self.updater.begun, {}
        if processes is not None:
            found = processes.gather((begun, list(self.parts), list(self.logged)))
            begun = any(has for has, *_ in found)
            for _, parts, logged in found:  # a process without a batch has none
                for name in parts:
                    self._mean(name, self.parts)
                for name in logged:
                    self._mean(name, self.logged)
        means = {**self.metrics, **self.parts, **self.logged, "loss": self.loss}
        if processes is not None:
            merge_all(means, processes)
        for name, metric in means.items():
            if metric.any if isinstance(metric, Mean) else begun:
                values.update(columns_of(name, metric.compute()))
        return values

    @property
    def names(self) -> list[str]:
        """The columns that this adds to the history, as far as they are known yet."""
        known = [_column(name, "train") for name in self.metrics]
        return list(dict.fromkeys(["train_loss", "valid_loss", *known, *self.metrics, *self._seen]))

    def prints_rows(self) -> bool:
        """Return whether `_log` is this class's own, which a display may replace for a fit."""
        return getattr(self._log, "__func__", None) is MetricsCB._log

    def _log(self, row: dict[str, Any]) -> None:
        """Print a row. A ProgressCB replaces this for the time of a fit, but not one of yours."""
        if self.quiet or rank():
            return
        values = [f"{k} {format_value(v)}" for k, v in row.items() if k not in ("epoch", "train")]
        phase = "valid" if row["train"] == "eval" else row["train"]
        write_out("  ".join([f"epoch {row['epoch']}", phase, *values]) + "\n")

    def _check_early(self, learn: Loop) -> None:
        """Look at the loss so far, every `CHECK_EVERY` updates; this waits for the device."""
        self._checked = learn.steps_done // CHECK_EVERY
        means = {**self.parts, "loss": self.loss}
        values = {name: as_numbers(mean.compute()) for name, mean in means.items() if mean.any}
        self._check_finite(learn, values, True, f" after {learn.steps_done} updates")

    def _check_finite(
        self, learn: Loop, values: dict[str, Any], training: bool, when: str = ""
    ) -> None:
        losses = {name: values[name] for name in (*self.parts, "loss") if name in values}
        bad = [f"{name} is {v}" for name, v in losses.items() if not finite(v)]
        if not bad:
            return
        phase = "training" if training else "validation"
        found = f"is not finite{when}: {', '.join(bad)}"
        message = f"the {phase} loss of epoch {learn.epoch} {found}"
        if not training or self.on_nan == "warn" or skips_bad_updates(learn):
            warnings.warn(f"{message}. Look for bad data", stacklevel=2)
            return
        raise FloatingPointError(
            f"{message}. Lower the learning rate, clip the gradients or look for bad data; "
            "MetricsCB(on_nan='warn') goes on."
        )

    # ---- a resume ----

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, and what the running epoch has measured so far."""
        state: dict[str, Any] = {"rows": [dict(r) for r in self.rows], "measuring": self._measuring}
        state["names"] = list(self.metrics)
        if self._measuring:
            state["metrics"] = {name: saved_state(name, m) for name, m in self.all_metrics.items()}
            state["parts"] = {name: mean.state_dict() for name, mean in self.parts.items()}
            state["logged"] = {name: mean.state_dict() for name, mean in self.logged.items()}
            state["updater"] = self.updater.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in this epoch, or with the next; to be called after `before_fit`."""
        self._resumed, self.rows = state, [dict(row) for row in state["rows"]]
        self.differences = differences(state, {"names": list(self.metrics)}, "metrics")
        forget = [name for name, metric in self.metrics.items() if keeps_history(metric)]
        self.differences += [f"metrics: {n} forgets its values before the resume" for n in forget]
        if self._measuring:
            self._resume()

    def _resume(self) -> None:
        state, self._resumed = self._resumed, None
        if state["measuring"]:
            for name in self.all_metrics.keys() & state["metrics"].keys():
                restore_state(self.all_metrics[name], state["metrics"][name])
            self.parts, self.logged = {}, {}  # a resume fires before_epoch again
            for name, saved in state["parts"].items():
                self._mean(name, self.parts).load_state_dict(saved)
            for name, saved in state["logged"].items():
                self._mean(name, self.logged).load_state_dict(saved)
            self.updater.load_state_dict(state["updater"])

    def __repr__(self) -> str:
        """Show the names of the metrics."""
        return f"MetricsCB({', '.join(self.metrics)})"


def skips_bad_updates(learn: Any) -> bool:
    """Return whether a callback may skip updates whose loss is not finite."""
    return any(getattr(cb, "skips_non_finite", False) for cb in attribute(learn, "cbs"))


def _by_batch(metric: Any) -> bool:
    """Return whether a metric is a function that must be called on each batch by itself."""
    return isinstance(metric, FunctionMean) and not metric.joins


def _column(name: str, part: str | None) -> str:
    """Return the name in the history of a value of `part`; None is the only validation set."""
    if part is None:
        return "valid_loss" if name == "loss" else name
    return f"{part}_{name}"


def _in_float32(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    x = x.detach() if x.requires_grad else x
    return x.float() if x.dtype in HALF else x


def _hard(target: Any) -> Any:
    """Return the labels of a mixed target."""
    return target.hard() if type(target) is not Tensor and hasattr(target, "hard") else target
