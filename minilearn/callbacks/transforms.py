"""Transforms of whole batches, on their device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastcore.basics import noop
from torch import Tensor

from ..base.batch import describe, map_batch, tensors
from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop
from .training import split_by_owner


class BatchTransformCB(Callback):
    """Let a function change each batch before other callbacks read it; `AugmentCB` is for images.

    >>> BatchTransformCB(lambda b: (b[0].flip(-1), b[1] * 2))

    Args:
        tfm: takes the batch, on its device, and returns it changed or a new one.
        on_train: in training.
        on_val: in validation, and in `validate` and `get_preds`.

    Raises:
        TypeError: `tfm` returned None.

    Events: before_batch
    Order:  TRANSFORM
    Reads:  training, batch
    Writes: batch
    """

    order = Order.TRANSFORM

    def __init__(
        self, tfm: Callable[[Any], Any], on_train: bool = True, on_val: bool = True
    ) -> None:
        self.tfm, self.on_train, self.on_val = tfm, on_train, on_val

    def before_batch(self, learn: Loop) -> None:
        """Change the batch."""
        if self.on_train if learn.training else self.on_val:
            learn.batch = _transformed(self.tfm, learn.batch)

    def __repr__(self) -> str:
        """Show the transform and where it works."""
        off = "" if self.on_train else ", on_train=False"
        return f"BatchTransformCB({_name(self.tfm)}{off}{'' if self.on_val else ', on_val=False'})"


class AugmentCB(Callback):
    """Change the inputs of training batches at random, and of no others.

    >>> AugmentCB(RandomFlip(), RandomCrop(4), RandErase())

    Args:
        tfms: applied in turn, on the device of the batch; each takes the first input of the model,
            such as images (B, C, H, W), and returns it changed. What changes targets, too, is a
            `BatchTransformCB(tfm, on_val=False)`.

    Raises:
        TypeError: a transform returned None.

    Events: before_batch
    Order:  TRANSFORM
    Reads:  training, batch
    Writes: batch
    """

    order = Order.TRANSFORM

    def __init__(self, *tfms: Callable[[Tensor], Tensor]) -> None:
        self.tfms = tfms

    def before_batch(self, learn: Loop) -> None:
        """Change the inputs."""
        if learn.training:
            x = new = next(tensors(split_by_owner(learn)[:2]), None)
            for tfm in self.tfms:
                new = _transformed(tfm, new)
            once = iter([new])  # the targets may be the same tensor
            learn.batch = map_batch(lambda t: next(once, t) if t is x else t, learn.batch)

    def __repr__(self) -> str:
        """Show the transforms."""
        return f"AugmentCB({', '.join(map(_name, self.tfms))})"


def _transformed(tfm: Callable[[Any], Any], x: Any) -> Any:
    try:
        changed = tfm(x)
    except Exception as e:
        e.add_note(f"transform {_name(tfm)} was given {describe(x)}")
        raise
    if changed is None:
        raise TypeError(
            f"transform {_name(tfm)} returned None for {describe(x)}: let it return what it was "
            "given, also where it changes it in place"
        )
    return changed


def _name(tfm: Callable[..., Any]) -> str:
    return getattr(tfm, "__qualname__", None) or repr(tfm)


def tfm_batch(
    b: Sequence[Any], tfm_x: Callable[[Any], Any] = noop, tfm_y: Callable[[Any], Any] = noop
) -> tuple[Any, ...]:
    """Return the batch with `tfm_x` applied to its first item and `tfm_y` to its second.

    >>> BatchTransformCB(partial(tfm_batch, tfm_x=lambda x: x / 255))
    """
    return tfm_x(b[0]), *map(tfm_y, b[1:2]), *b[2:]  # data to predict for have no second
