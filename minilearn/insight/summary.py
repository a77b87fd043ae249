"""The layers of a model in a table: `learn.summary`."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from ..base.batch import describe, tensors
from ..base.notebook import show
from ..callbacks.handlers import LambdaCB
from ..core.callback import as_callbacks
from ..core.events import CancelFitException, Order
from ..core.learner import Loop
from ..core.nested import inner, participants
from ..core.stream import pick_loader
from .hooks import Hooks, hidden_layers, warn_of_silence
from .text_table import Table

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
        counts = f"{self.params:,}", f"{self.trainable:,}"
        return [*self[:3], *counts, f"{self.flops / 1e6:,.2f}", f"{self.memory / 1e6:,.2f}"]


class Summary(Table):
    """The table that `summary` shows."""

    rows: list[Row]
    total: Row


def summary(self: Loop, cbs: Any = None) -> None:
    """Show the layers with shapes, parameters, operations and memory, in the order of their run.

    One batch runs through the model as in a validation, and nothing changes. Layers are the modules
    that hold no others, or hold parameters of their own; shared parameters count once. Operations
    are those of torch's counter for the whole batch (a multiply-add is two). The last row has
    totals: all parameters, also those of layers that did not run, and their memory.

    >>> learn.summary()

    Args:
        self: the Learner.
        cbs: further callbacks.
    """
    show(summarize(self, cbs))


def summarize(learn: Loop, cbs: Any = None) -> Summary:
    """Return what `summary` shows, with its `rows` and `total`."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    seen: dict[nn.Module, tuple[str, str, int]] = {}

    def note(hook: Any, m: nn.Module, inp: Any, outp: Any) -> None:
        if m not in seen:
            memory = sum(t.numel() * t.element_size() for t in tensors(outp))
            seen[m] = (_shapes(inp[0] if len(inp) == 1 else inp), _shapes(outp), memory)

    def stop(learn: Loop) -> None:
        raise CancelFitException

    loader = pick_loader(learn.dls, False)
    loader = pick_loader(learn.dls, True) if loader is None else loader
    own = [*participants(learn), *as_callbacks(cbs)]
    with inner(learn, [*own, LambdaCB(after_predict=stop, order=Order.STOP)], valid=loader):
        model = learn.model = getattr(learn.model, "_orig_mod", learn.model)  # before compiling
        layers = [m for m in model.modules() if not list(m.children()) or m._parameters]
        with Hooks(layers, note), FlopCounterMode(display=False) as counter:
            learn.fit(1, train=False)
        hidden = hidden_layers(model) - set(seen)
        if silent := [type(m).__name__ for m in layers if m in hidden]:
            warn_of_silence(silent)
        return _collect(model, seen, counter.get_flop_counts(), describe(learn.batch))


def _collect(model: nn.Module, seen: dict, flops: dict, batch: str) -> Summary:
    """Make the table of what was noted; `flops` has operations by the path of a module."""
    root, counted, rows = type(model).__name__, set(), []
    names = {m: name for name, m in model.named_modules()}
    for m, (inp, outp, memory) in seen.items():
        own = [p for p in m.parameters(recurse=False) if p not in counted]
        counted.update(own)
        path = f"{root}.{names[m]}" if names[m] else root
        layer = f"{names[m]} {type(m).__name__}".strip()
        rows.append(Row(layer, inp, outp, *_counts(own), sum(flops.get(path, {}).values()), memory))
    everything = list(model.parameters())
    held = sum(t.numel() * t.element_size() for t in (*everything, *model.buffers()))
    name, operations = f"total: {held / 1e6:,.2f} MB of weights", flops.get("Global", {})
    memory = sum(row.memory for row in rows)
    total = Row(name, "", "", *_counts(everything), sum(operations.values()), memory)
    lines = [COLUMNS, *(row.cells for row in (*rows, total))]
    table = Summary.of(f"{root}: one batch, {batch}", lines, 3, framed=True)
    table.rows, table.total = rows, total
    return table


def _shapes(values: Any) -> str:
    """Return `values` in short; nothing for no inputs by position."""
    return describe(values).replace("Tensor", "") if values is not None and values != () else ""


def _counts(params: list[nn.Parameter]) -> tuple[int, int]:
    """Return how many elements there are, and how many of them are trainable."""
    return sum(p.numel() for p in params), sum(p.numel() for p in params if p.requires_grad)
