"""Train and eval modes, module by module.

A module is frozen for modes when it is in eval while the model is in train mode, or when
`learn.freeze` froze it: see `hold_frozen`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def frozen_modules(model: Any) -> list[nn.Module]:
    """Return the modules that the user froze: in eval, inside a model that is in train mode.

    In a model that a fit left in eval, these are the ones that were frozen in that fit.
    """
    if getattr(model, "training", False):
        return eval_modules(model)
    return [m for m in eval_modules(model) if vars(m).get("_was_frozen", False)]


def begin_in_train_mode(model: Any) -> None:
    """Put `model` into train mode but for frozen modules, and mark these for the fits to come."""
    frozen = frozen_modules(model)
    set_mode(model, True, frozen)
    for module in _modules(model):
        vars(module).pop("_was_frozen", None)
    for module in frozen:
        vars(module)["_was_frozen"] = True


def eval_modules(model: Any) -> list[nn.Module]:
    """Return the modules that are in eval mode, but for those that `hold` keeps there."""
    return [m for m in _modules(model) if not m.training and not held(m)]


def hold_frozen(model: nn.Module, params: list[Any], chosen: list[nn.Module], on: bool) -> None:
    """Keep frozen modules with buffers in eval mode, so that no buffer moves without a gradient.

    These are the statistics of norm layers, the vectors of `spectral_norm`, and the like. A module
    is frozen if its weights are, or those of a module around it. Without weights it goes with the
    smallest module around it that has some; if only a part of those is frozen, with the last
    weights before it.

    Args:
        model: its parameters say by `requires_grad` whether they are frozen.
        params: those that were frozen or unfrozen now.
        chosen: modules without weights that were frozen or unfrozen by name.
        on: whether they were frozen.
    """
    changed = {id(p) for p in params}
    directly = [list(module.parameters(recurse=False)) for module in model.modules()]
    before = next(filter(None, directly), [])  # of the first layer: the first weights
    around = {child: parent for parent in model.modules() for child in parent.children()}
    for module, weights in zip(model.modules(), directly, strict=True):
        own, before = list(module.parameters()), weights or before
        if not has_buffers(module) or module is model:
            continue
        part = module
        while not (weights := list(part.parameters())) and part in around:
            part = around[part]
        if len({p.requires_grad for p in weights}) > 1 and not own:
            weights = before
        if module in chosen:
            hold(module, on, model.training)
        elif own or any(id(p) in changed for p in weights):
            frozen = bool(weights) and not any(p.requires_grad for p in weights)
            hold(module, frozen, model.training)


def has_buffers(module: nn.Module) -> bool:
    """Return whether a module has buffers of its own."""
    return any(buffer is not None for buffer in module._buffers.values())


def hold(module: nn.Module, frozen: bool, training: bool) -> None:
    """Say whether `module` stays in eval mode when its model, in mode `training` now, trains."""
    if held(module) != frozen:
        vars(module)["_held_in_eval"] = frozen
        module.training = training and not frozen


def held(module: nn.Module) -> bool:
    """Return whether `hold` said that `module` stays in eval mode."""
    return vars(module).get("_held_in_eval", False)


def set_mode(model: Any, training: bool, frozen: list[nn.Module]) -> None:
    """Put `model` into train or eval mode, and leave `frozen` and held modules in eval."""
    if not hasattr(model, "train"):
        return
    model.train(training)
    for module in (*frozen, *filter(held, _modules(model))):
        module.training = False


@contextmanager
def preserved_modes(*models: Any) -> Iterator[None]:
    """Give each module its own mode back at the end, unless `hold` has said otherwise since."""
    modes = [(model, m, m.training, held(m)) for model in models for m in _modules(model)]
    try:
        yield
    finally:
        for model, module, training, was_held in modes:
            changed = held(module) != was_held
            module.training = model.training and not held(module) if changed else training


def _modules(model: Any) -> list[nn.Module]:
    return list(model.modules()) if isinstance(model, nn.Module) else []


def is_training(learn: Any) -> bool:
    """Return whether the epoch trains; of a plain learner, whether its model is in train mode."""
    training = getattr(learn, "training", None)
    return learn.model.training if training is None else training
