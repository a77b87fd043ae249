"""Train on mixtures of samples: MixUpCB, CutMixCB, and MixCB, which chooses one for each batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Beta

from ..base.batch import describe, map_batch, tensors, to_device
from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop
from .training import inputs_and_targets, loss_by_sample, reduction_of


@dataclass(eq=False)
class Mixed:
    """The targets of mixed samples, which compute their own loss.

    Attributes:
        a: the targets of the first samples, (B, ...).
        b: those of the second ones.
        weight: how much of each sample is the first, from 0 to 1, (B,).
    """

    a: Tensor
    b: Tensor
    weight: Tensor

    def hard(self) -> Tensor:
        """Return for each sample the target with the larger weight."""
        return torch.where(_like(self.weight, self.a) >= 0.5, self.a, self.b)

    def soft(self, n_classes: int, smoothing: float = 0.0) -> Tensor:
        """Return the targets as probabilities (B, K), smoothed as timm does it.

        A cross-entropy with `label_smoothing` needs no such targets: its loss is the same.

        Args:
            n_classes: K.
            smoothing: the part of each target that all K classes share.
        """
        hot = [F.one_hot(t, n_classes) * (1 - smoothing) for t in (self.a, self.b)]
        return torch.lerp(hot[1], hot[0], self.weight[:, None]) + smoothing / n_classes

    def compare(self, loss_func: Callable[..., Tensor], preds: Any, targets: Any) -> Tensor:
        """Return the loss of `preds`: each sample's two losses, weighted, then reduced.

        As with torch's soft labels, class weights do not enter the divisor of a mean. A loss
        without a `reduction` is called for each sample, which is slow, and its mean is taken.
        """
        try:
            each, reduction = loss_by_sample(loss_func), reduction_of(loss_func)
        except ValueError:
            each, reduction = _one_by_one(loss_func), "mean"
        first, second = (each(preds, *(getattr(t, name) for t in targets)) for name in ("a", "b"))
        losses = torch.lerp(second, first, _like(self.weight, first))
        return losses if reduction == "none" else getattr(losses, reduction)()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Say what to do, where the user's own get_loss passes this to a loss function."""
        raise TypeError(
            f"{getattr(func, '__name__', func)} was given mixed targets: in a get_loss of your own "
            "use learn.loss = minilearn.base.batch.compare(learn.loss_func, learn.preds, targets)"
        )


def _like(weight: Tensor, x: Tensor) -> Tensor:
    dtype = x.dtype if x.is_floating_point() else weight.dtype
    return weight.to(dtype).view(-1, *[1] * (x.dim() - 1))


def _one_by_one(loss_func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def each(preds: Any, *targets: Tensor) -> Tensor:
        def one(i: int) -> Tensor:
            return loss_func(*map_batch(lambda x: x[i : i + 1], (preds, *targets)))

        return torch.stack([one(i) for i in range(len(targets[0]))])

    return each


class MixUpCB(Callback):
    """Train on weighted sums of two samples; validation is untouched.

    The loss of a mixed sample is the weighted sum of its losses with both targets, whatever the
    loss function; training metrics get the target with the larger weight.

    >>> learn.fit(1, cbs=MixUpCB(0.2))

    Args:
        alpha: of the Beta distribution of the weights: small values mix little.

    Raises:
        ValueError: `alpha` is not positive; or a batch has no inputs or no targets.
        TypeError: the inputs are not floats.

    Events: before_batch
    Order:  TRANSFORM
    Reads:  training, batch
    Writes: batch

    Source: Zhang et al. 2017, "mixup: Beyond Empirical Risk Minimization" (arXiv:1710.09412).
    """

    order = Order.TRANSFORM

    def __init__(self, alpha: float = 0.4) -> None:
        if not alpha > 0:
            raise ValueError(f"alpha is above 0, got {alpha}")
        self.alpha = alpha

    def before_batch(self, learn: Loop) -> None:
        """Mix the batch with itself in another order."""
        if not learn.training:
            return
        found = inputs_and_targets(learn)[1]
        targets = {id(t) for t in tensors(found)}
        inputs = [t for t in tensors(learn.batch) if id(t) not in targets]
        if not (targets and inputs) or isinstance(found, Mixed):
            raise ValueError(
                f"{self!r} needs inputs and targets, and the batch is {describe(learn.batch)}: "
                "name the targets, TrainCB(targets=...), and let only one callback mix"
            )
        order = to_device(torch.randperm(len(inputs[0])), inputs[0].device)
        mix, weight = self._draw(inputs[0])

        def change(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            return Mixed(x, x[order], weight) if id(x) in targets else mix(x, x[order])

        learn.batch = map_batch(change, learn.batch)

    def _draw(self, x: Tensor) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor]:
        """Return a function that mixes two inputs like `x`, and the weights of the first."""
        weight = self._weights(x)
        return partial(_sum, weight=weight), weight

    def _weights(self, x: Tensor) -> Tensor:
        # drawn on the CPU, so that every device gets the same numbers
        beta = Beta(self.alpha, self.alpha, validate_args=False)
        return to_device(beta.sample((len(x),)), x.device)

    def __repr__(self) -> str:
        """Show the parameter of the distribution."""
        return f"{type(self).__name__}({self.alpha})"


class CutMixCB(MixUpCB):
    """Train on images with a rectangle of another one; else as `MixUpCB`.

    Each sample has a rectangle of its own. Its weight is the fraction of its pixels that is left.

    >>> learn.fit(1, cbs=CutMixCB())

    Args:
        alpha: of the Beta distribution of the weights, before edges cut the rectangles.

    Events: before_batch
    Order:  TRANSFORM
    Reads:  training, batch
    Writes: batch

    Source: Yun et al. 2019, "CutMix" (arXiv:1905.04899).
    """

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__(alpha)

    def _draw(self, x: Tensor) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor]:
        if x.dim() < 3:
            raise TypeError(f"CutMixCB needs images (B, ..., H, W), got {describe(x)}")
        side = (1 - self._weights(x)).sqrt()
        rows, columns = (_stretch(side, size) for size in x.shape[-2:])
        cut = rows[:, :, None] & columns[:, None, :]  # (B, H, W)
        weight = 1 - cut.float().mean((1, 2))
        return partial(_patch, cut=cut, weight=weight), weight


class MixCB(Callback):
    """Mix each training batch by one of several callbacks, or not at all.

    >>> MixCB([MixUpCB(0.2), CutMixCB(1.0)], prob=0.8, until=180)

    Args:
        mixers: the callbacks.
        prob: the probability that a batch is mixed.
        switch: of two callbacks, the probability of the second; of more, each is equally likely.
        until: the epoch from which nothing is mixed.

    Raises:
        ValueError: there is no callback, or a probability is not within 0 and 1.

    Events: before_batch
    Order:  TRANSFORM
    Reads:  training, epoch, batch
    Writes: batch

    Source: the options of timm's Mixup, which has one weight for a batch.
    """

    order = Order.TRANSFORM

    def __init__(
        self,
        mixers: Sequence[MixUpCB],
        prob: float = 1.0,
        switch: float = 0.5,
        until: int | None = None,
    ) -> None:
        if not mixers or not (0 <= prob <= 1 and 0 <= switch <= 1):
            raise ValueError(
                "MixCB takes one or several callbacks, and prob and switch from 0 to 1; "
                f"got {mixers}, {prob}, {switch}"
            )
        self.mixers, self.prob, self.switch, self.until = list(mixers), prob, switch, until

    def before_batch(self, learn: Loop) -> None:
        """Choose a mixer, and let it mix the batch."""
        if learn.training and (self.until is None or learn.epoch < self.until):
            chance, choice = random.random(), random.random()  # torch's would be read from a tensor
            if chance < self.prob:
                n = len(self.mixers)
                self.mixers[choice < self.switch if n == 2 else int(choice * n)].before_batch(learn)

    def __repr__(self) -> str:
        """Show the callbacks and when they work."""
        return f"MixCB({self.mixers}, prob={self.prob})"


def _stretch(side: Tensor, size: int) -> Tensor:
    """Return which pixels lie in a stretch of the fraction `side`, anywhere: (B, size)."""
    half, middle = side * size / 2, to_device(torch.rand(len(side)) * size, side.device)
    pixel = torch.arange(size, device=side.device) + 0.5
    return (pixel - middle[:, None]).abs() < half[:, None]


def _sum(x: Tensor, other: Tensor, weight: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise TypeError(f"MixUpCB adds up inputs, and one is {x.dtype}: make it floats first")
    return torch.lerp(other, x, _like(weight, x))


def _patch(x: Tensor, other: Tensor, cut: Tensor, weight: Tensor) -> Tensor:
    if x.dim() < 3:  # a weight of each sample
        return _sum(x, other, weight)
    return torch.where(cut.view(len(cut), *[1] * (x.dim() - 3), *cut.shape[1:]), other, x)
