"""From a folder, an archive, a table or a data set of pictures to loaders: `image_dls`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from minilearn.base.batch import default_device
from minilearn.base.text import whole

from ..columns import MissingKeyError
from ..hf_datasets import VALID_SPLITS, choose_splits
from ..loaders import DataLoaders
from ..pipeline import Pipeline
from .errors import Rule
from .find import find_pictures
from .hf_images import Streamed
from .items import Columns, shortened
from .labels import held_out
from .image_loaders import Making

NO_PART_OF_STREAM = (
    "a stream cannot be divided, so nothing is held out for validation; name a split in "
    'splits={"valid": ...}, or pass valid=0'
)

ROLES = ("train", "valid", "test")

log = logging.getLogger(__name__)


def image_dls(
    source: Any,
    bs: int = 64,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int = 3,
    resize: Literal["crop", "pad", "stretch"] = "crop",
    valid: float = 0.2,
    splits: dict[str, str | None] | None = None,
    seed: int = 42,
    paths: str | None = None,
    labels: str | None = None,
    sep: str | None = None,
    classes: list[str] | dict[str, str | int] | str | Path | None = None,
    normalize: bool = True,
    mean: list[float] | None = None,
    std: list[float] | None = None,
    tfms: Callable[[Any], Any] | None = None,
    on_error: Literal["skip", "raise", "replace"] = "skip",
    max_errors: float = 0.1,
    memory_gb: float = 2.0,
    workers: int = 0,
    bs_valid: int | None = None,
    drop_last: bool = False,
    streaming: bool = False,
    device: str | None = None,
    pipeline: Pipeline | None = None,
) -> DataLoaders:
    """Make loaders of pictures, wherever they are.

    Args:
        source: a folder of class folders, also below train, val and test; a flat folder, whose
            pictures have no class (target -1); a .tar or .zip archive, or a folder of such
            (train-0001.tar, cats.zip); a .csv or .parquet table of paths and labels; a data set of
            the library `datasets`, the folder in which one was saved, or "hf:NAME"
        bs: pictures in a training batch
        size: height and width that all pictures get; by default the size that most have
        channels: 3 for colours, 1 for grey
        resize: how a picture of another size gets there: "crop" fills the size and cuts what is
            too long, "pad" fits into it on white, "stretch" changes the proportions
        valid: the share of the training pictures held out where there is no split to validate on;
            a labelled split "test" is one, where there is no other
        splits: which split is for train, valid and test, where their names do not say it
        seed: of order, random transforms and the pictures held out
        paths: the column with paths (or pictures) in a table or data set, where it has an unusual
            name
        labels: the column of labels, likewise; "none" for pictures without
        sep: between several labels of one picture; targets are then rows of 0 and 1
        classes: names in the order of their numbers, or a map from names in the data to names or
            numbers, or a .txt (a name a line) or .json file of either; others are left out
        normalize: whether pictures get mean 0 and deviation 1; else they are of 0..1
        mean: per channel, instead of that of the training pictures
        std: the deviation, likewise
        tfms: changes a training picture, given as a PIL image of the size it is stored in
        on_error: what becomes of files that cannot be read: they are left out, end the run, or the
            next readable picture is taken in their place
        max_errors: the share of such files in a split that ends the run all the same
        memory_gb: pictures that take no more when decoded are kept in memory; others are read anew
            in every pass, and so are training pictures that `tfms` changes
        workers: processes that read pictures ahead where they are not kept in memory
        bs_valid: pictures in another batch; by default twice as many
        drop_last: leave out a last training batch that is not full
        streaming: read "hf:NAME" as a stream, without downloading it first
        device: where batches are normalised and given; by default the best there is
        pipeline: that of a trained model, `learn.dls.pipeline`, for pictures to predict: decides
            on size, channels, normalisation and classes

    Returns:
        Loaders of (pictures (B, C, H, W), targets), with `dls.filenames` by split,
        `dls.summary()`, `dls.pipeline` for predictions, and `dls.mean` and `dls.std`.

    Raises:
        FileNotFoundError: there is no such source.
        ValueError: it holds no pictures, or too many that cannot be read; a column, split or class
            does not exist.
    """
    if pipeline is None:
        pipeline = _pipeline(size, resize, channels, mean, std)
        measures = normalize and mean is None
    else:
        measures, classes = False, pipeline.classes if classes is None else classes
    workers = whole("workers", workers, least=0, of="processes")
    making = Making(
        pipeline,
        Rule(on_error, max_errors),
        tfms,
        seed,
        workers,
        default_device() if device is None else torch.device(device),
        {"train": bs, "valid": bs_valid or 2 * bs, "test": bs_valid or 2 * bs},
        drop_last,
    )
    found = find_pictures(source, Columns(paths, labels, sep), streaming)
    roles = roles_of(found, splits)
    unused = [name for name in found if name not in roles.values()]
    if unused and splits is None:
        warnings.warn(f"splits that are not used: {unused}; splits= names others", stacklevel=2)
    if any(isinstance(found[split], Streamed) for split in roles.values()):
        streams = {role: found[split] for role, split in roles.items()}
        if roles.keys() == {"train"} and valid and not splits:
            warnings.warn(NO_PART_OF_STREAM, stacklevel=2)
        dls = making.of_streams(streams, classes, measures)
    else:
        parts = {role: found[split] for role, split in roles.items()}
        if "train" in parts and "valid" not in parts and valid and "valid" not in (splits or {}):
            rows = held_out(parts["train"], valid, seed)
            parts |= dict(zip(("train", "valid"), map(parts["train"].pick, rows), strict=True))
            roles["valid"] = f"{valid:.0%} of {roles['train']}"
        dls = making.of_items(parts, classes, measures, memory_gb * 1e9)
    dls.splits = roles
    log.info("%r", dls)
    return dls


def _pipeline(
    size: Any, resize: str, channels: int, mean: list[float] | None, std: list[float] | None
) -> Pipeline:
    """Return the pipeline as far as the user says it.

    Raises:
        ValueError: a value is out of range; says which.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels is 3 for colours or 1 for grey, got {channels}")
    size = (size, size) if isinstance(size, int) else size
    if size is not None and not _is_size(size):
        raise ValueError(f"size is one number of pixels, or height and width, got {size}")
    for name, other, values in (("mean", "std", mean), ("std", "mean", std)):
        if values is None and (mean is not None or std is not None):
            raise ValueError(f"{other}= is given without {name}=; normalising takes both")
        if values is not None and len(values) != channels:
            raise ValueError(f"{name} has a value for each of {channels} channels, got {values}")
    return Pipeline(size, resize, channels, mean, std)


def _is_size(size: Any) -> bool:
    numbers = isinstance(size, (tuple, list)) and all(isinstance(n, int) for n in size)
    return numbers and len(size) == 2 and min(size) >= 1


def roles_of(found: Mapping[str, Any], wanted: Mapping[str, str | None] | None) -> dict[str, str]:
    """Choose which split is for `train`, `valid` and `test`.

    A labelled split "test" also serves validation where there is no other.

    Args:
        found: pictures by split.
        wanted: the user's choice for some or all of the three; None as a choice means none.

    Raises:
        ValueError: a split does not exist, or none has a known name.
    """
    wanted = dict(wanted or {})
    if unknown := wanted.keys() - ROLES:
        raise ValueError(f"splits= has the keys {', '.join(ROLES)}, got {shortened(list(unknown))}")
    if "valid" not in wanted:
        labelled = (name for name in VALID_SPLITS if name in found and found[name].labelled)
        wanted["valid"] = next(labelled, None)
    if "train" in found or wanted.get("train"):
        try:
            return choose_splits(found, wanted)
        except MissingKeyError as e:
            raise ValueError(str(e)) from None
    named = {"valid": wanted["valid"], "test": wanted.get("test", "test")}
    roles = {role: name for role, name in named.items() if name is not None and name in found}
    if not roles:
        raise ValueError(
            f"no split is called train, valid or test; there are {list(found)}. Name them in "
            'splits={"train": ..., "valid": ...}'
        )
    return roles
