"""What runs when, in words: the text behind `learn.explain()`.

Stands on actions, callback and events.
"""

from __future__ import annotations

import html
import sys
from typing import TYPE_CHECKING, Any

from ..core.actions import find_owners
from ..core.callback import order_of
from ..core.events import EVENTS

if TYPE_CHECKING:
    from ..core.learner import Learner

# (indent, event or action) in firing order; actions carry a star
SCRIPT = (
    (0, "before_fit"),
    (1, "before_round"),
    (2, "before_epoch"),
    (3, "before_batch"),
    (4, "predict*"),
    (4, "after_predict"),
    (4, "get_loss*"),
    (4, "after_loss"),
    (5, "before_backward"),
    (5, "backward*"),
    (5, "after_backward"),
    (5, "cleanup_backward"),
    (5, "before_step"),
    (5, "step*"),
    (5, "after_step"),
    (5, "zero_grad*"),
    (5, "cleanup_step"),
    (3, "after_batch"),
    (3, "cleanup_batch"),
    (2, "after_epoch"),
    (2, "cleanup_epoch"),
    (1, "after_round"),
    (1, "cleanup_round"),
    (0, "after_fit"),
    (0, "cleanup_fit"),
)


def explain_rows(learn: Learner) -> list[tuple[int, str, str]]:
    """Return (indent, event, who) for every event that somebody handles and for every action."""
    owners = find_owners(learn)
    extra = [(0, event) for event in EVENTS if event not in {name for _, name in SCRIPT}]
    rows = []
    for indent, name in (*SCRIPT, *extra):
        if name.endswith("*"):
            owner = owners.get(name[:-1])
            rows.append((indent, name, owner.name if owner else "nobody: add TrainCB()"))
        elif who := _handlers(learn, name):
            rows.append((indent, name, who))
    return rows


def _handlers(learn: Learner, event: str) -> str:
    cbs = [cb for cb in sorted(learn.cbs, key=order_of) if getattr(cb, event, None) is not None]
    if event.startswith("cleanup_"):
        cbs.reverse()
    return ", ".join(f"{type(cb).__name__}[{int(order_of(cb))}]" for cb in cbs)


def explain_text(learn: Learner) -> Explanation:
    """Return what runs when, as text with an HTML form for notebooks."""
    rows = explain_rows(learn)
    width = max(2 * indent + len(name) for indent, name, _ in rows)
    lines = [f"{'  ' * indent + name:{width}}  {who}" for indent, name, who in rows]
    title = f"{type(learn).__name__}: what runs when (* action, [order])"
    result = Explanation("\n".join([title, *lines]))
    result.rows, result.title = rows, title
    return result


class Explanation(str):
    """The text of `explain`, which a notebook shows as a table."""

    rows: list[tuple[int, str, str]]
    title: str

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td style='text-align:left;padding-left:{1.5 * indent}em'>"
            f"<code>{html.escape(name)}</code></td>"
            f"<td style='text-align:left'>{html.escape(who)}</td></tr>"
            for indent, name, who in self.rows
        )
        return f"<table><caption>{html.escape(self.title)}</caption>{cells}</table>"


def show(text: Any) -> None:
    """Display `text` in a notebook, print it elsewhere."""
    if in_notebook():
        from IPython.display import display

        display(text)
    else:
        print(text)


def in_notebook() -> bool:
    """Return whether a front end that shows HTML runs this process: Jupyter, VS Code, Colab."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
