"""The first parts of `minilearn train`: `build_dls` and `build_model`; and all three together.

Their arguments are options, except for those before the `/`. Each can be replaced by a function of
yours, by name. What is wrong with their arguments is said before any data are read.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from minilearn.data.images.image_dls import image_dls
from minilearn.nn.registry import create_model, from_plain, model_maker
from minilearn.nn.timm_models import TIMM

from .augment import Aug, check_aug, picture_changes
from .converting import arguments_for
from .kinds import NonNegativeInt, PositiveInt
from .options import also_takes, checked_by

if TYPE_CHECKING:
    from torch import nn

    from minilearn.data.loaders import DataLoaders
    from minilearn.learner import Learner

CHANNELS = ("n_in", "in_chans", "in_channels")
CLASSES = ("n_out", "num_classes", "n_classes")
PICTURES = inspect.signature(image_dls).parameters
LIMITS = {"size": (1, 2**16), "workers": (0, 2**10), "bs_valid": (1, 2**31), "seed": (0, 2**63)}
LIMITS |= {"valid": (0, 1), "max_errors": (0, 1), "memory_gb": (0, 2**20)}
# options of image_dls that DataLoaders.from_dd has, too, or that make no difference in memory
SIMPLE = {"bs_valid", "drop_last", "seed", "mean", "std", "normalize", "workers", "device"}


# ---- data ----


def _check_dls(*, aug: Aug = Aug(), **given: Any) -> Iterator[str]:  # noqa: B008
    yield from check_aug(aug)
    for key, (low, high) in LIMITS.items():
        value = given.get(key)
        numbers = value if isinstance(value, (list, tuple)) else [low if value is None else value]
        if not all(low <= number <= high for number in numbers):
            yield f"--{key} is a number from {low} to {high}, got {value}"


@checked_by(_check_dls)
@also_takes(image_dls, "source", "tfms", "pipeline")
def build_dls(
    data: str | None = None,
    bs: PositiveInt = 64,
    *,
    full: bool = False,
    channels: Literal[1, 3] | None = None,
    aug: Aug = Aug(),  # noqa: B008
    seed: NonNegativeInt = 42,
    **pictures: Any,
) -> DataLoaders:
    """Return the loaders.

    Args:
        data: a folder of class folders, an archive (.tar, .zip), a table of paths and labels (.csv,
            .parquet), a saved data set or "hf:NAME"; by default the Fashion-MNIST sample of the
            package. Data sets of TensorFlow are left out: write them to one of these first
        bs: pictures in a training batch
        full: without data: all 60,000 pictures of Fashion-MNIST instead of the sample of 10,000
        channels: 3 for colours, 1 for grey; by default 1 for Fashion-MNIST, 3 for data of yours
        aug: random changes of the training pictures
        seed: of weights, order and chance; the same seed gives the same history
        pictures: those of `minilearn.image_dls`
    """
    import minilearn

    pictures |= {"seed": seed}
    tfms = picture_changes(aug, pictures.get("size"))
    if data is not None:
        return image_dls(data, bs, channels=channels or 3, tfms=tfms, **pictures)
    sample: Any = minilearn.fashion_mnist(full=full)
    changed = {k for k, value in pictures.items() if value != PICTURES[k].default}
    if tfms is not None or channels == 3 or changed - SIMPLE:
        return image_dls(sample, bs, channels=channels or 1, tfms=tfms, **pictures)
    shared = {k: pictures[k] for k in ("bs_valid", "drop_last", "seed") if k in pictures}
    stats: Any = pictures.get("mean"), pictures.get("std")
    normalize = pictures.get("normalize", True) if None in stats else stats
    return minilearn.DataLoaders.from_dd(sample, bs, normalize=normalize, **shared)


def taken_over(model: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the normalisation that a model of timm was trained with, unless the user gave one."""
    if not str(model).startswith(TIMM) or values.get("mean") is not None:
        return {}
    if not values.get("normalize", True):
        return {}
    from minilearn.nn.timm_models import normalisation

    grey = values.get("data") is None and values.get("channels") is None
    return normalisation(model.removeprefix(TIMM), 1 if grey else values.get("channels") or 3)


# ---- model ----


def _check_model(
    *, model: str = "cnn", pretrained: bool = False, model_args: Any = None, **_: Any
) -> Iterator[str]:
    try:
        maker = model_maker(model)
        arguments, problems = arguments_for(maker, model_args, "model_args", model)
    except (ValueError, ImportError) as e:
        yield f"--model: {e}"
        return
    yield from problems
    for name, value in arguments.items():
        try:
            from_plain(value)
        except ValueError as e:
            yield f"model_args.{name}: {e}"
    if pretrained and not model.startswith(TIMM):
        yield f"--pretrained: weights are there for models of timm alone, not for {model}"


@checked_by(_check_model)
def build_model(
    dls: Any,
    /,
    model: str = "cnn",
    pretrained: bool = False,
    model_args: dict[str, Any] | None = None,
) -> nn.Module:
    """Return the network for the channels and classes of the data.

    Args:
        dls: the loaders.
        model: cnn or resnet (ours), timm/NAME (timm is installed with torchvision), or
            package.module:function, a function of yours that returns one
        pretrained: begin with the weights of timm's model, which are downloaded once
        model_args: further arguments of the network: --model_args.nfs '[8, 16]'
    """
    maker = model_maker(model)
    pipeline = getattr(dls, "pipeline", None)
    sizes = {}
    if pipeline is not None:
        sizes |= _named_like(maker, CHANNELS, pipeline.channels)
        sizes |= _named_like(maker, CLASSES, pipeline.classes and len(pipeline.classes))
    weights = {"pretrained": True} if pretrained else {}
    arguments, _ = arguments_for(maker, model_args, "model_args", model)
    return create_model(model, **sizes | weights | arguments)


def _named_like(maker: Any, names: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return `value` under that of the names which `maker` takes; timm takes its own in kwargs."""
    known = inspect.signature(maker).parameters
    if value is None:
        return {}
    found = [name for name in names if name in known]
    if not found and getattr(maker, "__module__", "").startswith("timm."):
        found = [names[1]]
    return dict.fromkeys(found[:1], value)


def build(functions: Mapping[str, Any], values: Mapping[str, Any]) -> Learner:
    """Return the Learner that the three functions (stages, by name) make of the options' values."""
    over = {**values, **taken_over(values.get("model"), values)}
    dls = functions["build_dls"].call(values=over)
    net = functions["build_model"].call(dls, values=values)
    return functions["build_learner"].call(dls, net, values=values)
