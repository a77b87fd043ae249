"""The reference: one page a room, written for mkdocstrings.

Stands on names.
"""

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
    by_module: dict[str, list[str]] = {}
    for name, path in sorted(public().items(), key=lambda item: item[1].lower()):
        by_module.setdefault(path.rpartition(".")[0], []).append(name)
    return {r: page(r, {m: n for m, n in by_module.items() if room(m) == r}) for r in ROOMS}


def room(module: str) -> str:
    """Return the page that a module stands on: its folder, or what stands on top of all."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 else "top"


def page(name: str, entries: dict[str, list[str]]) -> str:
    """Return the page of a room: each module with what it says of itself and its public names."""
    parts = [f"# {ROOMS[name].capitalize()}"]
    for module, names in entries.items():
        parts += [f"## {module.removeprefix('minilearn.')}", about(module)]
        parts += [entry(n) for n in sorted(names, key=lambda n: ("." in n, n.lower()))]
        parts += [attributes(minilearn.Learner)] if "Learner" in names else []
    return "\n\n".join(parts) + "\n"


def about(module: str) -> str:
    """Return the docstring of a module, without what it says about the rooms it stands on."""
    paragraphs = inspect.getdoc(sys.modules[module]).split("\n\n")
    return "\n\n".join(p for p in paragraphs if not p.startswith("Stands on"))


def entry(name: str) -> str:
    """Return what makes mkdocstrings write the entry of a public name."""
    module = getattr(getattr(minilearn, name, None), "__module__", "")
    if module.startswith("torch"):
        return f"### {name}\n\n`{module}.{name}`, as it is."
    options = (
        f"\n    options:\n      heading: {name}\n      toc_label: {name}" if "." in name else ""
    )
    return f"::: {public()[name]}{options}"


def attributes(cls: type) -> str:
    """Return a table of what the body of a class declares, with its comments."""
    body = inspect.getsource(cls).rpartition("    def __init__")[0].rpartition('"""')[2]
    head = ["#### What a Learner holds", "", "| name | type | what |", "|---|---|---|"]
    rows = ((name, kind.replace("|", "\\|"), what) for name, kind, what in ATTRIBUTE.findall(body))
    return "\n".join([*head, *(f"| `{name}` | `{kind}` | {what} |" for name, kind, what in rows)])
