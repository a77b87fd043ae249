"""Train and eval modes, module by module.

Stands on torch. A module is frozen for modes when it is in eval while the model is in train mode.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def frozen_modules(model: Any) -> list[nn.Module]:
    """Return the modules that the user froze: in eval, inside a model that is in train mode."""
    if not isinstance(model, nn.Module) or not model.training:
        return []
    return [m for m in model.modules() if not m.training]


def set_mode(model: Any, training: bool, frozen: list[nn.Module]) -> None:
    """Put `model` into train or eval mode, and leave `frozen` modules in eval."""
    if not hasattr(model, "train"):
        return
    model.train(training)
    for module in frozen:
        module.training = False


@contextmanager
def preserved_modes(model: Any) -> Iterator[None]:
    """Give each module its own mode back at the end, whatever the block does."""
    modes = [(m, m.training) for m in model.modules()] if isinstance(model, nn.Module) else []
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
