"""See what the model sees, and what it says: `show_image_batch`, `show_batch`, `show_results`.

Stands on core, data and plotting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from minilearn.base.batch import describe, tensors, to_cpu
from minilearn.base.lazy_method import method_of
from minilearn.base.seed import preserved_random_states
from minilearn.core.callback import Callback, as_callbacks
from minilearn.core.events import Order
from minilearn.core.exceptions import CancelFitException
from minilearn.core.learner import Learner
from minilearn.core.nested import _own_copy, _undo_place, inner, participants
from minilearn.core.patched import Patched
from minilearn.core.stream import check_loader
from minilearn.data.loaders import DataLoaders
from minilearn.data.pipeline import class_names

from .plotting import show_images

if TYPE_CHECKING:
    import numpy as np


@method_of(Patched)
def show_image_batch(self: Learner, max_n: int = 9, cbs: Any = None, **kwargs: Any) -> np.ndarray:
    """Show the pictures of a training batch as the model would be given them.

    Transforms have been at work, no training step is made, and nothing changes. Where `dls` knows
    the mean and deviation that normalised the pictures, they are shown in their own colours.

    Args:
        self: the Learner.
        max_n: how many pictures, at most.
        cbs: further callbacks.
        kwargs: go to `show_images`, such as `imsize`, `titles` or `cmap`.

    Returns:
        The array of axes.

    Raises:
        ValueError: the batch has no pictures.
    """
    images = pictures(_training_batch(self, cbs))[:max_n]
    return show_images(own_colours(images, self.dls), **kwargs)


@method_of(Patched)  # the other of this name is of DataLoaders
def show_batch(  # pyright: ignore[reportRedeclaration]
    self: Learner, max_n: int = 9, cbs: Any = None, **kwargs: Any
) -> np.ndarray:
    """Show the pictures of a training batch with their classes, as the model would be given them.

    Args:
        self: the Learner.
        max_n: how many pictures, at most.
        cbs: further callbacks.
        kwargs: go to `show_images`.
    """
    return _show_titled(_training_batch(self, cbs), self.dls, max_n, kwargs)


@method_of(DataLoaders)
def show_batch(self: DataLoaders, max_n: int = 9, **kwargs: Any) -> np.ndarray:  # noqa: F811
    """Show the pictures of a batch with their classes; the loader keeps its place.

    The batch is one to train on, else the first that there is.

    Args:
        self: the loaders.
        max_n: how many pictures, at most.
        kwargs: go to `show_images`.
    """
    dl = self.train if self.train is not None else next(map(self.__getitem__, self.keys()), None)
    check_loader(dl, True)
    back = _undo_place(dl)
    with preserved_random_states():
        batch = to_cpu(next(iter(_own_copy(dl))))
    back()
    return _show_titled(batch, self, max_n, kwargs)


@method_of(Patched)
def show_results(
    self: Learner, dl: Any = None, max_n: int = 9, cbs: Any = None, **kwargs: Any
) -> np.ndarray:
    """Show the first pictures of a data set as predicted / actual, wrong ones in red.

    Args:
        self: the Learner, of a classifier.
        dl: a loader or the name of one, as in `get_preds`.
        max_n: how many pictures, at most.
        cbs: further callbacks.
        kwargs: go to `show_images`.
    """
    found = next(self.iter_preds(dl, with_inputs=True, decoded=True, cbs=cbs))
    images, targs, decided = pictures(found[0])[:max_n], found[2], found[3]
    names = class_names(self.dls)
    pairs = [
        tuple(names[i] if names else i for i in pair)
        for pair in zip(decided.tolist(), targs.tolist(), strict=True)
    ][:max_n]
    titles = [f"{predicted} / {actual}" for predicted, actual in pairs]
    axs = show_images(own_colours(images, self.dls), titles=titles, **kwargs)
    for (predicted, actual), ax in zip(pairs, axs.flat, strict=False):
        ax.title.set_color("black" if predicted == actual else "red")
    return axs


class _TakeBatch(Callback):
    """Takes the first batch, when it is ready for the model, and ends the fit."""

    order = Order.STOP

    def before_batch(self, learn: Learner) -> None:
        self.taken = to_cpu(learn.batch)
        raise CancelFitException


def _training_batch(learn: Learner, cbs: Any) -> Any:
    take = _TakeBatch()
    with inner(learn, [*participants(learn), *as_callbacks(cbs), take]):
        learn.fit(1, valid=False, lr=1.0 if learn.lr is None else learn.lr)
        return take.taken


def _show_titled(batch: Any, dls: Any, max_n: int, kwargs: dict[str, Any]) -> np.ndarray:
    images = own_colours(pictures(batch)[:max_n], dls)
    return show_images(images, **{"titles": _titles(batch, dls, max_n), **kwargs})


def _titles(batch: Any, dls: Any, max_n: int) -> list[Any]:
    """Return the classes of the pictures, where the last tensor of the batch holds some."""
    numbers, names = list(tensors(batch))[-1][:max_n], class_names(dls)
    if numbers.dim() == 2 and names and numbers.shape[1] == len(names):  # several classes each
        return [", ".join(map(names.__getitem__, row.nonzero()[:, 0])) for row in numbers > 0]
    if numbers.dim() != 1 or numbers.is_floating_point():
        return []
    return [_title(i, names) for i in numbers.tolist()]


def _title(number: int, names: list[Any] | None) -> Any:
    if number < 0:  # no class
        return ""
    return names[number] if names else number


def pictures(batch: Any) -> Tensor:
    """Return the first tensor of a batch that is shaped like pictures."""
    found = [t for t in tensors(batch) if t.dim() in (3, 4)]
    if not found:
        raise ValueError(
            f"pictures have the shape (B, C, H, W) or (B, H, W), and the batch is {describe(batch)}"
        )
    return found[0]


def own_colours(images: Tensor, dls: Any) -> Tensor:
    """Undo the normalisation of pictures (B, C, H, W), as far as `dls` knows it."""
    mean, std = getattr(dls, "mean", None), getattr(dls, "std", None)
    if mean is not None and std is not None and images.dim() == 4 and images.shape[1] == len(mean):
        images = images * std.view(-1, 1, 1) + mean.view(-1, 1, 1)
    if images.is_floating_point() and images.shape[1] == 3:  # colours have no others to show
        images = images.clamp(0, 1)
    return images
