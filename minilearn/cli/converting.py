"""A text, or what YAML gave, as a value of a type: `convert`, and `arguments_for` a function.

Stands on kinds. jsonargparse is asked for the types that are not told apart here.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from minilearn.base.text import did_you_mean

from .files import loads, number
from .kinds import (
    LISTS,
    MAPPINGS,
    NUMBERS,
    choices,
    in_words,
    is_enum,
    kind_of,
    leaves,
    origin,
    takes_null,
)
from .near import near_option

SWITCHED = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
WRONG = (ValueError, TypeError, OverflowError)


class BadInput(ValueError):
    """What a user gave is wrong; each problem is one line."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def convert(kind: Any, value: Any, where: str = "the value") -> Any:
    """Return `value`, a text or what YAML gave, as `kind`.

    3.0 is an int where one is asked for, "1e-3" a float, "a, b" a list.

    Raises:
        BadInput: it cannot be; names `where` and the value.
    """
    try:
        return _cast(kind, value, where)
    except BadInput:
        raise
    except WRONG as e:
        given, known = value if isinstance(value, list) else [value], choices(kind)
        wrong = [str(item) for item in given if item not in known]
        hint = near_option(wrong[0], known) if wrong else ""
        got = "null" if value is None else repr(value)
        raise BadInput(f"{where} takes {in_words(kind)}, got {got}{hint}") from e


def _cast(kind: Any, value: Any, where: str) -> Any:
    """Return `value` as `kind`, or raise one of WRONG."""
    if kind is Any:
        try:
            return numbers(_loaded(value, "[{"))
        except ValueError as e:
            raise BadInput(f"{where} is no YAML: {value!r}, {e}") from e
    if takes_null(kind) and (value is None or value in ("null", "~")):
        return None
    if value is None:
        raise TypeError("null")
    if len(parts := [part for part in leaves(kind) if part is not type(None)]) > 1:
        return _first(parts, value, where)
    (kind,) = parts
    if dataclasses.is_dataclass(kind):
        return _record(kind, _loaded(value, "{"), where)
    if origin(kind) in MAPPINGS:
        return _mapping(kind, _loaded(value, "{"), where)
    if origin(kind) in LISTS:
        return _list(kind, _loaded(value, "["), where)
    if get_origin(kind) is Literal:
        return _word(get_args(kind), value)
    return _plain(kind, value)


def _loaded(value: Any, opening: str) -> Any:
    """Return a text that begins with one of `opening` as the YAML that it is."""
    return loads(value) if isinstance(value, str) and value.lstrip()[:1] in {*opening} else value


def _first(parts: list[Any], value: Any, where: str) -> Any:
    """Return `value` as the first type of a union that takes it; the very type of it goes before.

    All texts are texts, so that comes last for them, and a list only where they look like one.
    """
    if isinstance(value, str):
        texts = [part for part in parts if part in (str, Path)]
        others = [part for part in parts if part not in texts]
        if texts and value.lstrip()[:1] != "[":
            others = [part for part in others if origin(part) not in LISTS]
        parts = [*others, *texts]
    else:
        parts = sorted(parts, key=lambda part: origin(part) is not type(value))
    inner: BadInput | None = None
    for part in parts:
        try:
            return _cast(part, value, where)
        except BadInput as e:
            inner = e
        except WRONG:
            continue
    raise inner or ValueError(value)


def _record(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(type(value)) and isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(value)
    arguments, problems = arguments_for(kind, value, where, in_words(kind))
    needed = inspect.signature(kind).parameters.values()
    missing = [p.name for p in needed if p.default is p.empty and p.name not in value]
    problems += [f"missing: {where}.{name}" for name in missing]
    if problems:
        raise BadInput(*problems)
    return kind(**arguments)


def _mapping(kind: Any, value: Any, where: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(value)
    key_kind, inner = get_args(kind) or (Any, Any)
    named = key_kind is str  # where classes are numbers, YAML takes their names for such
    keys = [str(k) if named and type(k) is int else _cast(key_kind, k, where) for k in value]
    values = [convert(inner, item, f"{where}.{key}") for key, item in value.items()]
    return dict(zip(keys, values, strict=True))


def _list(kind: Any, value: Any, where: str) -> Any:
    """Return a list, a tuple or a set of `[a, b]`, of `a, b`, or of one thing alone."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    items = list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]
    inside = get_args(kind) or (Any,)
    if not (get_args(kind) and origin(kind) is tuple and inside[-1] is not ...):
        inside = inside[:1] * len(items)
    pairs = enumerate(zip(inside, items, strict=True))
    return LISTS[origin(kind)]([_cast(part, item, f"{where}.{i}") for i, (part, item) in pairs])


def _word(words: tuple[Any, ...], value: Any) -> Any:
    for attempt in (value, number(value), _whole(value)):
        for word in words:
            if word == attempt and type(word) is type(attempt):
                return word
    raise ValueError(value)


def _whole(value: Any) -> Any:
    """Return 3.0 as 3, and texts such as "3.0" and "1e3" likewise; all else as it is."""
    value = number(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _plain(kind: Any, value: Any) -> Any:
    text = isinstance(value, str)
    if kind is bool:
        return SWITCHED[value.lower()] if text and value.lower() in SWITCHED else _only(bool, value)
    if kind in NUMBERS:
        base = int if issubclass(kind, int) else float
        found = _plain(base, value)
        if not math.isfinite(found):
            raise ValueError(value)
        return base(kind(found))
    if kind is int:
        found = _whole(value)
        return int(found) if isinstance(found, str) else _only(int, found)
    if kind is float:
        found = number(value)
        return float(found if isinstance(found, str) else _only((int, float), found))
    if kind is str:
        return _only(str, value)
    if kind is Path:
        return Path(_only((str, Path), value))
    if is_enum(kind):
        return kind[value] if text and value in kind.__members__ else kind(value)
    return _asked(kind, value)


def _only(kind: Any, value: Any) -> Any:
    """Return a value that is of one of these types; true and false are no numbers."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(value)
    return value


def _asked(kind: Any, value: Any) -> Any:
    from jsonargparse import ArgumentError

    try:
        return _parser(kind).parse_object({"value": value}).value
    except ArgumentError as e:
        raise ValueError(value) from e


@cache
def _parser(kind: Any) -> Any:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=kind)
    return parser


def numbers(value: Any) -> Any:
    """Return `value` with every text in it that reads as a number as that number."""
    if isinstance(value, Mapping):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [numbers(item) for item in value]
    return number(value)


# ---- arguments of a function that the user names ----


def arguments_for(
    fn: Callable[..., Any],
    given: Any,
    key: str,
    of: str,
    but: Iterable[str] = (),
    passed_to: Callable[..., Any] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return what a dict gives as arguments for `fn`, by its annotations, and what is wrong.

    Args:
        fn: a function or a class; what only its `**kwargs` take is not looked at.
        given: the dict, or None.
        key: how messages name the dict.
        of: how they name `fn`.
        but: arguments that are not the user's to give.
        passed_to: what `fn` gives its `**kwargs` to.
    """
    known, is_open = annotated(fn)
    if passed_to is not None:
        more, is_open = annotated(passed_to)
        known = more | known
    known = {name: kind for name, kind in known.items() if name not in but}
    arguments, problems = {}, []
    for name, value in (given or {}).items():
        if name not in known and (name in but or not is_open):
            problems.append(f"{key}.{name} is no argument of {of}{did_you_mean(str(name), known)}")
            continue
        parts = {_from_yaml(part) for part in leaves(known.get(name, Any))}
        try:
            names_code = Any in parts and (isinstance(value, Mapping) or parts == {Any})
            kind = Any if names_code else Union[tuple(parts - {Any})]  # noqa: UP007
            arguments[name] = convert(kind, value, f"{key}.{name}")
        except BadInput as e:
            problems += e.problems
    return arguments, problems


def annotated(fn: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """Return the types of the arguments of `fn`, and whether it takes others, too."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # no signature to be had
        return {}, True
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {p.name: _kind(fn, p) for p in named}, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _kind(fn: Callable[..., Any], p: inspect.Parameter) -> Any:
    if p.annotation is p.empty:  # a default of 1 does not say that 0.5 is wrong
        return Any
    try:
        kind = kind_of(fn, p)
    except TypeError:  # it is named in a way that only its own program understands
        return Any
    return Union[kind, None] if p.default is None else kind  # noqa: UP007


def _from_yaml(kind: Any) -> Any:
    """Return a type as far as YAML can give it: Any for a layer, a tensor, a function."""
    if kind in (bool, int, float, str, Path, type(None), *NUMBERS) or get_origin(kind) is Literal:
        return kind
    if origin(kind) in LISTS and (inside := get_args(kind)):
        parts = [part if part is ... else _from_yaml(part) for part in inside]
        return origin(kind)[tuple(parts)]
    if len(leaves(kind)) > 1:
        parts = [part for part in map(_from_yaml, leaves(kind)) if part is not Any]
        return Union[tuple(parts)] if parts else Any  # noqa: UP007
    return kind if kind in LISTS else Any
