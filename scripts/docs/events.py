"""The tables of docs/events.md, read from the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

import minilearn
from minilearn.core.events import ACTIONS, EVENTS, Order
from minilearn.insight.explain import SCRIPT

from .names import linked, public_classes

LEVELS = {
    "fit": "the whole of `fit(...)`",
    "round": "a training epoch with its validation",
    "epoch": "one epoch over one loader, in training or validation",
    "batch": "one batch",
    "backward": "the backward pass",
    "step": "an update of the weights",
}
MOMENTS = {
    "before": "{} begins",
    "after": "{} is done",
    "cleanup": "{} ends, whatever ended it",
}
WITHIN_A_BATCH = {"after_predict": "`learn.preds` is there", "after_loss": "`learn.loss` is there"}


def filled(text: str) -> str:
    """Return the page with its tables in place of `{{ name }}`."""
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: TABLES[match[1]](), text)


def script() -> str:
    """Return what runs when, as an indented list."""
    return "\n".join("  " * indent + event for indent, event in SCRIPT)


def event_table() -> str:
    """Return every event in firing order: when it fires, what skips it, who handles it."""
    rows = ((f"`{e}`", moment(e), skipped_by(e), handlers(e)) for e in EVENTS if is_ours(e))
    return table(("event", "fires when", "skipped by", "handled by"), rows)


def action_table() -> str:
    """Return every action, what it does by default, and which classes answer it instead."""
    rows = ((f"`{a}`", first_line(getattr(minilearn.TrainCB, a)), owners(a)) for a in ACTIONS)
    return table(("action", "by default", "also answered by"), rows)


def order_table() -> str:
    """Return every slot with its number, its reason and the callbacks in it."""
    rows = ((f"`{o.name}`", str(int(o)), reason(o), members(o)) for o in Order)
    return table(("slot", "number", "why there", "who"), rows)


TABLES = {
    "script": script,
    "events": event_table,
    "actions": action_table,
    "order": order_table,
}


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = (header, ("---",) * len(header), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def is_ours(event: str) -> bool:
    """Return whether an event belongs to a level of the Learner, not to a user's own."""
    return event in WITHIN_A_BATCH or event.partition("_")[2] in LEVELS


def moment(event: str) -> str:
    """Return in words when an event fires."""
    prefix, _, level = event.partition("_")
    return WITHIN_A_BATCH.get(event) or MOMENTS[prefix].format(LEVELS[level])


def skipped_by(event: str) -> str:
    """Return the narrowest exception that skips an event, where there is one."""
    prefix, _, level = event.partition("_")
    level = "batch" if event in WITHIN_A_BATCH else level
    return linked(f"`Cancel{level.title()}Exception`") if prefix == "after" else ""


def callbacks() -> list[type]:
    """Return the public callbacks, in the order in which an event reaches them."""
    found = [c for c in public_classes() if issubclass(c, minilearn.Callback)]
    return sorted(found, key=lambda c: (c.order, c.__name__))


def handlers(event: str) -> str:
    """Return the public callbacks that have a method for an event."""
    return links(c for c in callbacks() if hasattr(c, event))


def owners(action: str) -> str:
    """Return the classes that define an action in their own way."""
    default = getattr(minilearn.TrainCB, action)
    candidates = [*callbacks(), minilearn.TrainLearner, minilearn.MomentumLearner]
    return links(c for c in candidates if getattr(c, action, default) is not default)


def members(slot: Order) -> str:
    """Return the public callbacks of a slot, and those right after it."""
    return links(c for c in callbacks() if max(o for o in Order if o <= c.order) == slot)


def links(classes: Iterable[type]) -> str:
    """Return the names of classes, each linked to its entry."""
    return linked(", ".join(f"`{c.__name__}`" for c in classes))


def reason(slot: Order) -> str:
    """Return the comment after a slot in the code."""
    return re.search(rf"^    {slot.name} = .*?  # (.*)$", inspect.getsource(Order), re.M)[1]


def first_line(o: Any) -> str:
    """Return the first line of a docstring."""
    return inspect.getdoc(o).partition("\n")[0]
