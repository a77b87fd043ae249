"""Arguments of a Learner by type: an error names the argument, what was given, what to write."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import Dataset, IterableDataset

from .batch import describe
from .text import did_you_mean

VALID_SPLITS = ("validation", "valid", "val", "eval", "dev", "test")
"""What the data for validation may be called; the first that there is is taken."""

LOSSES = [name for name in vars(F) if name.endswith(("_loss", "entropy", "_logits", "kl_div"))]


class DefaultLoss(partial):
    """`F.mse_loss`, where no loss was given; copies and pickles are this very object."""

    def __reduce__(self) -> Any:
        return "DEFAULT_LOSS"

    def __repr__(self) -> str:
        return "F.mse_loss"


DEFAULT_LOSS = DefaultLoss(F.mse_loss)


def check_arguments(model: Any, dls: Any, loss_func: Any, lr: Any, opt_func: Any, opt: Any) -> None:
    """Check what a Learner is made of.

    Raises:
        TypeError: the first argument that is of a wrong type.
    """
    check_order(model, dls, loss_func)
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(f"model is a class, {model.__name__}: write {model.__name__}(…)")
    if model is not None and not callable(model):
        raise TypeError(f"model is {shown(model)}: write an nn.Module, or a function of the inputs")
    check_dls(dls)
    check_loss(loss_func)
    check_lr(lr)
    if isinstance(opt_func, Optimizer):
        raise TypeError(f"opt_func is a ready {shown(opt_func)}: write opt=, or opt_func=its class")
    if opt is not None and opt_func not in (None, SGD):
        raise TypeError(
            f"opt is ready, and opt_func={shown(opt_func)} makes one: write one of them"
        )
    if isinstance(opt, type):
        raise TypeError(f"opt is a class, {opt.__name__}: write opt_func={opt.__name__}")
    if opt_func is not None and not isinstance(opt_func, str) and not callable(opt_func):
        raise TypeError(f"opt_func is {shown(opt_func)}: write a class such as optim.AdamW")


def check_order(model: Any, dls: Any, loss_func: Any) -> None:
    """Recognise fastai's order, data before the model."""
    if is_module(dls) and not is_module(model):
        given = (dls, model) if loss_func is DEFAULT_LOSS else (dls, model, loss_func)
        call = ", ".join(getattr(x, "__name__", type(x).__name__) for x in given)
        raise TypeError(
            f"the model comes first: write Learner(model, dls, loss_func), here Learner({call})"
        )


def is_module(x: Any) -> bool:
    """Return whether `x` is a module of torch, or a class of one."""
    return isinstance(x, nn.Module) or (isinstance(x, type) and issubclass(x, nn.Module))


def check_dls(dls: Any) -> None:
    """Check that `dls` may hold loaders: data sets and arrays are none yet."""
    parts = dls if isinstance(dls, (tuple, list)) else [dls]
    parts = list(dls.values() if isinstance(dls, Mapping) else parts)
    if isinstance(dls, (str, Path)):
        write = f"image_dls({str(dls)!r}) for the images of a folder"
    elif parts and all(hasattr(part, "__array__") for part in parts):
        write = "DataLoaders.from_arrays(x, y, bs=64)"
    elif any(map(is_dataset, parts)):
        is_dict = isinstance(dls, Mapping) and hasattr(dls, "column_names")
        write = f"DataLoaders.{'from_dd(data' if is_dict else 'from_dsets(train_ds, valid_ds'}, 64)"
    elif any(inspect.isgeneratorfunction(part) for part in parts):
        write = "a list of batches, or an object whose __iter__ begins anew in each epoch"
    elif is_module(dls) or (callable(dls) and not isinstance(dls, Iterable)):
        write = "(train_dl, valid_dl), or DataLoaders(train_dl, valid_dl)"
    else:
        if isinstance(dls, Mapping):
            check_names(dls)
        return
    raise TypeError(f"dls is {shown(dls)}, and holds loaders of batches: write {write}")


def check_names(loaders: Iterable[Any]) -> None:
    """Raise where no fit would look for a loader by its name.

    Raises:
        ValueError: names it, and the name that was probably meant.
    """
    known = ("train", *VALID_SPLITS)
    for name in loaders:
        if name not in known:
            near = did_you_mean(str(name), known, n=1)
            raise ValueError(
                f"dls: no fit uses a loader {name!r}{near or ', only train and valid'}"
            )


def is_dataset(x: Any) -> bool:
    """Return whether `x` is a data set of torch, Hugging Face or ours, which gives single items."""
    ours = type(x).__module__ == "minilearn.data.loader_factory" and hasattr(x, "arrays")
    torchs = isinstance(x, Dataset) and not isinstance(x, IterableDataset)
    return ours or torchs or hasattr(x, "column_names")


def check_loss(loss_func: Any) -> None:
    """Check that `loss_func` can be called with predictions and targets."""
    if isinstance(loss_func, str):
        near = did_you_mean(loss_func, LOSSES, n=1, cutoff=0.4)
        known = loss_func in LOSSES
        write = f"F.{loss_func}" if known else f"a function such as F.cross_entropy{near}"
    elif isinstance(loss_func, type) and issubclass(loss_func, Optimizer):
        write = f"opt_func={loss_func.__name__}"
    elif is_module(loss_func) and isinstance(loss_func, type):
        write = f"{loss_func.__name__}(), an object of it"
    elif loss_func is None or callable(loss_func):
        return
    else:
        write = "a function of (preds, targets), such as F.cross_entropy"
    raise TypeError(f"loss_func is {shown(loss_func)}: write {write}")


def check_default_loss(preds: Any, targets: Sequence[Any]) -> None:
    """See that the loss that nobody gave fits a batch.

    Raises:
        ValueError: targets are integers, or differ in shape; names the loss that they suggest.
    """
    if not isinstance(preds, Tensor) or len(targets) != 1 or type(targets[0]) is not Tensor:
        return
    (target,) = targets
    whole = not (target.is_floating_point() or target.is_complex())
    if not whole and preds.shape == target.shape:
        return
    classes = preds.dim() == target.dim() + 1 and preds.size(1) > 1
    if whole and (classes or preds.numel() != target.numel()):
        write = "F.cross_entropy" + ("" if classes else ", with targets of shape (B,)")
    elif whole:
        write = "F.binary_cross_entropy_with_logits, with float targets of the predictions' shape"
    elif preds.numel() == target.numel():
        write = f"F.mse_loss, with targets of the predictions' shape, {tuple(preds.shape)}"
    else:
        write = "F.cross_entropy, with targets of type int64, or outputs of the targets' shape"
    raise ValueError(
        f"no loss_func was given, and F.mse_loss does not fit: write loss_func={write}. "
        f"The predictions are {describe(preds)}, the targets {describe(target)}. "
        "A loss that is given is used as it is, loss_func=F.mse_loss too."
    )


def check_epochs(n_epochs: Any) -> None:
    """Check that `n_epochs` is no data, as in `fit(x, y)`; `Plan` checks the number."""
    is_data = hasattr(n_epochs, "__iter__") and getattr(n_epochs, "ndim", 1)
    if (is_data and not isinstance(n_epochs, str)) or is_dataset(n_epochs):
        raise TypeError(
            f"n_epochs is {shown(n_epochs)}: write the data into the Learner, as dls=(train_dl, "
            "valid_dl) or DataLoaders.from_arrays(x, y, bs=64), and a number here"
        )


def check_lr(lr: Any) -> None:
    """Check that `lr` is None, a number or a slice of numbers.

    Raises:
        TypeError: it is something else, such as text or an argument of another place.
        ValueError: it is not finite.
    """
    if isinstance(lr, str):
        write = f"a number, lr={lr}" if lr[:1].isdigit() else "a number, such as lr=1e-3"
    elif isinstance(lr, type) or callable(lr):
        write = f"opt_func={shown(lr)}, and a number as lr"
    elif not isinstance(lr, bool) and (
        lr is None or isinstance(lr, slice) or hasattr(lr, "__float__")
    ):
        if lr is not None and not isinstance(lr, slice) and not math.isfinite(lr):
            raise ValueError(f"lr is {lr}: write a finite number, such as lr=1e-3")
        return
    else:
        write = "a number, such as lr=1e-3; callbacks go to cbs="
    raise TypeError(f"lr is {shown(lr)}: write {write}")


def shown(x: Any) -> str:
    """Say in a word or two what was given."""
    name = getattr(x, "__name__", None)
    return f"the text {x!r}" if isinstance(x, str) else name or describe(x, 1)
