"""Models by name and plain arguments: `create_model`, `register_model`."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

from torch import nn

from minilearn.base.text import did_you_mean

from . import timm_models
from .timm_models import HUB, TIMM

F = TypeVar("F", bound=Callable[..., nn.Module])

MODELS: dict[str, Callable[..., nn.Module]] = {}
NAMED = ("torch.nn", "minilearn.nn.layers")  # modules whose layers arguments may name
PLAIN = (str, int, float, bool, type(None))


def register_model(make: F) -> F:
    """Register a function that makes a model, under its name.

    Its models remember their arguments, so that `learn.export` can store them and `load_learner`
    can make the model again, in any process that has the function registered.

    >>> @register_model
    ... def small_net(n_in: int, hidden: int, n_out: int) -> nn.Module: ...

    Args:
        make: a function without `*args`; its arguments are stored if JSON can hold them or they are
            layers of torch.nn or minilearn, such as `nn.BatchNorm2d`.

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
    """Make a model by its name.

    >>> create_model("resnet", n_in=1, n_out=10)
    >>> create_model("torch.nn:Linear", in_features=3, out_features=1)
    Linear(in_features=3, out_features=1, bias=True)
    >>> create_model("timm/resnet18", num_classes=10, in_chans=1)  # doctest: +SKIP

    Args:
        name: of a registered function; "timm/NAME" for a model of timm, where that is installed
            (`num_classes` replaces its head, `in_chans` its first layer, `pretrained=True` asks for
            its weights); "hf-hub:OWNER/NAME" for one on the Hugging Face hub, which timm loads; or
            "package.module:function", any callable that returns a model.
        arguments: those of the function.

    Raises:
        ValueError: there is no such name (near ones are suggested), it does not take these
            arguments, or pretrained weights cannot be loaded.
        ImportError: the package that is named is not installed.
    """
    arguments = {key: from_plain(value) for key, value in arguments.items()}
    if name.startswith((TIMM, HUB)):
        return timm_models.create(name.removeprefix(TIMM), arguments)
    return model_maker(name)(**arguments)


def remake_model(name: str, arguments: Mapping[str, Any], trust: bool = False) -> nn.Module:
    """Make a model that a file describes: by a registered function, timm, or a class of a module.

    Args:
        name: registered, timm's, or "package.module:Class".
        arguments: those of the function or class.
        trust: allow to import a module that is named.

    Raises:
        ValueError: the name is not registered here, names no class of a model, or needs trust; or
            timm would read other files.
        ImportError: there is no such module.
    """
    if ":" in name:
        if not trust:
            raise ValueError(f"the model is a {name}: pass trust=True to import that module")
        if not (isinstance(made := named_object(name), type) and issubclass(made, nn.Module)):
            raise ValueError(f"{name} is no class of a model")
    elif name not in MODELS and not name.startswith(TIMM):
        raise ValueError(_no_model(name))
    if name.startswith(TIMM):
        timm_models.check_remade(name, arguments)
    return create_model(name, **arguments)


def model_maker(name: str) -> Callable[..., Any]:
    """Return the function that makes the models of a name; for timm's, timm's own.

    Raises:
        ValueError: there is no such name; near ones are suggested.
        ImportError: the package that is named is not installed.
    """
    if name.startswith((TIMM, HUB)):
        return timm_models.entry(name.removeprefix(TIMM))
    if ":" in name:
        return named_object(name)
    if name not in MODELS:
        raise ValueError(_no_model(name))
    return MODELS[name]


def list_models(pattern: str = "*") -> list[str]:
    """Return the names that `create_model` knows, in order, timm's (with "timm/") where installed.

    >>> list_models("*res*")

    Args:
        pattern: as of files; case counts. It may leave out "timm/".
    """
    ours = sorted(name for name in MODELS if fnmatchcase(name, pattern))
    try:
        theirs = [f"{TIMM}{n}" for n in timm_models.names()]
    except ImportError:
        return ours
    return ours + [n for n in theirs if fnmatchcase(n, pattern) or fnmatchcase(n[5:], pattern)]


def named_object(spec: str) -> Any:
    """Return what "package.module:name" names; modules in the working folder, too.

    Raises:
        ValueError: the module does not have the name; near ones are suggested.
        ImportError: there is no such module.
    """
    module, _, name = spec.partition(":")
    if not module or not name or module.startswith("."):
        raise ValueError(f"{spec!r} names nothing. Write package.module:name")
    if os.getcwd() not in sys.path:  # an installed command does not look where it is started
        sys.path.append(os.getcwd())
    try:
        found = import_module(module)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{module}.".startswith(f"{e.name}."):
            raise  # the module exists, and one of its own imports fails
        raise ImportError(f"{spec!r} names no module: {e}. Write package.module:name") from e
    for part in name.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, [n for n in dir(found) if not n.startswith("_")])
            raise ValueError(f"{module} has no {name!r}{hint}")
        found = getattr(found, part)
    return found


def _no_model(name: str) -> str:
    known = list_models()
    ours = ", ".join(n for n in known if not n.startswith(TIMM))
    return (
        f"no model {name!r} is registered here{did_you_mean(name, known)}; there are {ours}, "
        "timm/NAME, and package.module:function. Import the module that registers it first."
    )


def built_by(model: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the registered name and the arguments, as JSON holds them, that made `model`.

    Raises:
        ValueError: JSON cannot hold an argument; names it.
    """
    if (known := getattr(model, "_built_by", None)) is None:
        return None
    name, arguments = known
    return name, {key: _to_plain(value, f"{name}({key}=…)") for key, value in arguments.items()}


def class_and_arguments(model: nn.Module) -> tuple[str, dict[str, Any]]:
    """Return "package.module:Class" of a model, and the arguments found under their names in it.

    An argument that the model does not keep has its default. `made_alike` tells whether that is so.

    Raises:
        ValueError: the class cannot be imported, or an argument is unknown or not plain.
    """
    made = type(model)
    found: Any = sys.modules.get(made.__module__)
    for part in made.__qualname__.split("."):
        found = getattr(found, part, None)
    if made.__module__ == "__main__" or found is not made:
        raise ValueError("its class is in the running script or a function, not in a module")
    arguments = {}
    for p in inspect.signature(made).parameters.values():
        if p.name in vars(model):
            arguments[p.name] = _to_plain(vars(model)[p.name], f"{made.__name__}({p.name}=…)")
        elif p.default is p.empty and "VAR_" not in p.kind.name:
            raise ValueError(f"it does not keep the argument {p.name!r} as self.{p.name}")
    return f"{made.__module__}:{made.__qualname__}", arguments


def made_alike(one: nn.Module, two: nn.Module) -> bool:
    """Return whether two models have the same modules, with the same settings in each."""
    settings = [
        [(name, *_settings(m)) for name, m in model.named_modules()] for model in (one, two)
    ]
    return settings[0] == settings[1]


def _settings(module: nn.Module) -> tuple[type, str, dict[str, Any]]:
    def plain(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value if isinstance(value, PLAIN) else getattr(value, "__qualname__", None)

    kept = {name: plain(value) for name, value in vars(module).items() if name != "training"}
    known = {name: value for name, value in kept.items() if value is not None}
    return type(module), module.extra_repr(), known


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


def from_plain(value: Any) -> Any:
    """Return an argument with layers in the place of their names: {"torch.nn": "ReLU"}.

    Raises:
        ValueError: a mapping does not name a layer.
    """
    if isinstance(value, (list, tuple)):
        return type(value)([from_plain(item) for item in value])
    if not isinstance(value, Mapping):
        return value
    module, name = next(iter(value.items()), ("", ""))
    if len(value) != 1 or module not in NAMED or not isinstance(name, str):
        raise ValueError(f"{dict(value)} names no layer; write {{{NAMED[0]}: ReLU}}")
    offered = vars(import_module(module))
    if not _makes_layers(offered.get(name)):
        hint = did_you_mean(name, (key for key, found in offered.items() if _makes_layers(found)))
        raise ValueError(f"{module}.{name} is no layer of {' or '.join(NAMED)}{hint}")
    return offered[name]


def _makes_layers(found: Any) -> bool:
    made = getattr(found, "func", found)  # act_gr is a partial
    return isinstance(made, type) and issubclass(made, nn.Module)
