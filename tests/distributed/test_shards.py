"""Sharded weights: written in parts, gone on with to the bit, and equal to weights in one place."""

import pytest
import torch
import torch.nn.functional as F
from torch import optim

from minilearn import DataLoaders, Dataset, Learner, TrainCB, set_seed

from .fits import data, net
from .launch import as_json, told, torchrun


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    torchrun("shards", folder)
    return folder


def test_a_resume_from_shards_is_exact(folder):
    for one in told(folder):
        whole, resumed = one["whole"], one["resumed"]
        assert as_json(whole["history"]) == as_json(resumed["history"])
        assert all(map(torch.equal, whole["weights"], resumed["weights"]))


def test_shards_train_as_one_process_does(folder):
    set_seed(3)
    dls = DataLoaders.from_dsets(Dataset(*data(40)), Dataset(*data(9, 1)), bs=8, seed=7)
    learn = Learner(net(), dls, F.cross_entropy, 0.05, cbs=TrainCB(), opt_func=optim.AdamW)
    learn.fit(3)
    for ours, theirs in zip(
        told(folder)[0]["whole"]["weights"], learn.model.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs.detach(), atol=1e-5, rtol=0)


def test_each_process_wrote_its_part(folder):
    saved = sorted((folder / "whole").glob("*.ckpt"))[0]
    names = {path.name for path in saved.iterdir()}
    assert {"state.ckpt", ".metadata", "__0_0.distcp", "__1_0.distcp"} <= names
    assert torch.load(saved / "state.ckpt", weights_only=True)["model"] is None
