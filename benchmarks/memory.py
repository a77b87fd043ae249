"""Peak memory of three epochs compared with a loop by hand, and whether it grows in 10,000 steps.

    python benchmarks/memory.py

Each run is a process of its own on the same bytes (Fashion-MNIST images as uint8).
"""

import subprocess
import sys

from harness import report

COMMON = """
import gc, resource, sys
import torch, torch.nn.functional as F
import minilearn
from minilearn import *
from minilearn.data.loaders import DataLoaders
torch.set_num_threads(1)
torch.manual_seed(0)
dls = DataLoaders.from_dd(fashion_mnist(), 256)
model = get_model(norm=torch.nn.BatchNorm2d)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
"""
RAW = """
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for epoch in range(3):
    model.train()
    for xb, yb in dls.train:
        loss = F.cross_entropy(model(xb), yb); loss.backward(); opt.step(); opt.zero_grad()
    model.eval()
    with torch.no_grad():
        for xb, yb in dls.valid: loss = F.cross_entropy(model(xb), yb)
print(peak())
"""
OURS = """
learn = Learner(model, dls, F.cross_entropy, lr=1e-3, opt_func=torch.optim.AdamW,
                cbs=[TrainCB(), MetricsCB(accuracy=accuracy), ProgressCB()])
learn.fit(3)
print(peak())
"""
MANY = """
data = [(torch.randn(8, 10), torch.randint(0, 10, (8,))) for _ in range(100)]
cbs = [TrainCB(), MetricsCB(accuracy=accuracy), ProgressCB()]
learn = Learner(torch.nn.Linear(10, 10), (data,), F.cross_entropy, cbs=cbs)
seen = []
def note(learn):
    if learn.steps_done in (1000, 10000): gc.collect(); seen.append((len(gc.get_objects()), peak()))
learn.on("after_step", note)
learn.fit(n_steps=10000)
print(seen[1][0] - seen[0][0], seen[1][1] - seen[0][1])
"""


def run(code: str) -> list[float]:
    out = subprocess.run(
        [sys.executable, "-c", COMMON + code], capture_output=True, text=True, check=True
    )
    return [float(v) for v in out.stdout.splitlines()[-1].split()]


def main() -> None:
    raw = sorted(run(RAW)[0] for _ in range(5))[2]
    ours = sorted(run(OURS)[0] for _ in range(5))[2]
    report("memory: three epochs", raw_mb=raw, ours_mb=ours, more_mb=ours - raw)
    objects, megabytes = run(MANY)
    report("memory: steps 1,000 to 10,000", objects=objects, mb=megabytes)


if __name__ == "__main__":
    main()
