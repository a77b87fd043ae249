"""The hook that mkdocs calls: pages from README, the package and nbs/, and the menu."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from os.path import relpath
from pathlib import Path
from typing import Any

from scripts.docs import events, reference
from scripts.docs.names import ROOT, public_objects, undocumented

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
GUIDES = (
    "train",
    "schedules",
    "look_inside",
    "resume",
    "images",
    "text",
    "many_processes",
    "command_line",
    "write_a_callback",
    "how_the_loop_works",
    "performance",
)
MATH = re.compile(r"(?<![\\$`])(\$\$?)(?=\S)([^$`]+?)(?<=\S)\1(?![\d$`])")
LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def notebooks() -> list[Path]:
    """Return the lessons, by number."""
    return sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))


def site_page(path: str) -> str | None:
    """Return the path of a repository's file on the site, None if it is not on it."""
    if re.fullmatch(r"nbs/\w+\.ipynb", path):
        return f"lessons/{Path(path).stem}.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else PAGES.get(path)


def site_links(text: str, folder: str = "") -> str:
    """Return a page of the repository with its links turned into those of the site.

    A link to a file that is not on the site becomes text; a link to a file that does not exist
    stays, so that a strict build fails.

    Args:
        text: Markdown.
        folder: where the page lies in the repository, such as "nbs".
    """
    here = "lessons" if folder == "nbs" else folder.removeprefix("docs").lstrip("/")

    def turn(match: re.Match) -> str:
        bang, label, target, anchor = match.groups(default="")
        file = ROOT / folder / target
        if not target or ":" in target or not file.exists():
            return match[0]
        page = site_page(file.resolve().relative_to(ROOT).as_posix())
        return f"{bang}[{label}]({relpath(page, here or '.')}{anchor})" if page else label

    return LINK.sub(turn, text)


def with_math(text: str) -> str:
    """Return Markdown whose formulas between dollars are MathML, which browsers show as is."""
    from latex2mathml.converter import convert

    kinds = {"$": "inline", "$$": "block"}
    return MATH.sub(lambda m: f"<span>{convert(m[2], display=kinds[m[1]])}</span>", text)


def closed(text: str) -> str:
    """Return HTML as one block whose tags are all closed; else Markdown takes what follows in."""
    from bs4 import BeautifulSoup

    return f"<div class='output'>{BeautifulSoup(text, 'html.parser')}</div>"


def lesson(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown with the outputs it was saved with, and its images."""
    import nbformat
    from nbconvert import MarkdownExporter

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = with_math(cell.source)
        for output in cell.get("outputs", ()):
            if "text/html" in output.get("data", {}):
                output.data["text/html"] = closed(output.data["text/html"])
    text, resources = MarkdownExporter().from_notebook_node(notebook)
    images = {f"{path.stem}_{name}": data for name, data in resources["outputs"].items()}
    for name in resources["outputs"]:
        text = text.replace(f"]({name})", f"]({path.stem}_{name})")
    return site_links(text, "nbs"), images


def generated() -> dict[str, str | bytes]:
    """Return every page and image that no file in docs/ holds, by its path on the site."""
    pages: dict[str, str | bytes] = {
        page: site_links((ROOT / file).read_text(encoding="utf-8")) for file, page in PAGES.items()
    }
    pages |= {f"reference/{name}.md": text for name, text in reference.pages().items()}
    for path in notebooks():
        text, images = lesson(path)
        pages[f"lessons/{path.stem}.md"] = text
        pages |= {f"lessons/{name}": data for name, data in images.items()}
    return pages


def menu() -> list[Any]:
    """Return the menu: lessons and folders as they are found, titles from their first headings."""
    return [
        {"Home": "index.md"},
        "getting_started.md",
        {"Guides": ["coming_from.md", "stopping.md", *(f"guides/{name}.md" for name in GUIDES)]},
        {"Lessons": [f"lessons/{path.stem}.md" for path in notebooks()]},
        {"Reference": [f"reference/{name}.md" for name in reference.FOLDERS]},
        {"Project": ["events.md", "map.md", "compatibility.md", "contributing.md", "changes.md"]},
    ]


def on_config(config: Any) -> Any:
    """Hand over the menu."""
    config.nav = menu()
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages; stop where a public name has no docstring."""
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import File

    missing = undocumented(public_objects())
    if missing:
        raise PluginError(f"without a docstring: {', '.join(missing)}. Write one for each.")
    for path, content in generated().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Put the tables into the page of events, and turn the links of the guides."""
    path = page.file.src_uri
    if (ROOT / "docs" / path).exists():
        markdown = site_links(markdown, f"docs/{path}".rpartition("/")[0])
    return events.filled(markdown) if path == "events.md" else markdown


class Loads(HTMLParser):
    """Collects what a page loads from other sites; links for the reader do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the address that a tag loads."""
        given = dict(attrs)
        address = given.get("src") or (given.get("href") if tag == "link" else "") or ""
        if re.match(r"(https?:)?//", address):
            self.found.append(address)


def loaded_from_elsewhere(page: str) -> list[str]:
    """Return the addresses on other sites that a browser loads to show a page."""
    loads = Loads()
    loads.feed(page)
    return loads.found


def on_post_page(output: str, page: Any, **kwargs: Any) -> str:
    """Stop where a page needs a network to be shown."""
    from mkdocs.exceptions import PluginError

    if found := loaded_from_elsewhere(output):
        raise PluginError(f"{page.file.src_uri} loads {', '.join(found)}. Ship it with the site.")
    return output
