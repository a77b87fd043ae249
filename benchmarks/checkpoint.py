"""What a checkpoint costs: how long the training waits, and the write compared with torch.save.

A model of 25 million float32 parameters with AdamW (300 MB a checkpoint); `--big` has 100 million.
"""

import argparse
import os
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median

import torch
from torch import nn

from minilearn import CheckpointCB, Learner, TrainCB
from minilearn.checkpoint.files import serialisable, write
from minilearn.checkpoint.fit_state import capture


def timed(f, repeats=3):
    """Return the median of the seconds that `f` takes."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        f()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def synced(state, path):
    """Write as one would by hand to be sure that the file is on the disk."""
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def make(layers, folder):
    model = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(layers)))
    data = [(torch.randn(2, 1000), torch.randn(2, 1000)) for _ in range(8)]
    cb = CheckpointCB(folder, every=(4, "step"), keep=1, signals=())
    return Learner(model, (data,), cbs=[TrainCB(), cb], opt_func=torch.optim.AdamW, lr=1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--big", action="store_true", help="100 million parameters, 1.2 GB a file")
    layers = 100 if parser.parse_args().big else 25
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        learn = make(layers, folder / "run")
        learn.fit(1)
        cb, waits = learn.find(CheckpointCB), []
        real = cb._save

        def noted(*args):
            cb._writer.join()  # what is measured is the copy, not the file before
            start = time.perf_counter()
            real(*args)
            waits.append(time.perf_counter() - start)

        cb._save = noted
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the folder is in use, by this program
            learn.fit(1)
        state = capture(learn)
        by_hand = {"model": learn.model.state_dict(), "optimizer": learn.opt.state_dict()}
        copy = timed(lambda: serialisable(by_hand))
        ours = timed(lambda: write(state, folder / "a.ckpt"))
        theirs = timed(lambda: torch.save(by_hand, folder / "b.pt"))
        safe = timed(lambda: synced(by_hand, folder / "b.pt"))
        size = (folder / "a.ckpt").stat().st_size / 1e6
    print(f"{size:.0f} MB: the training waits {median(waits):.3f} s; a copy takes {copy:.3f} s")
    print(f"write {ours:.3f} s; torch.save {theirs:.3f} s (ratio {ours / theirs:.2f}), ", end="")
    print(f"with fsync {safe:.3f} s (ratio {ours / safe:.2f})")


if __name__ == "__main__":
    main()
