"""Train a part of a model: freeze, unfreeze, fine_tune."""

from __future__ import annotations

from typing import Any, Unpack

from torch import nn
from torch.nn import Parameter

from ..base.arguments import check_lr
from ..base.foreign_names import known_keywords
from ..base.modes import has_buffers, hold_frozen
from ..base.text import did_you_mean, few
from ..core.callback import as_callbacks
from ..core.fit import FitOptions
from ..core.learner import Loop
from ..core.nested import make_lazy_weights
from ..core.state import learner_of
from .optimizer import layer_groups, matches


def freeze(self: Loop, *patterns: str) -> None:
    """Freeze parts of the model by name; without a name, all but its last layer.

    Frozen weights do not change, whatever the optimizer: they have no gradient. Modules of frozen
    parts that have buffers, such as batch norm, stay in eval mode. In the middle of a fit this
    holds from the next batch on.

    >>> learn.freeze()

    Args:
        self: the Learner.
        patterns: names of modules or parameters, such as "encoder" or "encoder.*.weight".

    Raises:
        ValueError: a pattern fits no parameter, and no module that has only buffers.
    """
    if not patterns:
        learner_of(self).freeze_to(-1)
    for pattern in patterns:
        _set_trainable(self, *_named_like(self.model, pattern), trainable=False)


def unfreeze(self: Loop, *patterns: str) -> None:
    """Unfreeze parts of the model, by name as in `freeze`; without a name, all of it.

    >>> learn.unfreeze()

    Args:
        self: the Learner.
        patterns: as in `freeze`.
    """
    for pattern in patterns or ("*",):
        _set_trainable(self, *_named_like(self.model, pattern), trainable=True)


def freeze_to(self: Loop, n: int) -> None:
    """Freeze the first layers, and let layer `n` and those after it learn.

    >>> learn.freeze_to(-1)

    Args:
        self: the Learner. Its layers are those of its optimizer's splitter, else the model's blocks
            (see `param_groups`).
        n: number of the first layer that learns; -1 is the last.

    Raises:
        ValueError: there is no layer `n`.
    """
    layers = layer_groups(self.model, getattr(self.opt_func, "grouping", {}).get("splitter"))
    if not -len(layers) <= n < len(layers):
        raise ValueError(f"there is no layer {n}: the model has {len(layers)}, counted from 0")
    n %= len(layers)
    _set_trainable(self, [p for layer in layers[n:] for p in layer], [], trainable=True)
    _set_trainable(self, [p for layer in layers[:n] for p in layer], [], trainable=False)


def _named_like(model: nn.Module, pattern: str) -> tuple[list[Parameter], list[nn.Module]]:
    """Return the parameters, and the modules with buffers and no parameters, of such names."""
    patterns = pattern, f"{pattern}.*"
    params = dict(model.named_parameters(remove_duplicate=False))
    found = [p for name, p in params.items() if matches(name, patterns)]
    named = [m for name, m in model.named_modules() if matches(name, patterns)]
    only_buffers = [m for m in named if has_buffers(m) and next(m.parameters(), None) is None]
    if not (found or only_buffers):
        hint = did_you_mean(pattern, params, cutoff=0.3)
        raise ValueError(
            f"no parameter is named like {pattern!r}{hint or f'; there are {few([*params])}'}"
        )
    return found, only_buffers


def _set_trainable(
    learn: Loop, params: list[Parameter], modules: list[nn.Module], *, trainable: bool
) -> None:
    make_lazy_weights(learn)
    model = learn.model
    for p in params:
        if p.is_floating_point() or p.is_complex():
            p.requires_grad_(trainable)
        if not trainable:
            p.grad = None  # with a gradient of zero, momentum and decay would still move it
    hold_frozen(model, params, modules, not trainable)


@known_keywords(*FitOptions.__annotations__)
def fine_tune(
    self: Loop,
    n_epochs: int,
    base_lr: float = 2e-3,
    freeze_epochs: int = 1,
    *,
    lr_mult: float = 100,
    pct_start: float = 0.3,
    div: float = 5.0,
    cbs: Any = None,
    **kwargs: Unpack[FitOptions],
) -> None:
    """Train the last layer of a pretrained model alone for a while, then all of it.

    >>> learn.fine_tune(2, 1e-3)

    Args:
        self: the Learner. Its history is that of the second fit.
        n_epochs: full passes over the training data with all layers.
        base_lr: highest rate while all but the last layer are frozen; half of it afterwards.
        freeze_epochs: full passes before the other layers learn.
        lr_mult: the first layer's rate is the last one's divided by this.
        pct_start: the fraction of updates in which the rates rise.
        div: the rates begin at the highest divided by this.
        cbs: further callbacks for both fits.
        kwargs: passed to both fits; with `resume`, the one that the checkpoint belongs to goes on.

    Source: fastai, `Learner.fine_tune`.
    """
    check_lr(base_lr)
    learn = learner_of(self)
    cbs, resume = as_callbacks(cbs), kwargs.pop("resume", None)
    resumed = self._resume_cbs(resume, cbs) if resume not in (None, False) else []
    in_second = any(cb.saved.get("stage") == "fine_tune, 2" for cb in resumed)
    try:
        if freeze_epochs and not in_second:
            self.stage = "fine_tune, 1"
            learn.freeze()
            first, resumed = [*cbs, *resumed], []
            learn.fit_one_cycle(freeze_epochs, slice(base_lr), pct_start=0.99, cbs=first, **kwargs)
        self.stage = "fine_tune, 2"
        learn.unfreeze()
        rates = slice(base_lr / 2 / lr_mult, base_lr / 2)
        second = [*cbs, *resumed]
        learn.fit_one_cycle(n_epochs, rates, pct_start=pct_start, div=div, cbs=second, **kwargs)
    finally:
        self.stage = None
