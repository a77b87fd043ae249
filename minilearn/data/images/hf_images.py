"""Pictures in data sets of the library `datasets`, map-style or streamed."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from ..columns import is_picture
from ..hf_datasets import has_own_format, is_hub_dataset
from .archives import not_empty
from .items import Columns, Items, read_file

SAVED = ("dataset_dict.json", "state.json")  # what save_to_disk leaves in a folder


def is_saved(folder: Path) -> bool:
    """Tell whether `save_to_disk` of the library `datasets` wrote this folder."""
    return any((folder / name).is_file() for name in SAVED)


def load_hub(name: str | os.PathLike, streaming: bool = False) -> Any:
    """Load what stands in a folder of `save_to_disk`, or on the hub as "name" or "name:config"."""
    import datasets

    if not isinstance(name, str):
        return datasets.load_from_disk(str(name))
    load: Any = datasets.load_dataset  # its overloads tell True from False, and take no bool
    return load(*name.split(":", 1), streaming=streaming)


def from_hub(source: Any, columns: Columns) -> dict[str, Any]:
    """Return `Items`, or `Streamed` pictures, by split.

    Raises:
        TypeError: this is no data set of `datasets`.
        ValueError: it has no column of pictures, or a transform of its own.
    """
    by_split = dict(source) if isinstance(source, Mapping) else {"": source}
    found = {name: _found_in(ds, name, columns) for name, ds in by_split.items()}
    if "" in found:
        found = {"train" if found[""].labelled else "test": found[""]}
    return found


def _found_in(ds: Any, split: str, columns: Columns) -> Any:
    if isinstance(ds, IterableDataset) and hasattr(ds, "cast_column"):
        return Streamed(ds, columns)
    if not is_hub_dataset(ds):
        raise TypeError(
            f"a source of pictures is a path, or one or a dict of Hugging Face data sets, got "
            f"{type(ds).__name__}; DataLoaders.from_dsets takes other data sets"
        )
    if has_own_format(ds):
        raise ValueError(
            "the data set has a format or transform of its own, so it decides what an item is; use "
            "DataLoaders.from_dd, or take it off by ds.with_format(None) and give tfms="
        )
    return _items(ds, split, columns)


def _items(ds: Any, split: str, columns: Columns) -> Items:
    key, label = picture_columns(ds.features, columns)
    raw = _undecoded(ds, key)
    paths = raw.select_columns([key])
    if is_picture(ds.features[key]):  # the paths alone, not the bytes beside them
        paths = paths.flatten().select_columns([f"{key}.path"])
    found = paths[:][paths.column_names[0]]
    names = [_path_in(value) or f"{split or 'row'}[{row}]" for row, value in enumerate(found)]
    values = ds.select_columns([label])[:][label] if label else [None] * len(ds)
    classes = class_names_of(ds.features.get(label))
    labels = [columns.several(named(value, classes)) for value in values]
    return Items(names, list(range(len(ds))), labels, Rows(raw, key), classes)


def picture_columns(features: Mapping[str, Any], columns: Columns) -> tuple[str, str | None]:
    """Return the column of pictures and that of labels, if there is one.

    Raises:
        ValueError: no column holds pictures.
    """
    pictures = [name for name, feature in features.items() if is_picture(feature)]
    key = pictures[0] if len(pictures) == 1 and not columns.paths else None
    key = key or columns.find_paths(list(features))
    return key, columns.find_labels([name for name in features if name != key])


def class_names_of(feature: Any) -> list[str] | None:
    """Return the names in a ClassLabel, or in a list of such."""
    feature = getattr(feature, "feature", feature)
    return list(feature.names) if hasattr(feature, "names") else None


def named(value: Any, classes: list[str] | None) -> Any:
    """Return a label by name: of a number, of each number in a list, None for -1."""
    if isinstance(value, list):
        return [named(one, classes) for one in value]
    if classes is None or value is None:
        return value
    return classes[value] if value >= 0 else None


def _undecoded(ds: Any, key: str) -> Any:
    if not is_picture(ds.features[key]):
        return ds
    from datasets import Image

    return ds.cast_column(key, Image(decode=False))


def _path_in(value: Any) -> str | None:
    path = value.get("path") if isinstance(value, Mapping) else value
    return path if isinstance(path, str) else None


class Rows:
    """Read the pictures of a map-style data set by row."""

    def __init__(self, ds: Any, key: str) -> None:
        self.ds, self.key = ds, key

    def __call__(self, row: int) -> bytes:
        """Return the bytes of a picture."""
        return stored(self.ds[row][self.key])


def stored(value: Any) -> bytes:
    """Return the bytes of what a column of pictures or of paths holds.

    Raises:
        OSError: it holds nothing, or the file is not there.
    """
    if isinstance(value, Mapping):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if value is None:
        raise OSError("there is no picture in this row")
    return not_empty(value) if isinstance(value, bytes) else read_file(value)


class Streamed:
    """A stream of pictures, undecoded, and which columns hold what."""

    def __init__(self, ds: Any, columns: Columns) -> None:
        features = ds.features
        if features is None:  # known when the first rows were read
            features = ds._resolve_features().features
        self.columns = columns
        self.key, self.label = picture_columns(features, columns)
        self.classes = class_names_of(features.get(self.label))
        self.ds = _undecoded(ds if ds.features else ds.cast(features), self.key)

    def shuffled(self, seed: int, buffer: int) -> Streamed:
        """Return the stream in another order in each epoch, as far as a buffer allows."""
        other = copy.copy(self)
        other.ds = self.ds.shuffle(seed=seed, buffer_size=buffer)
        return other

    @property
    def labelled(self) -> bool:
        """Whether there is a column of labels."""
        return self.label is not None

    def __iter__(self) -> Any:
        """Yield the stored value and the label of each picture."""
        for row in self.ds:
            label = named(row[self.label], self.classes) if self.label else None
            yield row[self.key], self.columns.several(label)
