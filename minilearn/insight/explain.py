"""What runs when, as a table: `learn.explain()`."""

from __future__ import annotations

from typing import Any

from ..base.notebook import show
from ..core.callback import order_of
from ..core.dispatch import find_owners
from ..core.events import EVENTS
from ..core.learner import Loop
from .text_table import Table

UPDATE = (
    "before_backward backward* after_backward cleanup_backward "
    "before_step step* after_step zero_grad* cleanup_step"
)
LEVELS = (
    (0, "before_fit"),
    (1, "before_round"),
    (2, "before_epoch"),
    (3, "before_batch"),
    (4, "predict* after_predict get_loss* after_loss"),
    (5, UPDATE),
    (3, "after_batch cleanup_batch"),
    (2, "after_epoch cleanup_epoch"),
    (1, "after_round cleanup_round"),
    (0, "after_fit cleanup_fit"),
)
SCRIPT = tuple((indent, name) for indent, names in LEVELS for name in names.split())
"""Indent and name of each event and action in firing order; actions have a star."""


def explain(self: Loop) -> None:
    """Show what runs when: every event, who handles it in which order, who owns each action.

    >>> learn.explain()
    """
    show(explain_text(self))


def explain_rows(learn: Loop) -> list[tuple[int, str, str]]:
    """Return (indent, event, who) for every event that has a handler and for every action."""
    cbs = learn.cbs_of_fit()
    owners = find_owners(learn, cbs)
    extra = [(0, event) for event in EVENTS if event not in {name for _, name in SCRIPT}]
    rows = []
    for indent, name in (*SCRIPT, *extra):
        if name.endswith("*"):
            owner = owners.get(name[:-1])
            rows.append((indent, name, owner.name if owner else "nobody: add TrainCB()"))
        elif who := _handlers(cbs, name):
            rows.append((indent, name, who))
    return rows


def _handlers(cbs: list[Any], event: str) -> str:
    cbs = [cb for cb in sorted(cbs, key=order_of) if getattr(cb, event, None) is not None]
    if event.startswith("cleanup_"):
        cbs.reverse()
    return ", ".join(f"{type(cb).__name__}[{int(order_of(cb))}]" for cb in cbs)


def explain_text(learn: Loop) -> Table:
    """Return what runs when, as a table."""
    lines = [("  " * indent + name, who) for indent, name, who in explain_rows(learn)]
    usual = ", with the usual callbacks, since none are listed" if learn.adds_usual() else ""
    return Table.of(f"{type(learn).__name__}: what runs when (* action, [order]){usual}", lines, 2)
