"""A callback-driven training framework for PyTorch that fits in your head.

Every public name stands in `__init__.pyi`, with the room that it comes from. A room is imported
when a name of it is first used, so this costs little more than importing torch.
"""

from typing import Any

from lazy_loader import attach_stub

_import, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # takes a while, so not at import

        return version("minilearn")
    if name == "def_device":  # asked for when used: the first question to a driver takes a while
        from .core.batch import default_device

        return default_device()
    return _import(name)
