"""Write one file of each format into a folder that is named after the version.

    python -m tests.formats.write

Run it once for a release, before it is tagged. The folders of older versions stay as they are.
"""

import json
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import optim

import minilearn
from minilearn import EMACB, DataLoaders, Learner, MetricsCB, Pipeline, TrainCB
from minilearn.nn.models import cnn
from tests.toys import At, linear, toy_dls

FOLDER = Path(__file__).parent


def learner(**kwargs):
    """A linear layer with momentum and averages."""
    cbs = [TrainCB(), MetricsCB(), EMACB()]
    return Learner(
        linear(), toy_dls(), cbs=cbs, opt_func=partial(optim.SGD, momentum=0.9), **kwargs
    )


def images():
    """Two images of 8 by 8 pixels that every version makes alike."""
    return torch.linspace(-1, 1, 2 * 64).view(2, 1, 8, 8)


def write(folder):
    """Write two checkpoints, a file of weights and an export."""
    save = At(
        "after_batch",
        lambda learn: learn.save_checkpoint(folder / "inside_an_epoch.ckpt"),
        when=lambda learn: learn.steps_done == 3,
    )
    learner().fit(2, cbs=[save])

    learn = learner()
    learn.fit(60)  # so many rows are stored as JSON
    learn.save_checkpoint(folder / "after_60_epochs.ckpt")
    learn.save(folder / "weights.safetensors", averaged=False)

    torch.manual_seed(0)
    batch = (images(), torch.tensor([0, 1]))
    dls = DataLoaders([batch], [batch])
    dls.pipeline = Pipeline(classes=["cat", "dog"])
    learn = Learner(cnn(n_out=2, nfs=(2, 4)).cpu(), dls, F.cross_entropy, cbs=[TrainCB()])
    learn.fit(1)
    learn.export(folder / "export")
    with torch.no_grad():
        outputs = learn.model.eval()(images()).tolist()
    (folder / "outputs.json").write_text(json.dumps(outputs))


if __name__ == "__main__":
    folder = FOLDER / minilearn.__version__
    folder.mkdir()
    write(folder)
