"""Prepare items for the model in the same way in training and prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..base.text import few
from .decode import as_mode, open_image, own_channels, to_tensor

if TYPE_CHECKING:
    from PIL.Image import Image

RESIZES = ("crop", "pad", "stretch")
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
DECODERS = ("pil", "draft", "torchvision")
KNOWN = {"resize": RESIZES, "interpolation": INTERPOLATIONS, "decoder": DECODERS}
GAP = 2  # decoder "draft" gives images of at least twice the size that they are resized to


@dataclass(frozen=True)
class Pipeline:
    """The preparation of images and the class names, as data that JSON can hold.

    `DataLoaders.from_dd` sets `dls.pipeline` and scales its batches by it; `infer`, `export`,
    `load_learner` and `minilearn predict` use the same object. Set it yourself where a function of
    yours prepares the data: `dls.pipeline = Pipeline((28, 28), channels=1, classes=names)`.

    >>> pipeline = Pipeline(size=(28, 28), channels=1, classes=["cat", "dog"])

    Args:
        size: (H, W) of an image; None to leave images as large as they are.
        resize: how an image of another size is resized: "crop" fills the size and cuts what is too
            long, "pad" fits into it on white, "stretch" changes the proportions.
        channels: 1 for grey, 3 for RGB; None where items need no preparation.
        mean: of each channel, on the scale 0..1; it is subtracted. None for images of 0..1.
        std: likewise; images are divided by it. A constant channel is only shifted.
        classes: the class names.
        interpolation: how pixels are computed when an image is resized.
        crop_pct: with "crop", the fraction of the shorter side that is kept, as timm does it: the
            shorter side is resized to size / crop_pct and the centre is cut out. None for 1, cut
            and resized in one step.
        decoder: "pil"; "draft" decodes a JPEG that is much larger than `size` at a fraction of its
            size, which is faster and changes pixels by one or two of 255 levels on average;
            "torchvision" decodes training images into tensors for `tfms` of `image_dls`, and else
            is "pil".

    Raises:
        ValueError: a value is unknown or out of range, or mean is given without std.
    """

    size: tuple[int, int] | None = None
    resize: str = "crop"
    channels: int | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    classes: list[Any] | None = None
    interpolation: str = "bilinear"
    crop_pct: float | None = None
    decoder: str = "pil"

    def __post_init__(self) -> None:
        for name, known in KNOWN.items():
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}, got {value!r}")
        if self.crop_pct is not None and not 0 < self.crop_pct <= 1:
            raise ValueError(f"crop_pct is a fraction of the image, above 0 to 1: {self.crop_pct}")
        if (self.mean is None) != (self.std is None):
            raise ValueError(f"mean and std go together, got mean={self.mean} and std={self.std}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and self.channels not in (None, len(values)):
                raise ValueError(
                    f"{name} has a value for each of {self.channels} channels, got {values}"
                )
        size = self.size
        if size is not None:
            numbers = isinstance(size, (tuple, list)) and all(isinstance(n, int) for n in size)
            if not numbers or len(size) != 2 or min(size) < 1:
                raise ValueError(f"size is one number of pixels, or height and width, got {size}")
            object.__setattr__(self, "size", tuple(size))  # JSON gives a list

    def __call__(self, item: Any) -> Any:
        """Return an item as the model's input, without the batch dimension.

        Args:
            item: an image (path, bytes, open file, PIL image), or its pixels as uint8, a tensor
                (C, H, W) or an array (H, W, C), both also (H, W). All else is returned unchanged.

        Raises:
            ValueError: an image is given, and no number of channels is set.
        """
        if self.channels is None and (isinstance(item, Path) or hasattr(item, "getbands")):
            raise ValueError(
                "nothing says how an image is prepared for this model; set dls.pipeline = "
                "Pipeline((H, W), channels=...), with mean and std where it was normalised"
            )
        if self.channels is None or not _to_prepare(item):
            return item
        return self.scale(self.pixels(item)[None])[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the model's input.

        Raises:
            ValueError: size or channels is not set.
        """
        if self.channels is None or self.size is None:
            raise ValueError(f"the pipeline says no size or number of channels: {self}")
        return self.channels, *self.size

    @property
    def reading(self) -> dict[str, Any]:
        """How pixels come about: what checkpoints compare and runs record."""
        names = ("size", "channels", *KNOWN, "crop_pct")
        return {name: getattr(self, name) for name in names}

    def pixels(self, item: Any) -> Tensor:
        """Return an image as uint8 of shape (C, H, W), in the model's size and channels.

        Args:
            item: an image or its pixels, see `__call__`.
        """
        image = _as_image(item, self._scale_of if self.decoder == "draft" else None)
        return to_tensor(self._resized(as_mode(image, self.channels or own_channels(image))))

    def scale(self, images: Tensor) -> Tensor:
        """Return floats, normalised, for images (B, C, H, W) of uint8, or of floats of 0..1."""
        scaled = images.clone() if images.is_floating_point() else images.float().div_(255)
        if self.mean is None:
            return scaled
        if scaled.device not in self._stats:
            mean, std = torch.tensor([self.mean, self.std], device=scaled.device)[..., None, None]
            self._stats[scaled.device] = mean, torch.where(std > 0, std, 1.0)
        mean, std = self._stats[scaled.device]
        return scaled.sub_(mean).div_(std)

    @cached_property
    def _stats(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        """Mean and std by device, two of shape (C, 1, 1)."""
        return {}

    def _scale_of(self, height: int, width: int) -> float:
        """Return the scale at which an image is still `GAP` times as large as it has to be."""
        wanted_height, wanted_width = self.size or (height, width)
        return GAP * max(wanted_height / height, wanted_width / width) / (self.crop_pct or 1)

    def _resized(self, image: Image) -> Image:
        from PIL import Image, ImageOps

        height, width = self.size or (image.height, image.width)
        size, how = (width, height), getattr(Image.Resampling, self.interpolation.upper())
        if self.resize == "crop" and self.crop_pct:
            # rounded as by timm: the side that is cut less gives the scale
            across, down = (math.floor(n / self.crop_pct) for n in size)
            if down * image.width >= across * image.height:
                across = down * image.width // image.height
            else:
                down = across * image.height // image.width
            left, top = round((across - width) / 2), round((down - height) / 2)
            return image.resize((across, down), how).crop((left, top, left + width, top + height))
        if size == image.size:
            return image
        if self.resize == "stretch":
            return image.resize(size, how)
        if self.resize == "crop":
            return ImageOps.fit(image, size, how)
        return ImageOps.pad(image, size, how, color="white")


def _to_prepare(item: Any) -> bool:
    """Return whether `item` is an image, or pixels of 8 bits."""
    is_file = isinstance(item, (str, Path, bytes)) or hasattr(item, "read")
    return is_file or hasattr(item, "getbands") or str(getattr(item, "dtype", "")).endswith("uint8")


def _as_image(item: Any, scale_of: Any = None) -> Image:
    if not hasattr(item, "dtype"):
        return open_image(item, scale_of)
    from PIL import Image

    if isinstance(item, Tensor) and item.dim() == 3:
        item = item.permute(1, 2, 0)  # (C, H, W) -> (H, W, C)
    pixels = item.cpu().numpy() if isinstance(item, Tensor) else item
    return Image.fromarray(pixels.squeeze(-1) if pixels.shape[2:] == (1,) else pixels)


def names_of(features: Any) -> list[str] | None:
    """Return the class names of a data set whose features have one column of classes."""
    found = [feature.names for feature in (features or {}).values() if hasattr(feature, "names")]
    return list(found[0]) if len(found) == 1 else None


def check_outputs(outputs: Any, names: list[Any] | None) -> None:
    """See that a classifier's outputs (B, K, ...) are one for each class; a single one may do, too.

    Raises:
        ValueError: says how many classes there are.
    """
    several = isinstance(outputs, Tensor) and outputs.dim() > 1 and outputs.size(1) > 1
    if names and several and outputs.size(1) != len(names):
        raise ValueError(
            f"the model has {outputs.size(1)} outputs, and the data have {len(names)} classes "
            f"({few(names)}): make a model with len(dls.pipeline.classes) outputs"
        )


def class_names(dls: Any) -> list[Any] | None:
    """Return the class names of the pipeline, else of a loader's data set."""
    if getattr(dls, "pipeline", None) is not None:
        return dls.pipeline.classes
    loaders = (getattr(dls, name, None) for name in ("train", "valid"))
    features = (getattr(getattr(dl, "dataset", None), "features", None) for dl in loaders)
    return next((names for f in features if hasattr(f, "values") and (names := names_of(f))), None)
