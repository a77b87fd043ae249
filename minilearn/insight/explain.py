"""What runs when, in words: the text behind `learn.explain()`."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from ..base.notebook import show
from ..core.callback import order_of
from ..core.dispatch import find_owners
from ..core.events import EVENTS

if TYPE_CHECKING:
    from ..core.learner import Loop

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


def explain(self: Loop) -> None:
    """Show what runs when: every event, who handles it in which order, who owns each action."""
    show(explain_text(self))


def explain_rows(learn: Loop) -> list[tuple[int, str, str]]:
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


def _handlers(learn: Loop, event: str) -> str:
    cbs = [cb for cb in sorted(learn.cbs, key=order_of) if getattr(cb, event, None) is not None]
    if event.startswith("cleanup_"):
        cbs.reverse()
    return ", ".join(f"{type(cb).__name__}[{int(order_of(cb))}]" for cb in cbs)


def explain_text(learn: Loop) -> Explanation:
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
