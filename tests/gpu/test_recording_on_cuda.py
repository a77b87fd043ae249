"""Loggers wait for the device at their records alone; a timer has the device's own seconds."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minilearn import (
    Callback,
    DeviceCB,
    JSONLLoggerCB,
    Learner,
    LogCB,
    MetricsCB,
    Order,
    TrainCB,
)
from tests.examples.test_memory import example

pytestmark = pytest.mark.gpu


class NoWait(Callback):
    """Lets CUDA raise at every wait within a training batch that is not the fourth update's."""

    order = Order.STOP

    def before_batch(self, learn):
        careful = learn.training and learn.steps_done % 4 != 3
        torch.cuda.set_sync_debug_mode("error" if careful else "default")

    def cleanup_batch(self, learn):
        torch.cuda.set_sync_debug_mode("default")


def learner(*cbs):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 256, 64, generator=generator).pin_memory()
    batches = list(zip(x, x.sum(-1, keepdim=True).pin_memory(), strict=True))
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1)).cuda()
    cbs = [TrainCB(), DeviceCB("cuda"), MetricsCB(), *cbs]
    return Learner(model, (batches, batches[:2]), F.mse_loss, 1e-3, cbs)


def test_rows_are_the_only_waits(tmp_path):
    logger = JSONLLoggerCB(tmp_path / "rows.jsonl", every=4)
    learn = learner(logger, LogCB(every=4), NoWait())
    learn.fit(2)
    rows = [json.loads(line) for line in logger.path.read_text().splitlines()]
    assert [row["steps"] for row in rows if "loss" in row] == [4, 8, 12, 16]


def test_memory_is_that_of_the_round():
    learn = learner(example().MemoryCB())
    learn.fit(2)
    assert learn.history["memory_mb"][-1] >= 2**-20 * 256 * 2048 * 4  # the hidden layer, at least
