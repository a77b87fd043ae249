"""Module-level things that worker processes must be able to unpickle."""

import random

import numpy as np
import torch

from minilearn.data import inplace


@inplace
def add_one(batch):
    """Add one."""
    batch["x"] = [x + 1 for x in batch["x"]]


def double(batch):
    batch["x"] = [2 * x for x in batch["x"]]


doubled = inplace(double)


class Draws:
    """Each item is its index and a draw of every generator."""

    def __init__(self, n=64):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i, random.random(), float(np.random.rand()), float(torch.rand(()))
