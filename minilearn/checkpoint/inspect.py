"""Describe what a checkpoint or a file of weights holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..base.files import user_path
from ..core.history import format_value
from .files import SUFFIX, find_existing
from .weights import read_weights

POSITIONS = {
    "round": "after epoch {epoch}",
    "training": "in epoch {epoch}, after {batches} batches",
    "validation": "in epoch {epoch}, before its validation",
    "epoch": "before epoch {epoch}",
}


def contents(path: str | Path) -> str:
    """Return a text that describes a checkpoint or a file of weights.

    Args:
        path: the file, or a folder, whose newest usable checkpoint is described.

    Raises:
        ValueError: it cannot be read, or is corrupt.
        FileNotFoundError: there is none.
    """
    path = user_path(path)
    if path.is_dir() or path.suffix == SUFFIX:
        path, state = find_existing(path)
        return "\n".join([str(path), *_lines(state)])
    weights = read_weights(path)
    return "\n".join([str(path), _sizes(weights), *_shapes(weights)])


def _lines(state: dict[str, Any]) -> Iterator[str]:
    yield f"  made by     minilearn {state['minilearn']}, torch {state['torch']}"
    yield f"  position    {POSITIONS[state['position']].format(**state)}; {state['steps']} updates"
    plan = ", ".join(f"{k}={v}" for k, v in state["plan"].items() if v is not None)
    yield f"  fit         {plan or 'none'}"
    yield f"  model       {_sizes(state['model'] or {})}"
    if state["optimizer"]:
        groups = state["optimizer"].get("groups", [])
        rates = ", ".join(f"{len(g['params'])} tensors at lr {g['lr']:.4g}" for g in groups)
        yield f"  optimizer   {state['optimizer']['kind']}: {rates}"
    yield f"  callbacks   {', '.join(state['callbacks']) or 'none with a state'}"
    yield f"  loaders     {', '.join(state['loaders'])}"
    yield f"  random      {', '.join(k for k, v in state['random'].items() if v is not None)}"
    rows = state["history"]
    yield f"  history     {len(rows)} rows" + (f"; the last: {_row(rows[-1])}" if rows else "")


def _row(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {format_value(value)}" for name, value in row.items())


def _sizes(weights: Mapping[str, Any]) -> str:
    tensors = [t for t in weights.values() if isinstance(t, Tensor)]
    own = {t.data_ptr(): t for t in tensors}.values()  # tied ones once
    return (
        f"{len(tensors)} tensors, {sum(t.numel() for t in own):,} elements, "
        f"{sum(t.nbytes for t in own) / 1e6:.1f} MB"
    )


def _shapes(weights: Mapping[str, Tensor]) -> Iterator[str]:
    width = max(map(len, weights), default=0)
    for name, t in weights.items():
        yield f"  {name.ljust(width)}  {str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
