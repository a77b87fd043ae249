"""Two networks, two optimizers: a GAN, by answering the actions of the loop.

Run it with `python examples/gan.py`. The generator learns to draw points from a ring; the
discriminator learns to distinguish them from real ones. One batch updates both.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from minilearn import Callback, DataLoaders, Learner, MetricsCB, Order

NOISE = 8


def ring(n: int) -> Tensor:
    """`n` points on a circle of radius 1, a little off: (n, 2)."""
    angle = 2 * math.pi * torch.rand(n)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


def mlp(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n_in, 64), nn.LeakyReLU(0.2), nn.Linear(64, n_out))


class GANCB(Callback):
    """Answers all five actions; the model holds a `generator` and a `discriminator`.

    Events: before_fit, predict, get_loss, backward, step, zero_grad
    Order:  TRAIN
    Reads:  model, batch, preds, loss_parts, training
    Writes: preds, loss, loss_parts
    """

    order = Order.TRAIN

    def __init__(self, lr: float = 1e-3) -> None:
        self.lr = lr

    def before_fit(self, learn: Learner) -> None:
        nets = learn.model.values()
        self.opts = [optim.Adam(net.parameters(), self.lr, betas=(0.5, 0.99)) for net in nets]

    def predict(self, learn: Learner) -> None:
        noise = torch.randn(len(learn.batch[0]), NOISE)
        learn.preds = learn.model.generator(noise)  # (B, NOISE) -> (B, 2)

    def get_loss(self, learn: Learner) -> None:
        disc, real, fake = learn.model.discriminator, learn.batch[0], learn.preds
        # what one network wants must not reach the other: detach here, `inputs=` below
        known = F.softplus(-disc(real)).mean() + F.softplus(disc(fake.detach())).mean()
        fooled = F.softplus(-disc(fake)).mean()
        learn.loss_parts = {"gen": fooled, "disc": known}
        learn.loss = fooled + known

    def backward(self, learn: Learner) -> None:
        gen, disc = (list(net.parameters()) for net in learn.model.values())
        learn.loss_parts["gen"].backward(inputs=gen)
        learn.loss_parts["disc"].backward(inputs=disc)

    def step(self, learn: Learner) -> None:
        for opt in self.opts:
            opt.step()

    def zero_grad(self, learn: Learner) -> None:
        for opt in self.opts:
            opt.zero_grad()


def learner(n_batches: int = 200) -> Learner:
    """A Learner without an optimizer of its own: the callback has two."""
    nets = nn.ModuleDict({"generator": mlp(NOISE, 2), "discriminator": mlp(2, 1)})
    dls = DataLoaders([(ring(256),) for _ in range(n_batches)], [(ring(256),)])
    return Learner(nets, dls, loss_func=None, opt_func=None, cbs=[GANCB(), MetricsCB()])


if __name__ == "__main__":
    torch.manual_seed(0)
    learn = learner()
    learn.fit(10)
    radius = learn.model.generator(torch.randn(1000, NOISE)).norm(dim=1)
    print(f"radius of the points drawn: {radius.mean():.2f} ± {radius.std():.2f} (of the ring: 1)")
