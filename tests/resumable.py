"""Fits with every option that a resume must get right, run in processes that may be killed.

`python tests/resumable.py COUNT [SEED]` kills COUNT runs at random points, resumes each, compares
it with an unbroken run, and prints the count of kills and of mismatches.
"""

import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from minilearn import (
    EMACB,
    ActivationCheckpointCB,
    ArrayLoader,
    BatchSchedCB,
    Callback,
    CheckpointCB,
    ClipGradCB,
    EarlyStopCB,
    EpochSchedCB,
    GradAccumCB,
    Learner,
    MetricsCB,
    MixedPrecision,
    MixUpCB,
    ParamSchedCB,
    PlateauCB,
    RecorderCB,
    SeededLoader,
    TrainCB,
    accuracy,
)
from minilearn.callbacks.averaging import SWACB
from minilearn.checkpoint import files as checkpoint_files
from minilearn.core.callback import as_callbacks
from minilearn.core.events import EVENTS

N, SIZE = 44, 5  # nine batches, the last of four


def arrays():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, 4, generator=generator), torch.arange(N) % 3


class Noisy:
    """Samples that draw from every global generator; kills its parent at one of the items."""

    def __init__(self, kill_at=None):
        self.x, self.y = arrays()
        self.kill_at, self.count = kill_at, 0

    def __len__(self):
        return N

    def __getitem__(self, i):
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getppid(), signal.SIGKILL)
        noise = random.random() + np.random.rand() + torch.rand(())
        return self.x[i] + 0.1 * noise, self.y[i]


class Quiet(Noisy):
    """The same without random numbers."""

    def __getitem__(self, i):
        super().__getitem__(i)
        return self.x[i], self.y[i]


def weighted(data):
    sampler = WeightedRandomSampler(torch.arange(1.0, N + 1), N)
    return DataLoader(data, SIZE, sampler=sampler)


LOADERS = {
    "array": lambda kill: ArrayLoader(dict(zip("xy", arrays(), strict=True)), SIZE, shuffle=True),
    "seeded": lambda kill: SeededLoader(Noisy(), SIZE, shuffle=True),
    "seeded, forked": lambda kill: SeededLoader(Noisy(kill), SIZE, shuffle=True, num_workers=2),
    "seeded, spawned": lambda kill: SeededLoader(
        Noisy(), SIZE, shuffle=True, num_workers=1, multiprocessing_context="spawn"
    ),
    "plain": lambda kill: DataLoader(Noisy(), SIZE, shuffle=True),
    "plain, forked": lambda kill: DataLoader(Quiet(kill), SIZE, shuffle=True, num_workers=2),
    "plain, exact": lambda kill: DataLoader(Noisy(), SIZE, shuffle=True, num_workers=2),
    "own generator": lambda kill: DataLoader(
        Noisy(), SIZE, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "weighted": lambda kill: weighted(Noisy()),
    "list": lambda kill: list(DataLoader(TensorDataset(*arrays()), SIZE)),
}


class OwnBuffer(nn.Module):
    """A layer whose output depends on buffers that no state dict holds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.register_buffer("first", None, persistent=False)

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.mean(0), 0.1)
            if self.first is None:
                self.first = x[0].clone()
        return x - self.mean - (0 if self.first is None else self.first)


class OwnLoss(nn.Module):
    """A loss with a weight to train, one that is fixed, and statistics of either kind."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.fixed = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("center", torch.zeros(3), persistent=False)

    def forward(self, preds, targets):
        preds = preds.float()
        with torch.no_grad():
            self.seen += 1
            self.center.lerp_(preds.mean(0), 0.1)
        logits = preds * self.scale - self.center * self.fixed
        return F.cross_entropy(logits, targets) + 0.01 * self.seen / (1 + self.seen)


class Freezes(Callback):
    """Freezes the first layers in mid-run, all but the last a while later, then none."""

    def after_step(self, learn):
        if learn.steps_done == 4:
            learn.freeze("0*", "1*")
        elif learn.steps_done == 9:
            learn.unfreeze()
            learn.model[0].requires_grad_(False)  # by hand
        elif learn.steps_done == 13:
            learn.unfreeze()


class Tally(Callback):
    """Counts items; two of them differ by their setting alone."""

    def __init__(self, by):
        self.by, self.n = by, 0

    def after_batch(self, learn):
        self.n += self.by * learn.training

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]

    def __repr__(self):
        return f"Tally({self.by})"


LENGTHS = {
    "epochs": {"n_epochs": 3},
    "validated every second epoch": {"n_epochs": 4, "valid_every": 2},
    "steps": {"n_steps": 23},
    "epochs in cuts": {"n_epochs": 3, "valid_every": (5, "step")},
    "steps in cuts": {"n_steps": 21, "valid_every": (4, "step")},
}
EXTRAS = {
    "one-cycle": lambda: BatchSchedCB(partial(lr_scheduler.OneCycleLR, max_lr=0.1)),
    "milestones": lambda: EpochSchedCB(
        partial(lr_scheduler.MultiStepLR, milestones=[1, 2], gamma=0.1)
    ),
    "plateau": lambda: PlateauCB("valid_loss", patience=0, factor=0.5),
    "ema": lambda: EMACB(0.8),
    "swa": lambda: SWACB(5),
    "accumulation": lambda: GradAccumCB(2),
    "clip": lambda: ClipGradCB(0.5),
    "bf16": lambda: MixedPrecision("bf16"),
    "mixup": lambda: MixUpCB(0.4),
    "early stop": lambda: EarlyStopCB("valid_loss", patience=2, restore_best=True),
    "recorder": lambda: RecorderCB("lr", "mom"),
    "freezing": Freezes,
    "tallies": lambda: [Tally(1), Tally(100)],
    "two stops": lambda: [EarlyStopCB(f"{part}_loss", patience=40) for part in ("train", "valid")],
    "own loss": lambda: [],
    "own buffer": lambda: [],
}


class Anything(ParamSchedCB):
    """Moves the dropout of the model by epochs, and options of the optimizer by updates."""

    def before_fit(self, learn):
        self._of = [m for m in learn.model if isinstance(m, nn.Dropout)]
        super().before_fit(learn)


EXTRAS |= {
    "growing accumulation": lambda: GradAccumCB({0: 1, 1: 2, 2: 3}),
    "checkpointed activations": lambda: ActivationCheckpointCB("[0-3]"),
    "dropout": lambda: Anything(by="epoch", factor=True, p=lambda epoch: 1 - epoch / 4),
    "weight decay": lambda: ParamSchedCB(
        weight_decay=lr_scheduler.CosineAnnealingLR, eps=lambda p: 1e-8 * (1 + p)
    ),
}
SCHEDULES = {"one-cycle", "milestones", "plateau"}
ACCUMULATIONS = {"accumulation", "growing accumulation"}
EVERY = [1, (1, "step"), (3, "step"), (7, "step")]


@dataclass(frozen=True)
class Options:
    """What a run is made of."""

    loader: str = "array"
    length: str = "epochs"
    every: object = 1
    extras: tuple = ()
    background: bool = True

    @classmethod
    def draw(cls, rng, loaders=tuple(LOADERS)):
        extras = rng.sample(sorted(EXTRAS), rng.randrange(4))
        while any(len(kind & set(extras)) > 1 for kind in (SCHEDULES, ACCUMULATIONS)):
            extras = rng.sample(sorted(EXTRAS), rng.randrange(4))
        # cut by updates, with groups that grow, the number of updates is unknown
        grows = "growing accumulation" in extras
        length = rng.choice([x for x in sorted(LENGTHS) if not (grows and "cuts" in x)])
        return cls(
            rng.choice(loaders), length, rng.choice(EVERY), tuple(extras), rng.random() < 0.5
        )


def make(options, folder, kill_item=None, **kwargs):
    """Return the Learner of a run, its weights and random states as at the start."""
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3)]
    if "own buffer" in options.extras:
        layers.insert(0, OwnBuffer())
    model = nn.Sequential(*layers)
    loss = OwnLoss() if "own loss" in options.extras else F.cross_entropy
    dls = (LOADERS[options.loader](kill_item), DataLoader(TensorDataset(*arrays()), 16))
    saver = CheckpointCB(
        folder,
        options.every,
        background=options.background,
        exact="exact" in options.loader,
        **kwargs,
    )
    order = -1 if Path(folder).exists() else 1  # a resume finds equal ones in another order
    extras = [cb for name in options.extras for cb in as_callbacks(EXTRAS[name]())[::order]]
    metrics = MetricsCB(accuracy)
    metrics._log = lambda row: None
    cbs = [TrainCB(), metrics, *extras, saver]
    return Learner(model, dls, loss, cbs=cbs, opt_func=torch.optim.AdamW, lr=0.05)


def fit(learn, options, resume=None, cbs=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn.fit(**LENGTHS[options.length], resume=resume, cbs=cbs)


def without_time(history):
    return [{k: v for k, v in row.items() if k != "time"} for row in history]


def outcome(learn):
    """Return all that a fit leaves, but for the time that it took."""
    states = {
        _name(cb): cb.state_dict()
        for cb in learn.cbs
        if not isinstance(cb, CheckpointCB) and getattr(cb, "schedo", cb) is not None
    }
    for group in learn.opt.param_groups:
        group.pop("initial_lr", None)  # a fit that was over already makes no schedule
    return checkpoint_files.serialisable(
        {
            "model": _all_of(learn.model),
            "loss": _all_of(learn.loss_func),
            "optimizer": learn.opt.state_dict(),
            "history": without_time(learn.history),
            "callbacks": states,
            "random": [random.getstate(), list(np.random.get_state()), torch.get_rng_state()],
        }
    )


def _name(cb):
    watched = getattr(cb, "monitor", None)
    return f"{type(cb).__name__} {getattr(watched, 'name', '')}{getattr(cb, 'by', '')}"


def _all_of(module):
    """Return weights, buffers of all kinds, modes and what is frozen."""
    if not isinstance(module, nn.Module):
        return {}
    return {
        "weights": dict(module.named_parameters()),
        "buffers": dict(module.named_buffers()),
        "trainable": {name: p.requires_grad for name, p in module.named_parameters()},
        "modes": {name: m.training for name, m in module.named_modules()},
    }


def differences(a, b, path=""):
    """Return the places in which two outcomes differ, bit by bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and torch.equal(a, b)
        return [] if same else [path]
    if type(a) is not type(b) or (hasattr(a, "__len__") and len(a) != len(b)):
        return [f"{path}: {a!r} / {b!r}"[:200]]
    if isinstance(a, dict):
        return [d for k in {**a, **b} for d in differences(a.get(k), b.get(k), f"{path}.{k}")]
    if isinstance(a, (list, tuple)):
        pairs = enumerate(zip(a, b, strict=True))
        return [d for i, (x, y) in pairs for d in differences(x, y, f"{path}[{i}]")]
    same = a == b or (a != a and b != b)
    return [] if same else [f"{path}: {a!r} / {b!r}"[:200]]


# ---- processes and their ends ----


def in_child(f, *args):
    """Run `f` in a forked process; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        with open(os.devnull, "w") as null:
            sys.stdout = null
            f(*args)
        status = 0
    except SystemExit as e:
        status = e.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def status_of(pid):
    """Wait for a process; return its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class KillAt(Callback):
    """Ends its process at the nth time that an event comes to it."""

    def __init__(self, event, nth, order, number=signal.SIGKILL):
        self.order, self.nth, self.number = order, nth, number
        setattr(self, event, self._count)

    def _count(self, learn):
        self.nth -= 1
        if self.nth == 0:
            os.kill(os.getpid(), self.number)


def kill_in_write(nth):
    """Let the process end at the nth call that has to do with writing."""
    left = [nth]

    def killing(f):
        def run(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return f(*args, **kwargs)

        return run

    checkpoint_files._Target.write = killing(checkpoint_files._Target.write)
    for name in ("fsync", "link", "replace"):
        setattr(os, name, killing(getattr(os, name)))


def run(options, folder, result, how=None, number=0, order=0):
    """Run, or go on with, a fit in this process; write its outcome."""
    learn = make(options, folder, number if how == "item" else None)
    cbs = []
    if how == "write":
        kill_in_write(number)
    elif how in EVENTS:
        cbs = [KillAt(how, number, order)]
    elif how is not None and how.startswith("term "):
        cbs = [KillAt(how.removeprefix("term "), number, order, signal.SIGTERM)]
    fit(learn, options, True, cbs)
    torch.save(outcome(learn), result)


@cache
def warm():
    """Let this process import all that its children need, once for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        fit(make(Options(), folder, signals=()), Options())


@cache
def unbroken(options):
    """Return the outcome of the run that nobody kills."""
    warm()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        start = time.perf_counter()
        assert status_of(in_child(run, options, Path(folder) / "run", result)) == 0
        return torch.load(result, weights_only=True), time.perf_counter() - start


def draw_end(rng, options):
    """Return how a run ends: (how, number, order)."""
    kinds = ["event", "event", "write", "time", "term", "term time"]
    kind = rng.choice(kinds + ["item"] * 2 * ("forked" in options.loader))
    event = rng.choice([e for e in EVENTS if "backward" not in e])
    often = "batch" in event or "step" in event or "predict" in event or "loss" in event
    number, order = rng.randint(1, 45 if often else 4), rng.choice([-100, 45, 79, 81, 95])
    if kind in ("event", "term"):
        return ("" if kind == "event" else "term ") + event, number, order
    return kind, rng.randint(1, 60), order


def run_with_kills(options, ends, folder):
    """Run with these ends one after the other, then to the end; return kills and differences."""
    result, killed, counts = folder / "result", 0, Counter()
    reference, seconds = unbroken(options)
    for how, number, order in ends:
        by_clock = "time" in how
        pid = in_child(
            run, options, folder / "run", result, None if by_clock else how, number, order
        )
        if by_clock:
            time.sleep(seconds * number / 60)
            os.kill(pid, signal.SIGTERM if "term" in how else signal.SIGKILL)
        status = status_of(pid)
        if status not in (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM):
            return killed, [f"exit status {status} after {how}"], counts
        counts[how.split()[0] if status else "none"] += 1
        killed += status != 0
        if not status:
            break
    else:
        if (status := status_of(in_child(run, options, folder / "run", result))) != 0:
            return killed, [f"the resume ended with {status}"], counts
    got = torch.load(result, weights_only=True)
    callbacks = {k: v for k, v in reference["callbacks"].items() if k in got["callbacks"]}
    return killed, differences(got, reference | {"callbacks": callbacks}), counts


def torture(count, seed=0, loaders=tuple(LOADERS), report=lambda text: None):
    """Kill `count` runs; return how many kills there were, and the runs that ended wrongly."""
    rng, kills, wrong, kinds = random.Random(seed), 0, [], Counter()
    while kills < count:
        options = Options.draw(rng, loaders)
        ends = [draw_end(rng, options) for _ in range(rng.randint(1, 3))]
        with tempfile.TemporaryDirectory() as folder:
            killed, differ, counts = run_with_kills(options, ends, Path(folder))
        kills, kinds = kills + killed, kinds + counts
        if differ:
            wrong.append((options, ends, differ))
            report(f"{options}\n  {ends}\n  " + "\n  ".join(differ[:5]))
    report(f"{kills} kills {dict(kinds)}, {len(wrong)} mismatches")
    return kills, wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sys.exit(bool(torture(count, seed, report=partial(print, flush=True))[1]))
