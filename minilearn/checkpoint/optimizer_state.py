"""The state of an optimizer by the names of the parameters, never by their order."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn

from minilearn.base.state_dict import clean_names


def optimizer_state(opt: Any, model: nn.Module) -> dict[str, Any] | None:
    """Return groups and moments by name, None (with a warning) where an optimizer has no state."""
    if opt is None:
        return None
    kind = type(opt).__name__
    if not hasattr(opt, "state_dict"):
        warnings.warn(f"{kind} has no state_dict: its state is not kept", stacklevel=2)
        return None
    packed = opt.state_dict()
    if not hasattr(opt, "param_groups"):
        return {"kind": kind, "own": packed}
    names = _names(opt, model)
    by_number = {
        number: name
        for group, group_names in zip(packed["param_groups"], names, strict=True)
        for number, name in zip(group["params"], group_names, strict=True)
    }
    return {
        "kind": kind,
        "defaults": dict(getattr(opt, "defaults", {})),
        "groups": [
            {k: v for k, v in group.items() if k != "params"} | {"params": group_names}
            for group, group_names in zip(packed["param_groups"], names, strict=True)
        ],
        "moments": {by_number[number]: state for number, state in packed["state"].items()},
    }


def load_optimizer(opt: Any, model: nn.Module, saved: dict[str, Any] | None) -> None:
    """Put such a state into an optimizer, each moment on the device of its parameter.

    Raises:
        ValueError: it is another optimizer, or its groups hold other parameters.
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
    _warn_of_settings(getattr(opt, "defaults", {}), saved["defaults"])
    names = _names(opt, model)
    groups = [_group_of(group_names, saved["groups"]) for group_names in names]
    number = {name: i for i, name in enumerate(n for group in names for n in group)}
    before = list(opt.param_groups)
    opt.load_state_dict(
        {
            "param_groups": [
                group | {"params": [number[name] for name in group_names]}
                for group, group_names in zip(groups, names, strict=True)
            ],
            "state": {number[name]: moment for name, moment in saved["moments"].items()},
        }
    )
    for old, new in zip(before, opt.param_groups, strict=True):
        old.update(new)
    opt.param_groups[:] = before  # schedules and recorders hold the groups
    _keep_types(opt, names, saved["moments"])


def _names(opt: Any, model: nn.Module) -> list[list[str]]:
    """Return the names of the parameters of each group."""
    named = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
    clean = clean_names(named)
    by_id = {id(p): clean[name] for name, p in named.items()}
    return [
        [by_id.get(id(p), f"parameter {i} of group {g}") for i, p in enumerate(group["params"])]
        for g, group in enumerate(opt.param_groups)
    ]


def _group_of(names: list[str], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the saved group of these parameters, in whatever order they are."""
    for group in groups:
        if set(group["params"]) == set(names):
            return group
    saved = {name: i for i, group in enumerate(groups) for name in group["params"]}
    first = next((n for n in names if saved.get(n) != saved.get(names[0])), names[0])
    there = "in no group" if first not in saved else f"in a group with {_others(first, groups)}"
    raise ValueError(
        f"the optimizer's groups are not those of the checkpoint: {first!r} is {there} there, and "
        f"in one with {', '.join(n for n in names if n != first) or 'no other'} here. Make the "
        "same groups, or begin a fit without resume."
    )


def _others(name: str, groups: list[dict[str, Any]]) -> str:
    group = next(group["params"] for group in groups if name in group["params"])
    return ", ".join(n for n in group if n != name) or "no other"


def _warn_of_settings(ours: dict[str, Any], saved: dict[str, Any]) -> None:
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


def _keep_types(opt: Any, names: list[list[str]], moments: dict[str, Any]) -> None:
    """Undo that torch turns moments into the type of their parameters: half precision loses."""
    params = [p for group in opt.param_groups for p in group["params"]]
    for p, name in zip(params, (n for group in names for n in group), strict=True):
        for key, value in moments.get(name, {}).items():
            loaded = opt.state[p].get(key)
            if isinstance(value, Tensor) and loaded.dtype != value.dtype:
                opt.state[p][key] = value.to(loaded.device)
