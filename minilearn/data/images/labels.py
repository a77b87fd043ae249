"""Targets of labels, and a validation split with some images of each class."""

from __future__ import annotations

import math
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minilearn.base.text import did_you_mean, few

from .listing import Items

UNLABELLED = -1


class Classes:
    """The classes of a data set: their names, and the number of each label.

    Args:
        names: in the order of their numbers.
        several: whether an image may have several labels.

    Attributes:
        left_out: the number of images with each label that is not in `names`.
    """

    def __init__(self, names: list[str], several: bool = False) -> None:
        self.names, self.several = names, several
        self.numbers = {name: i for i, name in enumerate(names)}
        self.left_out: Counter[str] = Counter()

    @classmethod
    def of(cls, found: Sequence[Any], known: list[str] | None, wanted: Any = None) -> Classes:
        """Return the classes of some labels.

        Args:
            found: the labels in the data.
            known: all names in their order, where the source declares them.
            wanted: the user's classes, see `image_dls`.

        Raises:
            ValueError: no label in the data is among the user's.
        """
        several = any(isinstance(label, list) for label in found)
        labels = dict.fromkeys(text for label in found for text in as_texts(label))
        if wanted is None:
            names = [as_text(name) for name in known or ()] or sorted(labels, key=_natural)
            return cls(names, several)
        names = _wanted(wanted)
        if labels and not labels.keys() & set(names):
            hints = (did_you_mean(name, labels, n=1) for name in names)
            hint = next(filter(None, hints), "")
            raise ValueError(
                f"no label in the data is in classes=: there are {few(list(labels))}, and "
                f"classes= has {few(names)}{hint}"
            )
        return cls(names, several)

    def target(self, label: Any) -> int | list[float] | None:
        """Return the number of a label, -1 for none; for several labels a row of 0 and 1.

        Images with a label that is left out are not used: None.
        """
        texts = as_texts(label)
        unknown = [text for text in texts if text not in self.numbers]
        self.left_out.update(unknown)
        if self.several and label is None:
            return [float(UNLABELLED)] * len(self.names)
        if self.several:
            chosen = {self.numbers.get(text) for text in texts}
            return [float(i in chosen) for i in range(len(self.names))]
        if unknown:
            return None
        return self.numbers[texts[0]] if texts else UNLABELLED

    def warn_left_out(self) -> None:
        """Warn about labels that are not used, if there are some."""
        if self.left_out:
            listed = [f"{name} ({n:,})" for name, n in self.left_out.most_common()]
            warnings.warn(
                f"labels that are not in classes= are left out: {few(listed)}", stacklevel=2
            )


def as_number(label: Any) -> float:
    """Return a label that is a number, -1 for none."""
    return UNLABELLED if label is None else label


def as_texts(label: Any) -> list[str]:
    """Return the labels of an image as texts: one, several or none."""
    if label is None:
        return []
    several = label if isinstance(label, list) else [label]
    return [as_text(int(one) if isinstance(one, (bool, float)) else one) for one in several]


def as_text(name: Any) -> str:
    """Return a name as text; the same letters in another Unicode form are the same name."""
    return unicodedata.normalize("NFC", str(name))


def _natural(name: str) -> tuple[float, str, str]:
    """Sort whole numbers first, and class2 before class10."""
    number = float(name) if re.fullmatch(r"-?\d+", name) else math.inf
    return number, re.sub(r"\d+", lambda digits: digits[0].zfill(20), name), name


def _wanted(wanted: Any) -> list[str]:
    """Return the names in the user's list, or in a file that has one a line."""
    if isinstance(wanted, (str, Path)):
        lines = Path(wanted).read_text(encoding="utf-8").splitlines()
        wanted = filter(None, map(str.strip, lines))
    if isinstance(wanted, Mapping):
        raise ValueError("classes= is a list of names; rename labels by a function in labels=")
    if not (names := list(dict.fromkeys(map(as_text, wanted)))):
        raise ValueError("classes= is empty; leave it out to use all labels in the data")
    return names


def numbered(
    by_split: Mapping[str, Items], wanted: Any = None
) -> tuple[dict[str, Items], dict[str, Tensor], list[str] | None]:
    """Return the images that are used, their targets and the class names.

    Targets have the shape (N,): numbers of classes or, for labels like 0.25, floats without
    classes. Where images have several labels, it is (N, K).

    Args:
        by_split: the images.
        wanted: the user's classes, see `image_dls`.

    Raises:
        ValueError: no label in the data is among the user's.
    """
    found = [label for items in by_split.values() for label in items.labels]
    known = next((items.classes for items in by_split.values() if items.classes), None)
    fractions = any(isinstance(label, float) and not label.is_integer() for label in found)
    if wanted is None and known is None and fractions:
        target, names = _amount, None
    else:
        classes = Classes.of(found, known, wanted)
        target, names = classes.target, classes.names or None
    used, targets = {}, {}
    for split, items in by_split.items():
        each = [target(label) for label in items.labels]
        used[split] = items.pick(row for row, one in enumerate(each) if one is not None)
        targets[split] = torch.tensor([one for one in each if one is not None])
    if names:
        classes.warn_left_out()
    return used, targets, names


def _amount(label: Any) -> float:
    return math.nan if label is None else label


def check_labelled(items: Items, role: str) -> None:
    """Raise where images for training or validation have no label.

    Raises:
        ValueError: some have none; names them.
    """
    without = [name for name, label in zip(items.names, items.labels, strict=True) if label is None]
    if without:
        raise ValueError(
            f"{len(without):,} of {len(items):,} images for {role} have no label: {few(without)}. "
            "Images get theirs from the folder they lie in or from a column of a table; those to "
            'predict go into a split "test" or a folder by themselves'
        )


def split_validation(
    items: Items, valid: Any, seed: int, groups: Sequence[Any] | None = None
) -> tuple[list[int], list[int]]:
    """Choose the rows for training and for validation.

    Args:
        items: the images.
        valid: the user's choice, see `image_dls`. A fraction takes the same part of each class.
        seed: draws the rows of a fraction.
        groups: for each image its group; a fraction then takes whole groups.

    Raises:
        ValueError: `valid` is out of range or names no image, or one side would be empty.
    """
    if callable(valid):
        chosen = {row for row, name in enumerate(items.names) if valid(name)}
    elif not isinstance(valid, (int, float)):
        chosen = _listed(items, valid)
    elif not 0 <= valid < 1:
        raise ValueError(f"valid is a fraction of the training images, 0 to below 1, got {valid}")
    elif groups is not None:
        chosen = _whole_groups(groups, valid, seed)
    else:
        if valid and (twice := len(items) - len(set(items.refs))):
            warnings.warn(
                f"{twice:,} images are there more than once, and may be in training and validation "
                "both: groups= keeps those of one path together",
                stacklevel=2,
            )
        chosen = _of_each_class(items, valid, seed)
    if valid and not 0 < len(chosen) < len(items):
        what = valid if isinstance(valid, float) else "…"
        side = "validate" if not chosen else "train"
        raise ValueError(
            f"valid={what} of {len(items):,} images leaves none to {side} on; add images or change "
            "valid; valid=0 does without"
        )
    return [row for row in range(len(items)) if row not in chosen], sorted(chosen)


def _listed(items: Items, wanted: Sequence[Any]) -> set[int]:
    """Return the rows of a list of names or rows."""
    row_of = {name: row for row, name in enumerate(items.names)}
    row_of |= {row: row for row in row_of.values()}
    if unknown := [one for one in wanted if one not in row_of]:
        near = did_you_mean(str(unknown[0]), items.names, n=1)
        raise ValueError(f"valid= lists what is no training image: {few(unknown)}{near}")
    return {row_of[one] for one in wanted}


def _rows_of(keys: Sequence[Any]) -> list[list[int]]:
    """Return the rows of each key, in the order in which the keys come."""
    rows: dict[Any, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return [*rows.values()]


def _whole_groups(groups: Sequence[Any], fraction: float, seed: int) -> set[int]:
    """Return the rows of random groups, of as many images as comes near the fraction."""
    rows_of, chosen = _rows_of(groups), set()
    for i in torch.randperm(len(rows_of), generator=torch.Generator().manual_seed(seed)).tolist():
        if len(chosen) + len(rows_of[i]) / 2 <= fraction * len(groups):
            chosen |= set(rows_of[i])
    return chosen


def _of_each_class(items: Items, fraction: float, seed: int) -> set[int]:
    generator = torch.Generator().manual_seed(seed)
    chosen, due = set(), 0.0
    for rows in _rows_of([str(as_texts(label)) for label in items.labels]):
        due += len(rows) * fraction  # what rounding leaves in one class is taken from the next
        n = min(int(due + 1e-9), len(rows) - 1)
        due -= n
        order = torch.randperm(len(rows), generator=generator)[:n].tolist()
        chosen |= {rows[i] for i in order}
    return chosen
