"""A column of the history to watch: which direction is better, and the best value so far."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from ..base.batch import describe
from ..base.text import did_you_mean
from ..core.callback import attribute
from ..core.events import EVENTS
from ..core.history import COUNTERS
from ..core.learner import Loop


class Monitor:
    """Reads a column of the history and knows its best value so far.

    Args:
        name: a column such as "valid_loss" or "accuracy".
        mode: "min" or "max", the direction that is better; "min" where the name ends in "loss".
        min_delta: by how much more than this a value must beat the best.
        relative: `min_delta` is a fraction of the best value.
        score: a function of the Learner whose value is read in the place of a column.

    Attributes:
        best: the best value so far, None before the first.

    Raises:
        ValueError: the direction is neither given nor known.
    """

    def __init__(
        self,
        name: str,
        mode: str | None = None,
        min_delta: float = 0.0,
        relative: bool = False,
        score: Callable[[Loop], float] | None = None,
    ) -> None:
        if mode is None and name.endswith("loss"):
            mode = "min"
        if mode not in ("min", "max"):
            raise ValueError(f"say what is better for {name!r}: mode='min' or 'max'; got {mode!r}")
        if not min_delta >= 0:
            raise ValueError(f"min_delta is 0 or more, got {min_delta}")
        self.name, self.mode, self.min_delta, self.relative = name, mode, min_delta, relative
        self.best: float | None = None
        self.score = score
        self._seen = self._warned = False

    def check(self, learn: Loop) -> None:
        """Raise before a fit begins to train where it is certain that nobody provides the column.

        It is not where the loss may have named parts, or a callback of the user's own may add
        columns: then a name that is nearly a known one warns. Meant for `before_fit`.

        Raises:
            KeyError: neither the loop nor the MetricsCB has such a column, or the column is of a
                validation and this fit has none.
        """
        if self.score is not None:
            return
        known = []
        for metrics in (cb for cb in learn.cbs if hasattr(cb, "all_metrics")):
            known += metrics.names
            for name in getattr(learn.dls, "named", ()):
                known += [f"{name}_{column}" for column in metrics.all_metrics]
        if not learn.plan.valid:
            known = [name for name in known if name.startswith("train_")]
        # a metric that returns a dict has columns that begin with its name
        if self.name in (*known, *COUNTERS) or self.name.startswith(tuple(f"{n}_" for n in known)):
            return
        if not _has_parts(learn.loss_func) and all(map(_is_ours, [learn, *learn.cbs])):
            raise self._missing(learn, known)
        if did_you_mean(self.name, known):
            warnings.warn(f"so far there is {self._missing(learn, known).args[0]}", stacklevel=3)

    def _missing(self, learn: Loop, columns: Iterable[str]) -> KeyError:
        there = ", ".join(columns) or "none (add MetricsCB())"
        if not learn.plan.valid:
            there += "; this fit has no validation: dls has no loader for it, or valid=False"
        near = did_you_mean(self.name, columns)
        hint = f"{near} The" if near else "; the"
        return KeyError(f"no column {self.name!r} to monitor{hint} columns are: {there}")

    def read(self, learn: Loop) -> float | None:
        """Return the value in the running round's row, or None where this round has none.

        Meant for `after_round`. Where all batches were cancelled nothing was measured: such a round
        is left out, and the first one warns.

        Raises:
            KeyError: there was a validation, and there is no such column.
            TypeError: the column holds something else than one number.
        """
        value = learn.row.get(self.name) if self.score is None else self.score(learn)
        if value is not None:
            self._seen = True
            try:
                return float(value)
            except (TypeError, ValueError, RuntimeError) as e:
                raise TypeError(
                    f"column {self.name!r} has {describe(value)} in it, and only one number can be "
                    "better or worse: monitor another column, or a metric that returns one"
                ) from e
        # a round that ends with its training epoch had no validation; its columns come later
        comes_later = learn.training and learn.plan.valid and not self.is_of_training
        if comes_later or self.name in learn.row:
            return None
        if not (self._seen or self._may_come(learn)):
            raise self._missing(learn, learn.row)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the round of epoch {learn.epoch} has no {self.name!r}, so it is neither better "
                "nor worse: none of its batches was finished",
                stacklevel=4,
            )
        return None

    @property
    def is_of_training(self) -> bool:
        """Whether the column is one of training."""
        return self.name.startswith("train_")

    def _may_come(self, learn: Loop) -> bool:
        """Return whether an epoch with a finished batch could have given the column."""
        metrics = attribute(learn, "metrics")
        runs = learn.plan.stream is not None if self.is_of_training else learn.plan.valid
        if metrics is None or not runs:
            return False  # nobody measures, or there is no such epoch
        given = [name for name in metrics.names if name in learn.row]
        return self.name in metrics.names or not any(
            name.startswith("train_") is self.is_of_training for name in given
        )

    def better(self, value: float) -> bool:
        """Return whether `value` beats the best so far by more than `min_delta`; a tie does not."""
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self.min_delta * (abs(self.best) if self.relative else 1)

    def update(self, value: float) -> bool:
        """Return whether `value` is better, and keep it as the best if so."""
        if better := self.better(value):
            self.best = value
        return better

    def reset(self) -> None:
        """Forget what was seen: a new fit begins."""
        self.best, self._seen, self._warned = None, False, False

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far."""
        return {"best": self.best, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.best, self._seen = state["best"], state["seen"]

    def __repr__(self) -> str:
        """Show the column and its direction."""
        return f"Monitor({self.name!r}, {self.mode!r})"


def _has_parts(loss_func: Any) -> bool:
    """Return whether a loss may be a dict of named parts; those of torch never are."""
    module = getattr(getattr(loss_func, "func", loss_func), "__module__", None) or ""
    return not module.startswith("torch.")


def _is_ours(x: Any) -> bool:
    """Return whether a callback is one of this package that runs no function of the user's."""
    return type(x).__module__.startswith("minilearn.") and not any(n in EVENTS for n in vars(x))
