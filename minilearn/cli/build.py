"""The parts of `minilearn train`: `build_dls`, `build_model`, `build_learner`.

Their arguments are options, except for those before the `/`. Each can be replaced by a function of
the user, by its name. The checks run before any data are read.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ..data.images.image_dls import image_dls
from ..nn.registry import create_model, from_plain, model_maker, named_object
from ..nn.timm_models import HUB, TIMM, data_config
from .augment import Aug, batch_augmentation, image_transform
from .values import (
    BadInput,
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    arguments_for,
    blamed,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from minilearn import Learner

    from ..data.loaders import DataLoaders

CHANNELS = ("n_in", "in_chans", "in_channels")
CLASSES = ("n_out", "num_classes", "n_classes")


# ---- data ----


def build_dls(
    data: str | None = None,
    bs: PositiveInt = 64,
    *,
    full: bool = False,
    channels: Literal[1, 3] | None = None,
    aug: Aug = Aug(),  # noqa: B008
    seed: NonNegativeInt = 42,
    **images: Any,
) -> DataLoaders:
    """Make the loaders of `minilearn train`: of images, or of Fashion-MNIST.

    Args:
        data: a folder of class folders, an archive (.tar, .zip), a table of paths and labels (.csv,
            .parquet), a saved data set or "hf:NAME"; by default the Fashion-MNIST sample of the
            package. Data sets of TensorFlow are not read: convert them to one of these first
        bs: images in a training batch
        full: without data: all 60,000 images of Fashion-MNIST instead of the sample of 10,000
        channels: 3 for colour, 1 for grey; by default 1 for Fashion-MNIST, 3 for other data
        aug: augmentation of the training images
        seed: of weights, order and chance; the same seed gives the same history
        images: the options of `minilearn.image_dls`
    """
    import minilearn

    tfms: Any = image_transform(aug, images.get("size"))
    source: Any = minilearn.fashion_mnist(full=full) if data is None else data
    n = channels or (1 if data is None else 3)
    return image_dls(source, bs, channels=n, tfms=tfms, seed=seed, pipeline=None, **images)


def timm_options(model: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return how images were prepared for a model of timm, as far as the user does not say it.

    These are mean and std and, where images are resized, interpolation and crop_pct.
    """
    name = str(model).removeprefix(TIMM)
    if not str(model).startswith((TIMM, HUB)):
        return {}
    is_grey = values.get("data") is None and values.get("channels") is None
    config = data_config(name, 1 if is_grey else values.get("channels") or 3)
    wanted = ["mean", "std"] if values.get("normalize", True) else []
    wanted += ["interpolation", "crop_pct"] if values.get("size") else []
    return {key: config[key] for key in wanted if key in config and values.get(key) is None}


# ---- model ----


def check_model(values: Mapping[str, Any]) -> None:
    """Raise BadInput for options that `build_model` cannot use."""
    model = values["model"]
    with blamed("--model"):
        maker = model_maker(model)
    for name, value in arguments_for(maker, values["model_args"], "model_args", model).items():
        with blamed(f"model_args.{name}"):
            from_plain(value)
    if values["pretrained"] and not model.startswith((TIMM, HUB)):
        raise BadInput(f"--pretrained: only models of timm have such weights, {model} has none")


def build_model(
    dls: Any,
    /,
    model: str = "cnn",
    pretrained: bool = False,
    model_args: dict[str, Any] | None = None,
) -> nn.Module:
    """Make the network for the channels and classes of the data.

    Args:
        dls: the loaders.
        model: cnn or resnet (ours), timm/NAME or hf-hub:NAME (of timm, if it is installed), or
            package.module:function, which returns a model
        pretrained: start from the weights of timm's model, which are downloaded once
        model_args: further arguments of the network: --model_args.nfs '[8, 16]'
    """
    maker = model_maker(model)
    pipeline = getattr(dls, "pipeline", None)
    sizes = {}
    if pipeline is not None:
        sizes |= _size_argument(maker, CHANNELS, pipeline.channels)
        sizes |= _size_argument(maker, CLASSES, pipeline.classes and len(pipeline.classes))
    weights = {"pretrained": True} if pretrained else {}
    arguments = arguments_for(maker, model_args, "model_args", model)
    return create_model(model, **sizes | weights | arguments)


def _size_argument(maker: Any, names: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return `value` under that of the names which `maker` takes; timm takes its own in kwargs."""
    known = inspect.signature(maker).parameters
    if value is None:
        return {}
    found = [name for name in names if name in known]
    if not found and getattr(maker, "__module__", "").startswith("timm."):
        found = [names[1]]
    return dict.fromkeys(found[:1], value)


# ---- learner ----


def check_learner(values: Mapping[str, Any]) -> None:
    """Raise BadInput for options that `build_learner` cannot use."""
    for name in ("ema", "swa"):
        if values[name] == 1:
            raise BadInput(f"--{name} is below 1: the average would never move")
    if None not in (values["ema"], values["swa"]):
        raise BadInput("--ema and --swa: one average is evaluated, give one of them")
    with blamed("--opt"):
        _optimizer(values["opt"], values["opt_args"])
    pick_device(values["device"])


def build_learner(
    dls: Any,
    net: Any,
    /,
    opt: str = "adamw",
    opt_args: dict[str, Any] | None = None,
    wd: NonNegativeFloat | None = None,
    layer_decay: PositiveFloat | None = None,
    freeze: bool | str = False,
    amp: Literal["bf16", "fp16"] | None = None,
    ema: ClosedUnitInterval | None = None,
    swa: ClosedUnitInterval | None = None,
    accum: PositiveInt = 1,
    clip: PositiveFloat | None = None,
    mixup: PositiveFloat | None = None,
    cutmix: PositiveFloat | None = None,
    smoothing: ClosedUnitInterval = 0.0,
    compile: bool = False,
    channels_last: bool = False,
    aug: Aug = Aug(),  # noqa: B008
    device: str | None = None,
) -> Learner:
    """Make the Learner of `minilearn train`, with its optimizer and callbacks.

    Args:
        dls: the loaders.
        net: the network.
        opt: an optimizer of torch by name (adamw, sgd, …), of timm where that is installed (lamb,
            lion, …), or package.module:function. sgd is torch's plain one, where timm's of that
            name is Nesterov's with momentum 0.9: --opt_args '{momentum: 0.9, nesterov: true}'
        opt_args: further arguments of the optimizer: --opt_args.betas '[0.9, 0.95]'
        wd: weight decay, not for norms and biases; by default the optimizer's own, for all
        layer_decay: the rate of a layer as a fraction of that of the next one: 0.75
        freeze: all but the last layer do not learn; or those with these names: 'stem,layer*'
        amp: half precision where that is safe
        ema: decay of an average of the weights, which is evaluated and saved: 0.999
        swa: evaluate and save the mean of the weights from this fraction of the updates on: 0.75
        accum: batches for an update
        clip: the largest norm of the gradients
        mixup: mix pairs of training images; alpha of the beta distribution: 0.4
        cutmix: paste a rectangle of another training image into each; alpha, as for mixup: 1; with
            mixup, each batch has one of the two
        smoothing: how much of each target is spread over all classes, in the validation, too: 0.1
        compile: compile the network with torch.compile
        channels_last: store images with the channels last
        aug: augmentation of the training images
        device: such as cpu or cuda:0; by default the best there is
    """
    import minilearn as ml

    where = pick_device(device)
    options = {
        ml.EMACB: ema,
        ml.SWACB: swa,
        ml.GradAccumCB: accum if accum > 1 else None,
        ml.ClipGradCB: clip,
    }
    cbs = [*_training_callbacks(where, amp), *(cb(x) for cb, x in options.items() if x is not None)]
    kinds = {ml.MixUpCB: mixup, ml.CutMixCB: cutmix}
    mixers = [cb(alpha) for cb, alpha in kinds.items() if alpha is not None]
    cbs += [ml.MixCB(mixers)] if len(mixers) > 1 else mixers
    cbs += [ml.CompileCB()] if compile else []
    cbs += [ml.ChannelsLastCB()] if channels_last else []
    func, arguments = _optimizer(opt, opt_args)
    make = ml.optimizer(func, wd=wd, layer_decay=layer_decay, **arguments)
    cbs += batch_augmentation(aug)
    loss = partial(class_loss, smoothing=smoothing) if smoothing else class_loss
    learn = ml.Learner(net.to(where), dls, loss, cbs=cbs, opt_func=make)
    if freeze:
        learn.freeze(*(freeze.split(",") if isinstance(freeze, str) else ()))
    return learn


def _optimizer(opt: str, opt_args: Any) -> tuple[Any, dict[str, Any]]:
    """Return the optimizer of a name, and its arguments."""
    from ..optim.optimizer import named_optimizer

    func, options = (named_object(opt), {}) if ":" in opt else named_optimizer(opt)
    given = arguments_for(func, opt_args, "opt_args", opt, skip=("params", "lr"))
    return func, options | given


def _training_callbacks(device: torch.device, amp: str | None) -> list[Any]:
    """Return the callbacks that train on a device, or in one of several processes."""
    import minilearn as ml

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        train = [ml.AccelerateCB(mixed_precision=amp or "no", cpu=device.type == "cpu")]
    else:
        train = [ml.TrainCB(), ml.DeviceCB(device)]
        train += [ml.MixedPrecision(amp)] if amp else []
    return [*train, ml.MetricsCB(accuracy=class_accuracy), ml.ProgressCB()]


def class_loss(
    preds: Tensor, targs: Tensor, reduction: str = "mean", smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of classes (B,), or the binary one of several labels (B, K).

    Args:
        preds: logits (B, K).
        targs: class indices, or floats 0 and 1.
        reduction: as in torch's losses.
        smoothing: how much of a target is spread over all classes, or both answers of a label.
    """
    import torch.nn.functional as F

    if targs.is_floating_point():
        targs = targs * (1 - smoothing) + smoothing / 2
        return F.binary_cross_entropy_with_logits(preds, targs, reduction=reduction)
    return F.cross_entropy(preds, targs, reduction=reduction, label_smoothing=smoothing)


def class_accuracy(preds: Tensor, targs: Tensor) -> Tensor:
    """Return the accuracy for classes (B,), or over all answers for several labels (B, K)."""
    from minilearn import accuracy, accuracy_multi

    return accuracy_multi(preds, targs) if targs.is_floating_point() else accuracy(preds, targs)


def pick_device(name: str | None) -> torch.device:
    """Return a device that works.

    Raises:
        ValueError: there is no such device here.
    """
    import torch

    from ..base.batch import default_device

    try:
        device = default_device() if name is None else torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        reason = str(e).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used: {reason}. Try cpu.") from e
    return device
