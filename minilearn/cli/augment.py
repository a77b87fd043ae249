"""Random changes of training pictures, `--aug.*`: ours for batches, torchvision's for pictures.

torchvision is imported where one of its changes is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from .kinds import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt

POLICIES = {
    "rand": "RandAugment",
    "trivial": "TrivialAugmentWide",
    "auto": "AutoAugment",
    "augmix": "AugMix",
}


@dataclass(frozen=True)
class Aug:
    """Random changes of the training pictures.

    Attributes:
        flip: how probable it is that left and right are swapped: 0.5
        shift: pixels that a picture is moved by at most
        erase: the side of rectangles filled with noise, as a share of the picture's: 0.2
        crop: cut out a part, at least so much of the area, and enlarge it: 0.35 (needs torchvision)
        jitter: how much brightness, contrast and saturation vary: 0.4 (needs torchvision)
        auto: a policy of changes (needs torchvision)
    """

    flip: ClosedUnitInterval = 0.0
    shift: NonNegativeInt = 0
    erase: ClosedUnitInterval = 0.0
    crop: ClosedUnitInterval | None = None
    jitter: NonNegativeFloat = 0.0
    auto: Literal["rand", "trivial", "auto", "augmix"] | None = None

    @property
    def of_torchvision(self) -> list[str]:
        """The changes asked for that need torchvision."""
        return [f"aug.{name}" for name in ("crop", "jitter", "auto") if getattr(self, name)]


def check_aug(aug: Aug) -> Iterator[str]:
    """Yield what is missing here for the changes that are asked for."""
    if names := aug.of_torchvision:
        try:
            import torchvision.transforms.v2  # noqa: F401
        except (ImportError, RuntimeError) as e:  # RuntimeError: it was built for another torch
            verb = "need" if len(names) > 1 else "needs"
            yield (
                f"{', '.join(names)} {verb} torchvision, which cannot be imported here: {e}; "
                "aug.flip, aug.shift and aug.erase do without"
            )


def picture_changes(aug: Aug, size: Any) -> Callable[[Any], Any] | None:
    """Return what changes a PIL image; None where nothing of torchvision is asked for."""
    return PictureChanges(aug, size) if aug.of_torchvision else None


class PictureChanges:
    """Changes of torchvision, in the usual order: crop, policy, colours.

    Args:
        aug: which.
        size: what a crop is enlarged to; None for the size that the picture had.
    """

    def __init__(self, aug: Aug, size: int | tuple[int, int] | None) -> None:
        from torchvision.transforms import v2

        self.size = (size, size) if isinstance(size, int) else size
        self.crop = partial(v2.RandomResizedCrop, scale=(aug.crop, 1.0)) if aug.crop else None
        changes = [getattr(v2, POLICIES[aug.auto])()] if aug.auto else []
        changes += [v2.ColorJitter(*[aug.jitter] * 3)] if aug.jitter else []
        self.rest = v2.Compose(changes) if changes else None

    def __call__(self, image: Any) -> Any:
        """Return a changed image."""
        if self.crop is not None:
            image = self.crop(self.size or image.size[::-1])(image)  # PIL: (W, H)
        return image if self.rest is None else self.rest(image)


def batch_changes(aug: Aug) -> list[Any]:
    """Return the callbacks that change whole training batches on their device."""
    from torch import nn

    from minilearn import BatchTransformCB, RandErase, RandomCrop, RandomFlip, tfm_batch

    changes = [RandomFlip(aug.flip)] if aug.flip else []
    changes += [RandomCrop(aug.shift)] if aug.shift else []
    changes += [RandErase(aug.erase, per_sample=True)] if aug.erase else []
    if not changes:
        return []
    return [BatchTransformCB(partial(tfm_batch, tfm_x=nn.Sequential(*changes)), on_val=False)]
