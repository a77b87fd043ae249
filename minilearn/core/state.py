"""What a Learner holds, declared once: every attribute with its type, its time and its meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ..base.foreign_names import ForeignNames, Refused
from .history import History
from .interrupt import Interrupts
from .plan import Plan

UNSET: Any = None  # what the first fit sets; every reader runs in a fit


class Nesting(NamedTuple):
    """What is true inside a nested run: a fit inside, or beside, a fit that leaves no trace."""

    depth: int = 0  # how many fits this one runs inside of
    scratch: Path | None = None  # in a dry run: the folder that writers use in place of their own


def learner_of(learn: LoopState) -> Any:
    """Return the Learner itself, to call a method that is defined in a higher module.

    A declaration of such methods here would hide their signatures from type checkers.
    """
    return learn


class LoopState(ForeignNames):
    """The attributes of a Learner."""

    # given
    model: nn.Module
    dls: Any
    loss_func: Any
    opt_func: Callable[..., Any] | str | None  # None keeps `opt`
    lr: float | slice | None
    cbs: list[Any]
    count: Callable[[Any], Any] | None
    train_loss: bool  # whether the parameters of a loss module are trained

    # what others call these
    callbacks = Refused()
    criterion = Refused()
    loss_fn = Refused()
    optimizer = Refused()

    # set by fit
    opt: Any = None
    plan: Plan  # how long the fit is, and how far it has come
    history: History
    row: dict[str, Any]  # the row of the running round; callbacks add columns
    training: bool = False  # whether this epoch trains, or validates
    dl: Any = None  # the loader of this epoch
    metrics: Any  # the MetricsCB, once a fit had one
    levels: tuple[str, ...] = ()  # the levels that are running, outermost first
    error: BaseException | None = None  # during a clean-up: what ended the level
    stage: str | None = None  # which fit this is, in a method that makes several
    interrupts: Interrupts  # Ctrl-C in a fit, and calls of `stop`
    nesting: Nesting = Nesting()

    # within a batch
    iter: Any = UNSET  # number of the batch in its epoch
    batch: Any = None
    preds: Any = None
    loss: Any = None
    loss_parts: dict[str, Any] | None = None  # where the loss is a sum of named parts

    # methods of the Learner that modules below it call on it, so that a subclass may override them
    _new_opt: Callable[..., Any]
    _set_lr: Callable[..., None]
    _check_opt: Callable[..., None]
    _resume_cbs: Callable[..., list[Any]]
    _usual_cbs: Callable[..., list[Any]]

    # ---- read from the plan ----

    @property
    def epoch(self) -> Any:
        """The current epoch: how many full ones came before it, from 0; None before a fit."""
        return self.plan.epoch

    @property
    def n_epochs(self) -> int | None:
        """The epochs of the fit, full passes over the training data; None with `n_steps`."""
        return self.plan.n_epochs

    @property
    def n_batches(self) -> int | None:
        """The batches in a training epoch, None when unknown."""
        return self.plan.n_batches

    @property
    def steps_done(self) -> int:
        """The updates made."""
        return self.plan.steps_done

    @property
    def n_steps(self) -> int | None:
        """The updates that this fit will make in all, None when unknown."""
        return self.plan.total_steps

    @property
    def is_last(self) -> bool | None:
        """Whether the batch is the last of its epoch, None when unknown."""
        return self.plan.is_last(self.training, self.iter)

    @property
    def valid_name(self) -> str | None:
        """The name of a further validation set, while it is run."""
        return self.plan.valid_name

    @property
    def interrupted(self) -> bool:
        """Whether the last fit was ended by Ctrl-C."""
        return self.interrupts.stopped

    @property
    def stopped(self) -> str | None:
        """Why the last fit ended early, as EarlyStopCB or a call of `stop` say it, else None."""
        return self.interrupts.reason

    @property
    def depth(self) -> int:
        """How many fits this one runs inside of."""
        return self.nesting.depth

    @property
    def scratch(self) -> Path | None:
        """In a dry run: the folder that writers use in place of their own."""
        return self.nesting.scratch
