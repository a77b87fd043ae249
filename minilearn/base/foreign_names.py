"""Names from elsewhere: what fastai, Lightning, Keras, ignite and others say, and what it is here.

Errors quote the tables of `foreign_names.json`, and docs/coming_from.md shows them; a test compares
the two.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar

from .text import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

_file = resources.files(__name__.rpartition(".")[0]).joinpath("foreign_names.json")
_tables = json.loads(_file.read_text("utf-8"))  # by way of the loader, which may read a zip
HOOKS: dict[str, dict[str, str]] = _tables["hooks"]
"""Methods that a framework calls. A callback or a Learner that defines one waits in vain."""
NAMES: dict[str, dict[str, str]] = _tables["names"]
"""What a user types: attributes and methods, arguments, classes."""


def _by_name(table: dict[str, dict[str, str]]) -> dict[str, str]:
    rows = (row for section in table.values() for row in section.items())
    return {name: here for names, here in rows for name in names.split(", ")}


HOOKS_HERE = _by_name(HOOKS)
HERE = _by_name(NAMES) | HOOKS_HERE


def public_names() -> list[str]:
    """Return the public names of the package."""
    return sys.modules[__name__.partition(".")[0]].__all__


def hint(name: str, known: Iterable[str] = (), **kwargs: Any) -> str:
    """Return what to add to an error about `name`: what it is here, or the `known` names near it.

    Args:
        name: what was written.
        known: what may be written.
        kwargs: as in `did_you_mean`.
    """
    return f": here it is {HERE[name]}" if name in HERE else did_you_mean(name, known, **kwargs)


class ForeignNames:
    """Base of classes whose errors about a name from elsewhere say what it is here."""

    if not TYPE_CHECKING:  # else every name would be known to type checkers

        def __getattr__(self, name: str) -> Any:
            if name not in HERE:
                return object.__getattribute__(self, name)  # raises, as a property of this name did
            try:
                return object.__getattribute__(self, name)
            except AttributeError as e:
                if e.name == name and e.obj is self:
                    e.args = (f"{e}{hint(name)}",)
                raise


class Refused:
    """A name from elsewhere as an attribute: who sets it would wait in vain, so that raises."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        raise AttributeError(f"no attribute {self.name!r}", name=self.name, obj=obj)

    def __set__(self, obj: Any, value: Any) -> None:
        raise AttributeError(f"nothing reads {self.name!r}{hint(self.name)}")


def known_keywords(*more: str) -> Callable[[F], F]:
    """Let a call with a keyword that a function does not take name the one that was meant.

    Args:
        more: what it takes beside its parameters and passes on.
    """

    def decorate(f: F) -> F:
        names = {*inspect.signature(f).parameters, *more}

        @wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            check_keywords(f, kwargs, names)
            return f(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def check_keywords(f: Callable, kwargs: Iterable[str], names: Collection[str]) -> None:
    """Raise where one of `kwargs` is none of the `names` that `f` takes.

    Raises:
        TypeError: says which of them was probably meant.
    """
    for name in kwargs:
        if name not in names:
            who = f.__qualname__.replace("Loop", "Learner").removesuffix(".__init__").split(".")[-1]
            raise TypeError(f"{who}() has no argument {name!r}{hint(name, names, n=1)}")
