"""Options from the signatures of functions: names, types, defaults and help stand there alone.

Stands on kinds.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

from .kinds import kind_of, leaves, takes_mapping, takes_null

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
    def takes_null(self) -> bool:
        """Whether null is a value of it."""
        return takes_null(self.kind)

    @property
    def is_open(self) -> bool:
        """Whether a section may be its value, whose keys are not fixed here."""
        return self.kind is Any or takes_mapping(self.kind)


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
        arguments = arguments_of(self.fn, self.supplied, values)
        known = inspect.signature(self.fn).parameters.values()
        places = [p.name for p in known if p.kind is p.POSITIONAL_ONLY and p.name in arguments]
        return self.fn(*supplied, *[arguments.pop(name) for name in places], **arguments)

    def problems(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Yield what is wrong with its arguments together, where it has a `check` that knows."""
        if check := getattr(self.fn, "check", None):
            yield from check(**arguments_of(self.fn, self.supplied, values))


def also_takes(fn: Callable[..., Any], *but: str) -> Callable[[F], F]:
    """Say that the `**kwargs` of the decorated function are those of `fn`, some left out."""

    def mark(outer: F) -> F:
        setattr(outer, "also_takes", (fn, but))  # noqa: B010
        return outer

    return mark


def checked_by(check: Callable[..., Iterator[str]]) -> Callable[[F], F]:
    """Say that `check` yields what is wrong with arguments of the function; it takes the same."""

    def mark(fn: F) -> F:
        setattr(fn, "check", check)  # noqa: B010
        return fn

    return mark


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
    if not _is_group(kind):
        return values[key]
    return kind(**{p.name: _argument(f"{key}.{p.name}", p.kind, values) for p in _parameters(kind)})


def _is_group(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and isinstance(kind, type)


def _as_options(key: str, kind: Any, default: Any, text: str, title: str) -> Iterator[Option]:
    if not _is_group(kind):
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
    found = {}
    for p in named:
        default, text = made.get(p.name, p.default), texts.get(p.name, "")
        found[p.name] = _Parameter(p.name, kind_of(fn, p), default, text)
    passed_on = getattr(fn, "also_takes", None)
    if passed_on and any(p.kind is p.VAR_KEYWORD for p in given):
        inner, but = passed_on
        found |= {p.name: p for p in _parameters(inner) if p.name not in {*found, *but}}
    return list(found.values())


def _fields(fn: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(fn) if dataclasses.is_dataclass(fn) else ()


def described(fn: Callable[..., Any]) -> dict[str, str]:
    """Return what the `Args:` (or `Attributes:`) of a docstring say of each argument."""
    doc = inspect.getdoc(fn) or ""
    block = re.search(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)+)", doc, re.M)
    entries = re.split(r"^(?=\w)", textwrap.dedent(block[1]), flags=re.M) if block else []
    pairs = (re.match(r"(\w+)(?: \(.*?\))?:\s*(.*)", entry, re.S) for entry in entries)
    return {m[1]: " ".join(m[2].split()) for m in pairs if m}
