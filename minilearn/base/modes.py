"""Train and eval modes, module by module.

A module is frozen for modes when it is in eval while the model is in train mode, or when
`learn.freeze` said so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def frozen_modules(model: Any) -> list[nn.Module]:
    """Return the modules that the user froze: in eval, inside a model that is in train mode."""
    if not isinstance(model, nn.Module) or not model.training:
        return []
    return [m for m in model.modules() if not m.training and not held(m)]


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
def preserved_modes(model: Any) -> Iterator[None]:
    """Give each module its own mode back at the end, unless `hold` has said otherwise since."""
    modes = [(m, m.training, held(m)) for m in _modules(model)]
    try:
        yield
    finally:
        for module, training, was_held in modes:
            module.training = (
                training if held(module) == was_held else model.training and not held(module)
            )


def _modules(model: Any) -> list[nn.Module]:
    return list(model.modules()) if isinstance(model, nn.Module) else []


def is_training(learn: Any) -> bool:
    """Return whether the epoch trains; of a plain learner, whether its model is in train mode."""
    training = getattr(learn, "training", None)
    return learn.model.training if training is None else training
