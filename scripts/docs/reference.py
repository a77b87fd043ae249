"""The reference: one page a room, written for mkdocstrings."""

from __future__ import annotations

import inspect
import re
import sys

import minilearn

from .names import public

ROOMS = {
    "core": "the loop",
    "data": "data",
    "nn": "layers and models",
    "callbacks": "callbacks",
    "insight": "looking inside",
    "top": "using, keeping, exporting",
}
ATTRIBUTE = re.compile(r"^    ([a-z]\w*): (.+?)(?: = .*?)?(?:  # (.*))?$", re.M)


def pages() -> dict[str, str]:
    """Return the Markdown of one page a room, by its name, lowest room first."""
    return {name: page(name) for name in ROOMS}


def modules_of(name: str) -> list[str]:
    """Return the modules of a room that hold something public, in order."""
    homes = {path.rpartition(".")[0] for path in public().values()}
    return sorted(module for module in homes if room(module) == name)


def room(module: str) -> str:
    """Return the page that a module stands on: its folder, or what stands on top of all."""
    parts = module.split(".")
    return parts[1] if parts[1] in ROOMS else "top"


def page(name: str) -> str:
    """Return the page of a room: each module with what it says of itself and its public names."""
    parts = [f"# {ROOMS[name].capitalize()}"]
    for module in modules_of(name):
        paths = {path for path in public().values() if path.rpartition(".")[0] == module}
        parts += [f"## {module.removeprefix('minilearn.')}", about(module)]
        parts += map(entry, sorted(paths, key=str.lower))
        parts += [attributes(minilearn.Learner)] if module == "minilearn.core.learner" else []
    return "\n\n".join(parts) + "\n"


def about(module: str) -> str:
    """Return the docstring of a module, without what it says about the rooms it stands on."""
    paragraphs = inspect.getdoc(sys.modules[module]).split("\n\n")
    return "\n\n".join(p for p in paragraphs if not p.startswith("Stands on"))


def entry(path: str) -> str:
    """Return what makes mkdocstrings write an entry; methods of classes are named as such."""
    names = [name for name, where in public().items() if where == path]
    found = getattr(minilearn, names[0], None)
    if getattr(found, "__module__", "").startswith("torch"):
        return f"### {names[0]}\n\n`{found.__module__}.{found.__name__}`, as it is."
    heading = ", ".join(sorted(names, reverse=True))
    options = f"\n    options:\n      heading: {heading}\n      toc_label: {heading}"
    return f"::: {path}{options if '.' in heading else ''}"


def attributes(cls: type) -> str:
    """Return a table of what the body of a class declares, with its comments."""
    body = inspect.getsource(cls).rpartition("    def __init__")[0].rpartition('"""')[2]
    head = ["#### What a Learner holds", "", "| name | type | what |", "|---|---|---|"]
    rows = ((name, kind.replace("|", "\\|"), what) for name, kind, what in ATTRIBUTE.findall(body))
    return "\n".join([*head, *(f"| `{name}` | `{kind}` | {what} |" for name, kind, what in rows)])
