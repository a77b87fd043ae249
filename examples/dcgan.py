"""A deep convolutional GAN: images of clothes from noise.

Run it with `python examples/dcgan.py`. The loop of two optimizers is that of gan.py; this file has
the networks and the data. Source: Radford et al. 2015 (arXiv:1511.06434); batch norm is in the
generator only, since the discriminator sees real and drawn images in separate batches.
"""

from gan import GANCB, NOISE

from minilearn.all import *


def generator(n: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (NOISE, 1, 1)),
        *(nn.ConvTranspose2d(NOISE, 4 * n, 7), nn.BatchNorm2d(4 * n), nn.ReLU()),  # 1 -> 7
        *(nn.ConvTranspose2d(4 * n, n, 4, 2, 1), nn.BatchNorm2d(n), nn.ReLU()),  # 7 -> 14
        *(nn.ConvTranspose2d(n, 1, 4, 2, 1), nn.Sigmoid()),  # 14 -> 28
    )


def discriminator(n: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, n, 4, 2, 1), nn.LeakyReLU(0.2)),  # 28 -> 14
        *(nn.Conv2d(n, 4 * n, 4, 2, 1), nn.LeakyReLU(0.2)),  # 14 -> 7
        *(nn.Conv2d(4 * n, 1, 7), nn.Flatten()),  # -> (B, 1)
    )


def init_small(m: nn.Module) -> None:
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        init.normal_(m.weight, 0, 0.02)


def main(epochs: int = 5, batches: int | None = None, n: int = 32) -> Learner:
    set_seed(999)
    dls = DataLoaders.from_dd(fashion_mnist(), 64, keys=["image"], normalize=False)
    nets = nn.ModuleDict({"generator": generator(n), "discriminator": discriminator(n)})
    cbs = [GANCB(lr=1e-3), DeviceCB(), MetricsCB(), ProgressCB()]
    cbs.append(LimitBatchesCB(train=batches, valid=batches))
    learn = Learner(nets.apply(init_small), dls, None, cbs=cbs, opt_func=None)
    learn.fit(epochs)
    return learn


if __name__ == "__main__":
    learn = main()
    show_images(learn.model.generator(torch.randn(16, NOISE)).detach(), cmap="gray")
    plt.savefig("dcgan.png")
