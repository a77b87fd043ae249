"""What the program says about a fit, to compare with what a checkpoint holds."""

from __future__ import annotations

import inspect
import reprlib
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from ..base.batch import n_batches
from ..base.state_dict import clean_name, fit_modules
from ..core.callback import order_of
from ..core.learner import Loop, name_of
from ..core.nested import changes_training, is_schedule
from ..core.stream import pick_loader


def has_constant_rate(learn: Loop) -> bool:
    """Return whether this very call gives a rate, and no schedule: a saved one is not missed."""
    return learn.plan.lr is not None and not any(map(is_schedule, learn.cbs))


def warn_of(lines: list[str]) -> None:
    """Say in one warning what differs."""
    if lines:
        changes = "\n  ".join(dict.fromkeys(lines))
        warnings.warn(
            f"this is not the fit that was saved:\n  {changes}\nIt goes on with the saved "
            "weights, buffers, and options of optimizer, schedules and scaler (fit(lr=...) sets "
            "another rate), and with the layers, data, callbacks and metrics that are here.",
            stacklevel=2,
        )


def describe_program(learn: Loop) -> dict[str, Any]:
    """Return what else decides about the training: the callbacks that change it, and the loss."""
    cbs = sorted(filter(changes_training, learn.cbs), key=order_of)
    schedules = [type(cb).__name__ for cb in cbs if is_schedule(cb)]
    return {
        "callbacks": ", ".join(type(cb).__name__ for cb in cbs if not is_schedule(cb)),
        "schedules": ", ".join(schedules) or "none",
        "batches for an update": learn.plan.batches_in(0),
        "loss": name_of(learn.loss_func),
        "count": name_of(learn.count),
        **describe_images(learn),
    }


def describe_images(learn: Loop) -> dict[str, Any]:
    """Return how images are read, where the loaders have a pipeline."""
    pipeline = getattr(learn.dls, "pipeline", None)
    return {} if pipeline is None else {f"image {k}": v for k, v in pipeline.reading.items()}


def describe_loaders(learn: Loop) -> dict[str, dict[str, Any]]:
    """Return what is known of the data that each loader serves."""
    return {name: _describe_loader(dl) for name, dl in loaders_of(learn)}


def _describe_loader(dl: Any) -> dict[str, Any]:
    given = ["batch_size", "drop_last", "shuffle", "seed"]
    if type(dl) is DataLoader:  # ours give the same batches with any number of workers
        given.append("num_workers")
    found: dict[str, Any] = {
        "batches": n_batches(dl),
        "samples": n_batches(getattr(dl, "dataset", None)),
    }
    for part in ("sampler", "dataset", "collate_fn"):
        x = getattr(dl, part, None)
        found[part] = name_of(x) if part == "collate_fn" else type(x).__name__
        found |= {f"{part} {k}": _Short().repr(v) for k, v in arguments_of(x).items()}
    return found | {key: value for key in given if (value := getattr(dl, key, None)) is not None}


def describe_modules(learn: Loop) -> dict[str, dict[str, str]]:
    """Return of what each module of a fit consists; ask before callbacks move its settings."""
    return {name: _describe_module(module) for name, module in fit_modules(learn).items()}


def _describe_module(module: nn.Module) -> dict[str, str]:
    """Return the class of each part of a module, and what it was made with."""
    found = {"dtype": ", ".join(sorted({str(p.dtype) for p in module.parameters()}))}
    for name, part in module.named_modules():
        made = (f"{k}={_Short().repr(v)}" for k, v in arguments_of(part).items())
        found[clean_name(name) or "itself"] = f"{type(part).__name__}({', '.join(made)})"
    return found


def arguments_of(x: Any) -> dict[str, Any]:
    """Return what an object was made with, as far as it keeps it under the same names."""
    kept = {**getattr(x, "__dict__", {})}
    if type(x).__module__.startswith("torch.nn."):  # training may move buffers of others
        kept |= kept.get("_buffers") or {}
    names = (name for name in _parameters(type(x)) if name != "epoch")  # which set_epoch moves
    return {name: kept[name] for name in names if name in kept}


@lru_cache(1000)
def _parameters(cls: type) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(cls.__init__).parameters)
    except (TypeError, ValueError):  # not written in Python
        return ()


class _Short(reprlib.Repr):
    """Shows numbers and texts, the ends of long lists and tensors, and of others their name."""

    maxother = maxstring = 60

    def repr_instance(self, x: Any, level: int) -> str:
        if hasattr(x, "reshape"):
            with suppress(Exception):  # sparse or quantised ones, say
                first, last = (rows.reshape(-1) for rows in (x[:4], x[-4:]))  # never all of it
                x = f"{list(x.shape)}: {first[:4].tolist()} ... {last[-4:].tolist()}"
        elif not isinstance(x, (bool, float, range, type(None))):
            x = name_of(x)
        return x if isinstance(x, str) else super().repr_instance(x, level)

    def repr_dict(self, x: dict, level: int) -> str:
        return super().repr_dict(x, level) if len(x) < self.maxlist else f"dict of {len(x)}"


def loaders_of(learn: Loop) -> Iterator[tuple[str, Any]]:
    """Yield the name of each loader, and the loader."""
    for name, training in (("train", True), ("valid", False)):
        if (dl := pick_loader(learn.dls, training)) is not None:
            yield name, dl
    for name in getattr(learn.dls, "named", ()):
        yield f"valid {name}", learn.dls[name]
