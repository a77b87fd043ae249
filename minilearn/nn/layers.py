"""Building blocks of small convolutional networks.

Everything is an ordinary `nn.Module` or a function that returns one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Dropout

__all__ = ["Dropout", "GeneralRelu", "GlobalAvgPool", "ResBlock", "act_gr", "cnn_layers", "conv"]

# A class or partial that makes a module: act() and norm(n_channels).
Maker = Callable[..., nn.Module]


class GeneralRelu(nn.Module):
    """Apply a ReLU that may leak, be shifted down and be capped.

    A plain ReLU has no negative outputs, so its mean cannot be 0. Shifting it down by `sub` and
    letting it leak below 0 makes mean 0 and standard std 1 possible after every layer.

    >>> GeneralRelu(leak=0.1, sub=0.4)(tensor([-1.0, 1.0]))
    tensor([-0.5000,  0.6000])

    Args:
        leak: slope below 0; None for a plain ReLU.
        sub: subtracted from the result.
        maxv: largest value of the output, taken after `sub`.
    """

    def __init__(
        self, leak: float | None = None, sub: float | None = None, maxv: float | None = None
    ) -> None:
        super().__init__()
        self.leak = None if leak is None else float(leak)  # torch.jit takes no int here
        self.sub, self.maxv = sub, maxv

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations, in the shape of `x`; `x` itself is not changed."""
        # Out of place on purpose: the backward pass of ReLU reads its own output.
        x = F.relu(x) if self.leak is None else F.leaky_relu(x, self.leak)
        if self.sub is not None:
            x = x - self.sub
        if self.maxv is not None:
            x = x.clamp_max(self.maxv)
        return x

    def extra_repr(self) -> str:
        """Show the arguments that were given."""
        given = {"leak": self.leak, "sub": self.sub, "maxv": self.maxv}
        return ", ".join(f"{k}={v}" for k, v in given.items() if v is not None)


act_gr = partial(GeneralRelu, leak=0.1, sub=0.4)
"""GeneralRelu as the course uses it: leak 0.1, sub 0.4."""


class GlobalAvgPool(nn.Module):
    """Average over height and width: (B, C, H, W) -> (B, C), for any H and W.

    >>> GlobalAvgPool()(torch.ones(2, 8, 4, 4)).shape
    torch.Size([2, 8])
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Return the means of the last two axes."""
        return x.mean((-2, -1))


def conv(
    ni: int,
    nf: int,
    ks: int = 3,
    stride: int = 2,
    act: Maker | bool | None = nn.ReLU,
    norm: Maker | bool | None = None,
    bias: bool = True,
) -> nn.Sequential:
    """Make a 2d convolution, followed by a norm layer and an activation where they are given.

    >>> conv(1, 8, act=nn.ReLU)(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 8, 14, 14])

    Shapes: (B, ni, H, W) -> (B, nf, ceil(H/stride), ceil(W/stride)) for an odd `ks`.

    Args:
        ni: channels in.
        nf: channels out.
        ks: kernel size; the padding is `ks // 2`.
        stride: step of the kernel.
        act: makes the activation, a class or a partial; True means `nn.ReLU`, False or None none.
        norm: makes the norm layer from `nf`, such as `nn.BatchNorm2d`, `nn.InstanceNorm2d` or
            `partial(nn.GroupNorm, 1)`, which is layer norm over (C, H, W); False or None for none.
        bias: whether the convolution has one. A batch norm after it subtracts it again; it is there
            all the same, so that weights of the course fit.

    For weight or spectral norm, wrap the convolution with torch's parametrisations:
    `nn.utils.parametrizations.weight_norm(conv(3, 8)[0])`.

    Raises:
        TypeError: `act` or `norm` is a module instead of something that makes one, or `norm` is
            `nn.LayerNorm`, which would normalise over the width alone.
    """
    act = nn.ReLU if act is True else act
    _check_maker("act", act)
    _check_maker("norm", norm)
    layers: list[nn.Module] = [nn.Conv2d(ni, nf, ks, stride=stride, padding=ks // 2, bias=bias)]
    if callable(norm):
        layers.append(norm(nf))
    if callable(act):
        layers.append(act())
    return nn.Sequential(*layers)


def _made_by(maker: Maker | bool | None) -> object:
    """Return the class or function inside any partials."""
    while isinstance(maker, partial):
        maker = maker.func
    return maker


def _check_maker(name: str, maker: Maker | bool | None) -> None:
    if maker is True or isinstance(maker, nn.Module):
        raise TypeError(
            f"{name} must be a class or a partial that makes a module, got {maker!r}. "
            f"Pass for example {name}=partial(nn.LeakyReLU, 0.1) or {name}=nn.BatchNorm2d."
        )
    if _made_by(maker) is nn.LayerNorm:
        raise TypeError(
            "nn.LayerNorm normalises the last axis, which is the width of an image. "
            "For layer norm over (C, H, W) use norm=partial(nn.GroupNorm, 1)."
        )


class ResBlock(nn.Module):
    """Add the result of two convolutions to their input: act(convs(x) + shortcut(x)).

    >>> ResBlock(8, 16, stride=2)(torch.randn(4, 8, 28, 28)).shape
    torch.Size([4, 16, 14, 14])

    Shapes: (B, ni, H, W) -> (B, nf, ceil(H/stride), ceil(W/stride)). The second convolution has
    the stride. The shortcut averages over `stride` x `stride` windows and, where the number of
    channels changes, mixes them by a 1x1 convolution.

    Args:
        ni: channels in.
        nf: channels out.
        stride: step of the second convolution.
        ks: kernel size, odd.
        act: makes the activations, as in `conv`; the last one follows the sum.
        norm: makes the norm layers, as in `conv`; the shortcut has none.
        zero_init: start with the shortcut alone, by zeroing the last norm layer (or the second
            convolution, where there is no norm).

    Raises:
        ValueError: `ks` is even, so that the two paths would differ in size; or `zero_init` with a
            norm layer that has no parameters.

    Source: He et al. 2015, "Deep residual learning" (arXiv:1512.03385); average pooling in the
    shortcut: He et al. 2018, "Bag of tricks" (arXiv:1812.01187), zero_init: Goyal et al. 2017
    (arXiv:1706.02677).
    """

    def __init__(
        self,
        ni: int,
        nf: int,
        stride: int = 1,
        ks: int = 3,
        act: Maker | bool | None = act_gr,
        norm: Maker | bool | None = None,
        *,
        zero_init: bool = False,
    ) -> None:
        super().__init__()
        if ks % 2 == 0:
            raise ValueError(f"ks must be odd, or both paths differ in size; got {ks}.")
        self.convs = nn.Sequential(
            conv(ni, nf, ks, stride=1, act=act, norm=norm),
            conv(nf, nf, ks, stride=stride, act=None, norm=norm),
        )
        self.idconv = nn.Identity() if ni == nf else conv(ni, nf, 1, stride=1, act=None)
        self.pool = nn.Identity() if stride == 1 else nn.AvgPool2d(stride, ceil_mode=True)
        self.act = (nn.ReLU if act is True else act or nn.Identity)()
        if zero_init:
            last: Any = self.convs[-1]
            params = list(last[-1].parameters())
            if not params:
                raise ValueError(f"zero_init needs a norm layer with parameters, got {last[-1]}.")
            for p in params:
                nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated sum of both paths."""
        return self.act(self.convs(x) + self.idconv(self.pool(x)))


def cnn_layers() -> list[nn.Module]:
    """Return the layers of the plain CNN for 28x28 images that is hard to train.

    The lessons on activation statistics use it: five ReLU convolutions of stride 2 without any norm
    or initialisation. Shapes: (B, 1, 28, 28) -> (B, 10).

    >>> model = nn.Sequential(*cnn_layers())
    >>> model(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return [
        conv(1, 8, ks=5),  # (B, 8, 14, 14)
        conv(8, 16),  # (B, 16, 7, 7)
        conv(16, 32),  # (B, 32, 4, 4)
        conv(32, 64),  # (B, 64, 2, 2)
        conv(64, 10, act=False),  # (B, 10, 1, 1)
        nn.Flatten(),  # (B, 10)
    ]
