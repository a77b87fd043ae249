"""The pages of the reference site that are made from what is there: the package, README, nbs/.

mkdocs calls `on_config` and `on_files` (a hook of mkdocs.yml). What needs no mkdocs is tested without.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import minilearn
from minilearn.core.events import ACTIONS, EVENTS, Order
from minilearn.core.explain import SCRIPT

ROOT = Path(__file__).parent.parent
REPOSITORY_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changes.md"}
LEVELS = {
    "fit": "the whole of `fit(...)`",
    "round": "a training pass with its validation",
    "epoch": "one pass over one loader; `learn.training` tells which",
    "batch": "one batch",
    "backward": "the gradients of a batch",
    "step": "one update of the weights",
}
MOMENTS = {
    "before": "{} begins",
    "after": "{} is done; not after a cancel or an error",
    "cleanup": "{} ends, whatever ended it; in reverse order",
}
WITHIN_A_BATCH = {
    "after_predict": "`learn.preds` is there",
    "after_loss": "`learn.loss` is there",
}


# ---- what is public, and where it lives ----


@cache
def homes() -> dict[str, str]:
    """Return the module of every public name."""
    return {name: home(name) for name in minilearn.__all__}


def home(name: str) -> str:
    """Return the module that a public name is written in; of what is torch's, where we take it."""
    module = getattr(getattr(minilearn, name), "__module__", "")
    if module.startswith("minilearn"):
        return module
    (found,) = (m for m in modules() if name in names_bound_in(m))
    return found


def modules() -> list[str]:
    """Return the modules of the package that hold code, by name."""
    found = pkgutil.walk_packages(minilearn.__path__, "minilearn.")
    return sorted(m.name for m in found if not m.ispkg and not m.name.endswith(("__main__", ".all")))


def names_bound_in(module: str) -> set[str]:
    """Return the names that a module assigns, or imports from torch."""
    file = ROOT / f"{module.replace('.', '/')}.py"
    body = ast.parse(file.read_text(encoding="utf-8")).body
    assigned = {t.id for n in body if isinstance(n, ast.Assign) for t in n.targets if hasattr(t, "id")}
    torchs = (n for n in body if isinstance(n, ast.ImportFrom) and f"{n.module}".startswith("torch"))
    return assigned | {a.name for n in torchs for a in n.names if a.name in minilearn.__all__}


@cache
def added_methods() -> dict[str, str]:
    """Return the public methods that other rooms add to a class: `Learner.lr_find` and its module."""
    classes = [c for c in map(minilearn.__dict__.get, minilearn.__all__) if isinstance(c, type)]
    members = ((c, n, f) for c in classes for n, f in vars(c).items() if inspect.isfunction(f))
    return {
        f"{c.__name__}.{name}": f.__module__
        for c, name, f in members
        if f.__module__ in modules() and f.__module__ != c.__module__ and name[0] != "_"
    }


def public() -> dict[str, str]:
    """Return every public name and added method, and the path under which it is documented."""
    paths = {name: f"{module}.{name}" for name, module in homes().items()}
    return paths | {n: f"{m}.{n.partition('.')[2]}" for n, m in added_methods().items()}


def undocumented(names: dict[str, Any]) -> list[str]:
    """Return what has no docstring: the objects by name, and the public members they define."""
    members = {
        f"{name}.{key}": member
        for name, o in names.items()
        if isinstance(o, type) and o.__module__.startswith("minilearn")
        for key, member in vars(o).items()
        if key[0] != "_" and (inspect.isroutine(member) or isinstance(member, property))
    }
    return [name for name, o in (names | members).items() if not (inspect.getdoc(o) or "").strip()]


# ---- pages ----


def room(module: str) -> str:
    """Return the page that a module stands on: its folder, or what stands on top of all rooms."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 else "top"


def reference_pages() -> dict[str, str]:
    """Return the Markdown of one page a room, by name, lowest room first."""
    entries: dict[str, list[str]] = {}
    for name, path in public().items():
        entries.setdefault(path.rpartition(".")[0], []).append(name)
    rooms = ("core", "data", "nn", "callbacks", "insight", "top")
    return {r: room_page(r, {m: entries[m] for m in sorted(entries) if room(m) == r}) for r in rooms}


def room_page(name: str, entries: dict[str, list[str]]) -> str:
    """Return the page of a room: its sentence, then each module with its public names."""
    if name == "top":
        title, about = "On top", "What stands on all rooms: `minilearn.optim`, `export` and their kin."
    else:
        title = f"minilearn.{name}"
        about = inspect.getdoc(import_module(title))
    parts = [f"# {title}", about]
    for module, names in entries.items():
        parts += [f"## {module.removeprefix('minilearn.')}", inspect.getdoc(import_module(module))]
        parts += [entry(n) for n in sorted(names, key=lambda n: ("." in n, n.lower()))]
        parts += [attribute_table(minilearn.Learner)] if "Learner" in names else []
    return "\n\n".join(parts) + "\n"


def entry(name: str) -> str:
    """Return what makes mkdocstrings write the entry of a public name."""
    module = getattr(getattr(minilearn, name, None), "__module__", "minilearn")
    if not module.startswith(("minilearn", "functools")):
        return f"### {name}\n\n`{module}.{name}`, as it is."
    options = f"    options:\n      heading: {name}\n" if "." in name else ""
    return f"::: {public()[name]}\n{options}".rstrip()


def attribute_table(cls: type) -> str:
    """Return a table of the attributes that a class body declares with a comment."""
    line = re.compile(r"^    ([a-z]\w*): (.+?)(?: = .*?)?(?:  # (.*))?$", re.M)
    body = inspect.getsource(cls).partition("def ")[0].rpartition('"""')[2]
    rows = [f"| `{n}` | `{t}` | {about} |" for n, t, about in line.findall(body)]
    rows = [row.replace(" | None", " \\| None") for row in rows]
    return "\n".join(["#### Attributes of a Learner", "", "| name | type | what |", "|---|---|---|", *rows])


def events_page() -> str:
    """Return the page of what fires when, all of it read from `minilearn.core.events`."""
    script = "\n".join("  " * indent + event for indent, event in SCRIPT)
    default = minilearn.TrainCB
    return "\n".join(
        [
            "# Events",
            "",
            "What fires when, in which order, and who listens. This page is made from the code.",
            "",
            f"```text\n{script}\n```",
            "",
            "A star marks an action. What stands five deep happens in training passes only. "
            "`learn.explain()` shows the same with the callbacks of a Learner of yours.",
            "",
            "## Events in firing order",
            "",
            "| event | fires when | skipped by | heard by |",
            "|---|---|---|---|",
            *(f"| `{e}` | {moment(e)} | {skipped_by(e)} | {listeners(e)} |" for e in EVENTS),
            "",
            "## Actions",
            "",
            "Each has exactly one owner; without another, [`TrainCB`][minilearn.callbacks.training.TrainCB].",
            "",
            "| action | what `TrainCB` does | also answered by |",
            "|---|---|---|",
            *(f"| `{a}` | {first_line(getattr(default, a))} | {listeners(a)} |" for a in ACTIONS),
            "",
            "## Order",
            "",
            "Within an event callbacks are called by their slot, lowest first; ties follow the list.",
            "",
            "| slot | number | why there | who |",
            "|---|---|---|---|",
            *(f"| `{o.name}` | {int(o)} | {why(o)} | {slot_mates(o)} |" for o in Order),
            "",
        ]
    )


def moment(event: str) -> str:
    """Return in words when an event fires."""
    prefix, _, level = event.partition("_")
    return WITHIN_A_BATCH.get(event) or MOMENTS[prefix].format(LEVELS[level])


def skipped_by(event: str) -> str:
    """Return the narrowest exception that skips an event."""
    prefix, _, level = event.partition("_")
    if prefix != "after":
        return ""
    level = "batch" if event in WITHIN_A_BATCH else level
    return linked(f"`Cancel{level.title()}Exception`")


def callbacks() -> list[type]:
    """Return the public callbacks, in the order in which they hear an event."""
    found = [c for c in map(minilearn.__dict__.get, minilearn.__all__) if isinstance(c, type)]
    found = [c for c in found if issubclass(c, minilearn.Callback) and c is not minilearn.Callback]
    return sorted(found, key=lambda c: (c.order, c.__name__))


def listeners(method: str) -> str:
    """Return the public callbacks that have a method, linked."""
    has = [c.__name__ for c in callbacks() if hasattr(c, method)]
    own = [n for n in has if n != "TrainCB" or method not in ACTIONS]
    return linked(", ".join(f"`{n}`" for n in own))


def slot_mates(slot: Order) -> str:
    """Return the public callbacks of a slot and of the places right after it, linked."""
    mine = [c for c in callbacks() if max(o for o in Order if o <= c.order) == slot]
    return linked(", ".join(f"`{c.__name__}`" for c in mine))


def why(slot: Order) -> str:
    """Return the comment that stands behind a slot in the code."""
    return re.search(rf"^    {slot.name} = .*?  # (.*)$", inspect.getsource(Order), re.M)[1]


def first_line(o: Any) -> str:
    """Return the first line of a docstring."""
    return inspect.getdoc(o).partition("\n")[0]


# ---- links ----


def linked(text: str) -> str:
    """Return Markdown in which public names between backticks link to their entries."""
    known = public()
    known |= {f"learn.{n.partition('.')[2]}": p for n, p in known.items() if n[:8] == "Learner."}

    def link(match: re.Match) -> str:
        path = known.get(match[2].partition("(")[0])
        return f"[{match[1]}][{path}]" if path else match[0]

    return re.sub(r"(?<![`\[\w])(`([A-Za-z][\w.]*(?:\([^`\n]*\))?)`)(?![`\]])", link, text)


def site_links(text: str, folder: str = "") -> str:
    """Return a page of the repository with its links turned into those of the site.

    Args:
        text: Markdown.
        folder: where the page lies in the repository, such as "nbs".
    """

    def turn(match: re.Match) -> str:
        label, target = match[1], match[2]
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return match[0]
        full = (ROOT / folder / path).resolve()
        page = site_page(full.relative_to(ROOT).as_posix()) if full.is_relative_to(ROOT) else None
        if page is None:
            return match[0] if not full.exists() else label.lstrip("!").strip("[]")
        up = "../" if folder else ""
        return f"{label}({up}{page}{'#' + anchor if anchor else ''})"

    return re.sub(r"(!?\[[^\]\n]*\])\(([^)\s]+)\)", turn, text)


def site_page(path: str) -> str | None:
    """Return where a file of the repository is on the site, None where it is not."""
    if path in REPOSITORY_PAGES:
        return REPOSITORY_PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"lessons/{Path(path).stem}.md" if re.fullmatch(r"nbs/\w+\.ipynb", path) else None


# ---- what mkdocs calls ----


def notebooks() -> list[Path]:
    """Return the lessons, by number."""
    return sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))


def lesson(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown with the outputs it was saved with, and its pictures."""
    from nbconvert import MarkdownExporter

    text, resources = MarkdownExporter().from_filename(str(path))
    pictures = {f"{path.stem}_{name}": data for name, data in resources["outputs"].items()}
    for name in resources["outputs"]:
        text = text.replace(f"]({name})", f"]({path.stem}_{name})")
    return site_links(text, "nbs"), pictures


def generated() -> dict[str, str | bytes]:
    """Return every page that no file in docs/ holds."""
    pages: dict[str, str | bytes] = {
        page: site_links((ROOT / file).read_text(encoding="utf-8"))
        for file, page in REPOSITORY_PAGES.items()
    }
    pages["events.md"] = events_page()
    for name, text in reference_pages().items():
        pages[f"reference/{name}.md"] = text
    for path in notebooks():
        text, pictures = lesson(path)
        pages[f"lessons/{path.stem}.md"] = text
        pages |= {f"lessons/{name}": data for name, data in pictures.items()}
    return pages


def on_config(config: Any) -> Any:
    """Build the navigation: lessons and rooms as they are found, titles from their headings."""
    config.nav = [
        {"Home": "index.md"},
        "coming_from.md",
        "events.md",
        {"Lessons": [f"lessons/{path.stem}.md" for path in notebooks()]},
        {"Reference": [f"reference/{name}.md" for name in reference_pages()]},
        "changes.md",
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages; stop where a public name has no docstring."""
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import File

    missing = undocumented({name: getattr(minilearn, name) for name in minilearn.__all__})
    if missing:
        raise PluginError(f"without a docstring: {', '.join(missing)}. Write one for each.")
    for path, content in generated().items():
        files.append(File.generated(config, path, content=content))
    return files
