"""What processes exchange: bytes for an update and for a round, counted as they are sent.

    python benchmarks/distributed.py

Each number of processes is a run of torchrun on this machine (gloo). Two kinds are counted
separately: gradients, which go between the devices, and what the Learner exchanges over the CPU.
"""

import json
import os
import subprocess
import sys

NET = (784, 512, 256, 10)  # 535,818 weights
UPDATES = 20


def count() -> None:
    """Train in this process and count; rank 0 prints the counts."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn

    from minilearn import (
        AccelerateCB,
        Callback,
        DataLoaders,
        Dataset,
        Learner,
        MetricsCB,
        accuracy,
    )
    from minilearn.distributed.sync import Processes

    sent = {"calls": 0, "bytes": 0}

    def all_gather(self: Processes, mine: torch.Tensor) -> list[torch.Tensor]:
        sent["calls"] += 1
        sent["bytes"] += mine.nbytes
        return original(self, mine)

    original, Processes._all_gather = Processes._all_gather, all_gather
    gradients = [0]

    def hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients[0] += bucket.buffer().nbytes
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        return allreduce_hook(None, bucket)

    class Hooked(Callback):
        order = 1  # the model of a training batch is wrapped

        def before_batch(self, learn: Learner) -> None:
            if learn.training and learn.iter == 0:
                learn.model.register_comm_hook(None, hook)
                self.before = dict(sent)

        def after_batch(self, learn: Learner) -> None:
            if learn.training and learn.iter == UPDATES - 1:
                self.in_batches = {k: sent[k] - self.before[k] for k in sent}

    torch.manual_seed(0)
    layers = [m for a, b in zip(NET, NET[1:], strict=False) for m in (nn.Linear(a, b), nn.ReLU())]
    n = UPDATES * 32 * int(os.environ["WORLD_SIZE"])
    data = Dataset(torch.randn(n, NET[0]), torch.randint(NET[-1], (n,)))
    dls = DataLoaders.from_dsets(data, data, bs=32, seed=0)
    counter, metrics = Hooked(), MetricsCB(accuracy)
    metrics._log = lambda row: None
    learn = Learner(nn.Sequential(*layers[:-1]), dls, F.cross_entropy, 0.1)
    learn.cbs += [AccelerateCB(), metrics, counter]
    learn.fit(1)
    if dist.get_rank() == 0:
        besides = {k: sent[k] - counter.in_batches[k] for k in sent}
        print(
            json.dumps(
                {
                    "weights": sum(p.numel() for p in learn.model.parameters()),
                    "gradients": gradients[0] / UPDATES,
                    "cpu": {k: v / UPDATES for k, v in counter.in_batches.items()},
                    "per_round": besides,
                }
            )
        )


def measure(n: int) -> dict:
    """Return the counts of `n` processes."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "MINILEARN_DEVICE": "cpu"}
    out = subprocess.run(
        [*launch, f"--nproc-per-node={n}", __file__, "count"],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return json.loads(out.splitlines()[-1])


def ring(payload: float, n: int) -> float:
    """Return the bytes that a process sends in a ring all-reduce of a payload among `n`."""
    return 2 * (n - 1) / n * payload


def main() -> None:
    """Measure with 2 and 4 processes, and print what follows for 64."""
    for n in (2, 4):
        found = measure(n)
        gradients, cpu, per_round = found["gradients"], found["cpu"], found["per_round"]
        print(f"{n} processes, {found['weights']:,} weights:")
        print(f"  an update: gradients {gradients:,.0f} bytes, sent {ring(gradients, n):,.0f};")
        print(f"    and over the CPU {cpu['bytes']:.0f} bytes in {cpu['calls']:.1f} exchanges")
        print(f"  a round more: {per_round['bytes']:,} bytes in {per_round['calls']} exchanges")
    print(f"64 processes: {ring(gradients, 64):,.0f} bytes of gradients sent an update")
    print(f"  and over the CPU {cpu['bytes']:.0f} sent and {63 * cpu['bytes']:,.0f} received")


if __name__ == "__main__":
    count() if sys.argv[1:] == ["count"] else main()
