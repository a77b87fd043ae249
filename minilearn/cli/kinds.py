"""Types of options: where they are written, what they allow, and what they are called.

Stands on files.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import re
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from .files import shown

if TYPE_CHECKING:  # what the types of numbers mean to a reader of annotations
    ClosedUnitInterval = float
    NonNegativeFloat = float
    NonNegativeInt = int
    PositiveFloat = float
    PositiveInt = int
else:
    from jsonargparse.typing import (
        ClosedUnitInterval,
        NonNegativeFloat,
        NonNegativeInt,
        PositiveFloat,
        PositiveInt,
    )

NUMBERS: dict[Any, str] = {
    PositiveInt: "int above 0",
    NonNegativeInt: "int from 0",
    PositiveFloat: "float above 0",
    NonNegativeFloat: "float from 0",
    ClosedUnitInterval: "0 to 1",
}
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
}


def kind_of(fn: Callable[..., Any], p: inspect.Parameter) -> Any:
    """Return the type of a parameter of `fn`: its annotation, else the type of its default.

    Raises:
        TypeError: the annotation is a text that names nothing.
    """
    if p.annotation is p.empty:
        return Any if p.default in (p.empty, None) else type(p.default)
    if not isinstance(p.annotation, str):
        return p.annotation
    holder: Any = inspect.unwrap(getattr(fn, "func", fn))
    holder = holder.__init__ if isinstance(holder, type) else holder
    known = vars(inspect.getmodule(holder) or types) | getattr(holder, "__globals__", {})
    home: Any = types.SimpleNamespace(__annotations__={p.name: p.annotation})
    try:
        return get_type_hints(home, known)[p.name]
    except NameError as e:
        name = getattr(fn, "__name__", fn)
        raise TypeError(f"{name}({p.name}: {p.annotation}) cannot be an option: {e}") from e


def leaves(kind: Any) -> list[Any]:
    """Return the types that a union is of; a type alone is one."""
    if get_origin(kind) in (Union, types.UnionType):
        return [leaf for part in get_args(kind) for leaf in leaves(part)]
    return [kind]


def origin(kind: Any) -> Any:
    """Return `list` of `list[int]`, and `list` of `list`."""
    return get_origin(kind) or kind


def takes_null(kind: Any) -> bool:
    """Return whether null may be a value of the type."""
    return kind is Any or type(None) in leaves(kind)


def takes_mapping(kind: Any) -> bool:
    """Return whether a mapping may be a value of the type."""
    return any(origin(k) in MAPPINGS or dataclasses.is_dataclass(k) for k in leaves(kind))


def is_enum(kind: Any) -> bool:
    """Return whether the values of the type are a few with names."""
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def choices(kind: Any) -> list[str]:
    """Return the words that a type allows, alone or in a list."""
    if get_origin(kind) is Literal:
        return [shown(word) for word in get_args(kind)]
    if is_enum(kind):
        return [member.name for member in kind]
    inner = () if origin(kind) in MAPPINGS else get_args(kind)
    return [word for part in inner for word in choices(part)]


def in_words(kind: Any) -> str:
    """Return a type as a user reads it: "float | auto"."""
    parts = leaves(kind)
    if len(parts) > 1:
        return " | ".join(in_words(part) for part in parts)
    if get_origin(kind) is Literal or is_enum(kind):
        return " | ".join(choices(kind))
    if kind is type(None):
        return "null"
    if kind in NUMBERS:
        return NUMBERS[kind]
    if get_origin(kind) in (*LISTS, *MAPPINGS):
        inside = ", ".join("…" if a is ... else in_words(a) for a in get_args(kind))
        return f"{get_origin(kind).__name__.lower()} of {inside}"
    name = getattr(kind, "__name__", str(kind))
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower() if name != "Any" else "anything"
