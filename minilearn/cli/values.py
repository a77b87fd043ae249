"""Values: types of options, YAML files, and arguments for functions that the user names."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import yaml
from jsonargparse import ArgumentError, ArgumentParser, get_loader, set_dumper, set_loader

from ..base.text import did_you_mean

if TYPE_CHECKING:
    PositiveInt = NonNegativeInt = int
    PositiveFloat = NonNegativeFloat = ClosedUnitInterval = float
else:
    from jsonargparse.typing import (  # noqa: F401
        ClosedUnitInterval,
        NonNegativeFloat,
        NonNegativeInt,
        PositiveFloat,
        PositiveInt,
    )

HABITS = {"batch_size": "bs", "learning_rate": "lr", "optimizer": "opt", "weight_decay": "wd"}
YAML = "minilearn"  # the name of the loader and dumper in jsonargparse


class BadInput(ValueError):
    """An option, a value or a file is wrong; the message says what to write."""


@contextmanager
def blamed(option: str) -> Iterator[None]:
    """Begin the message of an error with the option that it comes from."""
    try:
        yield
    except BadInput:
        raise
    except (ValueError, ImportError) as e:
        raise BadInput(f"{option}: {e}") from e


# ---- YAML ----


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the mapping in a file of YAML or JSON, empty for an empty file.

    Raises:
        ValueError: it is not YAML, or not a mapping.
        OSError: it cannot be read.
    """
    text = Path(path).read_text(encoding="utf-8")
    try:
        config = get_loader("yaml")(f"{text}\n#") or {}  # it takes "a:" alone for a text
    except yaml.YAMLError as e:
        raise BadInput(f"{path} cannot be read: {' '.join(str(e).split())}") from e
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise BadInput(f"{path} must hold names and values, such as 'lr: 1e-3'")
    return config


def yaml_text(config: Any) -> str:
    """Return a configuration as YAML that `read_config` reads back equal."""
    return yaml.dump(config, Dumper=_Dumper, sort_keys=False)


class _Dumper(yaml.SafeDumper):
    """Quotes each text that YAML or jsonargparse may take for a number or a date."""


def _text(dumper: yaml.SafeDumper, text: Any) -> yaml.ScalarNode:
    quote = "'" if str(text)[:1] in "-+.0123456789" else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), quote)


_Dumper.add_representer(str, _text)
_Dumper.add_multi_representer(object, _text)  # such as paths
for kind in (int, float):  # and the types of options that are restricted
    _Dumper.add_multi_representer(kind, lambda d, value, kind=kind: d.represent_data(kind(value)))
set_loader(YAML, get_loader("yaml"), exceptions=(yaml.YAMLError,))
set_dumper(YAML, yaml_text)


# ---- what messages say ----


def members(kind: Any) -> list[Any]:
    """Return the types in a union; a type alone is one."""
    return [*get_args(kind)] if get_origin(kind) in (Union, UnionType) else [kind]


def one_line(e: ArgumentError) -> str:
    """Return what jsonargparse says, with the bare names of options and types."""
    text = " ".join(str(e).replace("typing.", "").split())
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    text = re.sub(
        r"Does not .* Subtypes: (\[.*\]) Errors: .* Given", r"Expected one of \1. Got", text
    )
    return re.sub(r'^Parser key "(.+?)":', r"\1:", text)


def near_option(name: str, known: Iterable[str], dashes: str = "") -> str:
    """Return "; did you mean lr?", or nothing where no name is near.

    A key in the wrong group is near to the one with its last name.
    """
    last = name.rpartition(".")[2].lower().replace("-", "_")
    ends = {key.rpartition(".")[2]: key for key in reversed([*known])}
    ends |= {theirs: ours for theirs, ours in HABITS.items() if ours in ends}
    near = difflib.get_close_matches(last, ends, 1, 0.6)
    return f"; did you mean {dashes}{ends[near[0]]}?" if near else ""


# ---- arguments of a function that the user names ----


def arguments_for(
    fn: Callable[..., Any],
    given: Mapping[str, Any] | None,
    key: str,
    of: str,
    skip: Sequence[str] = (),
    passed_to: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Return arguments for `fn`, as jsonargparse converts them to its annotations.

    Args:
        fn: a function or a class; arguments that only its `**kwargs` take are not checked.
        given: the arguments; mappings, which may name layers, are left as they are.
        key: how messages name them.
        of: how messages name `fn`.
        skip: arguments that are not the user's to give.
        passed_to: what `fn` passes its `**kwargs` to.

    Raises:
        BadInput: `fn` does not take an argument, or not its value.
    """
    taken = [*(_parameters(passed_to) if passed_to else []), *_parameters(fn)]
    known = {p.name: p for p in taken if p.name not in skip and "VAR_" not in p.kind.name}
    is_open = any(p.kind is p.VAR_KEYWORD for p in _parameters(passed_to or fn))
    parser, typed = ArgumentParser(exit_on_error=False), {}
    for name, value in (given or {}).items():
        if name in skip or (name not in known and not is_open):
            raise BadInput(f"{key}.{name} is no argument of {of}{did_you_mean(str(name), known)}")
        kind = known[name].annotation if name in known else str
        if not isinstance(kind, str) and not isinstance(value, Mapping):
            with suppress(ValueError):  # jsonargparse does not know the type
                parser.add_argument(f"--{key}.{name}", type=kind)
                typed[name] = value
    try:
        found = parser.parse_object({key: typed}) if typed else {}
    except ArgumentError as e:
        raise BadInput(one_line(e)) from e
    return {**(given or {}), **{name: found[f"{key}.{name}"] for name in typed}}


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    for eval_str in (True, False):  # some annotations have a meaning only for a type checker
        try:
            return list(inspect.signature(fn, eval_str=eval_str).parameters.values())
        except (NameError, TypeError, ValueError):
            continue
    return [inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)]  # written in C
