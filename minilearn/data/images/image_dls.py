"""Loaders of the images in a folder, an archive, a table or a data set: `image_dls`."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from minilearn.base.arguments import VALID_SPLITS
from minilearn.base.batch import default_device
from minilearn.base.foreign_names import known_keywords
from minilearn.base.text import few, whole

from ..hf_datasets import choose_splits
from ..loader_factory import Batching
from ..loaders import DataLoaders
from ..pipeline import Pipeline
from .errors import ErrorLog
from .find import find_images, split_of
from .hf_images import ImageStream
from .image_loaders import LoaderBuilder
from .labels import split_validation
from .listing import Columns

STREAM_WITHOUT_VALID = (
    "a stream cannot be divided, so there is no validation data; name a split in "
    'splits={"valid": ...}, or pass valid=0'
)

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
ROLES = ("train", "valid", "test")

log = logging.getLogger(__name__)


@known_keywords()
def image_dls(
    source: Any,
    bs: int = 64,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int = 3,
    resize: Literal["crop", "pad", "stretch"] = "crop",
    interpolation: Interpolation | None = None,
    crop_pct: float | None = None,
    decoder: Literal["pil", "draft", "torchvision"] = "pil",
    valid: float | list[str | int] | Callable[[str], bool] = 0.2,
    groups: str | Callable[[str], Any] | None = None,
    splits: dict[str, str | None] | None = None,
    seed: int = 42,
    paths: str | None = None,
    labels: str | Callable[[str], Any] | None = None,
    sep: str | None = None,
    classes: list[str] | str | Path | None = None,
    normalize: bool = True,
    mean: list[float] | None = None,
    std: list[float] | None = None,
    tfms: Callable[[Any], Any] | None = None,
    on_error: Literal["skip", "raise"] = "skip",
    max_errors: float = 0.1,
    memory_gb: float = 2.0,
    workers: int = 0,
    pin_memory: bool | None = None,
    collate_fn: Callable[[list], Any] | None = None,
    bs_valid: int | None = None,
    drop_last: bool = False,
    streaming: bool = False,
    device: str | None = None,
    pipeline: Pipeline | None = None,
) -> DataLoaders:
    """Make loaders of images, wherever they are.

    >>> dls = image_dls("images", 32, size=64)  # doctest: +SKIP
    >>> dls.summary()  # doctest: +SKIP

    Args:
        source: a folder of class folders, also below train, val and test; a flat folder, whose
            images have no class (target -1); a .tar or .zip archive, or a folder of archives
            (train-0001.tar); a .csv or .parquet table of paths and labels; a data set of the
            library `datasets`, a folder in which one was saved, or "hf:NAME"
        bs: images in a training batch
        size: height and width of all images; by default the most frequent size
        channels: 3 for colours, 1 for grey
        resize: how an image of another size is resized: "crop" fills the size and cuts what is
            too long, "pad" fits into it on white, "stretch" changes the proportions
        interpolation: how pixels are computed when an image is resized; by default bilinear
        crop_pct: with resize "crop", the fraction of the shorter side that is kept; by default 1
        decoder: "draft" decodes a JPEG that is much larger than `size` at 1/2, 1/4 or 1/8 of its
            size: up to 2.5 times as fast, and pixels differ by one or two of 255 levels on average.
            "torchvision" gives `tfms` tensors instead of PIL images
        valid: the fraction of the training images for validation, where no split is for that; a
            labelled split "test" is, where there is no other. Or which images they are: a function
            of the path, or a list of paths or row numbers
        groups: images of one group (a patient, a video) are all for training or all for validation:
            a column of a table or data set, or a function of the path
        splits: the splits for train, valid and test, where their names do not say it; None
            for none
        seed: of order, random transforms and the choice of validation images; each epoch over the
            loaders has an order of its own, in further fits too
        paths: the column of paths (or images) in a table or data set, if its name is unusual
        labels: the column of labels, likewise; "none" for images without labels. For files: a
            function of the path, or a pattern whose (group) in the file name is the label
        sep: separates several labels of one image; targets are then rows of 0 and 1
        classes: class names in the order of their numbers, or a file with a name a line; images of
            other classes are left out
        normalize: give images mean 0 and std 1; else they are in 0..1
        mean: of each channel, instead of that of the training images
        std: likewise
        tfms: transforms a training image, which is a PIL image of its original size, or a tensor
            (C, H, W) of uint8 with the decoder "torchvision"
        on_error: what happens to files that cannot be read: they are left out, or raise an error
        max_errors: the fraction of such files in a split that is an error in any case
        memory_gb: decoded images of up to this size are kept in memory; others are read anew in
            every epoch, and so are training images with `tfms`
        workers: processes that read images ahead where they are not kept in memory
        pin_memory: of batches that are read one by one; by default where the device is a GPU
        collate_fn: makes a batch of a list of (pixels (C, H, W), target): a tuple that begins with
            the pixels, which are normalised after it. Images are then not kept in memory
        bs_valid: images in a batch of the other loaders; by default twice as many
        drop_last: leave out a last training batch that is not full
        streaming: read "hf:NAME" as a stream, without downloading it first
        device: of the batches, where they are normalised; by default the best there is
        pipeline: of a trained model, `learn.dls.pipeline`, to predict other images: it sets size,
            channels, normalisation and classes

    Returns:
        Loaders of (images (B, C, H, W), targets), with `dls.filenames` by split,
        `dls.summary()`, `dls.pipeline` for predictions, and `dls.mean` and `dls.std`.

    Raises:
        FileNotFoundError: there is no such source.
        ValueError: it holds no images, or too many that cannot be read; a column, split or class
            does not exist.
    """
    if on_error not in ("skip", "raise"):
        raise ValueError(f"on_error is skip or raise, got {on_error!r}")
    if not 0 <= max_errors <= 1:
        raise ValueError(f"max_errors is a fraction of the images, 0 to 1: {max_errors}")
    if decoder == "torchvision" and tfms is None:
        raise ValueError('decoder="torchvision" gives tensors to tfms=, and there is none')
    if pipeline is None:
        if channels not in (1, 3):
            raise ValueError(f"channels is 3 for colours or 1 for grey, got {channels}")
        pair = (size, size) if isinstance(size, int) else size
        how = {"interpolation": interpolation or "bilinear", "crop_pct": crop_pct}
        pipeline = Pipeline(pair, resize, channels, mean, std, decoder=decoder, **how)
        normalize = normalize and mean is None
    else:
        normalize, classes = False, pipeline.classes if classes is None else classes
    where = default_device() if device is None else torch.device(device)
    workers = whole("workers", workers, least=0, of="processes")
    builder = LoaderBuilder(
        pipeline,
        tfms,
        partial(ErrorLog, on_error=on_error, max_errors=max_errors),
        where,
        Batching(whole("bs", bs, of="items"), bs_valid, drop_last, seed),
        reading={
            "num_workers": workers,
            "persistent_workers": workers > 0,
            "pin_memory": where.type == "cuda" if pin_memory is None else pin_memory,
            "collate_fn": collate_fn,
        },
    )
    found = find_images(source, Columns(paths, labels, sep, groups), streaming)
    by_user = not isinstance(valid, (int, float))
    if by_user and not callable(valid):
        valid = [one if isinstance(one, str) else whole("valid", one, least=0) for one in valid]
    roles = roles_of(found, ({"valid": None} if by_user else {}) | (splits or {}))
    unused = [name for name in found if name not in roles.values()]
    if unused and splits is None:
        warnings.warn(f"splits that are not used: {unused}; splits= names others", stacklevel=3)
    parts = {role: found[split] for role, split in roles.items()}
    test_is_valid = "test" in roles and roles["test"] == roles.get("valid")  # then it is read once
    if test_is_valid:
        del parts["test"]
    if any(isinstance(part, ImageStream) for part in parts.values()):
        if parts.keys() == {"train"} and valid and not splits:
            warnings.warn(STREAM_WITHOUT_VALID, stacklevel=3)
        dls = builder.from_streams(parts, classes, normalize)
    else:
        if "train" in parts and "valid" not in parts and valid and "valid" not in (splits or {}):
            train = parts["train"]
            by = [*map(groups, train.names)] if callable(groups) else train.groups
            rows = split_validation(train, valid, seed, by)
            parts |= dict(zip(("train", "valid"), map(train.pick, rows), strict=True))
            part = f"{len(rows[1]):,} images" if by_user else f"{valid:.0%}"
            roles["valid"] = f"{part} of {roles['train']}"
        dls = builder.from_items(parts, classes, normalize, memory_gb * 1e9)
    if test_is_valid:
        dls.test = copy.copy(dls.valid)
    names = dls.pipeline.classes if dls.pipeline is not None else None
    if sep is None and classes is None and names and len(names) == 1:
        warnings.warn(
            f"all images are of one class, {names[0]!r}: is the folder of another "
            "class empty or missing?",
            stacklevel=3,
        )
    dls.splits = roles
    log.info("%r", dls)
    return dls


def roles_of(found: Mapping[str, Any], wanted: Mapping[str, str | None] | None) -> dict[str, str]:
    """Choose the splits for `train`, `valid` and `test`.

    A labelled split "test" is also for validation where there is no other.

    Args:
        found: images by split.
        wanted: the user's choice for some or all of the three, in the spelling of the data or of
            the splits; None as a choice means none.

    Raises:
        ValueError: a split does not exist, or none has a known name.
    """
    wanted = {
        role: split_of(name or "") or name if name not in found else name
        for role, name in (wanted or {}).items()
    }
    wanted = ({} if "train" in found else {"train": None}) | wanted
    if unknown := wanted.keys() - ROLES:
        raise ValueError(f"splits= has the keys {', '.join(ROLES)}, got {few(list(unknown))}")
    if "valid" not in wanted:
        labelled = (name for name in VALID_SPLITS if name in found and found[name].labelled)
        wanted["valid"] = next(labelled, None)
    return choose_splits(found, wanted)
