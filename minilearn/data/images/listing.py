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
    """Where the user says that paths, labels and groups are.

    Args:
        paths: the column of images or their paths.
        labels: the column of labels, "none" for none, or a function of the path.
        sep: separates several labels of one image.
        groups: the column of groups, or a function of the path.
    """

    paths: str | None = None
    labels: str | Callable[[str], Any] | None = None
    sep: str | None = None
    groups: str | Callable[[str], Any] | None = None

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
        if self.labels == "none" or callable(self.labels):
            return None
        if self.labels is None:
            return _first(LABELS, names)
        return _existing(self.labels, names, "of labels", "labels")

    def find_groups(self, names: Sequence[str]) -> str | None:
        """Return the column of groups, None where there is none."""
        if self.groups is None or callable(self.groups):
            return None
        return _existing(self.groups, names, "of groups", "groups")

    def label(self, path: str, stored: Any) -> Any:
        """Return the label of a file; a list where one text holds several.

        Args:
            path: of the file in its source.
            stored: the label there, which a function of the user's replaces.
        """
        label = self.labels(path) if callable(self.labels) else stored
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
        groups: for each image its group, where the user named a column of them.
    """

    names: list[str]
    refs: list[Any]
    labels: list[Any]
    fetch: Callable[[Any], Any]
    classes: list[str] | None = None
    groups: list[Any] | None = None

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
        columns = {"names": self.names, "refs": self.refs, "labels": self.labels}
        columns |= {"groups": self.groups} if self.groups else {}
        return replace(self, **{k: [column[i] for i in rows] for k, column in columns.items()})


def default_split(images: Any) -> str:
    """Return the split of a source without splits: only labelled images can be trained on."""
    return "train" if images.labelled else "test"


def read_file(path: str) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: there is none, or it is empty.
    """
    return not_empty(Path(path).read_bytes())
