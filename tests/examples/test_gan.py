"""The GAN of examples/gan.py, against the loop of its two optimizers written by hand."""

import copy
import importlib.util
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import optim
from toys import assert_same_weights

PATH = Path(__file__).parents[2] / "examples" / "gan.py"


def example():
    spec = importlib.util.spec_from_file_location("gan", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train_by_hand(nets, data, epochs):
    """Train the discriminator and the generator, each on its own loss with its own optimizer."""
    gen, disc = nets.values()
    opts = [optim.Adam(net.parameters(), 1e-3, betas=(0.5, 0.99)) for net in (gen, disc)]
    for (real,) in data * epochs:
        fake = gen(torch.randn(len(real), 8))
        known = F.softplus(-disc(real)).mean() + F.softplus(disc(fake.detach())).mean()
        fooled = F.softplus(-disc(fake)).mean()
        fooled.backward(retain_graph=True)
        disc.zero_grad()
        known.backward()
        for opt in opts:
            opt.step()
            opt.zero_grad()


def test_the_gan_equals_a_loop_written_by_hand():
    learn = example().learner(n_batches=5)
    theirs = copy.deepcopy(learn.model)
    torch.manual_seed(1)
    learn.fit(2)
    torch.manual_seed(1)
    train_by_hand(theirs, learn.dls.train, 2)
    assert_same_weights(learn.model, theirs)
    assert learn.steps_done == 10
    assert {"train_gen", "train_disc", "gen", "disc"} <= set(learn.history.columns)
