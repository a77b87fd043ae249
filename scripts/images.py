"""Make the images of README: `python scripts/images.py [FOLDER]`, by default docs/img/.

One short training run on the sample; a method of the package draws each image.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch.nn.functional as F
from torch import nn, optim

from minilearn import (
    ActivationStats,
    DataLoaders,
    DeviceCB,
    Learner,
    MetricsCB,
    TrainCB,
    accuracy,
    act_gr,
    fashion_mnist,
    get_model,
    set_seed,
)

FOLDER = Path(__file__).parent.parent / "docs" / "img"


def learner() -> Learner:
    """Return a small network for the sample, not yet trained."""
    set_seed(42)
    dls = DataLoaders.from_dd(fashion_mnist(), 64)
    model = get_model(act_gr, (1, 16, 32, 64), nn.BatchNorm2d)
    cbs = [TrainCB(), DeviceCB(), MetricsCB(accuracy=accuracy)]
    return Learner(model, dls, F.cross_entropy, cbs=cbs, opt_func=optim.AdamW)


def save(folder: Path, name: str) -> None:
    """Write the current figure as a small image, and close it."""
    folder.mkdir(parents=True, exist_ok=True)
    palette = {"compress_level": 9}
    plt.gcf().savefig(folder / f"{name}.png", dpi=70, bbox_inches="tight", pil_kwargs=palette)
    plt.close("all")


def main(folder: Path = FOLDER, epochs: int = 3) -> None:
    """Search a learning rate, train, and save an image of each plot."""
    learn = learner()
    rate = learn.lr_find().valley
    save(folder, "lr_find")
    stats = ActivationStats(lambda m: isinstance(m, nn.ReLU) or type(m).__name__ == "GeneralRelu")
    learn.fit_one_cycle(epochs, rate, cbs=stats)
    stats.color_dim()
    save(folder, "color_dim")
    learn.history.plot()
    save(folder, "history")
    learn.show_results(max_n=8, nrows=2, imsize=2.2)
    save(folder, "show_results")


if __name__ == "__main__":
    plt.switch_backend("Agg")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
