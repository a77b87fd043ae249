"""What mkdocstrings does to docstrings: cards become lists, examples code, public names links."""

import re
from typing import Any

from griffe import Extension, Object

from scripts.docs.names import linked

CARD = re.compile(r"^(Events|Order|Reads|Writes|Syncs): *(.*(?:\n +\S.*)*)$", re.M)
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.M)


class Docstrings(Extension):
    """Prepares every docstring of the package for the site."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite the docstring of `obj` as Markdown."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return a docstring as Markdown."""

    def item(match: re.Match) -> str:
        names = [f"`{n.strip()}`" for n in match[2].split(",") if n.strip()]
        shown = match[2] if match[1] == "Syncs" else ", ".join(names) or "nothing"
        return f"- **{match[1]}:** {shown}"

    fenced = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", CARD.sub(item, text))
    return linked(fenced)
