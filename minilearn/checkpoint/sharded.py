"""Checkpoints of sharded weights (FSDP), by torch.distributed.checkpoint.

Such a checkpoint is a folder: each process writes its shard, and rank 0 adds what a checkpoint of
one file holds. All processes save and load together; any number of them can load.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..base.rank import rank
from ..core.learner import Loop
from ..distributed.ddp import sharded_modules
from .files import STATE, remove, write


def save_shards(learn: Loop, state: dict[str, Any], path: Path, overwrite: bool = True) -> None:
    """Write a checkpoint to the folder `path`, in all processes; it is complete or absent.

    Args:
        learn: has the sharded model and its optimizer.
        state: everything else, serialisable.
        path: the folder; the path in rank 0 counts.
        overwrite: replace a checkpoint at `path`.
    """
    import torch.distributed.checkpoint as dcp

    paths = [os.fspath(path)]
    dist.broadcast_object_list(paths)
    path = Path(paths[0])
    part = path.with_name(f".{path.name}.part")
    dcp.save(_weights(learn), checkpoint_id=part)
    if rank() == 0:
        write(state, part / STATE)
        if overwrite:
            remove(path)
        os.replace(part, path)  # fails where there is another checkpoint
    dist.barrier()


def load_shards(learn: Loop, path: str | Path) -> None:
    """Load weights and the optimizer's state from a folder of shards, in all processes."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    found = _weights(learn)
    dcp.load(found, checkpoint_id=path, no_dist=not dist.is_initialized())
    model, optimizer = found["model"], found["optimizer"]
    set_state_dict(learn.model, learn.opt, model_state_dict=model, optim_state_dict=optimizer)


def _weights(learn: Loop) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    for part in sharded_modules(learn.model):
        part.reshard()
    with warnings.catch_warnings():  # torch uses what it deprecates
        warnings.simplefilter("ignore", FutureWarning)
        model, optimizer = get_state_dict(learn.model, learn.opt)
    return {"model": model, "optimizer": optimizer}
