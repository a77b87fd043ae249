"""Values: types of options, YAML files, and arguments for functions that the user names."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import yaml
from jsonargparse import ArgumentError, ArgumentParser, get_loader, set_dumper, set_loader
from jsonargparse.typing import restricted_number_type

from minilearn.base.text import did_you_mean

if TYPE_CHECKING:
    PositiveInt = NonNegativeInt = WholeInt = int
    PositiveFloat = NonNegativeFloat = ClosedUnitInterval = float
else:
    number = restricted_number_type
    WholeInt = number("integer", int, [])  # takes 3.0 for 3, which `int` does not
    PositiveInt = number("int above 0", int, [(">", 0), ("<", 2**63)])
    NonNegativeInt = number("int from 0", int, [(">=", 0), ("<", 2**63)])
    PositiveFloat = number("float above 0", float, [(">", 0), ("<", inf)])
    NonNegativeFloat = number("float from 0", float, [(">=", 0), ("<", inf)])
    ClosedUnitInterval = number("0 to 1", float, [(">=", 0), ("<=", 1), ("<", inf)])

YAML = "minilearn"  # the name of the loader and dumper in jsonargparse


class BadInput(ValueError):
    """What a user gave is wrong."""


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


# ---- types, and what messages say of them ----


def members(kind: Any) -> list[Any]:
    """Return the types in a union; a type alone is one."""
    return [*get_args(kind)] if get_origin(kind) in (Union, UnionType) else [kind]


def type_name(kind: Any) -> str:
    """Return a type as a user reads it: "float | 'auto'"."""
    if len(members(kind)) > 1:
        return " | ".join(map(type_name, members(kind)))
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    text = re.sub(r"[A-Za-z_]\w*\.", "", text)  # the module
    text = re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace(", ", " | "), text)
    return text.replace("NoneType", "null").replace("None", "null")


def wrong_value(kind: Any, value: Any, where: str) -> str:
    """Return the message for a value that is not of its type."""
    words = re.findall(r"'(\w+)'", type_name(kind))
    given = str(value[0] if isinstance(value, list) and len(value) == 1 else value).strip("[]")
    hint = near_option(given, words)
    return f"{where} takes {type_name(kind)}, got {'null' if value is None else repr(value)}{hint}"


def near_option(name: str, known: Iterable[str], dashes: str = "") -> str:
    """Return "; did you mean lr?", or nothing where no name is near.

    A key in the wrong group is near to the one with its last name; `batch_size` is near to `bs`,
    `optimizer` to `opt`.
    """
    last = name.rpartition(".")[2]
    ends = {key.rpartition(".")[2]: key for key in reversed([*known])}
    initials = "".join(re.findall(r"(?:^|[-_]|(?=[A-Z]))(\w)", last)).lower()
    starts = [end for end in ends if len(end) > 2 and last.startswith(end)]
    near = difflib.get_close_matches(last.lower(), ends, 1, 0.6)
    same = [end for end in (last, initials) if end in ends]
    best = [*same, *difflib.get_close_matches(last, ends, 1, 0.8), *starts, *near]
    return f"; did you mean {dashes}{ends[best[0]]}?" if best else ""


# ---- arguments of a function that the user names ----


def convert(kind: Any, value: Any, where: str) -> Any:
    """Return a value that YAML gave as jsonargparse converts it to `kind`.

    Raises:
        BadInput: it cannot be; names `where` and the value.
    """
    parser = ArgumentParser(exit_on_error=False, parser_mode=YAML)
    try:
        parser.add_argument("--value", type=WholeInt if kind is int else kind)
    except ValueError:  # jsonargparse does not know the type
        return value
    try:
        return parser.instantiate(parser.parse_object({"value": value})).value
    except ArgumentError as e:
        raise BadInput(wrong_value(kind, value, where)) from e


def arguments_for(
    fn: Callable[..., Any],
    given: Mapping[str, Any] | None,
    key: str,
    of: str,
    skip: Sequence[str] = (),
    passed_to: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Return arguments for `fn`, converted to its annotations.

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
    arguments = {}
    for name, value in (given or {}).items():
        if name in skip or (name not in known and not is_open):
            raise BadInput(f"{key}.{name} is no argument of {of}{did_you_mean(str(name), known)}")
        kind = known[name].annotation if name in known else Any
        is_free = isinstance(value, Mapping) or isinstance(kind, str) or kind in (Any, _EMPTY)
        arguments[name] = value if is_free else convert(kind, value, f"{key}.{name}")
    return arguments


_EMPTY = inspect.Parameter.empty


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    for eval_str in (True, False):  # some annotations have a meaning only for a type checker
        try:
            return list(inspect.signature(fn, eval_str=eval_str).parameters.values())
        except (NameError, TypeError, ValueError):
            continue
    return [inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)]  # written in C
