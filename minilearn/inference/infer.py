"""Predict single items by name, and the mean over changed copies of a data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..base.batch import map_batch
from ..base.seed import preserved_random_states
from ..callbacks.transforms import BatchTransformCB
from ..core.callback import as_callbacks
from ..core.learner import Loop
from ..data.pipeline import Pipeline, class_names
from ..data.seeded import draw_seed

__all__ = ["Prediction"]


class Prediction(NamedTuple):
    """What the model makes of one item.

    Attributes:
        label: name of the most probable class, its number where classes have no names; None where
            the model does not choose among classes.
        probability: of that class.
        probabilities: of all classes, shape (K,).
        output: what the model gave.
    """

    label: Any
    probability: float | None
    probabilities: Tensor | None
    output: Any


def infer(
    self: Loop,
    items: Any,
    *,
    act: Callable[[Any], Tensor] | None = None,
    bs: int = 64,
    collate: Callable[[list[Any]], Any] | None = None,
    cbs: Any = None,
) -> Prediction | list[Prediction]:
    """Predict one item or a list of items, prepared as the training data were.

    Pictures (paths, bytes, PIL images, pixels as uint8) go through `dls.pipeline`; what is no
    picture, a float tensor say, is taken as ready for the model. Nothing about the Learner changes.

    Args:
        self: the Learner.
        items: one item, without B; or a list of items. An item may be a tuple or a dict of inputs.
        act: makes probabilities (B, K) of the model's output; softmax by default where the loss is
            cross-entropy or `dls` knows the names of classes.
        bs: items in a batch.
        collate: makes a batch of prepared items, each a tuple or dict of inputs, where torch's
            `default_collate` cannot (sequences of unequal length).
        cbs: further callbacks.

    Returns:
        A `Prediction` for one item, a list of them for a list.
    """
    several = isinstance(items, list)
    pipeline = getattr(self.dls, "pipeline", None) or Pipeline()
    prepared: Any = _Prepared(items if several else [items], pipeline)
    if not prepared.items:
        return []
    names, found = class_names(self.dls), []
    if act is None and chooses(self):
        act = _softmax
    batches = DataLoader(prepared, bs, collate_fn=collate)
    for output in self.iter_preds(batches, with_targs=False, cbs=cbs):
        probs = None if act is None else act(output)
        size = len(prepared.items[len(found) : len(found) + bs])
        found += [_named(i, output, probs, names) for i in range(size)]
    return found if several else found[0]


class _Prepared:
    """Items as a data set; each is prepared when its batch is made."""

    def __init__(self, items: list[Any], pipeline: Pipeline) -> None:
        self.items, self.pipeline = items, pipeline

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        item = self.pipeline(self.items[i])
        return item if isinstance(item, (tuple, dict)) else (item,)


def chooses(learn: Loop) -> bool:
    """Return whether the outputs are scores of classes: by the loss, or the names of classes."""
    return is_entropy(learn.loss_func) or class_names(learn.dls) is not None


def is_entropy(loss: Any) -> bool:
    """Return whether a loss is torch's cross-entropy, of one class among several."""
    name = getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__)
    torchs = (nn.CrossEntropyLoss, nn.NLLLoss)
    return name in ("cross_entropy", "nll_loss") or isinstance(loss, torchs)


def _softmax(output: Any) -> Tensor:
    if not isinstance(output, Tensor) or output.dim() < 2:
        raise TypeError("softmax needs scores (B, K); give infer a function act= of the output")
    return output.softmax(1)


def _named(i: int, output: Any, probs: Tensor | None, names: list[Any] | None) -> Prediction:
    own = map_batch(lambda t: t[i] if t.dim() else t, output)
    if probs is None or probs.dim() != 2:
        return Prediction(None, None, None if probs is None else probs[i], own)
    best = int(probs[i].argmax())
    return Prediction(names[best] if names else best, float(probs[i, best]), probs[i], own)


def tta(
    self: Loop,
    n: int,
    *tfms: Callable[[Any], Any],
    dl: Any = None,
    act: Callable[[Any], Tensor] | None = None,
    cbs: Any = None,
) -> tuple[Any, Any]:
    """Predict a data set `n` times, each time changed otherwise, and return the mean.

    >>> preds, targs = learn.tta(2, lambda b: b, lambda b: (b[0].flip(-1), b[1]))

    Args:
        self: the Learner. Nothing about it changes.
        n: how many passes. Random transforms draw anew in each; together they follow the global
            random state, which is left as it was.
        tfms: each takes a batch and returns it changed, as in `BatchTransformCB`; pass i uses the
            one of number i, over and over. None at all for the mean over random layers.
        dl: as in `get_preds`.
        act: is applied before the mean is taken, softmax say.
        cbs: further callbacks.

    Returns:
        The mean of the predictions, shape (N, ...), and the targets, as `get_preds` does.
    """
    if n < 1:
        raise ValueError(f"tta needs at least one pass, got n={n}")
    total: Any = None
    targs = None
    with preserved_random_states():
        seed = draw_seed()
        for i in range(n):
            torch.manual_seed(seed + i)
            extra = [BatchTransformCB(tfms[i % len(tfms)])] if tfms else []
            preds, targs = self.get_preds(dl, act=act, cbs=[*as_callbacks(cbs), *extra])
            total = preds if total is None else total.add_(preds)
    return total / n, targs
