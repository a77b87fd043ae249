"""Optimizer states by the names of the parameters, never by their order."""

from __future__ import annotations

import warnings
from itertools import chain
from typing import Any

from torch import Tensor, nn

from minilearn.base.state_dict import clean_names


def optimizer_state(opt: Any, model: nn.Module) -> dict[str, Any] | None:
    """Return groups and moments by parameter name; warn where the optimizer has no state."""
    if opt is None:
        return None
    kind = type(opt).__name__
    if not hasattr(opt, "state_dict"):
        warnings.warn(f"{kind} has no state_dict: its state is not kept", stacklevel=2)
        return None
    packed = opt.state_dict()
    if not hasattr(opt, "param_groups"):
        return {"kind": kind, "own": packed}
    groups = packed["param_groups"]
    numbers = [number for group in groups for number in group["params"]]
    name = dict(zip(numbers, chain(*_names(opt, model)), strict=True))
    return {
        "kind": kind,
        "defaults": dict(getattr(opt, "defaults", {})),
        "groups": [group | {"params": [name[n] for n in group["params"]]} for group in groups],
        "moments": {name[number]: state for number, state in packed["state"].items()},
    }


def load_optimizer(opt: Any, model: nn.Module, saved: dict[str, Any] | None) -> None:
    """Load the result of `optimizer_state`, each moment on the device of its parameter.

    Raises:
        ValueError: it belongs to another optimizer, or its groups hold other parameters.
    """
    if opt is None or saved is None:
        if opt is not None:
            warnings.warn("the checkpoint has no state of an optimizer", stacklevel=2)
        return
    if saved["kind"] != type(opt).__name__:
        raise ValueError(
            f"the checkpoint was made with {saved['kind']}, and this fit has {type(opt).__name__}"
        )
    if "own" in saved:
        opt.load_state_dict(saved["own"])
        return
    _warn_of_differences(getattr(opt, "defaults", {}), saved["defaults"])
    names = _names(opt, model)
    number = {name: i for i, name in enumerate(chain(*names))}
    groups = [
        _find_group(group, saved["groups"]) | {"params": [number[name] for name in group]}
        for group in names
    ]
    moments = {number[name]: moment for name, moment in saved["moments"].items()}
    before = list(opt.param_groups)
    opt.load_state_dict({"param_groups": groups, "state": moments})
    for old, new in zip(before, opt.param_groups, strict=True):
        old.update(new)
    opt.param_groups[:] = before  # schedules and recorders hold the groups
    _restore_dtypes(opt, names, saved["moments"])


def _names(opt: Any, model: nn.Module) -> list[list[str]]:
    """Return the names of the parameters of each group."""
    named = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
    clean = clean_names(named)
    by_id = {id(p): clean[name] for name, p in named.items()}
    return [
        [by_id.get(id(p), f"parameter {i} of group {g}") for i, p in enumerate(group["params"])]
        for g, group in enumerate(opt.param_groups)
    ]


def _find_group(names: list[str], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the saved group of these parameters, in any order."""
    for group in groups:
        if set(group["params"]) == set(names):
            return group
    saved = {name: i for i, group in enumerate(groups) for name in group["params"]}
    first = next((n for n in names if saved.get(n) != saved.get(names[0])), names[0])

    def with_others(group: list[str]) -> str:
        return f"with {', '.join(n for n in group if n != first) or 'no other'}"

    there = "in no group"
    if first in saved:
        there = f"in a group {with_others(groups[saved[first]]['params'])}"
    raise ValueError(
        f"the optimizer's groups are not those of the checkpoint: {first!r} is {there} there, and "
        f"in one {with_others(names)} here. Make the same groups, or begin a fit without resume."
    )


def _warn_of_differences(ours: dict[str, Any], saved: dict[str, Any]) -> None:
    differ = [
        f"{name}={saved[name]} (here {ours[name]})"
        for name in saved
        if name in ours and not _equal(saved[name], ours[name])
    ]
    if differ:
        warnings.warn(
            f"the optimizer goes on with the checkpoint's {', '.join(differ)}; to change a setting "
            "set it in learn.opt.param_groups in a callback",
            stacklevel=2,
        )


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return list(a) == list(b)
    return bool(a == b)


def _restore_dtypes(opt: Any, names: list[list[str]], moments: dict[str, Any]) -> None:
    """Restore the dtypes of moments, which torch casts to those of the parameters."""
    params = [p for group in opt.param_groups for p in group["params"]]
    for p, name in zip(params, chain(*names), strict=True):
        for key, value in moments.get(name, {}).items():
            loaded = opt.state[p].get(key)
            if isinstance(value, Tensor) and loaded.dtype != value.dtype:
                opt.state[p][key] = value.to(loaded.device)
