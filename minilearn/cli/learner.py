"""The last part of `minilearn train`: `build_learner`, from names and numbers to callbacks.

Stands on changing and options.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from .augment import Aug, batch_changes
from .converting import arguments_for
from .kinds import ClosedUnitInterval, NonNegativeFloat, PositiveFloat, PositiveInt
from .options import checked_by

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from minilearn.learner import Learner


def _check_learner(
    *,
    opt: str = "adamw",
    opt_args: Any = None,
    device: str | None = None,
    ema: float | None = None,
    **_: Any,
) -> Iterator[str]:
    if ema == 1:
        yield "--ema takes a share below 1, got 1: the average would never move"
    try:
        yield from _optimizer(opt, opt_args)[2]
    except (ValueError, ImportError) as e:
        yield f"--opt: {e}"
    try:
        pick_device(device)
    except ValueError as e:
        yield str(e)


@checked_by(_check_learner)
def build_learner(
    dls: Any,
    net: Any,
    /,
    opt: str = "adamw",
    opt_args: dict[str, Any] | None = None,
    wd: NonNegativeFloat | None = None,
    amp: Literal["bf16", "fp16"] | None = None,
    ema: ClosedUnitInterval | None = None,
    accum: PositiveInt = 1,
    clip: PositiveFloat | None = None,
    mixup: PositiveFloat | None = None,
    compile: bool = False,
    channels_last: bool = False,
    aug: Aug = Aug(),  # noqa: B008
    device: str | None = None,
) -> Learner:
    """Return the Learner.

    Args:
        dls: the loaders.
        net: the network.
        opt: an optimizer of torch by name (adamw, sgd, …), of timm where that is installed (lamb,
            lion, …), or package.module:function. sgd is torch's plain one, where timm's of that
            name is Nesterov's with momentum 0.9: --opt_args '{momentum: 0.9, nesterov: true}'
        opt_args: further arguments of the optimizer: --opt_args.betas '[0.9, 0.95]'
        wd: weight decay, not for norms and biases; by default the optimizer's own, for all
        amp: half precision where that is safe
        ema: judge and keep an average of the weights, of which each update keeps so much: 0.999
        accum: batches for an update
        clip: the largest norm of the gradients
        mixup: mix the training pictures in pairs; the alpha of the share's distribution: 0.4
        compile: compile the network with torch.compile
        channels_last: keep pictures with their channels last in memory
        aug: random changes of the training pictures
        device: such as cpu or cuda:0; by default the best there is
    """
    from minilearn import Learner, optimizer

    where = pick_device(device)
    asked = {"ema": ema, "accum": accum, "clip": clip, "mixup": mixup}
    asked |= {"compile": compile, "channels_last": channels_last}
    cbs = [*_placed(where, amp), *_asked(**asked), *batch_changes(aug)]
    func, arguments, _ = _optimizer(opt, opt_args)
    make = optimizer(func, wd=wd, **arguments)
    return Learner(net.to(where), dls, class_loss, cbs=cbs, opt_func=make)


def _optimizer(opt: str, opt_args: Any) -> tuple[Any, dict[str, Any], list[str]]:
    """Return the optimizer of a name, its arguments, and what is wrong with those."""
    from minilearn.nn.registry import named_object
    from minilearn.optim.optimizer import optimizer_class

    func = named_object(opt) if ":" in opt else optimizer_class(opt)
    return func, *arguments_for(func, opt_args, "opt_args", opt, but=("params", "lr"))


def _placed(device: torch.device, amp: str | None) -> list[Any]:
    """Return the callbacks that train on a device, or in one of several processes."""
    import minilearn as ml

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        train = [ml.AccelerateCB(mixed_precision=amp or "no", cpu=device.type == "cpu")]
    else:
        train = [ml.TrainCB(), ml.DeviceCB(device)]
        train += [ml.MixedPrecision(amp)] if amp else []
    return [*train, ml.MetricsCB(accuracy=class_accuracy), ml.ProgressCB()]


def _asked(**wanted: Any) -> list[Any]:
    """Return a callback for each thing that is wanted."""
    import minilearn as ml

    makers = {
        "ema": ml.EMACB,
        "clip": ml.ClipGradCB,
        "mixup": ml.MixUpCB,
        "compile": lambda _: ml.CompileCB(),
        "channels_last": lambda _: ml.ChannelsLastCB(),
        "accum": lambda n: ml.GradAccumCB(n) if n > 1 else None,
    }
    made = [makers[key](value) for key, value in wanted.items() if value not in (None, False)]
    return [cb for cb in made if cb is not None]


def class_loss(preds: Tensor, targs: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of classes (B,), or of yes or no for each of several labels (B, K).

    Args:
        preds: logits (B, K).
        targs: numbers of classes, or floats 0 and 1.
        reduction: as torch's losses have it.
    """
    import torch.nn.functional as F

    several = targs.is_floating_point()
    loss = F.binary_cross_entropy_with_logits if several else F.cross_entropy
    return loss(preds, targs, reduction=reduction)


def class_accuracy(preds: Tensor, targs: Tensor) -> Tensor:
    """Return the share of right classes (B,), or of right answers for several labels (B, K)."""
    from minilearn import accuracy, accuracy_multi

    return accuracy_multi(preds, targs) if targs.is_floating_point() else accuracy(preds, targs)


def pick_device(name: str | None) -> torch.device:
    """Return a device that works.

    Raises:
        ValueError: there is no such device here.
    """
    import torch

    from minilearn.base.batch import default_device

    try:
        device = default_device() if name is None else torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        reason = str(e).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used: {reason}. Try cpu.") from e
    return device
