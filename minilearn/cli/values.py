"""Values: read from YAML, converted by jsonargparse, written so that they read back equal."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentError, ArgumentParser, set_dumper, set_loader
from jsonargparse.typing import restricted_number_type

from minilearn.base.text import did_you_mean

if TYPE_CHECKING:
    PositiveInt = NonNegativeInt = int
    PositiveFloat = NonNegativeFloat = ClosedUnitInterval = float
else:
    from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveInt

    PositiveFloat = restricted_number_type("Above0", float, [(">", 0), ("<", inf)])
    NonNegativeFloat = restricted_number_type("From0", float, [(">=", 0), ("<", inf)])

NUMBERS: dict[Any, str] = {
    PositiveInt: "int above 0",
    NonNegativeInt: "int from 0",
    PositiveFloat: "float above 0",
    NonNegativeFloat: "float from 0",
    ClosedUnitInterval: "0 to 1",
}
# what looks like a number; `number` decides
NUMBER = re.compile(r"[-+]?(?:\.?\d[\w.+-]*|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)")
LISTS = (list, tuple, set, frozenset, Sequence, Iterable)
DICTS = (dict, Mapping)
MISSING = re.compile("arguments are required: (.+)")
YAML = "minilearn"  # the name of our loader and dumper in jsonargparse


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
        ValueError: it is not YAML, not a mapping, or has a key twice.
        OSError: it cannot be read.
    """
    with blamed(f"{path} cannot be read"):
        config = loads(Path(path).read_text(encoding="utf-8")) or {}
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise ValueError(f"{path} must hold names and values, such as 'lr: 1e-3'")
    return config


def loads(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        ValueError: it is not YAML, or has a key twice.
    """
    import yaml

    try:
        return yaml.load(text, Loader=_yaml_classes()[0])
    except yaml.YAMLError as e:
        raise ValueError(" ".join(str(e).replace('in "<unicode string>", ', "").split())) from e


def yaml_text(config: Any) -> str:
    """Return a configuration as YAML that `loads` reads back equal."""
    import yaml

    dumper = _yaml_classes()[1]
    return yaml.dump(plain(config), Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)


set_loader(YAML, loads, exceptions=(ValueError,))
set_dumper(YAML, yaml_text)


def plain(value: Any) -> Any:
    """Return a value as YAML can hold it."""
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):  # subclasses, too
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def number(value: Any) -> Any:
    """Return the number that a text says, also inside of lists and mappings; else the value."""
    if isinstance(value, Mapping):
        return {key: number(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [number(item) for item in value]
    if not isinstance(value, str) or not NUMBER.fullmatch(value.strip()):
        return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    for kind in (int, float):
        try:
            return kind(re.sub(r"\.(?=[in])", "", value.lower()))
        except ValueError:
            continue
    return value


@cache
def _yaml_classes() -> tuple[type, type]:
    """Return YAML's safe loader and dumper with numbers as Python has them, and no dates.

    1e-3 is a float; 010 is 10, where YAML says 8; 1:30 is a text, where YAML says 90.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [(key.tag, key.value) for key, _ in node.value]
            if twice := [name for name in names if names.count(name) > 1]:
                problem = f"the key {twice[0][1]!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return super().construct_mapping(node, deep)

    class Dumper(yaml.SafeDumper):
        pass

    tag, form = "tag:yaml.org,2002:float", re.compile(rf"^(?:{NUMBER.pattern})$")
    replaced = {tag, "tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp"}
    for kind in (Loader, Dumper):  # the dumper quotes a text that would be read as a number
        kind.yaml_implicit_resolvers = {
            first: [pair for pair in pairs if pair[0] not in replaced]
            for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }
        kind.add_implicit_resolver(tag, form, list("-+0123456789."))
    Loader.add_constructor(tag, lambda loader, node: number(node.value))
    Dumper.add_representer(int, lambda dumper, value: dumper.represent_scalar(tag, str(value)))
    return Loader, Dumper


# ---- types ----


def leaves(kind: Any) -> list[Any]:
    """Return the members of a union; a type alone is one."""
    if get_origin(kind) in (Union, types.UnionType):
        return [leaf for part in get_args(kind) for leaf in leaves(part)]
    return [kind]


def origin(kind: Any) -> Any:
    """Return `list` of `list[int]`, and `list` of `list`."""
    return get_origin(kind) or kind


def takes_mapping(kind: Any) -> bool:
    """Return whether a mapping may be a value of the type."""
    return any(p is Any or origin(p) in DICTS or is_dataclass(p) for p in leaves(kind))


def choices(kind: Any) -> list[str]:
    """Return the words that a type allows, alone or in a list."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [member.name for member in kind]
    return [] if origin(kind) in DICTS else [w for part in get_args(kind) for w in choices(part)]


def type_name(kind: Any) -> str:
    """Return a type as a user reads it: "float | auto"."""
    if len(leaves(kind)) > 1:
        return " | ".join(map(type_name, leaves(kind)))
    if get_args(kind) and get_origin(kind) is not Literal:
        return f"{origin(kind).__name__.lower()} of {', '.join(map(type_name, get_args(kind)))}"
    names = {type(None): "null", Any: "any", ...: "…", **NUMBERS}
    return " | ".join(choices(kind)) or names.get(kind) or getattr(kind, "__name__", str(kind))


def shown(value: Any) -> str:
    """Return a value as a user writes it."""
    value = plain(value)
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def convert(kind: Any, value: Any, where: str = "the value") -> Any:
    """Return `value`, a text or what YAML gave, as `kind`.

    Raises:
        BadInput: it cannot be; names `where` and the value.
    """
    parser = ArgumentParser(exit_on_error=False, parser_mode=YAML)
    parser.add_argument("--value", type=kind)
    try:
        value = prepared(kind, plain(value), where)
        return parser.instantiate(parser.parse_object({"value": value})).value
    except ArgumentError as e:
        if missing := MISSING.search(str(e)):
            raise BadInput(f"missing: {where}.{missing[1]}") from e
        known, given = choices(kind), value if isinstance(value, list) else [value]
        wrong = [str(item) for item in given if item not in known]
        hint = near_option(wrong[0], known) if wrong else ""
        got = "null" if value is None else repr(value)
        raise BadInput(f"{where} takes {type_name(kind)}, got {got}{hint}") from e


def prepared(kind: Any, value: Any, where: str) -> Any:
    """Return a value as jsonargparse takes it for a type.

    3.0 becomes an int where one is asked for, "a, b" a list, "1e-3" in a dict a number.

    Raises:
        BadInput: a mapping has a key that its dataclass does not have.
        ArgumentError: null or a bool is given where the type has none.
    """
    parts = [part for part in leaves(kind) if part is not type(None)]
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") and not {str, Path} & {*parts}:
        with blamed(f"{where} is not YAML: {value!r}"):
            value = loads(value)
    if kind is Any:
        return number(value)
    if value in (None, "null", "~") and type(None) in leaves(kind):
        return None
    if value is None:
        raise ArgumentError(None, "null")
    for part in parts:
        if origin(part) in LISTS and not isinstance(value, Mapping):
            value = _listed(value, len(parts) == 1, {str, Path} & {*parts})
        value = _prepared(part, value, where, len(parts) == 1)
    return value


def _listed(value: Any, alone: bool, texts: set[Any]) -> Any:
    """Return "a, b" as a list; where there is no other type than a list, a single value, too."""
    if isinstance(value, str) and not texts and (alone or "," in value):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [value] if alone and not isinstance(value, list) else value


def _prepared(kind: Any, value: Any, where: str, alone: bool) -> Any:
    base, inside = origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        for name, item in value.items():
            if name not in hints:
                raise BadInput(f"{where}.{name} is no option{near_option(name, hints)}")
            convert(hints[name], item, f"{where}.{name}")
        return {name: prepared(hints[name], item, where) for name, item in value.items()}
    if base in DICTS and isinstance(value, Mapping):
        inner = inside[1] if inside else Any
        return {key: prepared(inner, item, f"{where}.{key}") for key, item in value.items()}
    if base in LISTS and isinstance(value, list):
        inner = inside if base is tuple and ... not in inside else inside[:1] * len(value)
        inner = [*inner, *[Any] * len(value)]
        return [prepared(inner[i], item, f"{where}.{i}") for i, item in enumerate(value)]
    found = number(value)
    if base is Literal:  # for Python, True is 1
        is_other = isinstance(value, bool) and not any(value is word for word in inside)
        return str(value) if is_other else _whole(found, value)
    if kind in (int, float) or kind in NUMBERS:
        if isinstance(found, str) and alone:
            raise ArgumentError(None, "no number, though YAML says that 1:30 is 90")
        return _whole(found, value) if kind in (int, PositiveInt, NonNegativeInt) else value
    return value


def _whole(found: Any, otherwise: Any) -> Any:
    return int(found) if isinstance(found, float) and found.is_integer() else otherwise


def near_option(name: str, known: Iterable[str], dashes: str = "") -> str:
    """Return "; did you mean lr?", or nothing where no name is near.

    A key in the wrong group is near to the one with its last name; `batch_size` is near to `bs`,
    `optimizer` to `opt`.
    """
    known = list(known)
    last = name.rpartition(".")[2]
    simple = {_letters(key): key for key in reversed(known)}
    words = re.split(r"[-_ ]|(?<=[a-z])(?=[A-Z])", last)
    initials = "".join(word[:1] for word in words).lower()

    def near(cutoff: float) -> list[str]:
        found = [difflib.get_close_matches(_letters(x), simple, 1, cutoff) for x in (name, last)]
        return [simple[key] for keys in found for key in keys]

    best = [
        *(key for key in known if key.rpartition(".")[2] == last),
        *(key for key in known if name.startswith(f"{key}.")),
        *near(0.8),
        *(key for key in known if key == initials or (len(key) > 2 and last.startswith(key))),
        *near(0.6),
    ]
    return f"; did you mean {dashes}{best[0]}?" if best else ""


def _letters(key: str) -> str:
    return re.sub(r"[-_ ]", "", key).lower()


# ---- arguments of a function that the user names ----


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
        given: the arguments.
        key: how messages name them.
        of: how messages name `fn`.
        skip: arguments that are not the user's to give.
        passed_to: what `fn` passes its `**kwargs` to.

    Raises:
        BadInput: `fn` does not take an argument, or not its value.
    """
    taken = [*(_parameters(passed_to) if passed_to else []), *_parameters(fn)]
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = {p.name: p for p in taken if p.kind not in rest and p.name not in skip}
    is_open = any(p.kind is p.VAR_KEYWORD for p in _parameters(passed_to or fn))
    arguments = {}
    for name, value in (given or {}).items():
        if name in skip or (name not in known and not is_open):
            raise BadInput(f"{key}.{name} is no argument of {of}{did_you_mean(str(name), known)}")
        parts = _yaml_types(known[name]) if name in known else [Any]
        names_code = Any in parts and (isinstance(value, Mapping) or parts == [Any])
        kind = Any if names_code else Union[tuple(p for p in parts if p is not Any)]  # noqa: UP007
        arguments[name] = convert(kind, value, f"{key}.{name}")
    return arguments


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    for eval_str in (True, False):  # some annotations have a meaning only for a type checker
        try:
            return list(inspect.signature(fn, eval_str=eval_str).parameters.values())
        except (NameError, TypeError, ValueError):
            continue
    return [inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)]  # written in C


def _yaml_types(p: inspect.Parameter) -> list[Any]:
    """Return the types of an argument as far as YAML can give them; Any stands for the others."""
    if p.annotation is p.empty or isinstance(p.annotation, str):
        return [Any]
    optional = [type(None)] if p.default is None else []
    return [*dict.fromkeys([*map(_yaml_type, leaves(p.annotation)), *optional])]


def _yaml_type(kind: Any) -> Any:
    if kind in (bool, int, float, str, Path, type(None), *LISTS) or get_origin(kind) is Literal:
        return kind
    if len(leaves(kind)) > 1:
        parts = [part for part in map(_yaml_type, leaves(kind)) if part is not Any]
        return Union[tuple(parts)] if parts else Any  # noqa: UP007
    if origin(kind) in LISTS:
        inside = [part if part is ... else _yaml_type(part) for part in get_args(kind)]
        return origin(kind)[tuple(inside)]
    return Any
