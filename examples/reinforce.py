"""Learning by trial: a policy that balances a pole, by its gradient (REINFORCE).

Run it with `python examples/reinforce.py`. The loader plays: each batch is what happened when the
current policy steered 16 carts. Source: Williams 1992, doi:10.1007/BF00992696.
"""

from torch import Tensor

from minilearn.all import *


def moved(state: Tensor, push: Tensor, dt: float = 0.02) -> Tensor:
    """Return carts (B, 4: position, speed, angle, its speed) a moment later; `push` is -1 or 1."""
    _, v, a, w = state.T
    force = (10 * push + 0.05 * w**2 * a.sin()) / 1.1
    turn = (9.8 * a.sin() - a.cos() * force) / (2 / 3 - 0.1 * a.cos() ** 2 / 2.2)
    return state + dt * torch.stack([v, force - 0.05 * turn * a.cos() / 1.1, w, turn], 1)


@torch.no_grad()
def play(policy: nn.Module, n: int = 16, longest: int = 200, discount: float = 0.99) -> tuple:
    """Steer `n` carts until all poles fell: states (n, T, 4), pushes, and their worth, (n, T)."""
    state, up, steps = torch.rand(n, 4) / 10 - 0.05, torch.ones(n).bool(), []
    while up.any() and len(steps) < longest:
        push = policy(state).softmax(1).multinomial(1)[:, 0]
        steps.append((state, push.where(up, -100), up))  # a target of -100 makes no loss
        state = moved(state, 2 * push - 1)
        up = up & (state[:, 0].abs() < 2.4) & (state[:, 2].abs() < 0.21)
    states, pushes, ups = (torch.stack(parts, 1) for parts in zip(*steps, strict=True))
    times = torch.arange(len(steps))  # a step earns 1, and a fraction of what follows it
    worth = ups.float() @ (discount ** (times[:, None] - times)).tril()
    return states, pushes, (worth - worth[ups].mean()) / worth[ups].std()


class Plays(list):
    """A loader of games: each is played when it is asked for."""

    def __iter__(self):
        return (play(policy) for policy in super().__iter__())


def loss_func(logits: Tensor, pushes: Tensor, worth: Tensor) -> Tensor:
    return (F.cross_entropy(logits.mT, pushes, reduction="none") * worth).sum(1).mean()


def main(epochs: int = 5, updates: int = 20) -> Learner:
    set_seed(543)
    policy = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    metrics = MetricsCB(length=lambda _, targets: (targets[0] >= 0).sum(1).float().mean())
    dls, cbs = (Plays([policy] * updates), None), [TrainCB(), metrics, ProgressCB()]
    learn = Learner(policy, dls, loss_func, 1e-2, cbs, optim.Adam)
    learn.fit(epochs)
    return learn


if __name__ == "__main__":
    print(main().history)
