"""Keep the predictions of a pass: CapturePreds, and what `get_preds` asks of each batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from minilearn.base.batch import batch_size, describe
from minilearn.core.callback import Callback
from minilearn.core.events import Order
from minilearn.inference.outputs import joined, kept

from ..callbacks.training import inputs_and_targets, own_loss
from ..core.events import CancelBatchException

if TYPE_CHECKING:
    from minilearn.core.learner import Loop


class CapturePreds(Callback):
    """Keep inputs, predictions and targets of a pass on the CPU, joined when the pass is over.

    They are those of the last pass: `learn.fit(1, train=False, cbs=CapturePreds())` for the
    validation set. `learn.get_preds` does more: order, completeness, bounded memory.

    Args:
        inps: whether to keep the inputs.

    Attributes:
        all_inps: the model's inputs, (N, ...).
        all_preds: what it made of them, (N, K), or a structure of such.
        all_targs: the targets; None where there are none.

    Events: before_epoch, after_batch, cleanup_epoch
    Order:  STOP
    Reads:  batch, preds, loss_func
    Writes:
    """

    order = Order.STOP

    def __init__(self, inps: bool = True) -> None:
        self.inps = inps
        self.all_inps = self.all_preds = self.all_targs = None
        self._parts: list[tuple[Any, Any, Any]] = []
        self._sizes: list[int] = []

    def before_epoch(self, learn: Loop) -> None:
        """Forget the pass before."""
        self._parts, self._sizes = [], []

    def after_batch(self, learn: Loop) -> None:
        """Keep a batch."""
        inputs, targets = inputs_and_targets(learn)
        self._parts.append(kept((inputs if self.inps else None, learn.preds, targets)))
        self._sizes.append(batch_size(learn.batch))

    def cleanup_epoch(self, learn: Loop) -> None:
        """Join what there is, also where a cancel ended the pass."""
        if self._parts:
            columns = [
                joined(list(column), self._sizes) for column in zip(*self._parts, strict=True)
            ]
            self.all_inps, self.all_preds, self.all_targs = columns
        self._parts, self._sizes = [], []


@dataclass
class Wanted:
    """What is asked of each batch; see `get_preds`."""

    act: Callable[[Any], Any] | None = None
    with_inputs: bool = False
    with_targs: bool = True
    with_loss: bool = False
    decoded: bool | Callable[[Any], Any] = False
    to: Any = "cpu"

    @property
    def names(self) -> list[str]:
        """The results, in their order."""
        asked = {"inputs": self.with_inputs, "preds": True, "targs": self.with_targs}
        asked |= {"losses": self.with_loss, "decoded": self.decoded}
        return [name for name, wanted in asked.items() if wanted]

    def of(self, learn: Loop) -> list[Any]:
        """Return the results for the batch in hand."""
        inputs, targs = inputs_and_targets(learn)
        preds = kept(_predictions(learn), self.to)
        found = {"preds": preds if self.act is None else self.act(preds)}
        if self.with_inputs:
            found["inputs"] = kept(inputs, self.to)
        if self.with_targs:
            found["targs"] = kept(targs, self.to)
        if self.with_loss:
            found["losses"] = kept(learn.loss.reshape(len(learn.loss), -1).mean(1), self.to)
        if self.decoded:
            found["decoded"] = (_decide if self.decoded is True else self.decoded)(found["preds"])
        return [found[name] for name in self.names]

    def bare(self, values: list[Any]) -> Any:
        """Return several values as a tuple, a single one as it is."""
        return tuple(values) if len(values) > 1 else values[0]


class TakePreds(Callback):
    """Hand on what is wanted of each batch as soon as it is there; no more is computed.

    Args:
        want: what is asked for.
        give: called with the results and the number of samples of each batch.

    Events: after_predict, after_batch
    Order:  STOP
    Reads:  batch, preds, loss, loss_func
    Writes:
    """

    order = Order.STOP

    def __init__(self, want: Wanted, give: Callable[[list[Any], int], Any]) -> None:
        self.want, self.give = want, give

    def after_predict(self, learn: Loop) -> None:
        """Take the results and skip the rest of the batch, unless losses are wanted."""
        if not self.want.with_loss:
            self.after_batch(learn)
            raise CancelBatchException

    def after_batch(self, learn: Loop) -> None:
        """Take the results."""
        self.give(self.want.of(learn), batch_size(learn.batch))


def _predictions(learn: Loop) -> Any:
    """Return the predictions alone where the model computes its loss, too."""
    if learn.loss_func is not None:
        return learn.preds
    try:
        preds = own_loss(learn.preds)[0]
    except TypeError:  # without targets it makes no loss
        return getattr(learn.preds, "logits", learn.preds)
    if preds is None:
        raise ValueError("this model returns its loss alone: let it return (preds, loss)")
    return preds


def _decide(preds: Any) -> Tensor:
    if not isinstance(preds, Tensor) or preds.dim() < 2 or preds.shape[1] < 2:
        raise ValueError(
            f"decoded=True takes the largest of K classes in predictions (B, K, ...), and these "
            f"are {describe(preds)}: give a function, decoded=lambda p: p > 0"
        )
    return preds.argmax(1)
