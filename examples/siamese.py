"""A siamese network: do two images show the same kind of thing?

Run it with `python examples/siamese.py`. A data set draws pairs, half of them of one kind, from
Python's random numbers; the loader repeats them by seed, epoch and index, in workers too.
Source: Bromley et al. 1993, "Signature verification using a siamese time delay neural network".
"""

import random

from torch import Tensor

from minilearn.all import *


class Pairs:
    """Item i: image i, another one of the same kind or not, and 1.0 or 0.0 to say which."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.kinds = x, y.tolist()
        self.members = {kind: (y == kind).nonzero()[:, 0].tolist() for kind in set(self.kinds)}

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        same, kind = random.random() < 0.5, self.kinds[i]
        other = kind if same else random.choice([k for k in self.members if k != kind])
        return self.x[i], self.x[random.choice(self.members[other])], torch.tensor(float(same))


class Siamese(nn.Module):
    def __init__(self, n: int = 32) -> None:
        super().__init__()
        convs = [nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
        self.body = nn.Sequential(*convs, nn.Flatten(), nn.Linear(1568, n))
        self.head = nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 1))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        apart = (self.body(one) - self.body(two)).abs()  # both (B, 1, 28, 28) -> (B, n)
        return self.head(apart)[:, 0]


def accuracy_of_pairs(preds: Tensor, same: Tensor) -> Tensor:
    return ((preds > 0) == (same > 0)).float().mean()


def main(epochs: int = 5) -> Learner:
    set_seed(3)
    data = DataLoaders.from_dd(fashion_mnist(), 10_000)
    train, valid = (Pairs(*next(iter(dl))) for dl in (data.train, data.valid))
    dls = DataLoaders.from_dsets(train, valid, bs=64)
    cbs = [TrainCB(n_inp=2), DeviceCB(), MetricsCB(accuracy=accuracy_of_pairs), ProgressCB()]
    learn = Learner(Siamese(), dls, F.binary_cross_entropy_with_logits, 1e-3, cbs, optim.Adam)
    learn.fit(epochs)
    return learn


if __name__ == "__main__":
    print(main().history)
