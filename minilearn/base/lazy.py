"""Names that import their library when they are first used.

Stands on the standard library. They let `from minilearn.all import *` offer matplotlib and others
without paying for them.
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
