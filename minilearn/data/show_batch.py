"""Show the images of a batch in their original colours, with their classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..base.batch import describe, tensors, to_cpu
from ..base.plotting import show_images
from ..base.seed import preserved_random_states
from ..core.position import own_copy, undo_position
from ..core.stream import check_loader
from .pipeline import class_names

if TYPE_CHECKING:
    import numpy as np

GREY = "gray"  # matplotlib's name for the colours of images with one channel


def first_batch(dl: Any) -> Any:
    """Return the first batch of a loader, on the CPU; loader and random states do not change."""
    check_loader(dl, True)
    undo = undo_position(dl)
    with preserved_random_states():
        batch = to_cpu(next(iter(own_copy(dl))))
    undo()
    return batch


def show_titled(batch: Any, dls: Any, max_n: int, kwargs: dict[str, Any]) -> np.ndarray:
    """Show the images of a batch, titled with their classes where `dls` knows them."""
    images = own_colours(images_of(batch)[:max_n], dls)
    return show_images(images, **{"titles": _titles(batch, dls, max_n), "cmap": GREY, **kwargs})


def _titles(batch: Any, dls: Any, max_n: int) -> list[Any]:
    """Return the classes of the images, where the last tensor of the batch holds them."""
    numbers, names = list(tensors(batch))[-1][:max_n], class_names(dls)
    if numbers.dim() == 2 and names and numbers.shape[1] == len(names):  # several classes each
        return [", ".join(map(names.__getitem__, row.nonzero()[:, 0])) for row in numbers > 0]
    if numbers.dim() != 1 or numbers.is_floating_point():
        return []
    return ["" if i < 0 else names[i] if names else i for i in numbers.tolist()]  # -1: no class


def images_of(batch: Any) -> Tensor:
    """Return the first tensor of a batch that is shaped like images."""
    found = [t for t in tensors(batch) if t.dim() in (3, 4)]
    if not found:
        raise ValueError(
            f"images have the shape (B, C, H, W) or (B, H, W), and the batch is {describe(batch)}"
        )
    return found[0]


def own_colours(images: Tensor, dls: Any) -> Tensor:
    """Undo the normalisation of images (B, C, H, W), where `dls` knows it."""
    mean, std = getattr(dls, "mean", None), getattr(dls, "std", None)
    if mean is not None and std is not None and images.dim() == 4 and images.shape[1] == len(mean):
        images = images * std.view(-1, 1, 1) + mean.view(-1, 1, 1)
    if images.is_floating_point() and images.shape[1] == 3:  # matplotlib warns of others
        images = images.clamp(0, 1)
    return images
