"""Two small image classifiers: a plain CNN and a ResNet.

Both average over height and width, and so take any image size.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from minilearn.base.batch import default_device
from minilearn.nn.layers import GlobalAvgPool, Maker, ResBlock, act_gr, conv
from minilearn.nn.registry import register_model


@register_model
def get_model(
    act: Maker | bool | None = nn.ReLU,
    nfs: Sequence[int] | None = None,
    norm: Maker | bool | None = None,
    n_in: int | None = None,
    n_out: int = 10,
) -> nn.Sequential:
    """Make a plain CNN of stride-2 convolutions, on the default device.

    >>> model = get_model(nn.ReLU, (1, 8, 16), nn.BatchNorm2d, n_out=2)

    Shapes: (B, n_in, H, W) -> (B, n_out). With the default `nfs`, 28x28 images end at 1x1.

    Args:
        act: makes the activations, as in `conv`.
        nfs: channels, from the input's to those before the last layer; by default
            (n_in, 8, 16, 32, 64).
        norm: makes the norm layers, as in `conv`; the last layer has none.
        n_in: channels of the images; by default `nfs[0]`, or 1.
        n_out: number of outputs.

    Raises:
        ValueError: `n_in` and `nfs[0]` differ.
    """
    nfs = [n_in or 1, 8, 16, 32, 64] if nfs is None else list(nfs)
    if n_in is not None and n_in != nfs[0]:
        raise ValueError(f"n_in is {n_in}, but nfs starts with {nfs[0]}. Leave out n_in.")
    layers = [conv(ni, nf, act=act, norm=norm) for ni, nf in zip(nfs, nfs[1:], strict=False)]
    head = [conv(nfs[-1], n_out, act=None), GlobalAvgPool()]
    return nn.Sequential(*layers, *head).to(default_device())


@register_model
def cnn(
    n_in: int = 1,
    n_out: int = 10,
    nfs: Sequence[int] = (16, 32, 64, 128),
    act: Maker | bool | None = act_gr,
    norm: Maker | bool | None = nn.BatchNorm2d,
) -> nn.Sequential:
    """Make the plain CNN of `minilearn train`: `get_model` with norm layers and a shifted ReLU.

    Shapes: (B, n_in, H, W) -> (B, n_out).

    Args:
        n_in: channels of the images.
        n_out: number of outputs.
        nfs: channels after each convolution but the last.
        act: makes the activations, as in `conv`.
        norm: makes the norm layers, as in `conv`.
    """
    return get_model(act, (n_in, *nfs), norm, n_out=n_out)


@register_model
def resnet(
    n_in: int = 1,
    n_out: int = 10,
    nfs: Sequence[int] = (8, 16, 32, 64),
    act: Maker | bool | None = act_gr,
    norm: Maker | bool | None = nn.BatchNorm2d,
    *,
    ks: int = 5,
    zero_init: bool = False,
) -> nn.Sequential:
    """Make a ResNet for small images, on the CPU.

    >>> resnet()(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 10])

    Shapes: (B, n_in, H, W) -> (B, n_out). The first convolution keeps the size of the image, each
    block halves it. The default learns Fashion-MNIST on two CPU cores; the course's net for a GPU
    is about `nfs=(16, 32, 64, 128, 256)`, with 1.2 million parameters.

    Args:
        n_in: channels of the images.
        n_out: number of outputs.
        nfs: channels after the first convolution, and after each block.
        act: makes the activations, as in `conv`.
        norm: makes the norm layers, as in `conv`.
        ks: kernel size of the first convolution; all others have 3.
        zero_init: let each block start with its shortcut alone, see `ResBlock`.
    """
    stem = conv(n_in, nfs[0], ks, stride=1, act=act, norm=norm)
    blocks = [
        ResBlock(ni, nf, stride=2, act=act, norm=norm, zero_init=zero_init)
        for ni, nf in zip(nfs, nfs[1:], strict=False)
    ]
    return nn.Sequential(stem, *blocks, GlobalAvgPool(), nn.Linear(nfs[-1], n_out))
