"""One epoch on all of Fashion-MNIST with the course's small CNN, compared with slicing by hand.

    python benchmarks/epoch.py [rounds]

Training and validation. The base is the fastest loop there is: float tensors in memory, sliced.
Needs Debian's package `dataset-fashion-mnist`, or a copy that `datasets` can load.
"""

import sys
import time

import torch
import torch.nn.functional as F
from harness import compare, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from minilearn import DataLoaders, Learner, MetricsCB, TrainCB, fashion_mnist, get_model


def small_cnn() -> nn.Module:
    torch.manual_seed(0)
    return get_model()


def by_hand(train: list, valid: list) -> None:
    """An epoch over iterables of batches, with the running mean of the loss."""
    model = small_cnn()
    opt = torch.optim.SGD(model.parameters(), 0.1)
    model.train()
    total = torch.zeros(())
    for xb, yb in train:
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
        total += loss.detach() * len(xb)
    model.eval()
    with torch.no_grad():
        for xb, yb in valid:
            total += F.cross_entropy(model(xb), yb) * len(xb)
    total.item()


def slices(x: torch.Tensor, y: torch.Tensor, bs: int):
    for i in range(0, len(x), bs):
        yield x[i : i + bs], y[i : i + bs]


def in_memory(dls: DataLoaders) -> list[torch.Tensor]:
    """Both splits as float tensors: x, y of training, x, y of validation."""
    tensors = []
    for dl in (dls.train, dls.valid):
        batches = list(dl)
        tensors += [torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])]
    return tensors


def main() -> None:
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    dd = fashion_mnist(full=True)
    start = time.perf_counter()
    DataLoaders.from_dd(dd, 1024)
    report("decode 70,000 images once", s=time.perf_counter() - start)
    for bs in (1024, 64):
        compare_paths(DataLoaders.from_dd(dd, bs), bs, rounds)


def compare_paths(dls: DataLoaders, bs: int, rounds: int) -> None:
    x, y, xv, yv = in_memory(dls)

    def base() -> None:
        by_hand(slices(x, y, bs), slices(xv, yv, 2 * bs))

    def ours() -> None:
        Learner(small_cnn(), dls, F.cross_entropy, cbs=[TrainCB(), Quiet()]).fit(1)

    def loader() -> None:
        train = DataLoader(TensorDataset(x, y), bs, shuffle=True)
        by_hand(train, DataLoader(TensorDataset(xv, yv), 2 * bs))

    compare(f"epoch: our default path, {bs}", ours, base, rounds)
    compare(f"epoch: DataLoader by hand, {bs}", loader, base, rounds)


class Quiet(MetricsCB):
    """A MetricsCB that prints nothing."""

    def _log(self, row):
        pass


if __name__ == "__main__":
    main()
