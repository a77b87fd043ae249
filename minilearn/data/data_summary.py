"""Counts by class and loader, image sizes, mean and std, and files that could not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minilearn.base.batch import n_batches
from minilearn.base.text import in_columns

from .columns import channel_stats
from .images.dataset import ImageDataset
from .images.sample import by, sample, sample_pixels, size_range, sizes_of
from .pipeline import class_names
from .seeded import ArrayLoader

MOST_CLASSES = 30  # lines of a table
MOST_FILES = 20


@dataclass(frozen=True)
class DataSummary:
    """The result of `dls.summary()`, which prints as text.

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

    def __repr__(self) -> str:
        """Return the table and the notes as text."""
        return "\n".join([*in_columns(self.rows(), [str.ljust]), *self.notes()])


def _short(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def summarize_data(dls: Any) -> DataSummary:
    """Return the summary of loaders; a sample of up to 256 stands for all training images."""
    loaders = {name: dls[name] for name in dls.keys()}
    datasets = {name: getattr(dl, "dataset", None) for name, dl in loaders.items()}
    first = next(iter(datasets.values()), None)
    images, mean, std = "", dls.mean, dls.std
    if isinstance(first, ImageDataset):
        images = f"{_stored_sizes(first)}, given as {by(first.read.pipeline.shape)}"
        if mean is None:
            mean, std = channel_stats(sample_pixels(first.items, first.read.pipeline))
    elif dls.pipeline is not None and dls.pipeline.size:
        images = by(dls.pipeline.shape)
    targets = {name: _targets(dl) for name, dl in loaders.items()}
    return DataSummary(
        _counts({name: x for name, x in targets.items() if x is not None}, class_names(dls)),
        {name: n_batches(getattr(ds, "served", ds)) for name, ds in datasets.items()},
        images,
        None if mean is None else mean.tolist(),
        None if std is None else std.tolist(),
        {log.split: log.reasons() for log in dls.logs if log.found},
    )


def _targets(dl: Any) -> Tensor | None:
    """Return class numbers (N,), or rows of 0 and 1 (N, K), where a loader shows them."""
    dataset = getattr(dl, "dataset", None)
    if isinstance(dataset, ImageDataset):
        found = dataset.targets[torch.tensor(dataset.served, dtype=torch.long)]
        return found if found.dim() == 1 + found.is_floating_point() else None
    found = list(dl.columns.values())[-1] if isinstance(dl, ArrayLoader) else None
    if isinstance(found, Tensor) and found.dim() == 1 and not found.is_floating_point():
        return found if dl.rows is None else found[dl.rows]
    return None


def _counts(targets: dict[str, Tensor], names: list[Any] | None) -> dict[str, dict]:
    """Return the number of items by class and loader."""
    found = {split: _count(x) for split, x in targets.items()}
    numbers = set(range(len(names or []))).union(*found.values())
    return {
        "no class" if i < 0 else str(names[i] if names else i): {
            split: counts[i] for split, counts in found.items()
        }
        for i in sorted(numbers)
    }


def _count(targets: Tensor) -> Counter[int]:
    """Return the count of each number, or of the positive values in each column."""
    if targets.dim() == 2:
        return Counter((targets > 0).nonzero()[:, 1].tolist())
    return Counter(targets.tolist())


def _stored_sizes(images: ImageDataset) -> str:
    chosen = sample(images.items)
    sizes = sizes_of(chosen)
    of = f" (of {len(chosen):,} sampled)" if len(chosen) < len(images) else ""
    several = f"{len(sizes):,} sizes, " if len(sizes) > 1 else ""
    return f"{several}{size_range(sizes)}{of}"
