"""Fits that Ctrl-C ends at random moments within an update: none may be made by half.

`python tests/interrupted.py COUNT [SEED]` interrupts COUNT runs within an update, compares each
with an undisturbed run after as many updates, and prints how many ended with half an update.
"""

import copy
import os
import random
import signal
import struct
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from resumable import differences, in_child, status_of
from torch import nn
from torch.optim import lr_scheduler

from minilearn import EMACB, BatchSchedCB, Callback, ClipGradCB, Learner, TrainCB
from minilearn.checkpoint import files as checkpoint_files
from minilearn.core.interrupt import Interrupts

UPDATES, LAYERS = 6, 60


class Scaled(nn.Module):
    """A loss with a weight, which an update moves last."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, preds, targets):
        return F.mse_loss(preds * self.scale, targets)


def make(*cbs):
    """Return a Learner whose updates take a while, weight by weight."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(LAYERS)))
    batches = [(torch.randn(5, 4), torch.randn(5, 4)) for _ in range(UPDATES)]
    sched = BatchSchedCB(partial(lr_scheduler.OneCycleLR, max_lr=0.1))
    cbs = [TrainCB(), ClipGradCB(1.0), sched, EMACB(0.9), *cbs]
    opt_func = partial(torch.optim.AdamW, foreach=False)
    return Learner(model, (batches, None), Scaled(), 0.01, cbs, opt_func)


def state(learn):
    """Return all that an update changes; the end of a fit notes `initial_lr` in the groups."""
    found = {
        "model": dict(learn.model.named_parameters()),
        "loss": dict(learn.loss_func.named_parameters()),
        "optimizer": learn.opt.state_dict(),
        "callbacks": [learn.find(EMACB).state_dict(), learn.find(BatchSchedCB).state_dict()],
    }
    found = copy.deepcopy(found)
    for group in (*found["optimizer"]["param_groups"], *found["callbacks"][1]["groups"]):
        group.pop("initial_lr", None)
    return checkpoint_files.serialisable(found)


class States(Callback):
    """Keeps the state after each batch."""

    order = -100  # the last of the clean-ups

    def __init__(self):
        self.states = {}

    def cleanup_batch(self, learn):
        self.states[learn.steps_done] = state(learn)


@cache
def undisturbed():
    """Return the states of a run that nobody interrupts, by the number of its updates."""
    states = States()
    make(states).fit(1)
    return states.states


class Announce(Callback):
    """Says through a pipe that an update begins, and how long the one before took."""

    order = -100  # the first of the step, the last of its clean-ups

    def __init__(self, at, pipe):
        self.at, self.pipe, self.times = at, pipe, {}

    def before_step(self, learn):
        self.now = learn.steps_done
        self.times[self.now] = [time.monotonic(), None]
        if self.now == self.at:
            began, ended = self.times[self.now - 1]
            os.write(self.pipe, struct.pack("d", ended - began))

    def cleanup_step(self, learn):
        self.times[self.now][1] = time.monotonic()


def run(at, pipe, result, held):
    """Train in this process until an interrupt ends it; write what is left."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    if not held:
        Interrupts.__enter__ = lambda self: None
        Interrupts.__exit__ = lambda self, *_: None
    learn = make(announce := Announce(at, pipe))
    with suppress(KeyboardInterrupt):  # it came when the fit was over
        try:
            learn.fit(1)
        except KeyboardInterrupt:
            left = {"steps": learn.steps_done, "state": state(learn), "time": announce.times[at]}
            torch.save(left, result)


def interrupt(at, fraction, held=True):
    """Interrupt a run in the update `at`; return whether it was within it, and the differences."""
    with tempfile.TemporaryDirectory() as folder:
        result, (end, pipe) = Path(folder) / "result", os.pipe()
        pid = in_child(run, at, pipe, result, held)
        (seconds,) = struct.unpack("d", os.read(end, 8))
        time.sleep(seconds * fraction)
        when = time.monotonic()
        os.kill(pid, signal.SIGINT)
        assert status_of(pid) == 0
        os.close(end), os.close(pipe)
        if not result.exists():  # it was over before
            return False, []
        left = torch.load(result, weights_only=True)
    began, ended = left["time"]
    within = began <= when and (ended is None or when <= ended)
    return within, differences(left["state"], undisturbed()[left["steps"]])


def interrupts(count, seed=0, held=True, report=lambda text: None):
    """Interrupt `count` runs within an update; return the differences of those that were wrong."""
    rng, hits, runs, wrong = random.Random(seed), 0, 0, []
    undisturbed()
    while hits < count:
        runs += 1
        at, fraction = rng.randint(1, UPDATES - 2), rng.random()
        within, differ = interrupt(at, fraction, held)
        hits += within
        if differ:
            wrong.append(differ)
            report(f"update {at}, {fraction:.3f} of it\n  " + "\n  ".join(differ[:5]))
    report(f"{runs} interrupts, {hits} of them within an update, {len(wrong)} half updates")
    return wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sys.exit(bool(interrupts(count, seed, report=partial(print, flush=True))))
