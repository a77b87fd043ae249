"""Show images as the model gets them: `show_image_batch`, `show_batch`, `show_results`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.batch import to_cpu
from ..base.plotting import show_images
from ..callbacks.handlers import LambdaCB
from ..core.callback import as_callbacks
from ..core.events import CancelFitException, Order
from ..core.learner import Loop
from ..core.nested import inner, participants
from ..core.state import learner_of
from ..data.pipeline import class_names
from ..data.show_batch import GREY, images_of, own_colours, show_titled


def show_image_batch(self: Loop, max_n: int = 9, cbs: Any = None, **kwargs: Any) -> np.ndarray:
    """Show the images of a training batch as the model would get them.

    They are transformed; no training step is made, and nothing changes. If `dls` knows the mean and
    std that normalised the images, they are shown in their own colours.

    >>> learn.show_image_batch()

    Args:
        self: the Learner.
        max_n: how many images, at most.
        cbs: further callbacks.
        kwargs: go to `show_images`, such as `imsize`, `titles` or `cmap`.

    Returns:
        The array of axes.

    Raises:
        ValueError: the batch has no images.
    """
    images = images_of(_training_batch(self, cbs))[:max_n]
    return show_images(own_colours(images, self.dls), **{"cmap": GREY, **kwargs})


def show_batch(self: Loop, max_n: int = 9, cbs: Any = None, **kwargs: Any) -> np.ndarray:
    """Show the images of a training batch with their classes, as the model would get them.

    >>> learn.show_batch()

    Args:
        self: the Learner.
        max_n: how many images, at most.
        cbs: further callbacks.
        kwargs: go to `show_images`.
    """
    return show_titled(_training_batch(self, cbs), self.dls, max_n, kwargs)


def show_results(
    self: Loop, dl: Any = None, max_n: int = 9, cbs: Any = None, **kwargs: Any
) -> np.ndarray:
    """Show the first images of a data set as predicted / actual, wrong ones in red.

    >>> learn.show_results()

    Args:
        self: the Learner, of a classifier.
        dl: a loader or the name of one, as in `get_preds`.
        max_n: how many images, at most.
        cbs: further callbacks.
        kwargs: go to `show_images`.
    """
    found = next(learner_of(self).iter_preds(dl, with_inputs=True, decoded=True, cbs=cbs))
    images, targs, decided = images_of(found[0])[:max_n], found[2], found[3]
    names = class_names(self.dls)
    pairs = [
        tuple(names[i] if names else i for i in pair)
        for pair in zip(decided.tolist(), targs.tolist(), strict=True)
    ][:max_n]
    titles = [f"{predicted} / {actual}" for predicted, actual in pairs]
    axs = show_images(own_colours(images, self.dls), **{"titles": titles, "cmap": GREY, **kwargs})
    for (predicted, actual), ax in zip(pairs, axs.flat, strict=False):
        ax.title.set_color("black" if predicted == actual else "red")
    return axs


def _training_batch(learn: Loop, cbs: Any) -> Any:
    """Return a batch as `predict` would get it, on the CPU."""
    batches = []

    def keep(learn: Loop) -> None:
        batches.append(to_cpu(learn.batch))
        raise CancelFitException

    keeper = LambdaCB(before_batch=keep, order=Order.STOP)
    with inner(learn, [*participants(learn), *as_callbacks(cbs), keeper]):
        learn.fit(1, valid=False, lr=1.0 if learn.lr is None else learn.lr)
    return batches[0]
