"""A callback-driven training framework for PyTorch that fits in your head.

`__init__.pyi` lists every public name and the module that it comes from. A module is imported when
a name of it is first used, so this costs little more than importing torch.
"""

import ast
import sys
from importlib import import_module, resources
from importlib.util import find_spec
from typing import Any

from lazy_loader import attach

# by way of the loader, which may read a zip
_stub = ast.parse(resources.files(__name__).joinpath("__init__.pyi").read_text("utf-8"))
_imports = [node for node in _stub.body if isinstance(node, ast.ImportFrom)]
_import, __dir__, __all__ = attach(
    __name__,
    submod_attrs={str(module.module): [name.name for name in module.names] for module in _imports},
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _import(name)
    if name == "__version__":
        from .base.files import version_of  # takes a while, so not at import

        return version_of("minilearn")
    if name == "def_device":  # asked for when used: the first question to a driver takes a while
        from .base.batch import default_device

        return default_device()
    is_module = name.isidentifier() and not name.startswith("_")
    if is_module and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    from .base.foreign_names import hint

    text = f"module {__name__!r} has no attribute {name!r}{hint(name, __all__, n=1)}"
    raise AttributeError(text, name=name, obj=sys.modules[__name__])
