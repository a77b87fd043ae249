"""Predict single items: `learn.infer`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import default_collate

from ..base.batch import describe
from ..callbacks.training import is_entropy
from ..core.learner import Loop
from ..core.state import learner_of
from ..core.stream import pick_loader
from ..data.pipeline import Pipeline, check_outputs, class_names
from .outputs import item_of

__all__ = ["Prediction"]


class Prediction(NamedTuple):
    """The prediction for one item.

    >>> learn.infer("cat.png").label  # doctest: +SKIP

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
        collate: makes a batch from prepared items, each a tuple or dict; by default the
            `collate_fn` of your own loader, which takes items as your data set gives them, else
            torch's `default_collate`, with items of different shapes in batches of their own.
        cbs: further callbacks.

    Returns:
        A `Prediction` for one item, a list of them for a list.

    Raises:
        ValueError: the loader's `collate_fn` cannot take these items.
        RuntimeError: a callback cancelled a batch.
    """
    if not isinstance(items, list):
        single: Any = infer(self, [items], act=act, bs=bs, collate=collate, cbs=cbs)
        return single[0]
    if not items:
        return []
    pipeline = getattr(self.dls, "pipeline", None) or Pipeline()
    if collate is None and pipeline.channels is None:
        collate = _own_collate(self)
    names, found, sizes = class_names(self.dls), [], deque()
    turned: Any = act or (_softmax if chooses(self) else None)

    def prepared(item: Any) -> Any:
        item = pipeline(item)
        return item if isinstance(item, (tuple, dict)) else (item,)

    def batches() -> Iterator[Any]:
        for start in range(0, len(items), bs):
            group = [prepared(item) for item in items[start : start + bs]]
            runs = [group] if collate else [[*same] for _, same in groupby(group, describe)]
            for run in runs:
                sizes.append(len(run))
                yield (collate or default_collate)(run)

    for output in learner_of(self).iter_preds(batches(), with_targs=False, cbs=cbs):
        n = sizes.popleft()
        probs = None if turned is None else turned(output)
        found += [_prediction(i, n, output, probs, names) for i in range(n)]
    if len(found) < len(items):
        raise RuntimeError(f"a callback cancelled batches: {len(found)} of {len(items)} predicted")
    return found


def _own_collate(learn: Loop) -> Callable[[list[Any]], Any] | None:
    """Return the user's own `collate_fn` of the loader for validation, else for training."""
    own = getattr(first_loader(learn), "collate_fn", None)
    module = getattr(getattr(own, "func", own), "__module__", "")
    if own is None or module.partition(".")[0] in ("torch", "minilearn"):
        return None

    def collate(group: list[Any]) -> Any:
        try:
            return own(group)
        except Exception as e:
            raise ValueError(
                f"the loader's collate_fn cannot make a batch of {describe(group[0])}: {e}. Give "
                "items as your data set does, with any target, (x, 0) say; or another collate="
            ) from e

    return collate


def first_loader(learn: Loop) -> Any:
    """Return the loader for validation, else the one for training."""
    dl = pick_loader(learn.dls, False)
    return pick_loader(learn.dls, True) if dl is None else dl


def chooses(learn: Loop) -> bool:
    """Return whether the model chooses among classes, going by the loss or names of classes."""
    return is_entropy(learn.loss_func) or class_names(learn.dls) is not None


def _softmax(output: Any) -> Tensor | None:
    logits = getattr(output, "logits", output)
    if isinstance(logits, Mapping):
        logits = logits.get("logits")
    if isinstance(logits, Tensor) and logits.dim() < 2:
        raise TypeError("softmax needs logits (B, K); give infer a function act= of the output")
    return logits.softmax(1) if isinstance(logits, Tensor) else None


def _prediction(
    i: int, n: int, output: Any, probs: Tensor | None, names: list[Any] | None
) -> Prediction:
    own = item_of(output, i, n)
    if probs is None or probs.dim() != 2:
        return Prediction(None, None, None if probs is None else probs[i], own)
    check_outputs(probs, names)
    best = int(probs[i].argmax())
    return Prediction(names[best] if names else best, float(probs[i, best]), probs[i], own)
