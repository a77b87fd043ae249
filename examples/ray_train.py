"""Train with Ray Train: it starts the processes, on one machine or on a cluster.

    pip install "ray[train]" "minilearn[processes]"
    python examples/ray_train.py --workers 2 --epochs 2

`TorchTrainer` starts `train_on_worker` once a worker and sets up torch.distributed between them.
From there on it is the script of one process: AccelerateCB finds the others, gives each its
shard of the data and combines the results. Ray gets each row of the history, and a checkpoint.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import nn, optim

from minilearn import (
    AccelerateCB,
    Callback,
    DataLoaders,
    Learner,
    MetricsCB,
    Order,
    ProgressCB,
    accuracy,
    act_gr,
    fashion_mnist,
    get_model,
    set_seed,
)


class RayCB(Callback):
    """Report each row of the history to Ray, with what a restarted run needs to go on.

    Events: after_round
    Order:  SAVE + 1
    Reads:  history
    Writes:
    """

    order = Order.SAVE + 1

    def after_round(self, learn: Learner) -> None:
        """Report; every worker must, and rank 0 adds the checkpoint."""
        from ray import train

        row = {name: float(value) for name, value in learn.history[-1].items()}
        if train.get_context().get_world_rank():
            train.report(row)
            return
        with tempfile.TemporaryDirectory() as folder:
            learn.save_checkpoint(Path(folder) / "last.ckpt")
            train.report(row, checkpoint=train.Checkpoint.from_directory(folder))


def train_on_worker(config: dict[str, Any]) -> None:
    """Make the Learner and fit it; this runs in each worker."""
    from ray import train

    set_seed(42)
    dls = DataLoaders.from_dd(fashion_mnist(), config["bs"], seed=42)
    model = get_model(act_gr, (1, 8, 16, 32), nn.BatchNorm2d)
    cbs = [AccelerateCB(), MetricsCB(accuracy), ProgressCB(), RayCB()]
    learn = Learner(model, dls, F.cross_entropy, cbs=cbs, opt_func=optim.AdamW)
    before = train.get_checkpoint()  # there is one after a worker was lost
    if before is None:
        learn.fit_one_cycle(config["epochs"], 1e-2)
    else:
        with before.as_directory() as folder:
            learn.fit_one_cycle(config["epochs"], 1e-2, resume=Path(folder) / "last.ckpt")


def main(workers: int, epochs: int, bs: int, storage: str | None) -> Any:
    """Run the trainer and return its result."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(
        train_on_worker,
        train_loop_config={"epochs": epochs, "bs": bs},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=1)),
    )
    return trainer.fit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--bs", type=int, default=64, help="images in a batch of one worker")
    parser.add_argument("--storage", help="a folder that all machines see; ~/ray_results if none")
    print(main(**vars(parser.parse_args())).metrics)
