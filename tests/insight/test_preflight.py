"""The largest batch that fits, found without leaving a trace."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from toys import Before, batches

from minilearn import EarlyStopCB, Learner, MetricsCB, MixUpCB, TrainCB
from minilearn.insight import preflight as checks


class Small(nn.Module):
    """A model whose device takes so many samples at most; notes what it was given."""

    def __init__(self, capacity, message="CUDA out of memory. Tried to allocate 2.00 GiB"):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 1), nn.BatchNorm1d(1)
        self.capacity, self.message, self.sizes = capacity, message, []

    def forward(self, x):
        self.sizes.append(len(x))
        if len(x) > self.capacity:
            raise RuntimeError(self.message)
        return self.norm(self.layer(x))


def learner(size, *cbs, **kwargs):
    model = Small(size, **kwargs)
    opt = partial(optim.AdamW, weight_decay=0.1)
    cbs = [TrainCB(), MetricsCB(), *cbs]
    return Learner(model, (batches(4, size=6),), F.mse_loss, 0.1, cbs, opt_func=opt)


@pytest.mark.parametrize(
    ("size", "start", "found"), [(100, 8, 64), (64, 8, 64), (3, 32, 2), (1e9, 32, 256), (8, 12, 6)]
)
def test_the_largest_of_the_doubles_or_halves_is_found(size, start, found):
    learn = learner(size)
    assert learn.find_batch_size(start, limit=256) == found


def test_nothing_is_left_of_it():
    learn = learner(20, EarlyStopCB("train_loss", mode="min"), MixUpCB())
    learn.fit(1, valid=False)
    state, opt = copy.deepcopy(learn.model.state_dict()), learn.opt
    moments = copy.deepcopy(opt.state_dict())
    before, rng, rows = Before(learn), torch.get_rng_state(), list(learn.history)
    assert learn.find_batch_size(4) == 16
    before.assert_nothing_left()
    assert learn.opt is opt and list(learn.history) == rows
    assert torch.equal(torch.get_rng_state(), rng)
    for name, value in learn.model.state_dict().items():
        assert torch.equal(value, state[name])
    for k, s in opt.state_dict()["state"].items():
        assert all(torch.equal(v, moments["state"][k][n]) for n, v in s.items())


def test_each_size_makes_two_steps_and_memory_is_released(monkeypatch):
    released = []
    monkeypatch.setattr(checks.gc, "collect", lambda: released.append(1))
    learn = learner(20)
    learn.find_batch_size(16)
    assert learn.model.sizes == [16, 16, 32]
    assert len(released) == 1


def test_memory_is_released_after_the_error_is_gone(monkeypatch):
    """A traceback would keep the batch, and with it what did not fit, alive."""
    import sys

    alive = []
    monkeypatch.setattr(checks.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(checks.torch.cuda, "empty_cache", lambda: alive.append(sys.exc_info()[1]))
    learner(20).find_batch_size(16)
    assert alive == [None]


def test_other_errors_are_passed_on_and_none_that_fits_is_one():
    with pytest.raises(RuntimeError, match="shapes"):
        learner(20, message="shapes do not match").find_batch_size(16)
    with pytest.raises(RuntimeError, match="not even one sample"):
        learner(0).find_batch_size(16)
    with pytest.raises(ValueError, match="start <= limit"):
        learner(20).find_batch_size(16, limit=8)
    with pytest.raises(ValueError, match="training loader"):
        Learner(nn.Linear(3, 1), cbs=[TrainCB()]).find_batch_size()
