"""Images that were found and not read yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minilearn.base.text import did_you_mean

from .archives import not_empty

SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".tga", ".avif"),
)
PATHS = ("path", "file_name", "filename", "file", "filepath", "file_path", "image_path", "image")
PATHS += ("img", "picture", "jpg", "png", "image_id")
LABELS = ("label", "labels", "class", "classes", "target", "category", "tags", "fine_label", "cls")


@dataclass(frozen=True)
class Columns:
    """The columns of a table or data set that the user named.

    Args:
        paths: the column of images or their paths.
        labels: the column of labels, "none" for none.
        sep: separates several labels of one image.
    """

    paths: str | None = None
    labels: str | None = None
    sep: str | None = None

    def find_paths(self, names: Sequence[str]) -> str:
        """Return the column of images.

        Raises:
            ValueError: there is none.
        """
        found = self.paths or _first(PATHS, names)
        return _existing(found, names, "of images or their paths", "paths")

    def find_labels(self, names: Sequence[str]) -> str | None:
        """Return the column of labels, None where there is none.

        Raises:
            ValueError: the column that the user named does not exist.
        """
        if self.labels == "none":
            return None
        if self.labels is None:
            return _first(LABELS, names)
        return _existing(self.labels, names, "of labels", "labels")

    def several(self, label: Any) -> Any:
        """Return a label, or a list where one text holds several."""
        if self.sep is None or label is None or isinstance(label, list):
            return label
        return [part for text in str(label).split(self.sep) if (part := text.strip())]


def _first(wanted: Sequence[str], names: Sequence[str]) -> str | None:
    by_lower = {name.lower().strip(): name for name in reversed(names)}
    return next((by_lower[name] for name in wanted if name in by_lower), None)


def _existing(name: str | None, names: Sequence[str], what: str, option: str) -> str:
    if name is not None and name in names:
        return name
    hint = did_you_mean(name or "", names, n=1) or f"; name one in {option}="
    unknown = f" {name!r}" if name else ""
    raise ValueError(f"no column{unknown} {what}; there are {list(names)}{hint}")


@dataclass(frozen=True)
class Items:
    """The images of a split.

    Args:
        names: file names, for people.
        refs: what `fetch` takes for each image.
        labels: for each image a label, a list of several, or None.
        fetch: takes a ref; returns the bytes of a file.
        classes: all class names in their order, where the source knows them.
    """

    names: list[str]
    refs: list[Any]
    labels: list[Any]
    fetch: Callable[[Any], Any]
    classes: list[str] | None = None

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.names)

    @property
    def labelled(self) -> bool:
        """Whether any image has a label."""
        return any(label is not None for label in self.labels)

    def pick(self, rows: Iterable[int]) -> Items:
        """Return the images in these rows, in this order."""
        rows = list(rows)
        names, refs, labels = (
            [column[i] for i in rows] for column in (self.names, self.refs, self.labels)
        )
        return replace(self, names=names, refs=refs, labels=labels)


def default_split(images: Any) -> str:
    """Return the split of a source without splits: only labelled images can be trained on."""
    return "train" if images.labelled else "test"


def read_file(path: str) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: there is none, or it is empty.
    """
    return not_empty(Path(path).read_bytes())
