"""Go on with a sine wave: two LSTM cells, LBFGS over all waves at once, in double precision.

Run it with `python examples/time_sequence.py`. LBFGS evaluates the batch many times an update:
ClosureCB. Validation measures predictions one step ahead, on waves that were held out.
"""

from torch import Tensor

from minilearn.all import *


class Waves(nn.Module):
    def __init__(self, n: int = 51) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(1, n), nn.LSTMCell(n, n)
        self.out = nn.Linear(n, 1)

    def forward(self, x: Tensor, n_more: int = 0) -> Tensor:
        """Return what follows each value of `x` (B, T), and `n_more` from there."""
        one = two = None
        values: list[Tensor] = []
        for t in range(x.shape[1] + n_more):
            now = x[:, t : t + 1] if t < x.shape[1] else values[-1]
            one = self.first(now, one)
            two = self.second(one[0], two)
            values.append(self.out(two[0]))
        return torch.cat(values, 1)


def waves(n: int = 100, length: int = 1000, period: float = 20) -> Tensor:
    """`n` sine waves that begin anywhere: (n, length)."""
    start = torch.randint(-4 * int(period), 4 * int(period), (n, 1))
    return ((torch.arange(length) + start) / period).double().sin()


def main(updates: int = 15, n: int = 100, length: int = 1000, n_hidden: int = 51) -> Learner:
    set_seed(0)
    data = waves(n, length)
    train, valid = ([(w[:, :-1], w[:, 1:])] for w in (data[3:], data[:3]))
    model, cbs = Waves(n_hidden).double(), [ClosureCB(), MetricsCB(), ProgressCB()]
    learn = Learner(model, (train, valid), F.mse_loss, 0.8, cbs, optim.LBFGS)
    learn.fit(updates)  # one batch an epoch: an update each
    return learn


if __name__ == "__main__":
    learn = main()
    with torch.no_grad():
        print(learn.model(learn.dls[1][0][0], n_more=1000)[:, -1000:])
