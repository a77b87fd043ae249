"""Models that can be made again from a name and plain arguments: `register_model`.

Stands on torch only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

from torch import nn

F = TypeVar("F", bound=Callable[..., nn.Module])

MODELS: dict[str, Callable[..., nn.Module]] = {}
NAMED = ("torch.nn", "minilearn.nn")  # whose names may stand for makers of layers in arguments
PLAIN = (str, int, float, bool, type(None))


def register_model(make: F) -> F:
    """Register a function that makes a model, under its name.

    Its models remember how they were made, so that `learn.export` can write it down and
    `load_learner` make them again, in any process that has the function registered.

    >>> @register_model
    ... def two_layers(n_in: int, hidden: int, n_out: int) -> nn.Module: ...

    Args:
        make: a function without `*args`; arguments that JSON can hold, and layers of torch.nn or
            minilearn such as `nn.BatchNorm2d`, are written down.

    Raises:
        TypeError: this is no function.
        ValueError: another function of that name is registered.
    """
    if not inspect.isfunction(make):
        raise TypeError(f"register a function that returns the model, got {make!r}")
    name, other = make.__name__, MODELS.get(make.__name__)
    if other is not None and other.__module__ != make.__module__:
        raise ValueError(f"{other.__module__} has registered a model {name!r}; rename one")
    signature = inspect.signature(make)

    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> nn.Module:
        model = make(*args, **kwargs)
        model._built_by = (name, dict(signature.bind(*args, **kwargs).arguments))
        return model

    MODELS[name] = made
    return made  # type: ignore[return-value]


def create_model(name: str, **arguments: Any) -> nn.Module:
    """Make a registered model.

    Raises:
        ValueError: no model of that name is registered here.
    """
    if name not in MODELS:
        raise ValueError(
            f"no model {name!r} is registered here; there are {', '.join(sorted(MODELS))}. Import "
            "the module that registers it first."
        )
    return MODELS[name](**{key: _from_plain(value) for key, value in arguments.items()})


def built_by(model: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the registered name and the arguments, as JSON holds them, that made `model`.

    Raises:
        ValueError: an argument cannot be written down; names it.
    """
    if (known := getattr(model, "_built_by", None)) is None:
        return None
    name, arguments = known
    return name, {key: _to_plain(value, f"{name}({key}=…)") for key, value in arguments.items()}


def _to_plain(value: Any, where: str) -> Any:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [_to_plain(item, where) for item in value]
    for module in NAMED:
        offered = vars(import_module(module))
        for name in (getattr(value, "__name__", None), *offered):
            if name and not name.startswith("_") and offered.get(name) is value:
                return {module: name}
    raise ValueError(f"{where} was given {value!r}, which JSON cannot hold")


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    ((module, name),) = value.items()
    if module not in NAMED or not _makes_layers(found := getattr(import_module(module), name)):
        raise ValueError(f"{module}.{name} is no layer of {' or '.join(NAMED)}")
    return found


def _makes_layers(found: Any) -> bool:
    made = getattr(found, "func", found)  # act_gr is a partial
    return isinstance(made, type) and issubclass(made, nn.Module)
