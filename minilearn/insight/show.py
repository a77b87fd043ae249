"""See what the model sees: `learn.show_image_batch`.

Stands on core and plotting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastcore.basics import patch
from torch import Tensor

from minilearn.core.batch import describe, tensors, to_cpu
from minilearn.core.callback import Callback, as_callbacks
from minilearn.core.events import Order
from minilearn.core.exceptions import CancelFitException
from minilearn.core.learner import Learner
from minilearn.core.scope import inner, participants

from .plotting import show_images

if TYPE_CHECKING:
    import numpy as np

    from minilearn.data.loaders import DataLoaders


@patch
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
    images = _pictures(_training_batch(self, cbs))[:max_n]
    return show_images(_own_colours(images, self.dls), **kwargs)


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


def _pictures(batch: Any) -> Tensor:
    """Return the first tensor of a batch that is shaped like pictures."""
    found = [t for t in tensors(batch) if t.dim() in (3, 4)]
    if not found:
        raise ValueError(
            f"pictures have the shape (B, C, H, W) or (B, H, W), and the batch is {describe(batch)}"
        )
    return found[0]


def _own_colours(images: Tensor, dls: DataLoaders) -> Tensor:
    mean, std = getattr(dls, "mean", None), getattr(dls, "std", None)
    if mean is not None and std is not None and images.dim() == 4 and images.shape[1] == len(mean):
        images = images * std.view(-1, 1, 1) + mean.view(-1, 1, 1)
    if images.is_floating_point() and images.shape[1] == 3:  # colours have no others to show
        images = images.clamp(0, 1)
    return images
