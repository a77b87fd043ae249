"""What is public, where it is written, and how text links to it."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import minilearn
from minilearn import cli

ROOT = Path(__file__).parents[2]


@cache
def modules() -> list[str]:
    """Return the modules of the package that hold code, by name."""
    found = pkgutil.walk_packages(minilearn.__path__, "minilearn.")
    return sorted(m.name for m in found if not m.ispkg)


def public_classes() -> list[type]:
    """Return the public classes, by name."""
    objects = (getattr(minilearn, name) for name in minilearn.__all__)
    return [o for o in objects if isinstance(o, type)]


def home(name: str) -> str:
    """Return the module that defines a public name, or that takes it from torch."""
    module = getattr(getattr(minilearn, name), "__module__", "")
    if module.startswith("minilearn"):
        return module
    return next(m for m in modules() if name in offered_by(m))


def offered_by(module: str) -> list[str]:
    """Return the names in the `__all__` of a module, without running it."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [getattr(item, "value", "") for item in node.value.elts]
    return []


def tree(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    file = ROOT / f"{module.replace('.', '/')}.py"
    return ast.parse(file.read_text(encoding="utf-8"))


def listed_methods() -> dict[str, str]:
    """Return where the methods are written that `learner.py` lists: `Learner.lr_find`, say."""
    members = ((c, name, getattr(c, name)) for c in public_classes() for name in list(vars(c)))
    return {
        f"{c.__name__}.{name}": f"{f.__module__}.{name}"
        for c, name, f in members
        if inspect.isfunction(f)
        and f.__module__ in modules()
        and f.__module__ != c.__module__
        and not name.startswith("_")
    }


@cache
def public() -> dict[str, str]:
    """Return the path under which each public name and each listed method is documented."""
    names = {name: f"{home(name)}.{name}" for name in minilearn.__all__}
    commands = {f"cli.{name}": f"{getattr(cli, name).__module__}.{name}" for name in cli.__all__}
    return names | listed_methods() | commands


def public_objects() -> dict[str, Any]:
    """Return every public object by its name."""
    names = {name: getattr(minilearn, name) for name in minilearn.__all__}
    return names | {f"cli.{name}": getattr(cli, name) for name in cli.__all__}


def undocumented(objects: dict[str, Any]) -> list[str]:
    """Return what has no docstring: of objects by name, and of the public members of classes."""
    members = {
        f"{name}.{key}": member
        for name, o in objects.items()
        if isinstance(o, type) and not o.__module__.startswith("torch")
        for base in o.__mro__
        if base.__module__.startswith(minilearn.__name__) or base is o
        for key, member in vars(base).items()
        if not key.startswith("_") and (inspect.isroutine(member) or isinstance(member, property))
    }
    return [name for name, o in (objects | members).items() if not doc_of(name, o).strip()]


def doc_of(name: str, o: Any) -> str:
    """Return an object's own docstring; for a value, the string after its assignment."""
    if inspect.isclass(o) or inspect.isroutine(o) or isinstance(o, property):
        return o.__doc__ or ""
    for statement, after in pairwise(tree(home(name)).body):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return after.value.value if isinstance(after, ast.Expr) else ""
    return ""


def linked(text: str) -> str:
    """Return Markdown in which public names between single backticks link to their entries."""

    def link(match: re.Match) -> str:
        name = match[1].partition("(")[0].replace("learn.", "Learner.")
        return f"[`{match[1]}`][{public()[name]}]" if name in public() else match[0]

    return re.sub(r"(?<![`\[\w])`([A-Za-z][\w.]*(?:\([^`\n]*\))?)`(?![`\]])", link, text)
