"""The callbacks that answer the actions: predict, get_loss, backward, step, zero_grad."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..base.arguments import DEFAULT_LOSS, check_default_loss
from ..base.batch import compare, describe, holds_items, is_number
from ..core.callback import Callback, attribute
from ..core.dispatch import default_actions
from ..core.events import CancelFitException, Order
from ..core.learner import Loop


@default_actions
class TrainCB(Callback):
    """Train a model in the usual way; subclasses replace single actions.

    A tuple or list is split into inputs and targets: `model(*inputs)`, `loss_func(preds,
    *targets)`. Of a dict, a named tuple or a dataclass, the named `inputs` and `targets` are passed
    by position; where no inputs are named, all but the targets go to the model as keywords. A list
    of single items, dicts as those of detectron2, goes to the model as it is. With `loss_func=None`
    the model brings its loss: it returns a scalar, a dict of losses (added up, but for whole
    numbers; each part is a column of the history), `(preds, loss)`, or an object with `loss` and
    `logits`.

    >>> Learner(model, dls, F.cross_entropy, cbs=[TrainCB(), MetricsCB(accuracy)]).fit(1)

    Args:
        n_inp: how many items of a tuple batch are inputs; 1 when it is not given.
        inputs: keys of a dict batch for the model, one or several; a dict maps the model's keywords
            to keys.
        targets: keys of a dict batch for the loss, one or several.
        sample_weight: where a batch has a weight for each sample: the position in a tuple (2 in
            `(x, y, w)`), or the key in a dict. The loss is then the mean of weight times loss over
            the samples (or the sum, if that is the loss function's reduction), and metrics with a
            parameter `sample_weight` get the weights.

    Raises:
        ValueError: there are weights, and the loss function has no `reduction`.

    Events: predict, get_loss, backward, step, zero_grad
    Order:  TRAIN
    Reads:  model, batch, loss_func, preds, loss, opt, iter, dls
    Writes: preds, loss, loss_parts
    """

    order = Order.TRAIN

    def __init__(
        self,
        n_inp: int | None = None,
        *,
        inputs: str | Sequence[str] | Mapping[str, str] | None = None,
        targets: str | Sequence[str] | None = None,
        sample_weight: int | str | None = None,
    ) -> None:
        self.sample_weight = sample_weight
        self.n_inp = 1 if n_inp is None else n_inp
        self.inputs, self.targets = _names(inputs), _names(targets)
        self.by_name = self.inputs is not None or self.targets is not None
        given = {"n_inp": n_inp, "inputs": self.inputs, "targets": self.targets}
        given["sample_weight"] = sample_weight
        self.settings = {name: value for name, value in given.items() if value is not None}

    def predict(self, learn: Loop) -> None:
        """Run the model on the inputs of the batch."""
        args, keywords, _ = self.split(learn.batch)
        if learn.loss_func is None and self.inputs is None and isinstance(learn.batch, Mapping):
            keywords = learn.batch  # the model computes its loss from the targets
        learn.preds = learn.model(*args, **keywords)

    def get_loss(self, learn: Loop) -> None:
        """Compute the loss; without a loss function take the model's own."""
        loss_func = learn.loss_func
        if loss_func is None:
            learn.preds, loss = own_loss(learn.preds)
        else:
            targets = self.split(learn.batch)[2]
            if self.targets and not len(targets) and isinstance(learn.batch, Mapping):
                raise KeyError(self._lacks(self.targets[0], learn.batch))
            if loss_func is DEFAULT_LOSS and not getattr(learn, "iter", 0):
                check_default_loss(learn.preds, targets)
            if not getattr(learn, "iter", 0) and is_entropy(loss_func):
                from ..data.pipeline import check_outputs, class_names

                check_outputs(learn.preds, class_names(getattr(learn, "dls", None)))
            weight = self.weight_of(learn.batch)
            if weight is None:
                loss = compare(loss_func, learn.preds, targets)
            else:
                loss = weighted_loss(loss_func, learn.preds, targets, weight)
        if not isinstance(loss, Tensor) and isinstance(loss, Mapping):
            learn.loss_parts = parts = {name: x for name, x in loss.items() if is_number(x)}
            losses = (x for x in parts.values() if torch.as_tensor(x).is_floating_point())
            loss = loss["loss"] if "loss" in loss else sum(losses)
        learn.loss = loss

    def backward(self, learn: Loop) -> None:
        """Compute the gradients."""
        try:
            learn.loss.backward()
        except (AttributeError, RuntimeError) as e:
            explain_loss(e, learn.loss)
            raise

    def step(self, learn: Loop) -> None:
        """Let the optimizer make a step."""
        learn.opt.step()

    def zero_grad(self, learn: Loop) -> None:
        """Clear the gradients."""
        zero_grad: Any = getattr(learn.opt, "zero_grad", None) or learn.clear_grads
        if getattr(zero_grad, "__func__", None) is not torch.optim.Optimizer.zero_grad:
            zero_grad()
            return
        # what torch's own does, without the profiler's record of it: an eighth of a tiny step
        for group in zero_grad.__self__.param_groups:
            for p in group["params"]:
                p.grad = None

    def split(self, batch: Any) -> tuple[Sequence[Any], Mapping[str, Any], Sequence[Any]]:
        """Return the model's positional inputs, its keyword inputs, and the targets of `batch`.

        Raises:
            TypeError: the batch is no tuple, list, dict or tensor.
            KeyError: it has no item of a given name.
        """
        if self.by_name:
            batch = self._named(batch)
        if isinstance(batch, (tuple, list)):
            if self.n_inp == 1 and holds_items(batch):
                return (batch,), {}, ()
            if self.by_name:
                raise TypeError(
                    f"{self!r} names items, and this batch has no names: it is {describe(batch)}. "
                    "Give positions, n_inp= and sample_weight=, or let it be a dict or named tuple"
                )
            if self.sample_weight is not None:
                batch = _without(batch, self.sample_weight)
            return batch[: self.n_inp], {}, batch[self.n_inp :]
        if isinstance(batch, Mapping):
            if self.n_inp > 1:
                raise TypeError(f"{self!r} counts items of a tuple: name those of a dict, inputs=")
            if self.sample_weight is not None:
                batch = {k: v for k, v in batch.items() if k != self.sample_weight}
            return self._split_dict(batch)
        if isinstance(batch, Tensor):
            return (batch,), {}, ()
        raise TypeError(
            f"TrainCB can split a tuple, list, dict or tensor; this batch is {describe(batch)}. "
            "Collate it into one of those, or override predict and get_loss."
        )

    def _named(self, batch: Any) -> Any:
        """Return a named tuple or a dataclass as a dict, where items are asked for by name."""
        if not self.by_name or isinstance(batch, Mapping):
            return batch
        if dataclasses.is_dataclass(batch):
            return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return batch._asdict() if hasattr(batch, "_asdict") else batch

    def _split_dict(self, batch: Mapping) -> tuple[Sequence[Any], Mapping[str, Any], Sequence[Any]]:
        names = self.targets or ()
        try:
            known = any(name in batch for name in names)  # data to predict for have no targets
            targets = [batch[name] for name in names] if known else ()
            if self.inputs is None:
                return (), {k: v for k, v in batch.items() if k not in names}, targets
            if isinstance(self.inputs, Mapping):
                return (), {k: batch[name] for k, name in self.inputs.items()}, targets
            return [batch[name] for name in self.inputs], {}, targets
        except KeyError as e:
            raise KeyError(self._lacks(e.args[0], batch)) from e

    def weight_of(self, batch: Any) -> Tensor | None:
        """Return the weight of each sample, None where no `sample_weight` is named.

        Raises:
            KeyError: the batch has no such item.
        """
        try:
            return None if self.sample_weight is None else self._named(batch)[self.sample_weight]
        except (KeyError, IndexError, TypeError) as e:
            raise KeyError(
                f"the batch has no sample_weight={self.sample_weight!r}: it is {describe(batch)}"
            ) from e

    def _lacks(self, name: str, batch: Mapping) -> str:
        return f"the batch has no {name!r}: it is {describe(batch)}. Name other inputs or targets."

    def __repr__(self) -> str:
        """Show the settings that were given."""
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.settings.items())})"


def is_entropy(loss: Any) -> bool:
    """Return whether a loss is torch's cross-entropy for one class among several."""
    name = getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__)
    torchs = (nn.CrossEntropyLoss, nn.NLLLoss)
    return name in ("cross_entropy", "nll_loss") or isinstance(loss, torchs)


def explain_loss(error: Exception, loss: Any) -> None:
    """Add to an error of backward what is wrong with the loss, if anything is."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        error.add_note(
            f"the loss is {describe(loss)}, and gradients come from a scalar tensor: let the loss "
            "function return one, a mean over the batch (reduction='mean') say"
        )
    elif not loss.requires_grad:
        error.add_note(
            "no weight that trains led to the loss: is the whole model frozen, or does it or the "
            "loss function detach, round or leave torch?"
        )


def own_loss(output: Any) -> tuple[Any, Tensor | dict[str, Tensor]]:
    """Return predictions and loss of a model that computes its loss itself.

    Args:
        output: a scalar, a dict of scalars, `(preds, loss)`, or an object or dict with `loss` (and
            `logits`).

    Raises:
        TypeError: no loss can be found in it.
    """
    if isinstance(output, Tensor) and output.dim() == 0:
        return None, output
    if (loss := part_of(output, "loss")) is not None:
        return part_of(output, "logits", output), loss
    if isinstance(output, Mapping) and output and all(_is_scalar(v) for v in output.values()):
        return None, dict(output)
    if isinstance(output, (tuple, list)) and list(map(_is_scalar, output)) == [False, True]:
        return output[0], output[1]  # of two scalars nobody knows which is the loss
    raise TypeError(
        f"with loss_func=None the model must return its loss; it returned {describe(output)}. "
        "Return a scalar, a dict of losses, (preds, loss) or an object with .loss, or give the "
        "Learner a loss_func."
    )


def part_of(output: Any, name: str, default: Any = None) -> Any:
    """Return a named part of what a model returns: an item of a dict, else an attribute."""
    return (output.get if isinstance(output, Mapping) else partial(getattr, output))(name, default)


def _is_scalar(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 0


def _names(names: Any) -> Any:
    if names is None or isinstance(names, Mapping):
        return names
    return (names,) if isinstance(names, str) else tuple(names)


class SingleBatchCB(Callback):
    """End the fit after its first batch, be it for training or validation.

    >>> learn.fit(1, cbs=SingleBatchCB())

    Events: after_batch
    Order:  STOP
    Reads:
    Writes:
    """

    order = Order.STOP

    def after_batch(self, learn: Loop) -> None:
        """Cancel the fit."""
        raise CancelFitException


def inputs_and_targets(learn: Any) -> tuple[Any, Any]:
    """Return the inputs of the model and the targets of the loss in the current batch.

    One is returned as it is, several as a tuple (keyword inputs as a dict), none as None.
    """
    args, keywords, targets = split_by_owner(learn)
    return dict(keywords) or _unpacked(args), _unpacked(targets)


def split_by_owner(learn: Any) -> tuple[Any, Mapping, Any]:
    """Return positional inputs, keyword inputs and targets, as the owner of `get_loss` splits."""
    owner, batch = attribute(learn, "owner")("get_loss"), learn.batch
    if (split := getattr(owner, "split", None)) is not None:
        return split(batch)
    known = isinstance(batch, (tuple, list, Mapping, Tensor))
    return TrainCB().split(batch) if known else ((batch,), {}, ())


def _unpacked(items: Any) -> Any:
    return tuple(items) if len(items) > 1 else items[0] if len(items) else None


def _without(batch: Sequence[Any], position: Any) -> Sequence[Any]:
    """Return a batch without the item at a position; data to predict for may lack it."""
    if not isinstance(position, int):
        raise TypeError(f"sample_weight of a tuple is a position, got {position!r}")
    position %= max(len(batch), position + 1)
    return [*batch[:position], *batch[position + 1 :]]


def weighted_loss(loss_func: Any, preds: Any, targets: Sequence[Any], weight: Tensor) -> Tensor:
    """Return the mean of each sample's loss times its weight, or the sum (`reduction="sum"`).

    Args:
        loss_func: has a `reduction`.
        preds: predictions.
        targets: what they are compared with.
        weight: of each sample, (B,) or (B, 1).

    Raises:
        ValueError: the loss function has no `reduction`, or the weights are not one a sample.
    """
    losses = compare(loss_by_sample(loss_func), preds, targets)  # (B, ...)
    if weight.numel() != len(losses):
        raise ValueError(
            f"sample_weight has the shape {tuple(weight.shape)}, and the losses of the samples "
            f"{tuple(losses.shape)}: give one weight for each of them"
        )
    losses = losses * weight.to(losses.dtype).view(-1, *[1] * (losses.dim() - 1))
    reduction = reduction_of(loss_func)
    return losses if reduction == "none" else getattr(losses, reduction)()


def reduction_of(loss_func: Any) -> str:
    """Return how a loss function that `loss_by_sample` takes makes one number of its losses."""
    if hasattr(loss_func, "reduction"):
        return loss_func.reduction
    return inspect.signature(loss_func).parameters["reduction"].default


def adds_up(learn: Any) -> bool:
    """Return whether the loss is the sum over the items of a batch, as `reduction="sum"` makes it.

    A `get_loss` of the user's may divide it, so then this is False.
    """
    loss_func = attribute(learn, "loss_func")
    keywords = getattr(loss_func, "keywords", {})  # of a partial
    reduction = keywords.get("reduction", getattr(loss_func, "reduction", None))
    return reduction == "sum" and attribute(learn, "answers_by_default")("get_loss")


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
        f"losses by sample need a loss with a choice of reduction, as torch's; {loss_func!r} has "
        "none. Give the Learner a loss_func with reduction='mean' as a parameter."
    )
