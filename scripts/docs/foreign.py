"""Write the names from elsewhere in docs/coming_from.md: `python -m scripts.docs.foreign`.

They are those of `minilearn/base/foreign_names.json`, which errors quote.
"""

from __future__ import annotations

from pathlib import Path

from minilearn.base.foreign_names import HOOKS, NAMES

PAGE = Path(__file__).parents[2] / "docs" / "coming_from.md"
HEADING = "## Every name\n"
INTRO = """
Whoever types one of these gets an error that says the name here. Classes are asked of the module,
as in `minilearn.Trainer`; a method that another framework calls fails at the class statement.
"""


def tables() -> str:
    """Return a table for each framework."""
    parts = []
    for framework in dict.fromkeys([*HOOKS, *NAMES]):
        rows = HOOKS.get(framework, {}) | NAMES.get(framework, {})
        cells = (f"| `{names.replace(', ', '`, `')}` | {here} |" for names, here in rows.items())
        parts.append("\n".join([f"| {framework} | minilearn |", "|---|---|", *cells, ""]))
    return "\n".join(parts)


def filled(text: str) -> str:
    """Return the page with its tables made anew."""
    return f"{text.partition(HEADING)[0]}{HEADING}{INTRO}\n{tables()}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
