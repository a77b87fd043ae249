"""Fits without end, with random options, cancels, errors and Ctrl-C: does anything pile up?

`python tests/soak.py MINUTES [SEED]` runs them in one process, where what a fit leaves would
stay: memory, file handles, threads, child processes, hooks, Learners. It prints what is there as
time goes by, and fails if the last quarter of the time has more than the second.
"""

import contextlib
import gc
import io
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections import Counter
from functools import partial
from pathlib import Path

import matplotlib as mpl
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from minilearn import (
    EMACB,
    SWACB,
    ActivationStats,
    BatchSchedCB,
    CancelBatchException,
    CancelEpochException,
    CancelException,
    CancelFitException,
    CheckpointCB,
    ClipGradCB,
    CSVLoggerCB,
    DeviceCB,
    EarlyStopCB,
    GlobalAvgPool,
    GradAccumCB,
    JSONLLoggerCB,
    Learner,
    MetricsCB,
    MixedPrecision,
    MixUpCB,
    NonFiniteCB,
    ProgressCB,
    RecorderCB,
    TensorBoardCB,
    TimerCB,
    TrainCB,
    accuracy,
    conv,
    warmup,
)

MEASURED = ("rss_mb", "files", "threads", "processes", "learners", "hooks", "objects")
STOPS = [CancelBatchException, CancelEpochException, CancelFitException, RuntimeError, None]
EVENTS = ("before_batch", "after_loss", "after_step", "after_batch", "after_epoch", "after_round")


def arrays() -> TensorDataset:
    return TensorDataset(torch.randn(50, 1, 8, 8), torch.randint(0, 3, (50,)))


class Stream:
    """Batches without a length."""

    def __iter__(self):
        return iter(DataLoader(arrays(), 8))


def loaders(rng: random.Random) -> tuple:
    workers = 1 if rng.random() < 0.05 else 0  # a process each, slow to start
    kinds = [
        lambda: DataLoader(arrays(), 8, shuffle=True, num_workers=workers),
        lambda: list(DataLoader(arrays(), 8)),
        Stream,
    ]
    return rng.choice(kinds)(), DataLoader(arrays(), 16)


def options(rng: random.Random, folder: Path) -> list:
    """Draw some of the callbacks that a user may put beside TrainCB and MetricsCB."""
    rare = [
        partial(ActivationStats, lambda m: isinstance(m, nn.Conv2d)),
        partial(BatchSchedCB, warmup(partial(lr_scheduler.StepLR, step_size=5), 3)),
        partial(CheckpointCB, folder, every=(4, "step"), keep=2),
        partial(ClipGradCB, 1.0),
        partial(CSVLoggerCB, folder / "log.csv"),
        DeviceCB,
        partial(EarlyStopCB, patience=1, restore_best=True),
        partial(EMACB, 0.9),
        partial(GradAccumCB, 2),
        partial(JSONLLoggerCB, folder / "log.jsonl"),
        MixUpCB,
        NonFiniteCB,
        ProgressCB,
        partial(RecorderCB, lr=lambda cb: cb.pg["lr"]),
        SWACB,
        partial(TensorBoardCB, folder / "board"),
        TimerCB,
    ]
    drawn = [make() for make in rng.sample(rare, rng.randint(0, 6))]
    return [MixedPrecision("bf16") if rng.random() < 0.2 else TrainCB(), *drawn]


def disturb(learn: Learner, rng: random.Random) -> None:
    """Let the fit end in some way at some moment, by Ctrl-C in a third of all cases."""
    kind, left = rng.choice(STOPS), rng.randint(1, 12)

    def strike(learn: Learner) -> None:
        nonlocal left
        left -= 1
        if left:
            return
        if kind is None:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            raise kind("the soak struck")

    if rng.random() < 0.6:
        learn.on(rng.choice(EVENTS), strike)


def explore(learn: Learner, rng: random.Random) -> None:
    """Call some of what users call around a fit."""
    calls = [
        lambda: learn.lr_find(num_it=12, plot=False),
        learn.validate,
        learn.get_preds,
        learn.summary,
        learn.dry_run,
        lambda: learn.find(CheckpointCB) and learn.fit(4, resume=True),
    ]
    for call in rng.sample(calls, rng.randint(0, 2)):
        call()


def one_fit(rng: random.Random, folder: Path, outcomes: Counter) -> Learner:
    model = nn.Sequential(conv(1, 8, norm=nn.BatchNorm2d), conv(8, 8), GlobalAvgPool())
    learn = Learner(
        nn.Sequential(model, nn.Linear(8, 3)),
        loaders(rng),
        F.cross_entropy,
        0.05,
        cbs=[MetricsCB(accuracy), *options(rng, folder)],
        opt_func=rng.choice([optim.SGD, optim.AdamW]),
    )
    disturb(learn, rng)
    try:
        explore(learn, rng)
        learn.fit(rng.randint(1, 3))
        explore(learn, rng)
        outcomes["ended"] += 1
    except (KeyboardInterrupt, CancelException, ValueError, RuntimeError) as e:
        outcomes[type(e).__name__] += 1
        if "the soak struck" not in str(e) and not isinstance(e, KeyboardInterrupt):
            outcomes[f"  {str(e).splitlines()[0][:90]}"] += 1
    return learn


def hooks(learn: Learner) -> int:
    return sum(
        len(found) for m in learn.model.modules() for n, found in vars(m).items() if "hooks" in n
    )


def measured(learners: list, n_hooks: int) -> tuple[float, ...]:
    gc.collect()
    page = os.sysconf("SC_PAGE_SIZE")
    rss = int(Path("/proc/self/statm").read_text().split()[1]) * page / 1e6
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    files, alive = len(os.listdir("/proc/self/fd")), sum(r() is not None for r in learners)
    counts = (files, threading.active_count(), len(children), alive, n_hooks)
    return (rss, *counts, len(gc.get_objects()))


def soak(minutes: float, seed: int) -> list[tuple[float, ...]]:
    rng, outcomes, rows, learners, n_hooks, fits = random.Random(seed), Counter(), [], [], 0, 0
    end, seen = time.monotonic() + 60 * minutes, time.monotonic()
    print("minutes", "fits", *MEASURED, sep="\t", flush=True)
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            learn = one_fit(rng, Path(folder), outcomes)
        n_hooks += hooks(learn)
        learners, fits = [*learners[-20:], weakref.ref(learn)], fits + 1
        del learn
        if time.monotonic() - seen > 0.6 * minutes:  # a hundred rows
            seen = time.monotonic()
            rows.append(measured(learners, n_hooks))
            gone = minutes - (end - seen) / 60
            print(f"{gone:.1f}", fits, *(f"{v:.0f}" for v in rows[-1]), sep="\t", flush=True)
    print(*(f"{n:6}  {what}" for what, n in outcomes.most_common(20)), sep="\n")
    return rows


def growth(rows: list[tuple[float, ...]]) -> dict[str, float]:
    """Return by how much the median of the last quarter is above that of the second."""
    n = len(rows) // 4
    early, late = (
        [statistics.median(column) for column in zip(*part, strict=True)]
        for part in (rows[n : 2 * n], rows[-n:])
    )
    return {name: b - a for name, a, b in zip(MEASURED, early, late, strict=True)}


def main() -> None:
    warnings.simplefilter("ignore")
    mpl.use("agg")
    torch.set_num_threads(1)
    grown = growth(soak(float(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])))
    print("growth:", ", ".join(f"{name} {by:+.1f}" for name, by in grown.items()))
    bounds = {"rss_mb": 10, "objects": 1000}
    bad = [name for name, by in grown.items() if by > bounds.get(name, 0)]
    sys.exit(f"{', '.join(bad)} grew" if bad else 0)


if __name__ == "__main__":
    main()
