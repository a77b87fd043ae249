"""Augmentation of training images, `--aug.*`: ours for batches, torchvision's for single images.

torchvision is imported only where one of its transforms is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from .values import BadInput, ClosedUnitInterval, NonNegativeFloat, NonNegativeInt

POLICIES = {
    "rand": "RandAugment",
    "trivial": "TrivialAugmentWide",
    "auto": "AutoAugment",
    "augmix": "AugMix",
}


@dataclass(frozen=True)
class Aug:
    """Augmentation.

    Attributes:
        flip: probability of a horizontal flip: 0.5
        shift: largest translation, in pixels
        erase: side of rectangles filled with noise, as a fraction of the image's: 0.2
        crop: smallest area of a random crop, which is then resized: 0.35 (needs torchvision)
        jitter: strength of changes in brightness, contrast and saturation: 0.4 (needs torchvision)
        auto: a policy (needs torchvision)
    """

    flip: ClosedUnitInterval = 0.0
    shift: NonNegativeInt = 0
    erase: ClosedUnitInterval = 0.0
    crop: ClosedUnitInterval | None = None
    jitter: NonNegativeFloat = 0.0
    auto: Literal["rand", "trivial", "auto", "augmix"] | None = None


def image_transform(aug: Aug, size: Any) -> Callable[[Any], Any] | None:
    """Return a transform of PIL images; None where nothing of torchvision is asked for.

    Raises:
        BadInput: torchvision cannot be imported.
    """
    names = [f"aug.{name}" for name in ("crop", "jitter", "auto") if getattr(aug, name)]
    if not names:
        return None
    try:
        return ImageTransform(aug, size)
    except (ImportError, RuntimeError) as e:  # RuntimeError: it was built for another torch
        raise BadInput(
            f"torchvision cannot be imported here, for {', '.join(names)}: {e}; "
            "aug.flip, aug.shift and aug.erase do without"
        ) from e


class ImageTransform:
    """Transforms of torchvision, in the usual order: crop, policy, colours.

    Args:
        aug: which.
        size: of a crop after resizing; None for the size of the image.
    """

    def __init__(self, aug: Aug, size: int | tuple[int, int] | None) -> None:
        from torchvision.transforms import v2

        self.size = (size, size) if isinstance(size, int) else size
        self.crop = partial(v2.RandomResizedCrop, scale=(aug.crop, 1.0)) if aug.crop else None
        transforms = [getattr(v2, POLICIES[aug.auto])()] if aug.auto else []
        transforms += [v2.ColorJitter(*[aug.jitter] * 3)] if aug.jitter else []
        self.rest = v2.Compose(transforms) if transforms else None

    def __call__(self, image: Any) -> Any:
        """Return a transformed image: a PIL image, or a tensor (C, H, W)."""
        if self.crop is not None:
            shape = image.shape[1:] if hasattr(image, "shape") else image.size[::-1]  # PIL: (W, H)
            image = self.crop(self.size or tuple(shape))(image)
        return image if self.rest is None else self.rest(image)


def batch_augmentation(aug: Aug) -> list[Any]:
    """Return the callbacks that augment whole training batches on their device."""
    from minilearn import AugmentCB, RandErase, RandomCrop, RandomFlip

    transforms = [RandomFlip(aug.flip)] if aug.flip else []
    transforms += [RandomCrop(aug.shift)] if aug.shift else []
    transforms += [RandErase(aug.erase, per_sample=True)] if aug.erase else []
    return [AugmentCB(*transforms)] if transforms else []
