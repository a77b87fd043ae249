"""What mkdocstrings does to our docstrings: cards become lists, public names become links."""

import re
from typing import Any

from griffe import Extension, Object

from scripts.docs import linked

CARD = re.compile(r"^(Events|Order|Reads|Writes|Syncs): *(.*)$", re.M)


class Docstrings(Extension):
    """Prepares every docstring of the package for the site."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite the docstring of `obj` as Markdown."""
        if obj.docstring is not None:
            obj.docstring.value = linked(as_list(obj.docstring.value))


def as_list(text: str) -> str:
    """Return a docstring whose card is a Markdown list, which it leads into with an empty line."""

    def item(match: re.Match) -> str:
        names = [f"`{n.strip()}`" for n in match[2].split(",") if n.strip()]
        said = match[2] if match[1] == "Syncs" else ", ".join(names) or "nothing"
        return f"- **{match[1]}:** {said}"

    return CARD.sub(item, text)
