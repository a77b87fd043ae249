"""Write the list of modules in docs/map.md: `python -m scripts.docs.map`.

A module's line is the first line of its docstring; the rest of the page is written by hand.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "map.md"
HEADING = "## Every module\n"


def modules() -> list[Path]:
    """Return the files of the package, folder by folder, each folder's `__init__.py` first."""
    files = ROOT.glob("minilearn/**/*.py")
    return sorted(files, key=lambda p: (p.parent, p.name != "__init__.py", p.name))


def line(file: Path) -> str:
    """Return the line of a module, or the heading of its folder."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    first = re.sub(r"\s+", " ", docstring.partition("\n\n")[0])
    if file.name == "__init__.py":
        return f"\n### `{file.parent.relative_to(ROOT).as_posix()}/`\n\n{first}\n"
    return f"- `{file.name}`: {first}"


def filled(text: str) -> str:
    """Return the page with its list made anew."""
    return text.partition(HEADING)[0] + HEADING + "\n".join(map(line, modules())) + "\n"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
