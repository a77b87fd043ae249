"""What accelerate does on GPUs alone: FSDP 2, and batch norm over all processes."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from minilearn import (
    AccelerateCB,
    CheckpointCB,
    DataLoaders,
    Dataset,
    Learner,
    MetricsCB,
    set_seed,
)

pytestmark = pytest.mark.gpu


def make(folder, **kwargs):
    set_seed(3)
    x, y = torch.randn(64, 4), torch.randint(3, (64,))
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)]
    trainer = AccelerateCB(**kwargs)
    dls = DataLoaders.from_dsets(Dataset(x, y), Dataset(x, y), bs=8, seed=1)
    cbs = [trainer, MetricsCB(), CheckpointCB(folder, every=(3, "step"), keep=None)]
    return Learner(nn.Sequential(*layers), dls, F.cross_entropy, cbs=cbs, opt_func=optim.AdamW)


@pytest.fixture
def one_process(monkeypatch):
    """A process group of one, as torchrun with one process makes it."""
    from accelerate.state import AcceleratorState

    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
    for name, value in {**names, "MASTER_PORT": "29551"}.items():
        monkeypatch.setenv(name, value)
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    assert os.environ["RANK"] == "0"


def test_fsdp_saves_in_parts_and_goes_on_exactly(one_process, tmp_path):
    from accelerate import FullyShardedDataParallelPlugin

    def plugin():
        return FullyShardedDataParallelPlugin(fsdp_version=2)

    whole = make(tmp_path / "whole", fsdp_plugin=plugin())
    whole.fit(2)
    saved = min((tmp_path / "whole").glob("*step0000006*.ckpt"))
    assert (saved / "state.ckpt").exists()
    resumed = make(tmp_path / "resumed", fsdp_plugin=plugin())
    resumed.fit(2, resume=saved)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a.detach(), b.detach())


def test_batch_norm_is_given_back(one_process, tmp_path):
    learn = make(tmp_path, sync_bn=True)
    norm = learn.model[1]
    learn.fit(1)
    assert learn.model[1] is norm and norm.num_batches_tracked == 8
