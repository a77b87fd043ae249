"""What a classifier gets wrong: confusions, the worst items, precision and recall by class.

Memory does not grow with the data set.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..base.batch import describe, map_batch
from ..base.plotting import as_written, new_axes, quiet, show_images
from ..callbacks.training import loss_by_sample
from ..core.history import History
from ..core.learner import Loop
from ..core.state import learner_of
from ..data.pipeline import check_outputs, class_names
from .show_batches import GREY, images_of, own_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class TopLoss(NamedTuple):
    """One of the items with the highest loss; `index` is its index in the data set."""

    loss: float
    index: int
    input: Any
    target: Any
    predicted: Any


class Interpretation:
    """The errors of a classifier on a data set; made by `Interpretation.from_learner`.

    >>> interp = Interpretation.from_learner(learn)
    >>> interp.most_confused()
    >>> interp.plot_top_losses(4)

    Attributes:
        confusion: how often class i (row) was predicted as class j (column), int64, shape (K, K).
        top: the items with the highest losses, the highest first.
        classes: the names of the classes, or their numbers.
    """

    def __init__(
        self, confusion: Tensor, top: list[TopLoss], classes: list[Any], dls: Any = None
    ) -> None:
        self.confusion, self.top, self.classes, self.dls = confusion, top, classes, dls

    @classmethod
    def from_learner(
        cls, learn: Loop, dl: Any = None, *, n_top: int = 25, cbs: Any = None
    ) -> Interpretation:
        """Predict a data set; count its confusions, and keep the items with the highest losses.

        Args:
            learn: its model gives logits (B, K, ...), and a batch has targets (B, ...), class
                numbers; negative ones are ignored. Nothing about it changes.
            dl: a loader or the name of one, as in `get_preds`.
            n_top: how many items with high losses are kept, with their inputs.
            cbs: further callbacks.

        Raises:
            TypeError: the outputs are no logits, or the targets no class numbers.
            ValueError: there are more or fewer outputs than classes with names.
        """
        confusion, top, seen = torch.zeros((), dtype=torch.int64), [], 0
        wanted = {"with_inputs": True, "with_loss": _has_loss_by_sample(learn)}
        for inputs, preds, targs, *losses in learner_of(learn).iter_preds(dl, cbs=cbs, **wanted):
            _check(preds, targs)
            confusion = confusion + _count(preds, targs)
            losses = losses or [F.cross_entropy(preds, targs, reduction="none")]
            losses = losses[0].reshape(len(preds), -1).mean(1).nan_to_num(nan=math.inf)  # (B,)
            for i in losses.topk(min(n_top, len(losses))).indices.tolist():
                if len(top) < n_top or losses[i] > top[n_top - 1].loss:
                    item = (inputs, targs, preds.argmax(1))
                    item = map_batch(lambda t, i=i: t[i].clone(), item)
                    top.append(TopLoss(losses[i].item(), seen + i, *item))
            top = sorted(top, key=lambda t: (-t.loss, t.index))[:n_top]
            seen += len(preds)
        check_outputs(confusion, class_names(learn.dls))
        names = class_names(learn.dls) or list(range(len(confusion)))
        return cls(confusion, top, names, learn.dls)

    @property
    def accuracy(self) -> float:
        """The fraction of right predictions."""
        return (self.confusion.diagonal().sum() / self.confusion.sum()).item()

    def per_class(self) -> History:
        """Return a table with precision, recall, f1 and support (number of items) of each class.

        A value that would be 0/0 is 0.
        """
        right, support = self.confusion.diagonal().double(), self.confusion.sum(1)
        precision = right / self.confusion.sum(0).clamp(min=1)
        recall = right / support.clamp(min=1)
        f1 = 2 * right / (support + self.confusion.sum(0)).clamp(min=1)
        columns = {"precision": precision, "recall": recall, "f1": f1, "support": support}
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return History(
            {"class": name} | dict(zip(columns, row, strict=True))
            for name, row in zip(self.classes, values, strict=True)
        )

    def most_confused(self, min_count: int = 1) -> list[tuple[Any, Any, int]]:
        """Return (actual, predicted, how often) for each confusion, the most frequent first."""
        wrong = self.confusion.clone().fill_diagonal_(0)
        pairs = (wrong >= max(min_count, 1)).nonzero().tolist()
        found = [(self.classes[i], self.classes[j], int(wrong[i, j])) for i, j in pairs]
        return sorted(found, key=lambda pair: -pair[2])

    def plot_confusion(self, ax: Axes | None = None, normalize: bool = False) -> Axes:
        """Plot the confusion matrix, actual classes from top to bottom.

        Args:
            ax: the axes; None for a new figure.
            normalize: show fractions of the actual class instead of counts.
        """
        k = len(self.confusion)
        fractions = self.confusion / self.confusion.sum(1, keepdim=True).clamp(min=1)
        ax = ax or new_axes((2 + 0.5 * k, 2 + 0.5 * k))
        ax.imshow(fractions.numpy(), cmap="Blues", vmin=0, vmax=1)
        names = [as_written(name) for name in self.classes]
        ax.set(xlabel="predicted", ylabel="actual", xticks=range(k), yticks=range(k))
        ax.set_xticklabels(names, rotation=45, ha="right", rotation_mode="anchor")
        ax.set_yticklabels(names)
        for i, j in self.confusion.nonzero().tolist() if k <= 30 else ():  # too small for text
            text = f"{fractions[i, j]:.2f}" if normalize else f"{self.confusion[i, j]:,}"
            colour = "white" if fractions[i, j] > 0.5 else "black"
            ax.text(j, i, text, ha="center", va="center", color=colour, fontsize=8)
        return quiet(ax)

    def plot_top_losses(self, n: int = 9, **kwargs: Any) -> np.ndarray:
        """Show the images with the highest losses, as predicted / actual, with the loss.

        Args:
            n: how many, at most.
            **kwargs: go to `show_images`.

        Raises:
            ValueError: the inputs are no images.
        """
        worst = [t for t in self.top[:n] if t.predicted.dim() == 0]
        images = [images_of(map_batch(lambda x: x[None], t.input))[0] for t in worst]
        titles = [
            f"{self.classes[t.predicted]} / {self.classes[t.target]}\n{t.loss:.2f}" for t in worst
        ]
        shown = [own_colours(image[None], self.dls)[0] for image in images]
        return show_images(shown, **{"titles": titles, "cmap": GREY, **kwargs})


def _has_loss_by_sample(learn: Loop) -> bool:
    try:
        loss_by_sample(learn.loss_func)
    except ValueError:
        return False
    return True


def _check(preds: Any, targs: Any) -> None:
    logits = isinstance(preds, Tensor) and preds.dim() > 1 and preds.shape[1] > 1
    numbers = isinstance(targs, Tensor) and not targs.is_floating_point()
    if not logits or not numbers or targs.shape != (len(preds), *preds.shape[2:]):
        raise TypeError(
            "Interpretation counts classes: it needs logits (B, K, ...) and class numbers (B, "
            f"...), and this Learner gives {describe(preds)} and {describe(targs)}"
        )


def _count(preds: Tensor, targs: Tensor) -> Tensor:
    """Count pairs of actual and predicted class, shape (K, K)."""
    k, counted = preds.shape[1], targs >= 0
    pairs = targs[counted] * k + preds.argmax(1)[counted]
    return pairs.bincount(minlength=k * k).reshape(k, k)
