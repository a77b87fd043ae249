"""What grows with the length of a fit and with the size of what it holds, and how fast.

    python benchmarks/scale.py [part] [names…]

Each figure is CPU time at several sizes, ten times and more apart, and its growth: the exponent by
which the time grows from the second largest size to the largest (0: not at all, 1: in proportion).
`part` divides all sizes: 10 for a quick look. Names are those of `FIGURES`, and "image_dls".
"""

import io
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from unittest import mock

import torch
from harness import report
from torch import nn

from minilearn import Callback, CheckpointCB, Learner, MetricsCB, ProgressCB, TrainCB, image_dls
from minilearn.data.loaders import DataLoaders
from minilearn.progress import callback as progress
from minilearn.progress.notebook_display import Notebook
from minilearn.progress.terminal import Lines, Terminal

DISPLAYS = {"lines": Lines, "terminal": Terminal, "notebook": Notebook}


def toy_batches(n: int) -> list:
    return [(torch.randn(8, 3), torch.randn(8, 1))] * n


def mae(preds: torch.Tensor, targs: torch.Tensor) -> torch.Tensor:
    return (preds - targs).abs().mean()


def seconds(f: Callable[[], object]) -> float:
    """CPU seconds, all threads counted; what is printed goes nowhere."""
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        f()
        return time.process_time() - start


def growth(name: str, unit: str, sizes: list[int], timed: Callable[[int], float]) -> None:
    """Print the time at each size, and how it grows at the end."""
    timed(sizes[0])  # imports
    found = [median(timed(n) for _ in range(3)) for n in sizes]
    power = math.log(found[-1] / found[-2]) / math.log(sizes[-1] / sizes[-2])
    figures = {f"s_{n}": t for n, t in zip(sizes, found, strict=True)}
    report(f"{name}, {unit}", **figures, growth=power)


# ---- rounds: the time of a fit of so many; 1 is the same for each round ----


@contextmanager
def shown_in(display: type[Lines]) -> Iterator[None]:
    """Show progress in `display`, of which nothing reaches a screen."""
    handle = SimpleNamespace(update=lambda *args, **kwargs: None)
    with (
        mock.patch.object(progress, "open_display", lambda plot: display()),
        mock.patch("IPython.display.display", lambda *args, **kwargs: handle),
    ):
        yield


def rounds(make: Callable[[], list[Callback]], n: int) -> float:
    cbs = [TrainCB(), MetricsCB(mae=mae), *make()]
    learn = Learner(nn.Linear(3, 1), (toy_batches(1), toy_batches(1)), lr=1e-3, cbs=cbs)
    return seconds(lambda: learn.fit(n))


def shown_rounds(display: type[Lines], n: int) -> float:
    with shown_in(display):
        return rounds(lambda: [ProgressCB()], n)


def saved_rounds(n: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return rounds(lambda: [CheckpointCB(folder, keep=1)], n)


# ---- the size of what a fit holds ----


class Nothing(Callback):
    """Handles one event."""

    def after_batch(self, learn: Learner) -> None:
        """Do nothing."""


def callbacks(n: int) -> float:
    cbs = [TrainCB(), *(Nothing() for _ in range(n))]
    learn = Learner(nn.Linear(3, 1), (toy_batches(100),), lr=1e-3, cbs=cbs)
    return seconds(lambda: learn.fit(1))


def layers(n: int) -> nn.Module:
    """A model of `n` parameters in small layers."""
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(n // 2)))


def parameters(n: int, *, saved: bool) -> float:
    data = [(torch.randn(2, 4), torch.randn(2, 4))] * 3
    with tempfile.TemporaryDirectory() as folder:
        cbs = [TrainCB(), *([CheckpointCB(folder)] if saved else [])]
        learn = Learner(layers(n), (data,), lr=1e-3, opt_func=torch.optim.AdamW, cbs=cbs)
        return seconds(lambda: learn.fit(1))


def rows(n: int) -> float:
    x, y = torch.randn(n, 4).numpy(), torch.zeros(n, dtype=torch.long).numpy()
    return seconds(lambda: next(iter(DataLoaders.from_arrays(x, y, bs=64).train)))


def files(folder: Path, n: int) -> float:
    """Find `n` images, small and all alike, and load the first batch."""
    from PIL import Image

    root = folder / str(n)
    if not root.exists():
        data = io.BytesIO()
        Image.new("RGB", (32, 32)).save(data, "jpeg")
        for label in range(10):
            (root / f"{label}").mkdir(parents=True)
            for i in range(n // 10):
                (root / f"{label}" / f"{i}.jpg").write_bytes(data.getvalue())
    return seconds(lambda: next(iter(image_dls(root, size=32, bs=8, memory_gb=0).train)))


ROUNDS, HELD = [100, 500, 2000], [100, 1000, 4000]
FIGURES: dict[str, tuple[str, list[int], Callable[[int], float]]] = {
    "no display": ("rounds", ROUNDS, partial(rounds, list)),
    **{n: ("rounds", ROUNDS, partial(shown_rounds, d)) for n, d in DISPLAYS.items()},
    "checkpoint": ("rounds", ROUNDS, saved_rounds),
    "a fit": ("callbacks", [0, 100, 800], callbacks),
    "three updates": ("parameters", HELD, partial(parameters, saved=False)),
    "three updates, a checkpoint": ("parameters", HELD, partial(parameters, saved=True)),
    "from_arrays": ("rows", [10_000, 500_000, 5_000_000], rows),
}


def main() -> None:
    torch.set_num_threads(1)
    part = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    with tempfile.TemporaryDirectory() as folder:
        figures = FIGURES | {
            "image_dls": ("files", [1000, 10_000, 100_000], partial(files, Path(folder)))
        }
        for name in sys.argv[2:] or figures:
            unit, sizes, timed = figures[name]
            growth(name, unit, [n // part for n in sizes], timed)


if __name__ == "__main__":
    main()
