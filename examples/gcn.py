"""A graph network: the community of every member, from a few that are known and who knows whom.

Run it with `python examples/gcn.py`. The whole graph is one batch, whose loss and metric count the
labelled members only. Source: Kipf & Welling 2016 (arXiv:1609.02907).
"""

from torch import Tensor

from minilearn.all import *

UNKNOWN = -100  # the label that cross_entropy leaves out


def society(n: int = 300, k: int = 4, p_in: float = 0.1, p_out: float = 0.01) -> tuple:
    """`n` members of `k` communities: 8 noisy traits (n, 8), who knows whom (n, n), labels (n,)."""
    labels = torch.arange(n) % k
    same = labels[:, None] == labels
    knows = (torch.rand(n, n) < torch.where(same, p_in, p_out)).triu(1).float()
    traits = torch.randn(k, 8)[labels] + 2 * torch.randn(n, 8)
    return traits, knows + knows.T, labels


def normalised(knows: Tensor) -> Tensor:
    """Return D^-1/2 (A + I) D^-1/2: (n, n), to average over friends."""
    linked = knows + torch.eye(len(knows))
    scale = linked.sum(1).rsqrt()
    return scale[:, None] * linked * scale


class GCN(nn.Module):
    def __init__(self, n_in: int, n_hidden: int, n_out: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(n_in, n_hidden), nn.Linear(n_hidden, n_out)
        self.drop = nn.Dropout(0.5)

    def forward(self, traits: Tensor, graph: Tensor) -> Tensor:
        hidden = self.drop(F.relu(graph @ self.first(traits)))  # (n, n_in) -> (n, n_hidden)
        return graph @ self.second(hidden)  # (n, n_hidden) -> (n, n_out)


def main(epochs: int = 100, n: int = 300, n_known: int = 40) -> Learner:
    set_seed(42)
    traits, knows, labels = society(n)
    known = torch.rand(n).argsort() < n_known
    shown, hidden = (labels.where(mask, UNKNOWN) for mask in (known, ~known))
    train, valid = ([(traits, normalised(knows), y)] for y in (shown, hidden))
    metrics = MetricsCB(accuracy=partial(accuracy, ignore_index=UNKNOWN))
    cbs, opt_func = (
        [TrainCB(n_inp=2), DeviceCB(), metrics, ProgressCB()],
        partial(optim.Adam, weight_decay=5e-4),
    )
    learn = Learner(GCN(8, 16, 4), (train, valid), F.cross_entropy, 1e-2, cbs, opt_func)
    learn.fit(epochs)
    return learn


if __name__ == "__main__":
    print(main().history)
