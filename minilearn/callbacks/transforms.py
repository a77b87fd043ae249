"""Transforms of whole batches, on their device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastcore.basics import noop

from ..base.batch import describe
from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop


class BatchTransformCB(Callback):
    """Let a function change each batch before other callbacks read it.

    >>> BatchTransformCB(lambda b: (b[0].flip(-1), b[1]), on_val=False)

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
            batch = learn.batch
            try:
                changed = self.tfm(batch)
            except Exception as e:
                e.add_note(f"transform {self._name} was given {describe(batch)}")
                raise
            if changed is None:
                raise TypeError(
                    f"transform {self._name} returned None for {describe(batch)}: let it return "
                    "the batch, also where it changes it in place"
                )
            learn.batch = changed

    @property
    def _name(self) -> str:
        return getattr(self.tfm, "__qualname__", None) or repr(self.tfm)

    def __repr__(self) -> str:
        """Show the transform and where it works."""
        off = "" if self.on_train else ", on_train=False"
        return f"BatchTransformCB({self._name}{off}{'' if self.on_val else ', on_val=False'})"


def tfm_batch(
    b: Sequence[Any], tfm_x: Callable[[Any], Any] = noop, tfm_y: Callable[[Any], Any] = noop
) -> tuple[Any, ...]:
    """Return the batch with `tfm_x` applied to its first item and `tfm_y` to its second.

    >>> BatchTransformCB(partial(tfm_batch, tfm_x=RandomCrop(2)), on_val=False)
    """
    return tfm_x(b[0]), *map(tfm_y, b[1:2]), *b[2:]  # data to predict for have no second
