"""The reference: one page a folder of the package, written for mkdocstrings."""

from __future__ import annotations

import inspect
import re
import sys

import minilearn
from minilearn.core import state

from .names import public

FOLDERS = {
    "learner": "the Learner",
    "core": "the loop",
    "data": "data",
    "nn": "layers and models",
    "callbacks": "training callbacks",
    "optim": "optimizers and schedules",
    "metrics": "metrics",
    "progress": "progress",
    "loggers": "loggers",
    "checkpoint": "checkpoints",
    "distributed": "several processes",
    "inference": "predictions and export",
    "insight": "looking inside",
    "cli": "the command line",
    "base": "basics",
}
ATTRIBUTE = re.compile(r"^    ([a-z]\w*): (.+?)(?: = .*?)?(?:  # (.*))?$", re.M)


def pages() -> dict[str, str]:
    """Return the Markdown of one page a folder, by its name, in the order of the menu."""
    return {name: page(name) for name in FOLDERS}


def modules_of(folder: str) -> list[str]:
    """Return the modules of a folder that hold something public, in order."""
    homes = {path.rpartition(".")[0] for path in public().values()}
    return sorted(module for module in homes if module.split(".")[1] == folder)


def page(name: str) -> str:
    """Return the page of a folder: each module with its docstring and its public names."""
    parts = [f"# {FOLDERS[name][0].upper()}{FOLDERS[name][1:]}"]
    for module in modules_of(name):
        paths = {path for path in public().values() if path.rpartition(".")[0] == module}
        parts += [f"## {module.removeprefix('minilearn.')}", inspect.getdoc(sys.modules[module])]
        parts += map(entry, sorted(paths, key=str.lower))
        parts += [attributes()] if module == "minilearn.learner" else []
    return "\n\n".join(parts) + "\n"


def entry(path: str) -> str:
    """Return what makes mkdocstrings write an entry; methods of classes are named as such."""
    names = [name for name, where in public().items() if where == path]
    found = getattr(minilearn, names[0], None)
    if getattr(found, "__module__", "").startswith("torch"):
        return f"### {names[0]}\n\n`{found.__module__}.{found.__name__}`, as it is."
    heading = ", ".join(sorted(names, reverse=True))
    options = [f"heading: {heading}", f"toc_label: {heading}"] if "." in heading else []
    if found is minilearn.Learner:  # its loop is written in a base class
        options.append("inherited_members: true")
    return "\n      ".join([f"::: {path}\n    options:", *options]) if options else f"::: {path}"


def attributes() -> str:
    """Return a table of what a Learner holds, from the class that declares it."""
    body = inspect.getsource(state.LoopState).partition("    # methods of the Learner")[0]
    rows = [(name, kind.replace("|", "\\|"), what) for name, kind, what in ATTRIBUTE.findall(body)]
    for name, member in vars(state.LoopState).items():
        if isinstance(member, property):
            kind = str(inspect.signature(member.fget).return_annotation).replace("|", "\\|")
            rows.append((name, kind, f"{inspect.getdoc(member)} Read-only."))
    head = ["#### What a Learner holds", "", "| name | type | what |", "|---|---|---|"]
    lines = (f"| `{name}` | `{kind}` | {what} |" for name, kind, what in rows)
    return "\n".join([*head, *lines])
