"""What a Learner holds, declared once: every attribute with its type, its time and its meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn

from .history import History

UNSET: Any = None  # what the first fit sets; every reader runs in a fit


class LoopState:
    """The attributes of a Learner."""

    # given
    model: nn.Module
    dls: Any
    loss_func: Any
    opt_func: Callable[..., Any] | str | None
    lr: float | slice | None
    cbs: list[Any]
    count: Callable[[Any], Any] | None

    # set by fit
    opt: Any = None
    plan: Any = UNSET  # of core.plan: how long the fit is
    n_epochs: int | None = None  # full passes over the training data; None with n_steps
    epochs: Iterable[int] = ()  # the epoch of each round
    epoch: Any = UNSET  # full passes made before this one
    n_batches: int | None = None  # batches in a training pass, None when unknown
    batches_per_step: int = 1  # more with accumulation
    steps_done: int = 0  # updates made
    training: bool = False  # whether this pass is a training pass
    valid_name: str | None = None  # of a further validation set, while it is run
    metrics: Any  # the MetricsCB, once a fit had one
    dl: Any = None  # the loader of this pass
    pass_length: int | None = None  # batches in this pass, None when unknown
    stream: Any = UNSET  # the place in the training data
    skipped: int = 0  # batches of this pass that were run before a resume
    trained: bool = False  # this round's training pass was run before a resume
    history: History
    row: dict[str, Any]  # the row of the running round; callbacks add columns
    levels: tuple[str, ...] = ()  # the levels that are running, outermost first
    error: BaseException | None = None  # during a clean-up: what ended the level
    interrupted: bool = False  # the last fit was ended by Ctrl-C
    depth: int = 0  # how many fits this one runs inside of
    processes: Any = None  # those that make this fit together, where there are several
    scratch: Path | None = None  # in a dry run: the folder that writers use in place of their own

    # within a batch
    iter: Any = UNSET  # number of the batch in its pass
    batch: Any = None
    preds: Any = None
    loss: Any = None
    loss_parts: dict[str, Any] | None = None  # where the loss is a sum of named parts
    grads_held: bool = False  # gradients of an open accumulation group outlive the batch

    _told: set[Any] = UNSET  # what this fit has said of its loaders
    _frozen: list[nn.Module] = []  # modules that stay in eval mode
    _grads: str = "none"  # of this batch: none, begun, ready, settled
    _opt_given: bool = False  # the optimizer was given ready, and is kept for all fits

    # methods of the Learner that modules below it call on it, so that a subclass may override them
    _new_opt: Callable[..., Any]
    _set_lr: Callable[..., None]
    _check_opt: Callable[..., None]
    fit_one_cycle: Callable[..., None]
    freeze: Callable[..., None]
    freeze_to: Callable[..., None]
    get_preds: Callable[..., Any]
    iter_preds: Callable[..., Any]
    log: Callable[..., None]
    on: Callable[..., Any]
    unfreeze: Callable[..., None]
