"""Methods that are written in another room, which is imported when one is first asked for.

Stands on the standard library.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

F = TypeVar("F")


class LazyMethod:
    """Stands in a class for a method, and gives it its place when it is first asked for.

    Args:
        room: the module that says with `method_of` which it is, without "minilearn.".
    """

    def __init__(self, room: str) -> None:
        self.room = room
        self.method: Any = None  # known when the room is imported

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, obj: Any, cls: type | None = None) -> Any:
        """Return the method, of `obj` or of the class.

        Raises:
            AttributeError: its room asks for it while it is imported itself.
        """
        import_module(f"minilearn.{self.room}")
        if self.method is None:
            raise AttributeError(f"{self.name} is not there before minilearn.{self.room} is whole")
        if vars(self.owner)[self.name] is self:  # only now: an import that broke off left a half
            setattr(self.owner, self.name, self.method)
        return vars(self.owner)[self.name].__get__(obj, cls)


def method_of(owner: type) -> Callable[[F], F]:
    """Give a function or a property to the `LazyMethod` of its name in `owner`."""

    def put(f: F) -> F:
        function: Any = getattr(f, "fget", f)
        lazy = vars(owner).get(function.__name__)
        if isinstance(lazy, LazyMethod):
            lazy.method = f
        else:  # the room is loaded again, in a notebook say
            setattr(owner, function.__name__, f)
        return f

    return put
