"""Super-resolution: images of twice the size, by a network that works at the small size.

Run it with `python examples/super_resolution.py`. The last layer has 4 outputs at each position,
which become 2 x 2 pixels. Measured in decibels (PSNR), beside bilinear interpolation.
Source: Shi et al. 2016, "Real-Time Single Image and Video Super-Resolution" (arXiv:1609.05158).
"""

from torch import Tensor

from minilearn.all import *


def network(n: int = 32, scale: int = 2) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, n, 5, padding=2), nn.ReLU()),
        *(nn.Conv2d(n, n, 3, padding=1), nn.ReLU()),
        nn.Conv2d(n, scale**2, 3, padding=1),
        nn.PixelShuffle(scale),  # (B, scale², H, W) -> (B, 1, scale * H, scale * W)
    )


def decibels(mse: float | Tensor) -> float:
    return -10 * torch.as_tensor(mse).log10().item()


def enlarged(small: Tensor) -> Tensor:
    return F.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)


def main(epochs: int = 5) -> Learner:
    set_seed(123)
    data = DataLoaders.from_dd(fashion_mnist(), 10_000, normalize=False)
    train, valid = next(iter(data.train))[0], next(iter(data.valid))[0]
    small = F.avg_pool2d(valid, 2)  # (2000, 1, 14, 14)
    dls = DataLoaders.from_arrays(
        F.avg_pool2d(train, 2), train, x_valid=small, y_valid=valid, bs=32
    )
    cbs = [TrainCB(), DeviceCB(), MetricsCB(), ProgressCB()]
    learn = Learner(network(), dls, F.mse_loss, 1e-3, cbs, optim.Adam)
    learn.fit(epochs)
    return learn


if __name__ == "__main__":
    learn = main()
    small, large = learn.dls.valid.dataset[:]
    bilinear = decibels(F.mse_loss(enlarged(small), large))
    print(f"{decibels(learn.history[-1]['valid_loss']):.2f} dB, bilinear {bilinear:.2f} dB")
