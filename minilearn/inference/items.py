"""Predict single items: `learn.infer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.data import default_collate

from ..base.batch import map_batch
from ..core.learner import Loop
from ..data.pipeline import Pipeline, class_names

__all__ = ["Prediction"]


class Prediction(NamedTuple):
    """The prediction for one item.

    Attributes:
        label: name of the most probable class, or its number where classes have no names; None
            where the model does not choose among classes.
        probability: its probability.
        probabilities: the probabilities of all classes, shape (K,).
        output: the model's output.
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

    Images (paths, bytes, PIL images, pixels as uint8) go through `dls.pipeline`; anything else,
    such as a float tensor, must be ready for the model. Nothing about the Learner changes.

    Args:
        self: the Learner.
        items: one item, without B; or a list of items. An item may be a tuple or a dict of inputs.
        act: turns the model's output into probabilities (B, K); softmax by default where the loss
            is cross-entropy or `dls` knows the names of classes.
        bs: items in a batch.
        collate: makes a batch from prepared items, each a tuple or dict of inputs, where torch's
            `default_collate` cannot (sequences of unequal length).
        cbs: further callbacks.

    Returns:
        A `Prediction` for one item, a list of them for a list.
    """
    if not isinstance(items, list):
        single: Any = infer(self, [items], act=act, bs=bs, collate=collate, cbs=cbs)
        return single[0]
    if not items:
        return []
    pipeline = getattr(self.dls, "pipeline", None) or Pipeline()
    names, found = class_names(self.dls), []
    if act is None and chooses(self):
        act = _softmax

    def prepared(item: Any) -> Any:
        item = pipeline(item)
        return item if isinstance(item, (tuple, dict)) else (item,)

    groups = [items[i : i + bs] for i in range(0, len(items), bs)]
    batches = ((collate or default_collate)([prepared(x) for x in group]) for group in groups)
    outputs = self.iter_preds(batches, with_targs=False, cbs=cbs)
    for group, output in zip(groups, outputs, strict=False):
        probs = None if act is None else act(output)
        found += [_prediction(i, output, probs, names) for i in range(len(group))]
    return found


def chooses(learn: Loop) -> bool:
    """Return whether the model chooses among classes, going by the loss or names of classes."""
    return is_entropy(learn.loss_func) or class_names(learn.dls) is not None


def is_entropy(loss: Any) -> bool:
    """Return whether a loss is torch's cross-entropy for one class among several."""
    name = getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__)
    torchs = (nn.CrossEntropyLoss, nn.NLLLoss)
    return name in ("cross_entropy", "nll_loss") or isinstance(loss, torchs)


def _softmax(output: Any) -> Tensor:
    if not isinstance(output, Tensor) or output.dim() < 2:
        raise TypeError("softmax needs logits (B, K); give infer a function act= of the output")
    return output.softmax(1)


def _prediction(i: int, output: Any, probs: Tensor | None, names: list[Any] | None) -> Prediction:
    own = map_batch(lambda t: t[i] if t.dim() else t, output)
    if probs is None or probs.dim() != 2:
        return Prediction(None, None, None if probs is None else probs[i], own)
    best = int(probs[i].argmax())
    return Prediction(names[best] if names else best, float(probs[i, best]), probs[i], own)
