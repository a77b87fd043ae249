"""Read pictures one by one, and survive those that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minilearn.base.batch import to_device

from ..decode import as_mode, open_image
from ..pipeline import Pipeline
from ..seeded import SeededLoader
from .errors import Fault, FaultLog, fault_of, report
from .items import Items

CHUNK = 64  # pictures that a thread reads in one go


class Row(NamedTuple):
    """A picture as a worker hands it on: pixels and target, or None, and what went wrong."""

    pixels: Tensor | None
    target: Tensor | None
    faults: tuple[Fault, ...] = ()


class Reader:
    """Turn the bytes of a file into the pixels of a picture.

    Args:
        pipeline: says size and channels.
        tfms: changes the picture before, a PIL image of its own size; returns one, or its pixels
            as uint8 or as floats of 0..1, shape (C, H, W).
    """

    def __init__(self, pipeline: Pipeline, tfms: Callable[[Any], Any] | None = None) -> None:
        self.pipeline, self.tfms = pipeline, tfms

    def __call__(self, source: Any) -> Tensor:
        """Return pixels of shape (C, H, W), uint8, or floats of 0..1 where `tfms` gives such.

        Raises:
            ValueError: `tfms` gives floats of another range or shape.
        """
        if self.tfms is None:
            return self.pipeline.pixels(source)
        shape = self.pipeline.shape
        changed = self.tfms(as_mode(open_image(source), shape[0]))
        if not (isinstance(changed, Tensor) and changed.is_floating_point()):
            return self.pipeline.pixels(changed)
        if changed.shape != shape or changed.min() < 0 or changed.max() > 1:
            low, high = changed.min().item(), changed.max().item()
            raise ValueError(
                f"tfms gave floats {low:.2f} to {high:.2f} of shape {tuple(changed.shape)}; it "
                f"gives a picture, uint8, or floats 0 to 1 of shape {shape}. Normalise by mean= "
                "and std=, so that predictions are normalised alike"
            )
        return changed


class Pictures:
    """A map-style data set of pictures; one that cannot be read gives a `Fault`.

    Args:
        items: the pictures.
        targets: of shape (N,) or (N, K).
        read: makes pixels of what `items.fetch` returns.
        log: takes the faults, in the main process.
    """

    def __init__(self, items: Items, targets: Tensor, read: Reader, log: FaultLog) -> None:
        self.items, self.targets, self.read, self.log = items, targets, read, log

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.items)

    def __getitem__(self, row: int) -> Row:
        """Return a picture, after the rule where it cannot be read."""
        first = self.attempt(row)
        if isinstance(first, Tensor):
            return Row(first, self.targets[row])
        if self.log.rule.on_error != "replace":
            return Row(None, None, (first,))
        for instead in self.others(row):
            if isinstance(pixels := self.attempt(instead), Tensor):
                return Row(pixels, self.targets[instead], (first._replace(instead=instead),))
        return Row(None, None, (first,))

    def others(self, row: int) -> Iterator[int]:
        """Yield the rows behind this one, as many as may be faulty and one more."""
        n = len(self)
        yield from ((row + k) % n for k in range(1, min(n, int(self.log.rule.max_errors * n) + 2)))

    def attempt(self, row: int) -> Tensor | Fault:
        """Return the pixels of a picture, or why it cannot be read.

        Raises:
            PictureError: it cannot be read, the rule is "raise", and this is no worker process.
        """
        try:
            return self.read(self.items.fetch(self.items.refs[row]))
        except Exception as e:  # PIL and transforms raise many kinds
            return fault_of(row, self.items.names[row], e, self.log.rule)

    @property
    def served(self) -> list[int]:
        """The rows whose pictures are given, in order, as far as faults are known."""
        instead = {row: fault.instead for row, fault in self.log.found.items()}
        rows = (instead.get(row, row) for row in range(len(self)))
        return [row for row in rows if row is not None]

    @property
    def names(self) -> list[str]:
        """The names of the files that are given, in order, as far as faults are known."""
        return [self.items.names[row] for row in self.served]

    def pick(self, rows: Sequence[int]) -> Pictures:
        """Return the data set of these rows."""
        targets = self.targets[torch.as_tensor(rows, dtype=torch.long)]
        log = FaultLog(self.log.split, self.log.rule, len(rows))
        return Pictures(self.items.pick(rows), targets, self.read, log)


def decode_all(pictures: Pictures, n_threads: int = 8) -> tuple[Tensor, Pictures]:
    """Read all pictures at once, in threads.

    Returns:
        Pixels as uint8, shape (N, C, H, W), and the data set of the N pictures that are served. The
        log of the data set given holds what became of the others.

    Raises:
        PictureError: as the rule says.
    """
    n = len(pictures)
    pixels = torch.empty(n, *pictures.read.pipeline.shape, dtype=torch.uint8)
    faults: dict[int, Fault] = {}

    def read(start: int) -> None:
        for row in range(start, min(start + CHUNK, n)):
            found = pictures.attempt(row)
            if isinstance(found, Fault):
                faults[row] = found
            else:
                pixels[row] = found

    with ThreadPoolExecutor(n_threads) as pool:  # PIL lets other threads run while it decodes
        list(pool.map(read, range(0, n, CHUNK)))
    if not faults:
        return pixels, pictures
    rows = [_served(row, pictures, faults) if row in faults else row for row in range(n)]
    pictures.log.add(fault._replace(instead=rows[row]) for row, fault in faults.items())
    rows = [row for row in rows if row is not None]
    return pixels[rows], pictures.pick(rows)


def _served(row: int, pictures: Pictures, faults: dict[int, Fault]) -> int | None:
    if pictures.log.rule.on_error != "replace":
        return None
    return next((other for other in pictures.others(row) if other not in faults), None)


class ToModel:
    """Take batches to the device as bytes, and make normalised floats of them there."""

    def __init__(self, pipeline: Pipeline, device: torch.device) -> None:
        self.pipeline, self.device = pipeline, device

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return floats (B, C, H, W) on the device."""
        return self.pipeline.scale(self.moved(pixels))

    def moved(self, x: Tensor) -> Tensor:
        """Return a tensor on the device."""
        return to_device(x, self.device)


class PictureLoader(SeededLoader):
    """A SeededLoader of `Pictures`: batches lack, or replace, those that cannot be read.

    A batch of which nothing is left is None, which a Learner skips.

    Args:
        pictures: the data set; its log takes the faults that worker processes report.
        batch_size: pictures in a batch.
        shuffle: as in SeededLoader.
        to_model: makes of pixels what the model is given.
        kwargs: all others of SeededLoader.

    Raises:
        PictureError: in a pass, once there are too many faults.
    """

    def __init__(
        self,
        pictures: Pictures,
        batch_size: int,
        shuffle: bool = False,
        *,
        to_model: ToModel,
        **kwargs: Any,
    ) -> None:
        self.to_model, self.log = to_model, pictures.log
        super().__init__(pictures, batch_size, shuffle, collate_fn=together, **kwargs)

    def batches(self, start: int = 0, cut: Callable = iter) -> Iterator[Any]:
        """Start the next pass at batch number `start`; see SeededLoader."""
        return finished(super().batches(start, cut), self.to_model, self.log)


def together(rows: Sequence[Row]) -> tuple[Tensor | None, Tensor | None, list[Fault]]:
    """Collate rows: pixels (B, C, H, W), targets (B, ...), and all that went wrong."""
    faults = [fault for row in rows for fault in row.faults]
    pixels = [row.pixels for row in rows if row.pixels is not None]
    targets = [row.target for row in rows if row.target is not None]
    if not pixels:
        return None, None, faults
    return torch.stack(pixels), torch.stack(targets), faults


def finished(batches: Iterator[Any], to_model: ToModel, log: FaultLog) -> Iterator[Any]:
    """Yield batches as the model is given them; faults go to the log, and are reported once."""
    try:
        for pixels, targets, faults in batches:
            log.add(faults)
            yield None if pixels is None else (to_model(pixels), to_model.moved(targets))
    finally:
        report(log)
