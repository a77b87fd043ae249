"""Fits with a schedule, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

from ..base.foreign_names import known_keywords
from ..core.callback import as_callbacks
from ..core.fit import FitOptions
from ..core.learner import Loop
from .sched_callbacks import BatchSchedCB
from .schedulers import Factory, flat_cos, one_cycle


@known_keywords(*FitOptions.__annotations__)
def fit_one_cycle(
    self: Loop,
    n_epochs: int | None = None,
    lr_max: float | slice | Sequence[float] | None = None,
    *,
    pct_start: float = 0.25,
    div: float = 25.0,
    div_final: float = 1e5,
    cbs: Any = None,
    **kwargs: Unpack[FitOptions],
) -> None:
    """Fit with a learning rate that goes up and then down, and a momentum that does the opposite.

    >>> learn.fit_one_cycle(2, 1e-2)

    Args:
        self: the Learner.
        n_epochs: full passes over the training data.
        lr_max: the highest learning rate, one or one for each group, or a slice as `fit` takes it;
            by default the Learner's.
        pct_start: the fraction of updates in which it rises.
        div: the first rate is `lr_max / div`.
        div_final: the last rate is `lr_max / div_final`.
        cbs: further callbacks for this fit only.
        kwargs: of `fit`: `train`, `valid`, `n_steps`, `valid_every`, `resume`, `reset_opt`,
            `on_interrupt`.

    Raises:
        ValueError: there is no learning rate, or the length of the fit is unknown.

    Source: Smith & Topin 2017, "Super-Convergence" (arXiv:1708.07120); the defaults are fastai's.
    """
    cycle = partial(
        one_cycle,
        max_lr=None if isinstance(lr_max, slice) else lr_max,  # then the groups have theirs
        pct_start=pct_start,
        div_factor=div,
        final_div_factor=div_final / div,
    )
    _fit_with(self, cycle, n_epochs, lr_max, cbs, kwargs)


@known_keywords(*FitOptions.__annotations__)
def fit_flat_cos(
    self: Loop,
    n_epochs: int | None = None,
    lr: float | None = None,
    *,
    pct_start: float = 0.75,
    div_final: float = 1e5,
    cbs: Any = None,
    **kwargs: Unpack[FitOptions],
) -> None:
    """Fit with a flat learning rate that ends along a cosine.

    >>> learn.fit_flat_cos(2, 1e-2)

    Args:
        self: the Learner.
        n_epochs: full passes over the training data.
        lr: the learning rate; by default the Learner's.
        pct_start: the fraction of updates with the full rate.
        div_final: the rate ends at `lr / div_final`.
        cbs: further callbacks for this fit only.
        kwargs: of `fit`: `train`, `valid`, `n_steps`, `valid_every`, `resume`, `reset_opt`,
            `on_interrupt`.

    Source: fastai, `Learner.fit_flat_cos`.
    """
    curve = partial(flat_cos, pct_start=pct_start, div_final=div_final)
    _fit_with(self, curve, n_epochs, lr, cbs, kwargs)


def _fit_with(
    learn: Loop, sched: Factory, n_epochs: int | None, lr: Any, cbs: Any, kwargs: FitOptions
) -> None:
    top = max(lr) if isinstance(lr, (list, tuple)) else lr
    learn.fit(n_epochs, lr=top, cbs=[*as_callbacks(cbs), BatchSchedCB(sched)], **kwargs)
