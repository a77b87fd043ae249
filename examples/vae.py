"""A variational autoencoder: images as 16 numbers each, and new images from random ones.

Run it with `python examples/vae.py`. The target is the input itself, the loss has two parts, each a
column of the history. Source: Kingma & Welling 2013 (arXiv:1312.6114).
"""

from torch import Tensor

from minilearn.all import *


class VAE(nn.Module):
    def __init__(self, n_hidden: int = 200, n_code: int = 16) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(784, n_hidden), nn.ReLU())
        self.mean, self.logvar = nn.Linear(n_hidden, n_code), nn.Linear(n_hidden, n_code)
        self.decode = nn.Sequential(
            *(nn.Linear(n_code, n_hidden), nn.ReLU(), nn.Linear(n_hidden, 784)),
            nn.Unflatten(1, (1, 28, 28)),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encode(x)
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        code = mean + (logvar / 2).exp() * torch.randn_like(mean)
        return self.decode(code), mean, logvar


def elbo(preds: tuple[Tensor, Tensor, Tensor], x: Tensor) -> dict[str, Tensor]:
    logits, mean, logvar = preds
    rebuilt = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = (mean**2 + logvar.exp() - 1 - logvar).sum() / 2
    return {"rebuilt": rebuilt / len(x), "divergence": divergence / len(x)}


def main(epochs: int = 5, batches: int | None = None) -> Learner:
    set_seed(1)
    dls = DataLoaders.from_dd(fashion_mnist(), 128, as_tuple=False, keys=["image"], normalize=False)
    cbs = [TrainCB(inputs="image", targets="image"), DeviceCB(), MetricsCB(), ProgressCB()]
    cbs.append(LimitBatchesCB(train=batches, valid=batches))
    learn = Learner(VAE(), dls, elbo, 1e-3, cbs, optim.Adam)
    learn.fit(epochs)
    return learn


if __name__ == "__main__":
    print(main().history)
