"""Optimizer states by the names of the parameters, never by their order."""

from __future__ import annotations

import warnings
from itertools import chain
from typing import Any

from torch import Tensor, nn

from ..base.state_dict import named_params
from ..base.text import differences, few
from ..core.fit import group_options

RATES = ("lr", "initial_lr")


def optimizer_state(
    opt: Any, modules: dict[str, nn.Module], options: list[dict[str, Any]] | None = None
) -> dict[str, Any] | None:
    """Return groups and moments by parameter name; warn where the optimizer has no state.

    Args:
        opt: the optimizer.
        modules: the result of `fit_modules`.
        options: what the program asked for, by group; what `opt` has now where it is not given.
    """
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
    name = dict(zip(numbers, chain(*_names(opt, modules)), strict=True))
    return {
        "kind": kind,
        "options": options or group_options(opt),
        "groups": [group | {"params": [name[n] for n in group["params"]]} for group in groups],
        "moments": {name[number]: state for number, state in packed["state"].items()},
    }


def load_optimizer(
    opt: Any,
    modules: dict[str, nn.Module],
    saved: dict[str, Any] | None,
    keep_lr: bool = False,
) -> tuple[list[str], list[dict[str, Any]] | None]:
    """Load the result of `optimizer_state`, each moment on the device of its parameter.

    Args:
        opt: made for these modules.
        modules: the result of `fit_modules`.
        saved: the state.
        keep_lr: scale the learning rates to those that `opt` has now.

    Returns:
        A line for each option of a group that differs from what `opt` had; and the options that the
        program asked for, by group.

    Raises:
        ValueError: it belongs to another optimizer, or its groups hold other parameters.
    """
    if opt is None or not saved:
        if opt is not None and saved is None:
            warnings.warn("the checkpoint has no state of an optimizer", stacklevel=2)
        return [], None
    if saved["kind"] != type(opt).__name__:
        raise ValueError(
            f"the checkpoint was made with {saved['kind']}, and this fit has {type(opt).__name__}"
        )
    if "own" in saved:
        opt.load_state_dict(saved["own"])
        return [], None
    names, here = _names(opt, modules), group_options(opt)
    number = {name: i for i, name in enumerate(chain(*names))}
    order = [_find_group(group, saved["groups"]) for group in names]
    options = [dict(saved["options"][i]) for i in order]
    differ, factors = [], []
    for asked, now, group in zip(options, here, names, strict=True):
        factors.append(now["lr"] / asked["lr"] if keep_lr and asked.get("lr") else 1)
        if keep_lr:
            asked["lr"] = now["lr"]
        differ += differences(asked, now, "{}" if len(names) == 1 else f"{{}} of {few(group, 2)}")
    groups = [
        saved["groups"][i] | {"params": [number[name] for name in group]}
        for i, group in zip(order, names, strict=True)
    ]
    moments = {number[name]: moment for name, moment in saved["moments"].items()}
    before = list(opt.param_groups)
    opt.load_state_dict({"param_groups": groups, "state": moments})
    for old, new, factor in zip(before, opt.param_groups, factors, strict=True):
        old.update(new)
        old.update({name: new[name] * factor for name in RATES if name in new and factor != 1})
    opt.param_groups[:] = before  # schedules and recorders hold the groups
    _restore_dtypes(opt, names, saved["moments"])
    return differ, options


def _names(opt: Any, modules: dict[str, nn.Module]) -> list[list[str]]:
    """Return the names of the parameters of each group; those of a loss begin with `loss.`."""
    by_id = {
        id(p): name if part == "model" else f"{part}.{name}"
        for part, module in reversed(modules.items())
        for name, p in named_params(module).items()
    }
    return [
        [by_id.get(id(p), f"parameter {i} of group {g}") for i, p in enumerate(group["params"])]
        for g, group in enumerate(opt.param_groups)
    ]


def _find_group(names: list[str], groups: list[dict[str, Any]]) -> int:
    """Return the number of the saved group of these parameters, in any order."""
    for number, group in enumerate(groups):
        if set(group["params"]) == set(names):
            return number
    saved = {name: group["params"] for group in groups for name in group["params"]}
    first = next((n for n in names if saved.get(n) != saved.get(names[0])), names[0])
    others = [", ".join(n for n in x if n != first) for x in (saved.get(first, []), names)]
    there, here = (f"in a group with {text or 'no other'}" for text in others)
    raise ValueError(
        f"the optimizer's groups are not those of the checkpoint: {first!r} is "
        f"{there if first in saved else 'in no group'} there, and {here} here. Make the same "
        "groups, or begin a fit without resume."
    )


def _restore_dtypes(opt: Any, names: list[list[str]], moments: dict[str, Any]) -> None:
    """Restore the dtypes of moments, which torch casts to those of the parameters."""
    params = [p for group in opt.param_groups for p in group["params"]]
    for p, name in zip(params, chain(*names), strict=True):
        for key, value in moments.get(name, {}).items():
            loaded = opt.state[p].get(key)
            if isinstance(value, Tensor) and loaded.dtype != value.dtype:
                opt.state[p][key] = value.to(loaded.device)
