"""Images in Hugging Face data sets, map-style or streamed."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from ..columns import is_image
from ..hf_datasets import has_own_format, is_hub_dataset
from .listing import Columns, Items, read_file

SAVED = ("dataset_dict.json", "state.json")  # files that save_to_disk writes


def is_saved(folder: Path) -> bool:
    """Return whether `save_to_disk` of the library `datasets` wrote this folder."""
    return any((folder / name).is_file() for name in SAVED)


def load_hub(name: str | os.PathLike, streaming: bool = False) -> Any:
    """Load a folder of `save_to_disk`, or "name" or "name:config" from the hub."""
    import datasets

    if not isinstance(name, str):
        return datasets.load_from_disk(str(name))
    load: Any = datasets.load_dataset  # its overloads tell True from False, and take no bool
    return load(*name.split(":", 1), streaming=streaming)


def from_hub(source: Any, columns: Columns, table: Path | None = None) -> dict[str, Any]:
    """Return `Items`, or an `ImageStream`, by split.

    Args:
        source: a data set, or a dict of some by split.
        columns: those that the user named.
        table: the file that a data set was read from; its paths are relative to it.

    Raises:
        TypeError: this is no data set of `datasets`.
        ValueError: it has no column of images, or a transform of its own.
    """
    by_split = dict(source) if isinstance(source, Mapping) else {"": source}
    return {name: _images(ds, name, columns, table) for name, ds in by_split.items()}


def _images(ds: Any, split: str, columns: Columns, table: Path | None) -> Any:
    if isinstance(ds, IterableDataset) and hasattr(ds, "cast_column"):
        return ImageStream(ds, columns)
    if not is_hub_dataset(ds):
        raise TypeError(
            f"a source of images is a path, or one or a dict of Hugging Face data sets, got "
            f"{type(ds).__name__}; DataLoaders.from_dsets takes other data sets"
        )
    if has_own_format(ds):
        raise ValueError(
            "the data set has a format or transform of its own, so it decides what an item is; use "
            "DataLoaders.from_dd, or take it off by ds.with_format(None) and give tfms="
        )
    return _items(ds, split, columns, table)


def _items(ds: Any, split: str, columns: Columns, table: Path | None) -> Items:
    key, label = image_columns(ds.features, columns)
    raw, feature = _undecoded(ds, key), ds.features[key]
    # of images the paths alone, not the bytes beside them
    stored = _column(raw.flatten(), f"{key}.path") if is_image(feature) else _column(raw, key)
    names = [stored_path(value) or f"{split or 'row'}[{row}]" for row, value in enumerate(stored)]
    refs, fetch = list(range(len(ds))), partial(read_row, raw, key)
    if getattr(feature, "dtype", None) in ("string", "large_string"):
        if table and not all(stored):
            row = next(row for row, path in enumerate(stored) if not path)
            raise ValueError(f"{table} has no path in row {row + 1}, column {key!r}")
        folder = table.parent if table else ""
        refs, fetch = (
            [path and _located(os.path.join(folder, path)) for path in stored],
            image_bytes,
        )
    classes = class_names_of(ds.features.get(label))
    values = named(_column(ds, label), classes)
    labels = amounts([*map(columns.label, names, values)], classes)
    group = columns.find("groups", list(ds.features))
    return Items(names, refs, labels, fetch, classes, _column(ds, group) if group else None)


def _located(path: str) -> str:
    """Return a path that a program on Windows may have written."""
    return path if "\\" not in path or os.path.exists(path) else path.replace("\\", "/")


def _column(ds: Any, name: str | None) -> list[Any]:
    return ds.select_columns([name])[:][name] if name else [None] * len(ds)


def amounts(labels: list[Any], classes: list[str] | None) -> list[Any]:
    """Return texts that are numbers, not all of them whole, as floats; other labels as they are."""
    try:
        numbers = [None if x is None else float(x) for x in labels]
    except (TypeError, ValueError):
        return labels
    fractions = any(x is not None and x % 1 > 0 for x in numbers)  # of nan and inf, % 1 is nan
    return numbers if fractions and classes is None else labels


def image_columns(features: Mapping[str, Any], columns: Columns) -> tuple[Any, str | None]:
    """Return the column of images and the column of labels, if there is one.

    Raises:
        ValueError: no column holds images.
    """
    images = [name for name, feature in features.items() if is_image(feature)]
    key = images[0] if len(images) == 1 and not columns.paths else None
    key = key or columns.find("paths", list(features))
    return key, columns.find("labels", [name for name in features if name != key])


def class_names_of(feature: Any) -> list[str] | None:
    """Return the names in a ClassLabel, or in a list of such."""
    feature = getattr(feature, "feature", feature)
    return list(feature.names) if hasattr(feature, "names") else None


def named(value: Any, classes: list[str] | None) -> Any:
    """Return the name of a label, or of each in a list; None for -1."""
    if isinstance(value, list):
        return [named(one, classes) for one in value]
    if classes is None or value is None:
        return value
    return classes[value] if value >= 0 else None


def _undecoded(ds: Any, key: str) -> Any:
    if not is_image(ds.features[key]):
        return ds
    from datasets import Image

    return ds.cast_column(key, Image(decode=False))


def stored_path(value: Any) -> str | None:
    """Return the path in the value of a column of images or paths, None where it has none."""
    path = value.get("path") if isinstance(value, Mapping) else value
    return path if isinstance(path, str) else None


def read_row(ds: Any, key: str, row: int) -> bytes:
    """Return the bytes of an image in a map-style data set."""
    return image_bytes(ds[row][key])


def image_bytes(value: Any) -> bytes:
    """Return the bytes of an image from the value of a column of images or paths.

    Raises:
        OSError: there is none, or the file does not exist.
    """
    if isinstance(value, Mapping):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if value is None:
        raise OSError("there is no image in this row")
    return value if isinstance(value, bytes) else read_file(value)


class ImageStream:
    """A stream of undecoded images, with its columns of images and labels."""

    def __init__(self, ds: Any, columns: Columns) -> None:
        if ds.features is None:  # it has no declared types: the first row tells them
            from datasets import Dataset

            ds = ds.cast(Dataset.from_list(list(ds.take(1))).features)
        self.columns = columns
        self.key, self.label = image_columns(ds.features, columns)
        self.classes = class_names_of(ds.features.get(self.label))
        self.ds = _undecoded(ds, self.key)

    def shuffled(self, seed: int, buffer: int) -> ImageStream:
        """Return the stream in a new order in each epoch, shuffled within a buffer."""
        other = copy.copy(self)
        other.ds = self.ds.shuffle(seed=seed, buffer_size=buffer)
        return other

    @property
    def labelled(self) -> bool:
        """Whether a column or a function gives the labels."""
        return self.label is not None or callable(self.columns.labels)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield the stored value and the label of each image."""
        for row in self.ds:
            label = named(row[self.label], self.classes) if self.label else None
            yield row[self.key], self.columns.label(stored_path(row[self.key]) or "", label)
