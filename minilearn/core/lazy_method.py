"""Methods that are written in another room, which is imported when one is first asked for.

Stands on the standard library.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

F = TypeVar("F")


class LazyMethod:
    """Stands in a class for a method; its room puts the method in this one's place (`method_of`).

    Args:
        room: the module, without "minilearn.".
    """

    def __init__(self, room: str) -> None:
        self.room = room

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, obj: Any, cls: type | None = None) -> Any:
        """Return the method, of `obj` or of the class."""
        import_module(f"minilearn.{self.room}")
        return vars(self.owner)[self.name].__get__(obj, cls)


def method_of(owner: type) -> Callable[[F], F]:
    """Put a function or a property in the place of the `LazyMethod` of its name in `owner`."""

    def put(f: F) -> F:
        function: Any = getattr(f, "fget", f)
        setattr(owner, function.__name__, f)
        return f

    return put
