"""What a step costs over the loop that you would write by hand: a tiny model, prepared batches, 1 thread."""

import io
import sys
from contextlib import redirect_stdout

import torch
import torch.nn.functional as F
from harness import compare, report, seconds
from torch import nn

from minilearn.callbacks.device import DeviceCB
from minilearn.callbacks.training import TrainCB
from minilearn.core.learner import Learner

STEPS = 300


def batches() -> list:
    torch.manual_seed(0)
    return [(torch.randn(8, 10), torch.randint(0, 10, (8,))) for _ in range(STEPS)]


def raw_loop(data: list) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    model.train()
    for xb, yb in data:
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
    return model


def bare(data: list) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    Learner(model, (data,), F.cross_entropy, cbs=[TrainCB()]).fit(1)
    return model


def main() -> None:
    torch.set_num_threads(1)
    data = batches()
    assert torch.equal(bare(data).weight, raw_loop(data).weight)
    compare("step, bare", lambda: bare(data), lambda: raw_loop(data))


if __name__ == "__main__":
    main()
