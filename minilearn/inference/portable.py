"""What of a Learner can be put into files: its model as it is judged, and what that is given."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from ..base.batch import batch_size, map_batch, tensors
from ..callbacks.training import split_by_owner
from ..callbacks.transforms import BatchTransformCB
from ..core.callback import Callback
from ..core.events import CancelFitException, Order
from ..core.learner import Loop
from ..core.nested import inner, participants
from ..core.stream import Unshared, check_loader, pick_loader
from ..data.ordered import ordered
from ..data.pipeline import Pipeline

MANY = 100  # items of a list that are looked at
HALF_PRECISION = 0.05  # how far predictions may be from the plain model's, as a share


@dataclass
class Taken:
    """A copy of the model as it is judged, on the CPU, and a batch of what it is given."""

    model: nn.Module
    args: tuple
    kwargs: dict[str, Any]
    size: int
    targets: Any  # what the loss is given of the batch
    settings: dict[str, Any]  # how batches are split

    def inputs(self, n: int) -> tuple[tuple, dict[str, Any]]:
        """Return `n` rows of the inputs, by position and by keyword."""
        rows = torch.arange(n) % self.size

        def few(t: Tensor) -> Tensor:
            return t[rows] if t.dim() and len(t) == self.size else t

        return map_batch(few, (self.args, self.kwargs))


class _Take(Callback):
    """Takes the model and a batch where it has just predicted, averages of weights swapped in."""

    order = Order.STOP

    def after_predict(self, learn: Loop) -> None:
        args, kwargs, targets = split_by_owner(learn)
        model = bare(learn.model)
        if not close(model(*args, **kwargs), learn.preds, HALF_PRECISION):
            raise ValueError(
                "what this Learner predicts is not what its model gives for the batch: a callback, "
                "or a predict of its own, changes it. Let the model do so, or leave it out."
            )
        model = copy.deepcopy(model).cpu().eval()
        args, kwargs = map_batch(lambda t: t.detach().cpu(), (tuple(args), dict(kwargs)))
        settings = dict(getattr(learn.owner("get_loss"), "settings", {}))
        size = batch_size((*args, kwargs))
        self.taken = Taken(model, args, kwargs, size, tuple(targets), settings)
        raise CancelFitException


def take(learn: Loop) -> Taken:
    """Take the model of `learn` and a batch; nothing about the Learner changes.

    Raises:
        ValueError: there is no loader, or the model's outputs are not what the Learner predicts.
    """
    dl = next((dl for t in (False, True) if (dl := pick_loader(learn.dls, t)) is not None), None)
    check_loader(dl, False)
    cb = _Take()
    with inner(learn, [*participants(learn), cb], valid=Unshared(ordered(dl))):
        learn.fit(1, train=False)
        return cb.taken


def functions(learn: Loop) -> Iterator[tuple[str, Any]]:
    """Yield where a function prepares what the model is given, and the function."""
    for i, cb in enumerate(learn.cbs):
        if isinstance(cb, BatchTransformCB) and cb.on_val:
            yield f"learn.cbs[{i}].tfm", cb.tfm
    pipeline = getattr(learn.dls, "pipeline", None)
    if pipeline is not None:
        yield from _functions_in("learn.dls.pipeline", pipeline)
        return
    for name in ("train", "valid"):
        data = getattr(pick_loader(learn.dls, name == "train"), "dataset", None)
        yield from _functions_in(f"learn.dls.{name}.dataset", data)


def _functions_in(where: str, x: Any, depth: int = 5) -> Iterator[tuple[str, Any]]:
    """Yield the functions that `x` is, or holds: in lists and dicts, and in data sets of data sets.

    Args:
        where: the path of `x`.
        x: a data set, a pipeline, or what one holds.
        depth: how far down to look.
    """
    if isinstance(x, Mapping):
        parts = {f"[{key!r}]": value for key, value in x.items()}
    elif isinstance(x, (list, tuple)):  # a few transforms, where there are many they are samples
        parts = {f"[{i}]": value for i, value in enumerate(x[:MANY])}
    elif callable(x) and not isinstance(x, (type, Pipeline)):
        yield where, x
        return
    elif isinstance(x, (Pipeline, IterableDataset)) or hasattr(x, "__getitem__"):
        parts = {f".{name}": v for name, v in _settings(x).items() if name[:1] != "_"}
    else:
        return
    for step, value in parts.items() if depth else ():
        yield from _functions_in(where + step, value, depth - 1)


def _settings(ds: Any) -> dict[str, Any]:
    """Return the attributes of a data set, and the transform of one of `datasets`."""
    own = dict(vars(ds)) if hasattr(ds, "__dict__") else {}
    form = getattr(ds, "format", None)
    return own | (form.get("format_kwargs", {}) if isinstance(form, dict) else {})


def close(ours: Any, theirs: Any, tolerance: float) -> bool:
    """Return whether two outputs are equal up to a share of their largest number."""
    pairs = list(zip(tensors(_logits(ours)), tensors(_logits(theirs)), strict=False))
    return bool(pairs) and all(
        a.shape == b.shape
        and torch.allclose(
            a.double(), b.double(), 0, tolerance * (1 + float(b.nan_to_num().abs().max())), True
        )
        for a, b in pairs
    )


def _logits(output: Any) -> Any:
    return getattr(output, "logits", output)


def bare(model: Any) -> Any:
    """Return a model without the wrappers of torch.compile and of several processes."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while (inside := getattr(model, "_orig_mod", None)) is not None or isinstance(model, wrappers):
        model = model.module if inside is None else inside
    return model
