"""The layers of a model in a table: `learn.summary`."""

from __future__ import annotations

import html
from typing import Any, NamedTuple

from torch import nn

from minilearn.base.batch import describe, tensors
from minilearn.base.text import in_columns
from minilearn.core.callback import Callback, as_callbacks
from minilearn.core.events import Order
from minilearn.core.learner import Loop
from minilearn.core.nested import inner, participants
from minilearn.core.stream import pick_loader

from ..base.notebook import show
from ..core.events import CancelFitException
from .hooks import Hooks

COLUMNS = ("layer", "input", "output", "parameters", "trainable", "MFLOPs", "output MB")


class Row(NamedTuple):
    """One layer: shapes as text, numbers of parameters, operations, bytes of the output."""

    layer: str
    input: str
    output: str
    params: int
    trainable: int
    flops: int
    memory: int

    @property
    def cells(self) -> list[str]:
        """The row as text."""
        numbers = f"{self.params:,}", f"{self.trainable:,}"
        return [*self[:3], *numbers, f"{self.flops / 1e6:,.2f}", f"{self.memory / 1e6:,.2f}"]


class Summary(str):
    """The text of `summary`, which a notebook shows as a table."""

    rows: list[Row]
    total: Row
    title: str

    @classmethod
    def of(cls, rows: list[Row], total: Row, title: str) -> Summary:
        """Make the text."""
        lines = [list(COLUMNS), *(row.cells for row in (*rows, total))]
        texts = in_columns(lines, [str.ljust] * 3)
        rule = "-" * max(map(len, texts))
        result = cls("\n".join([title, texts[0], rule, *texts[1:-1], rule, texts[-1]]))
        result.rows, result.total, result.title = rows, total, title
        return result

    def _repr_html_(self) -> str:
        lines = ["".join(f"<td>{html.escape(c)}</td>" for c in row.cells) for row in self.rows]
        lines.append("".join(f"<th>{html.escape(c)}</th>" for c in self.total.cells))
        head = "".join(f"<th>{c}</th>" for c in COLUMNS)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><caption>{html.escape(self.title)}</caption><tr>{head}</tr>{body}</table>"


def summary(self: Loop, cbs: Any = None) -> None:
    """Show the layers with shapes, parameters, operations and memory, in the order of their run.

    One batch runs through the model as in a validation, and nothing changes. Layers are the modules
    that hold no others, or hold parameters of their own; shared parameters count once. Operations
    are those of torch's counter for the whole batch (a multiply-add is two). The last row has
    totals: all parameters, also of what did not run, and their memory beside that of the outputs.

    Args:
        self: the Learner.
        cbs: further callbacks.
    """
    show(summarize(self, cbs))


def summarize(learn: Loop, cbs: Any = None) -> Summary:
    """Return what `summary` shows, with its `rows` and `total`."""
    from torch.utils.flop_counter import FlopCounterMode  # not needed by those who never ask

    loader = pick_loader(learn.dls, False)
    loader = pick_loader(learn.dls, True) if loader is None else loader
    watch = _Watch()
    with inner(learn, [*participants(learn), *as_callbacks(cbs), watch], valid=loader):
        model = learn.model = getattr(learn.model, "_orig_mod", learn.model)  # before compiling
        with FlopCounterMode(display=False) as counter:
            learn.fit(1, train=False)
        return _collect(model, watch.seen, counter.get_flop_counts(), describe(learn.batch))


class _Watch(Callback):
    """Notes what the layers take and give in one batch, and ends the fit."""

    order = Order.STOP

    def before_fit(self, learn: Loop) -> None:
        layers = [m for m in learn.model.modules() if not list(m.children()) or m._parameters]
        self.seen: dict[nn.Module, tuple[str, str, int]] = {}
        self.hooks = Hooks(layers, self._note)

    def _note(self, hook: Any, m: nn.Module, inp: Any, outp: Any) -> None:
        if m not in self.seen:
            memory = sum(t.numel() * t.element_size() for t in tensors(outp))
            self.seen[m] = (_shapes(inp[0] if len(inp) == 1 else inp), _shapes(outp), memory)

    def after_predict(self, learn: Loop) -> None:
        raise CancelFitException

    def cleanup_fit(self, learn: Loop) -> None:
        self.hooks.remove()


def _collect(model: nn.Module, seen: dict, flops: dict, batch: str) -> Summary:
    """Make rows of what was noted; `flops` has operations by the path of a module."""
    root, counted, rows = type(model).__name__, set(), []
    names = {m: name for name, m in model.named_modules()}
    for m, (inp, outp, memory) in seen.items():
        own = [p for p in m.parameters(recurse=False) if p not in counted]
        counted.update(own)
        path = f"{root}.{names[m]}" if names[m] else root
        layer = f"{names[m]} {type(m).__name__}".strip()
        rows.append(Row(layer, inp, outp, *_sizes(own), sum(flops.get(path, {}).values()), memory))
    everything = list(model.parameters())
    held = sum(t.numel() * t.element_size() for t in (*everything, *model.buffers()))
    total = Row(
        f"total: {held / 1e6:,.2f} MB of weights",
        "",
        "",
        *_sizes(everything),
        sum(flops.get("Global", {}).values()),
        sum(row.memory for row in rows),
    )
    return Summary.of(rows, total, f"{root}: one batch, {batch}")


def _shapes(values: Any) -> str:
    """Return `values` in short; nothing for no inputs by position."""
    return describe(values).replace("Tensor", "") if values is not None and values != () else ""


def _sizes(params: list[nn.Parameter]) -> tuple[int, int]:
    """Return how many numbers there are, and how many of them can be trained."""
    return sum(p.numel() for p in params), sum(p.numel() for p in params if p.requires_grad)
