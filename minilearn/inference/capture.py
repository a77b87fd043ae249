"""Keep the predictions of a pass: CapturePreds, and what `get_preds` asks of each batch.

Stands on core, data.collect and training.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from minilearn.base.batch import batch_size, describe
from minilearn.core.callback import Callback
from minilearn.core.events import Order
from minilearn.core.exceptions import CancelBatchException
from minilearn.inference.collect import joined, kept

from ..callbacks.training import own_loss

if TYPE_CHECKING:
    from minilearn.core.learner import Learner


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

    def before_epoch(self, learn: Learner) -> None:
        """Forget the pass before."""
        self._parts, self._sizes = [], []

    def after_batch(self, learn: Learner) -> None:
        """Keep a batch."""
        inputs, targets = inputs_and_targets(learn)
        self._parts.append(kept((inputs if self.inps else None, learn.preds, targets)))
        self._sizes.append(batch_size(learn.batch))

    def cleanup_epoch(self, learn: Learner) -> None:
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

    def of(self, learn: Learner) -> list[Any]:
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

    def after_predict(self, learn: Learner) -> None:
        """Take the results and skip the rest of the batch, unless losses are wanted."""
        if not self.want.with_loss:
            self.after_batch(learn)
            raise CancelBatchException

    def after_batch(self, learn: Learner) -> None:
        """Take the results."""
        self.give(self.want.of(learn), batch_size(learn.batch))


def inputs_and_targets(learn: Any) -> tuple[Any, Any]:
    """Return the inputs of the model and the targets of the loss in the batch in hand.

    One is returned as it is, several as a tuple (keyword inputs as a dict), none as None.
    """
    args, keywords, targets = split_by_owner(learn)
    return dict(keywords) or _bare(args), _bare(targets)


def split_by_owner(learn: Any) -> tuple[Any, Mapping, Any]:
    """Return inputs by position and by keyword, and targets, as who computes the loss splits."""
    owner = learn.owner("get_loss") if hasattr(learn, "owner") else None
    return getattr(owner, "split", _split)(learn.batch)


def _split(batch: Any) -> tuple[Any, Mapping, Any]:
    """Split the batch of a learner that answers the actions itself, as TrainLearner does."""
    if isinstance(batch, Mapping):
        return (), batch, ()
    if isinstance(batch, Tensor) or not isinstance(batch, (tuple, list)):
        return (batch,), {}, ()
    return batch[:1], {}, batch[1:]


def _bare(items: Any) -> Any:
    return tuple(items) if len(items) > 1 else items[0] if len(items) else None


def _predictions(learn: Learner) -> Any:
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


def loss_by_sample(loss_func: Any) -> Any:
    """Return a form of `loss_func` that does not average over the batch.

    Raises:
        ValueError: it has no `reduction`.
    """
    if isinstance(loss_func, nn.Module) and hasattr(loss_func, "reduction"):
        loss_func = copy.copy(loss_func)
        loss_func.reduction = "none"
        return loss_func
    if loss_func is not None and not isinstance(loss_func, nn.Module):
        if "reduction" in inspect.signature(loss_func).parameters:
            return partial(loss_func, reduction="none")
    raise ValueError(
        f"with_loss needs a loss with a choice of reduction, as torch's; {loss_func!r} has none. "
        "Give the Learner a loss_func with reduction='mean' as a parameter."
    )


def _decide(preds: Any) -> Tensor:
    if not isinstance(preds, Tensor) or preds.dim() < 2 or preds.shape[1] < 2:
        raise ValueError(
            f"decoded=True takes the largest of K classes in predictions (B, K, ...), and these "
            f"are {describe(preds)}: give a function, decoded=lambda p: p > 0"
        )
    return preds.argmax(1)
