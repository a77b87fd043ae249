"""Weights spread over two processes by torch's fully_shard, saved and resumed; see test_shards."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from distributed.fits import data, net
from distributed.launch import tell
from torch import optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from minilearn import (
    AccelerateCB,
    CheckpointCB,
    DataLoaders,
    Dataset,
    Learner,
    MetricsCB,
    set_seed,
)

torch.set_num_threads(1)
folder = Path(sys.argv[1])


def make(name):
    set_seed(3)
    model, trainer = net(), AccelerateCB()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    dls = DataLoaders.from_dsets(Dataset(*data(40)), Dataset(*data(9, 1)), bs=4, seed=7)
    saver = CheckpointCB(folder / name, every=(3, "step"), keep=None)
    cbs = [trainer, MetricsCB(), saver]
    return Learner(model, dls, F.cross_entropy, 0.05, cbs=cbs, opt_func=optim.AdamW)


def results(learn):
    learn.model.reshard()
    return {
        "weights": [p.full_tensor().detach().clone() for p in learn.model.parameters()],
        "history": [{k: v for k, v in row.items() if k != "time"} for row in learn.history],
    }


learn = make("whole")
learn.fit(3)
found = {"whole": results(learn)}
learn = make("resumed")
learn.fit(3, resume=sorted((folder / "whole").glob("*step0000006*"))[0])
found["resumed"] = results(learn)
tell(folder, **found)
