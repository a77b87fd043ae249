"""Peak memory of three epochs compared with loops by hand, and whether it grows in 10,000 steps.

    python benchmarks/memory.py [full]

Each run is a process of its own on the same images of Fashion-MNIST. One loop has our loaders, too;
the other has slices of all images as floats, and holds nothing else.
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
FULL = "full" in sys.argv
model = get_model(norm=torch.nn.BatchNorm2d)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
"""
FLOATS = """
from minilearn.data.columns import load_columns
dd = fashion_mnist(FULL)
def slices(split, bs, shuffle):
    columns = load_columns(dd[split])
    x, y = columns["image"].float().div_(255).sub_(0.286).div_(0.353), columns["label"]
    class Batches:
        def __iter__(self):
            order = torch.randperm(len(y)) if shuffle else torch.arange(len(y))
            return ((x[i], y[i]) for i in order.split(bs))
    return Batches()
dls = DataLoaders(slices("train", 256, True), slices("test", 512, False))
del dd
"""
LOADERS = """
dls = DataLoaders.from_dd(fashion_mnist(FULL), 256)
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
        [sys.executable, "-c", COMMON + code, *sys.argv[1:]],
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(v) for v in out.stdout.splitlines()[-1].split()]


def main() -> None:
    floats = sorted(run(FLOATS + RAW)[0] for _ in range(5))[2]
    raw = sorted(run(LOADERS + RAW)[0] for _ in range(5))[2]
    ours = sorted(run(LOADERS + OURS)[0] for _ in range(5))[2]
    report("memory: three epochs", raw_mb=raw, ours_mb=ours, more_mb=ours - raw)
    report("memory: over float slices", raw_mb=floats, ours_mb=ours, more_mb=ours - floats)
    objects, megabytes = run(MANY)
    report("memory: steps 1,000 to 10,000", objects=objects, mb=megabytes)


if __name__ == "__main__":
    main()
