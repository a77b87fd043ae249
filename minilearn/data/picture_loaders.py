"""From a folder, an archive, a table or a data set of pictures to loaders: `image_dls`.

Stands on sources, pictures, labels and loaders.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from .loaders import DataLoaders


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
) -> DataLoaders:
    """Make loaders of pictures, wherever they are.

    Args:
        source: a folder of class folders, also below train, val and test; a flat folder, whose
            pictures have no class (target -1); a .tar or .zip archive or a folder of such; a .csv
            or .parquet table of paths and labels; a data set of the library `datasets`, the folder
            in which one was saved, or "hf:NAME"
        bs: pictures in a training batch
        size: height and width that all pictures get; by default the size that most have
        channels: 3 for colours, 1 for grey
        resize: how a picture of another size gets there: "crop" fills the size and cuts what is
            too long, "pad" fits into it on white, "stretch" changes the proportions
        valid: the share of the training pictures held out where there is no split to validate on
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

    Returns:
        Loaders of (pictures (B, C, H, W), targets), with `dls.filenames` by split,
        `dls.summary()`, `dls.pipeline` for predictions, and `dls.mean` and `dls.std`.

    Raises:
        FileNotFoundError: there is no such source.
        ValueError: it holds no pictures, or too many that cannot be read; a column, split or class
            does not exist.
    """
    raise NotImplementedError
