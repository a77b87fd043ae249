"""Modules, names and methods that are imported when they are first used.

They let `from minilearn.all import *` offer matplotlib, and a `Learner` all its methods, without
importing any of it.
"""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module, which is imported when an attribute is asked for."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(importlib.import_module(self._name), name, value)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self._name))

    def __repr__(self) -> str:
        return f"<{self._name}, imported on first use>"


class LazyName:
    """Stands for a class or function of a module, which is imported when it is called.

    It can be subclassed and asked with `isinstance` like the class it stands for.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self.__name__ = module, name

    def _real(self) -> Any:
        return getattr(importlib.import_module(self._module), self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the real thing."""
        return self._real()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name != "__doc__":
            raise AttributeError(name)  # copying and pickling must not import anything
        return getattr(self._real(), name)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._real())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._real())

    def __mro_entries__(self, bases: tuple) -> tuple[type, ...]:
        return (self._real(),)

    def __repr__(self) -> str:
        return f"<{self._module}.{self.__name__}, imported on first use>"


class LazyMethods:
    """A module of the package whose functions are methods of a class that is written elsewhere.

    >>> _lr_finder = LazyMethods("insight.lr_finder")
    >>> class Learner:
    ...     lr_find = _lr_finder.lr_find

    Args:
        module: its name, without "minilearn.".
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return LazyMethod(self._module, name)


class LazyMethod:
    """A method that replaces itself by a function of another module when it is first asked for."""

    def __init__(self, module: str, function: str) -> None:
        self.module, self.function = module, function

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, obj: Any, cls: type | None = None) -> Any:
        """Return the method, bound to `obj` where there is one."""
        function = getattr(importlib.import_module(f"minilearn.{self.module}"), self.function)
        if vars(self.owner)[self.name] is self:  # else somebody put another in its place
            setattr(self.owner, self.name, function)
        return vars(self.owner)[self.name].__get__(obj, cls)
