"""`minilearn predict`, `minilearn eval` and `minilearn inspect`: commands for a trained model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..data.images.image_dls import image_dls
from .build import class_accuracy, class_loss, pick_device
from .run_folder import CONFIG
from .train import Training
from .values import NonNegativeInt, PositiveInt, read_config

if TYPE_CHECKING:
    from minilearn import Learner

    from ..inference.items import Prediction

READ_TOGETHER = 64


def predict_files(
    model: Path, files: list[str], device: str | None = None, trust: bool = False
) -> int:
    """Print class and probability of each image, one line per file.

    For images with several labels: all labels with a probability above 0.5, or none.

    Args:
        model: a folder that `minilearn train` or `learn.export` has written
        files: images of any format and size
        device: such as cpu or cuda:0; by default the best there is
        trust: allow a model that is a graph, which may run code of whoever made it

    Returns:
        The exit status: 0, or 1 where some file could not be read; it is named on stderr.
    """
    from torch import Tensor

    from minilearn import load_learner

    from ..inference.load_export import has_several_labels

    learn = load_learner(model, pick_device(device), trust=trust)
    if learn.dls.pipeline.channels is None:
        raise ValueError(f"the model in {model} was not trained on images that it can prepare")
    several = has_several_labels(model)
    bad = False
    for start in range(0, len(files), READ_TOGETHER):
        some = files[start : start + READ_TOGETHER]
        read = read_images(learn, some)
        bad |= len(read) < len({*some})
        found: Any = learn.infer(list(read.values()), act=Tensor.sigmoid if several else None)
        for name, one in zip(read, found, strict=True):
            print(name, *_labels(one, learn, several), sep="\t")
    return int(bad)


def _labels(found: Prediction, learn: Learner, several: bool) -> list[str]:
    """Return the most probable label; of several, those that are more probable than not."""
    if not several:
        return [str(found.label), f"{found.probability:.4f}"]
    probabilities: Any = found.probabilities
    names = learn.dls.pipeline.classes or range(len(probabilities))
    ranked = sorted(zip(probabilities.tolist(), names, strict=True), key=lambda pair: -pair[0])
    above = [(str(name), f"{p:.4f}") for p, name in ranked if p > 0.5]
    return [text for pair in above for text in pair] or ["none"]


def read_images(learn: Learner, files: Sequence[str]) -> dict[str, Any]:
    """Return each image as the model takes it; say on stderr which ones cannot be read."""
    read: dict[str, Any] = {}
    for name in files:
        try:
            read[name] = learn.dls.pipeline(name)
        except Exception as e:  # PIL raises many types for corrupt files
            print(f"minilearn: {name}: {' '.join(str(e).split())}", file=sys.stderr)
    return read


def evaluate(
    model: Path,
    data: str | None = None,
    split: Literal["valid", "test", "train"] | None = None,
    bs: PositiveInt = 128,
    workers: NonNegativeInt = 0,
    device: str | None = None,
    trust: bool = False,
) -> int:
    """Print loss and accuracy of a trained model, a line each.

    Args:
        model: a folder that `minilearn train` has written
        data: as for `minilearn train`; by default the run's own validation data
        split: by default valid; data without splits are taken whole
        bs: images in a batch
        workers: processes that read images ahead
        device: such as cpu or cuda:0; by default the best there is
        trust: allow a model that is a graph, which may run code of whoever made it

    Returns:
        The exit status: 0.
    """
    from minilearn import DeviceCB, MetricsCB, TrainCB, load_learner

    where = pick_device(device)
    learn = load_learner(model, where, trust=trust)
    if data is None:
        learn.dls = _own_data(model, learn)
    else:
        settings: Any = {"bs_valid": bs, "workers": workers, "device": device}
        learn.dls = image_dls(data, bs, valid=0, pipeline=learn.dls.pipeline, **settings)
    dls, learn.loss_func = learn.dls, class_loss
    learn.cbs = [TrainCB(), DeviceCB(where), MetricsCB(accuracy=class_accuracy)]
    names = (split,) if split else ("valid", "train", "test")
    chosen = next((name for name in names if name in dls.keys()), None)
    if chosen is None:
        raise ValueError(f"there are no {split} images; there are {', '.join(dls.keys())}")
    for name, value in learn.validate(dls[chosen]).items():
        print(name, f"{value:.6g}", sep="\t")
    return 0


def _own_data(model: Path, learn: Learner) -> Any:
    """Return the loaders of the run that made the model, with the model's own normalisation."""
    if not (model / CONFIG).is_file():
        raise ValueError(f"{model} has no {CONFIG} that names its data; name the data")
    training = Training([], {**read_config(model / CONFIG), "aug": {}})
    return training.build_dls(mean=learn.dls.pipeline.mean, std=learn.dls.pipeline.std)


def inspect_file(path: Path) -> int:
    """Print what a checkpoint, a folder of checkpoints or a file of weights holds.

    Args:
        path: the file or the folder

    Returns:
        The exit status: 0.
    """
    from ..checkpoint.inspect import contents

    print(contents(path))
    return 0
