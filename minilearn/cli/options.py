"""Options from the signatures of functions: names, types, defaults and help stand there alone.

Stands on the registry of names; jsonargparse has the types of numbers.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from minilearn.nn.registry import did_you_mean

NUMBERS = {
    PositiveInt: "int above 0",
    NonNegativeInt: "int from 0",
    PositiveFloat: "float above 0",
    NonNegativeFloat: "float from 0",
    ClosedUnitInterval: "0 to 1",
}
REQUIRED = inspect.Parameter.empty
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """One value that a user may give.

    Attributes:
        key: its name, with dots where it is inside a group: "aug.flip".
        kind: its type.
        default: its value where none is given; REQUIRED where there is none.
        help: what it means.
        title: the heading under which `--help` lists it.
    """

    key: str
    kind: Any
    default: Any = REQUIRED
    help: str = ""
    title: str = "options"

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.kind is bool

    @property
    def value_is_optional(self) -> bool:
        """Whether `--key` alone means true."""
        return bool in leaves(self.kind)

    @property
    def is_open(self) -> bool:
        """Whether it is a dict, whose keys are not fixed here."""
        return any(get_origin(k) is dict or k is dict for k in (self.kind, *get_args(self.kind)))


@dataclass(frozen=True)
class Stage:
    """A function whose arguments are options, but for the first ones, which the program gives."""

    fn: Callable[..., Any]
    title: str = "options"
    supplied: int = 0

    def options(self) -> list[Option]:
        """Return the options that the function takes."""
        return options_of(self.fn, self.supplied, self.title)

    def call(self, *supplied: Any, values: Mapping[str, Any]) -> Any:
        """Call the function with what it takes of the values of options."""
        return self.fn(*supplied, **arguments_of(self.fn, self.supplied, values))

    def problems(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Yield what is wrong with its arguments together, where it has a `check` that knows."""
        if hasattr(self.fn, "check"):
            yield from self.fn.check(**arguments_of(self.fn, self.supplied, values))


def also_takes(fn: Callable[..., Any], *but: str) -> Callable[[F], F]:
    """Say that the `**kwargs` of the decorated function are those of `fn`, some left out."""

    def mark(outer: F) -> F:
        outer.also_takes = (fn, but)  # type: ignore[attr-defined]
        return outer

    return mark


def checked_by(check: Callable[..., Iterator[str]]) -> Callable[[F], F]:
    """Say that `check` yields what is wrong with arguments of the function; it takes the same."""

    def mark(fn: F) -> F:
        fn.check = check  # type: ignore[attr-defined]
        return fn

    return mark


def unknown_arguments(fn: Any, given: Any, key: str, of: str) -> Iterator[str]:
    """Yield which keys of a dict option `key` the function `fn`, called `of`, does not take."""
    try:
        known = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # no signature to be had
        return
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    for name in given or {}:
        if name not in known:
            yield f"{key}.{name} is no argument of {of}{did_you_mean(name, known)}"


def options_of(fn: Callable[..., Any], supplied: int = 0, title: str = "options") -> list[Option]:
    """Return an option for each argument of `fn`; fields of a dataclass become a group.

    Args:
        fn: a function, or a class.
        supplied: so many first arguments are not options.
        title: of the options in `--help`.
    """
    return [
        option
        for p in _parameters(fn, supplied)
        for option in _as_options(p.name, p.kind, p.default, p.help, title)
    ]


def arguments_of(
    fn: Callable[..., Any], supplied: int, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of `fn` out of the values of options by key."""
    return {p.name: _argument(p.name, p.kind, values) for p in _parameters(fn, supplied)}


def _argument(key: str, kind: Any, values: Mapping[str, Any]) -> Any:
    if not dataclasses.is_dataclass(kind):
        return values[key]
    return kind(**{p.name: _argument(f"{key}.{p.name}", p.kind, values) for p in _parameters(kind)})


def _as_options(key: str, kind: Any, default: Any, text: str, title: str) -> Iterator[Option]:
    if not dataclasses.is_dataclass(kind):
        yield Option(key, kind, default, text, title)
        return
    for p in _parameters(kind):
        inner = p.default if default in (REQUIRED, None) else getattr(default, p.name)
        yield from _as_options(f"{key}.{p.name}", p.kind, inner, p.help, title)


@dataclass(frozen=True)
class _Parameter:
    name: str
    kind: Any
    default: Any
    help: str


def _parameters(fn: Callable[..., Any], supplied: int = 0) -> list[_Parameter]:
    """Return what `fn` takes, itself and through its `**kwargs`, each name once."""
    signature, texts = inspect.signature(fn), described(fn)
    given = list(signature.parameters.values())[supplied:]
    made = {f.name: f.default_factory() for f in _fields(fn) if f.default_factory is not MISSING}
    named = [p for p in given if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    found = {
        p.name: _Parameter(p.name, _kind(fn, p), made.get(p.name, p.default), texts.get(p.name, ""))
        for p in named
    }
    if any(p.kind is p.VAR_KEYWORD for p in given) and hasattr(fn, "also_takes"):
        inner, but = fn.also_takes
        found |= {p.name: p for p in _parameters(inner) if p.name not in {*found, *but}}
    return list(found.values())


def _fields(fn: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(fn) if dataclasses.is_dataclass(fn) else ()


def _kind(fn: Callable[..., Any], p: inspect.Parameter) -> Any:
    if p.annotation is p.empty:
        return Any if p.default in (p.empty, None) else type(p.default)
    if not isinstance(p.annotation, str):
        return p.annotation
    holder = fn.__init__ if isinstance(fn, type) else inspect.unwrap(fn)
    home = types.SimpleNamespace(__annotations__={p.name: p.annotation})
    try:
        return get_type_hints(home, vars(inspect.getmodule(holder)) | _globals(holder))[p.name]
    except NameError as e:
        name = getattr(fn, "__name__", fn)
        raise TypeError(f"{name}({p.name}: {p.annotation}) cannot be an option: {e}") from e


def _globals(fn: Any) -> dict[str, Any]:
    return getattr(fn, "__globals__", {})


def described(fn: Callable[..., Any]) -> dict[str, str]:
    """Return what the `Args:` (or `Attributes:`) of a docstring say of each argument."""
    doc = inspect.getdoc(fn) or ""
    block = re.search(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)+)", doc, re.M)
    entries = re.split(r"^(?=\w)", textwrap.dedent(block[1]), flags=re.M) if block else []
    pairs = (re.match(r"(\w+)(?: \(.*?\))?:\s*(.*)", entry, re.S) for entry in entries)
    return {m[1]: " ".join(m[2].split()) for m in pairs if m}


def leaves(kind: Any) -> list[Any]:
    """Return the types that a union is of; a type alone is one."""
    if get_origin(kind) in (Union, types.UnionType):
        return [leaf for part in get_args(kind) for leaf in leaves(part)]
    return [kind]


def in_words(kind: Any) -> str:
    """Return a type as a user reads it: "float | auto"."""
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    parts = leaves(kind)
    if len(parts) > 1:
        return " | ".join(in_words(part) for part in parts)
    if kind is type(None):
        return "null"
    if kind in NUMBERS:
        return NUMBERS[kind]
    if get_origin(kind) in (list, dict, tuple):
        inside = ", ".join("…" if a is ... else in_words(a) for a in get_args(kind))
        return f"{get_origin(kind).__name__} of {inside}"
    name = getattr(kind, "__name__", str(kind))
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower() if name != "Any" else "anything"
