"""States of models by clean names: wrappers come and go, the names of the weights stay."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .text import in_columns

WRAPPERS = ("module", "_orig_mod")  # of DistributedDataParallel and DataParallel; of torch.compile


def unwrapped(model: Any) -> Any:
    """Return a model without the wrappers of torch.compile and of several processes."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while (inner := getattr(model, "_orig_mod", None)) is not None or isinstance(model, wrappers):
        model = model.module if inner is None else inner
    return model


def clean_name(name: str) -> str:
    """Return the name of a weight without what wrappers put into it, in any nesting."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in WRAPPERS:
        parts = parts[1:]
    return ".".join(part for part in parts if part != "_orig_mod")  # parts are compiled, too


def clean_names(names: Any) -> dict[str, str]:
    """Return each name's clean form; the names as they are where two would become one."""
    cleaned = {name: clean_name(name) for name in names}
    return cleaned if len(set(cleaned.values())) == len(cleaned) else {name: name for name in names}


def clean_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's state by clean names."""
    cleaned = clean_names(state)
    return {cleaned[name]: value for name, value in state.items()}


def load_state(
    model: nn.Module, state: Mapping[str, Any], strict: bool = True, source: str = "the file"
) -> None:
    """Copy a state into the tensors that a model has, wherever they are; tied ones stay tied.

    Args:
        model: plain, compiled or wrapped.
        state: of the same model in any of these forms.
        strict: False to load what fits in name and shape.
        source: what an error calls the state.

    Raises:
        ValueError: the two differ, as a table; or nothing at all fits.
    """
    ours = {clean: name for name, clean in clean_names(model.state_dict()).items()}
    own, theirs = model.state_dict(), clean_state(state)
    lines = [
        (name, _shape(own[ours[name]]) if name in ours else "-", _shape(theirs.get(name)))
        for name in dict.fromkeys([*ours, *theirs])
        if name not in ours or name not in theirs or _differ(own[ours[name]], theirs[name])
    ]
    bad = {name for name, *_ in lines}
    fits = {ours[name]: value for name, value in theirs.items() if name not in bad}
    if lines and (strict or not fits):
        advice = "strict=False loads what fits" + ("." if fits else ", and nothing does.")
        raise ValueError(f"{source} holds another model than this; {advice}\n{_table(lines)}")
    if lines:
        warnings.warn(f"not loaded from {source}:\n{_table(lines)}", stacklevel=2)
    model.load_state_dict(fits, strict=False)


def _differ(ours: Any, theirs: Any) -> bool:
    both = isinstance(ours, Tensor) and isinstance(theirs, Tensor)
    return both and not _lazy(ours) and ours.shape != theirs.shape


def _lazy(x: Any) -> bool:
    return nn.parameter.is_lazy(x)


def _shape(x: Any) -> str:
    if x is None:
        return "-"
    if not isinstance(x, Tensor):
        return type(x).__name__
    return "lazy" if _lazy(x) else str(list(x.shape))


def _table(lines: list[tuple[str, str, str]], most: int = 20) -> str:
    rows = [("tensor", "model", "file"), *lines[:most]]
    text = in_columns(rows, [str.ljust] * 3)
    return "\n".join(text + ([f"... and {len(lines) - most} more"] if len(lines) > most else []))
