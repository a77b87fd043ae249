"""What the program says about a fit, to compare with what a checkpoint holds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from ..base.batch import n_batches
from ..core.callback import order_of
from ..core.events import Order
from ..core.learner import Loop, name_of
from ..core.nested import takes_part
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
            "options of optimizer, schedules and scaler (fit(lr=...) sets another rate), and "
            "with the data, callbacks and metrics that are here.",
            stacklevel=2,
        )


def changes_training(cb: Any) -> bool:
    """Return whether a callback decides about the training."""
    return takes_part(cb) or is_schedule(cb)


def is_schedule(cb: Any) -> bool:
    """Return whether a callback moves options of the optimizer, or averages weights."""
    return Order.SCHEDULE <= order_of(cb) < Order.DEFAULT


def describe_program(learn: Loop) -> dict[str, Any]:
    """Return what else decides about the training: the callbacks that change it, and the loss."""
    cbs = sorted(filter(changes_training, learn.cbs), key=order_of)
    schedules = [type(cb).__name__ for cb in cbs if is_schedule(cb)]
    return {
        "callbacks": ", ".join(type(cb).__name__ for cb in cbs if not is_schedule(cb)),
        "schedules": ", ".join(schedules) or "none",
        "batches for an update": learn.plan.batches_in(0),
        "loss": name_of(learn.loss_func),
        **describe_images(learn),
    }


def describe_images(learn: Loop) -> dict[str, Any]:
    """Return how images are read, where the loaders have a pipeline."""
    pipeline = getattr(learn.dls, "pipeline", None)
    return {} if pipeline is None else {f"image {k}": v for k, v in pipeline.reading.items()}


def describe_loaders(learn: Loop) -> dict[str, dict[str, Any]]:
    """Return what is known of the data that each loader serves."""
    given = ("batch_size", "drop_last", "shuffle", "seed")
    return {
        name: {
            "batches": n_batches(dl),
            "samples": n_batches(getattr(dl, "dataset", None)),
            "sampler": type(getattr(dl, "sampler", None)).__name__,
            **{key: value for key in given if (value := getattr(dl, key, None)) is not None},
        }
        for name, dl in loaders_of(learn)
    }


def loaders_of(learn: Loop) -> Iterator[tuple[str, Any]]:
    """Yield the name of each loader, and the loader."""
    for name, training in (("train", True), ("valid", False)):
        if (dl := pick_loader(learn.dls, training)) is not None:
            yield name, dl
    for name in getattr(learn.dls, "named", ()):
        yield f"valid {name}", learn.dls[name]
