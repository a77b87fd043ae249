"""Counts by class and loader, image sizes, mean and std, and files that could not be read."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minilearn.base.batch import n_batches
from minilearn.base.text import in_columns

from .columns import channel_stats
from .images.dataset import ImageDataset
from .images.sample import by, sample, sample_stats, size_range, sizes_of
from .pipeline import class_names
from .seeded import ArrayLoader

MOST_CLASSES = 30  # lines of a table
MOST_FILES = 20


@dataclass(frozen=True)
class DataSummary:
    """The result of `dls.summary()`; prints as text and, in a notebook, as a table.

    Args:
        counts: by class and loader; an image with several classes counts for each. Streams have no
            counts.
        totals: items by loader, None where that is unknown.
        images: their sizes, stored and as given to the model.
        mean: of each channel of the training images, on the scale 0..1.
        std: likewise.
        errors: by loader, the reasons why files could not be read, by file name.
    """

    counts: dict[str, dict[str, int]]
    totals: dict[str, int | None]
    images: str = ""
    mean: list[float] | None = None
    std: list[float] | None = None
    errors: dict[str, dict[str, str]] = field(default_factory=dict)

    def rows(self) -> list[list[str]]:
        """Return the table of counts: a header, a line for each class, the totals."""
        names = list(self.totals)
        lines = [
            [label, *(f"{found[name]:,}" if name in found else "?" for name in names)]
            for label, found in self.counts.items()
        ]
        if len(lines) > MOST_CLASSES:
            more = len(lines) - MOST_CLASSES + 1
            lines = [*lines[: MOST_CLASSES - 1], [f"… {more:,} more", *[""] * len(names)]]
        totals = ("?" if n is None else f"{n:,}" for n in self.totals.values())
        return [["", *names], *lines, ["items", *totals]]

    def notes(self) -> list[str]:
        """Return the lines below the table."""
        notes = [f"images: {self.images}"] if self.images else []
        if self.mean is not None and self.std is not None:
            notes.append(f"mean {_short(self.mean)}, std {_short(self.std)} of 0..1")
        for name, found in self.errors.items():
            notes.append(f"{name}: {len(found):,} files could not be read")
            notes += [f"  {file}: {reason}" for file, reason in list(found.items())[:MOST_FILES]]
            if len(found) > MOST_FILES:
                notes.append(f"  … {len(found) - MOST_FILES:,} more, in summary.errors[{name!r}]")
        return notes

    def __str__(self) -> str:
        """Return the table and the notes as text."""
        return "\n".join([*in_columns(self.rows(), [str.ljust]), *self.notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rows = self.rows()
        table = _html_row(head, "th") + "".join(_html_row(row, "td") for row in rows)
        notes = "<br>".join(html.escape(note) for note in self.notes())
        return f"<table>{table}</table><p>{notes}</p>"


def _html_row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _short(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def summarize_data(dls: Any) -> DataSummary:
    """Return the summary of loaders; a sample of up to 256 stands for images not in memory."""
    loaders = {name: dls[name] for name in dls.keys()}
    first = next(iter(loaders.values()), None)
    stats = (dls.mean, dls.std) if isinstance(dls.mean, Tensor) else _stats(first)
    mean, std = (None if x is None else x.tolist() for x in stats)
    return DataSummary(
        _counts({name: _targets(dl) for name, dl in loaders.items()}, class_names(dls)),
        {name: _total(dl) for name, dl in loaders.items()},
        _sizes(first),
        mean,
        std,
        {log.split: log.reasons() for log in dls.logs if log.found},
    )


def _total(dl: Any) -> int | None:
    dataset = getattr(dl, "dataset", None)
    return len(dataset.served) if isinstance(dataset, ImageDataset) else n_batches(dataset)


def _targets(dl: Any) -> Tensor | None:
    """Return class numbers (N,), or rows of 0 and 1 (N, K), where a loader shows them."""
    dataset = getattr(dl, "dataset", None)
    if isinstance(dataset, ImageDataset):
        found = dataset.targets[torch.tensor(dataset.served, dtype=torch.long)]
        return found if found.dim() == 1 + found.is_floating_point() else None
    found = list(dl.columns.values())[-1] if isinstance(dl, ArrayLoader) else None
    if isinstance(found, Tensor) and found.dim() == 1 and not found.is_floating_point():
        return _served(dl, found)
    return None


def _served(dl: ArrayLoader, column: Tensor) -> Tensor:
    return column if dl.rows is None else column[dl.rows]


def _counts(targets: dict[str, Tensor | None], names: list[Any] | None) -> dict[str, dict]:
    found = {split: _count(x) for split, x in targets.items() if x is not None}
    numbers = set(range(len(names or []))).union(*found.values())
    return {
        "no class" if i < 0 else str(names[i] if names else i): {
            split: counts.get(i, 0) for split, counts in found.items()
        }
        for i in sorted(numbers)
    }


def _count(targets: Tensor) -> dict[int, int]:
    """Return the count of each number, or of the positive values in each column."""
    if targets.dim() == 2:
        return dict(enumerate((targets > 0).sum(0).tolist()))
    values, counts = targets.unique(return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _sizes(dl: Any) -> str:
    """Return the sizes of a loader's images, stored and as given to the model."""
    dataset = getattr(dl, "dataset", None)
    if not isinstance(dataset, ImageDataset):
        pixels = _pixels(dl)
        return "" if pixels is None else by(tuple(pixels.shape[1:]))
    chosen = sample(dataset.items, 0)
    sizes = sizes_of(chosen)
    of = f" (of {len(chosen):,} sampled)" if len(chosen) < len(dataset) else ""
    several = f"{len(sizes):,} sizes, " if len(sizes) > 1 else ""
    return f"{several}{size_range(sizes)}{of}, given as {by(dataset.read.pipeline.shape)}"


def _stats(dl: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return mean and std of a loader's images."""
    if (pixels := _pixels(dl)) is not None:
        return channel_stats(pixels)
    dataset = getattr(dl, "dataset", None)
    if isinstance(dataset, ImageDataset):
        return sample_stats(dataset.items, dataset.read.pipeline, 0)
    return None, None


def _pixels(dl: Any) -> Tensor | None:
    columns = dl.columns.values() if isinstance(dl, ArrayLoader) else ()
    wanted = (x for x in columns if isinstance(x, Tensor) and x.dtype == torch.uint8)
    return next((_served(dl, x) for x in wanted if x.dim() == 4), None)
