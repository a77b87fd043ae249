"""Settings of the device, on a CUDA device."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from minilearn.callbacks.device import ChannelsLastCB, DeterministicCB, DeviceCB
from minilearn.callbacks.training import TrainCB
from minilearn.learner import Learner

pytestmark = pytest.mark.gpu


def trained(cbs, n=2):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3), nn.ReLU()
    )
    model.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)])
    generator = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(16, 3, 32, 32, generator=generator), torch.arange(16) % 4) for _ in range(8)
    ]
    learn = Learner(model, (data, data), F.cross_entropy, cbs=[TrainCB(), DeviceCB("cuda"), *cbs])
    learn.fit(n)
    return learn


@pytest.mark.case("C142")
def test_two_deterministic_fits_give_equal_weights(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    first, second = (trained([DeterministicCB()]).model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert before == (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
    )


@pytest.mark.skipif("CUBLAS_WORKSPACE_CONFIG" in os.environ, reason="is set for this run")
def test_torch_asks_for_the_setting_of_cublas_and_the_flags_are_put_back():
    with pytest.raises(RuntimeError, match="CUBLAS_WORKSPACE_CONFIG"):
        trained([DeterministicCB()])
    assert not torch.are_deterministic_algorithms_enabled()


def test_channels_last_computes_the_same_and_puts_the_weights_back():
    plain, ours = trained([]), trained([ChannelsLastCB()])
    for a, b in zip(plain.model.parameters(), ours.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        assert b.is_contiguous()


def test_predictions_come_to_the_cpu_and_the_device_random_state_stays():
    learn = trained([])
    state = torch.cuda.get_rng_state()
    preds, targs = learn.get_preds()
    assert preds.device == targs.device == torch.device("cpu")
    assert learn.get_preds(to=None)[0].is_cuda
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_state_that_an_optimizer_made_early_follows_its_parameters():
    model = nn.Linear(3, 2)
    opt = optim.Adagrad(model.parameters())  # makes its state at once
    DeviceCB("cuda").before_fit(Learner(model, opt=opt))
    state = opt.state[model.weight]
    assert state["sum"].is_cuda
    assert state["step"].device == torch.device("cpu")
