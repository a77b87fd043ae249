"""Images that were found and not read yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minilearn.base.text import did_you_mean

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".tga", ".avif"),
)
PATHS = ("path", "file_name", "filename", "file", "filepath", "file_path", "image_path", "image")
PATHS += ("img", "picture", "jpg", "png", "image_id")
LABELS = ("label", "labels", "class", "classes", "target", "category", "tags", "fine_label", "cls")
USUAL = {"paths": PATHS, "labels": LABELS, "groups": ()}  # names of columns, in any case


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

    def find(self, option: str, names: Sequence[str]) -> str | None:
        """Return the column that an option means, None where there is none.

        Args:
            option: "paths", "labels" or "groups".
            names: those of all columns.

        Raises:
            ValueError: there is no column of images, or none that the user named.
        """
        wanted = getattr(self, option)
        if wanted == "none" or callable(wanted):
            return None
        by_lower = {name.lower().strip(): name for name in reversed(names)}
        usual = (by_lower[name] for name in USUAL[option] if name in by_lower)
        found = wanted or next(usual, None)
        if found in names or not (wanted or option == "paths"):
            return found
        what = "images or their paths" if option == "paths" else option
        hint = did_you_mean(wanted or "", names, n=1) or f"; name one in {option}="
        unknown = f" {wanted!r}" if wanted else ""
        raise ValueError(f"no column{unknown} of {what}; there are {list(names)}{hint}")

    def label(self, path: str, stored: Any) -> Any:
        """Return the label of a file; a list where one text holds several.

        Args:
            path: of the file in its source.
            stored: the label there, which a function of the user's replaces.
        """
        label = self.labels(path) if callable(self.labels) else stored
        if (label == "" and self.sep is None) or label != label:  # nan is none
            return None
        if self.sep is None or label is None or isinstance(label, list):
            return label
        return [part for text in str(label).split(self.sep) if (part := text.strip())]


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


def read_file(path: str) -> bytes:
    """Return the content of a file."""
    return Path(path).read_bytes()
