"""See what the model sees."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minilearn.callbacks.device import DeviceCB
from minilearn.callbacks.training import SingleBatchCB, TrainCB
from minilearn.callbacks.transforms import BatchTransformCB
from minilearn.core.callback import Callback
from minilearn.data import DataLoaders, fashion_mnist
from minilearn.learner import Learner, TrainLearner


@pytest.fixture(autouse=True)
def figures_closed():
    yield
    plt.close("all")


def pictures(n=12, channels=1, size=6):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, channels, size, size, generator=generator)


def learner(x=None, cbs=(), lr=0.1):
    x = pictures() if x is None else x
    batches = [(x, torch.zeros(len(x), dtype=torch.long))] * 3
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 2), nn.BatchNorm1d(2))
    return Learner(
        model, (batches, batches), F.cross_entropy, lr, [TrainCB(), DeviceCB("cpu"), *cbs]
    )


def shown(axs):
    return [np.asarray(ax.images[0].get_array()) for ax in axs.flat if ax.images]


def test_the_first_images_of_a_training_batch_are_shown():
    found = shown(learner().show_image_batch())
    assert len(found) == 9
    assert all((image == x[0].numpy()).all() for image, x in zip(found, pictures(), strict=False))
    assert len(shown(learner().show_image_batch(max_n=4, imsize=1.5))) == 4


def test_transforms_have_been_at_work():
    flip = BatchTransformCB(lambda b: (b[0].flip(-1), b[1]), on_val=False)
    found = shown(learner(cbs=[flip]).show_image_batch(1))
    assert (found[0] == pictures()[0, 0].flip(-1).numpy()).all()
    found = shown(learner().show_image_batch(1, cbs=[SingleBatchCB(), flip]))
    assert (found[0] == pictures()[0, 0].flip(-1).numpy()).all()


def test_no_step_is_made_and_nothing_changes():
    class Fails(Callback):
        def after_predict(self, learn):
            raise AssertionError("the model was run")

    learn = learner(cbs=[Fails()])
    learn.model.eval()
    state = torch.get_rng_state()
    weights = {k: v.clone() for k, v in learn.model.state_dict().items()}
    learn.show_image_batch()
    assert all(v.equal(weights[k]) for k, v in learn.model.state_dict().items())
    assert learn.opt is None and learn.batch is None and not learn.model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_it_works_in_the_middle_of_a_fit_and_without_a_learning_rate():
    learn, seen = learner(), []
    learn.on("after_loss", lambda learn: seen.append(len(shown(learn.show_image_batch(2)))))
    learn.fit(1, valid=False)
    assert seen == [2, 2, 2]
    assert len(shown(learner(lr=None).show_image_batch(2))) == 2


def test_normalised_images_are_shown_in_their_own_colours():
    x = pictures(4, channels=3)
    mean, std = torch.tensor([0.2, 0.5, 0.7]), torch.tensor([0.3, 0.1, 0.2])
    learn = learner((x - mean[:, None, None]) / std[:, None, None])
    learn.dls = DataLoaders(*learn.dls)
    learn.dls.mean, learn.dls.std = mean, std
    image = shown(learn.show_image_batch(1))[0]
    np.testing.assert_allclose(image, x[0].permute(1, 2, 0).numpy(), atol=1e-6)


def test_half_precision_and_dicts_are_shown():
    learn = learner()
    learn.dls = ([{"label": torch.zeros(2), "image": pictures(2).bfloat16()}], None)
    assert len(shown(learn.show_image_batch())) == 2


def test_a_batch_without_images_is_refused():
    with pytest.raises(ValueError, match=r"the batch is tuple\(Tensor\[3, 2\]"):
        learn = learner()
        learn.dls = ([(torch.zeros(3, 2), torch.zeros(3))], None)
        learn.show_image_batch()


def test_the_courses_call_works():
    dls = DataLoaders.from_dd(fashion_mnist(), 16)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    learn = TrainLearner(model, dls, F.cross_entropy, lr=0.1, cbs=[SingleBatchCB()])
    assert len(shown(learn.show_image_batch(max_n=16, imsize=(1.5)))) == 16


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_one_channel_are_shown_grey_unless_the_user_says_other_colours(channels):
    learn = learner(pictures(channels=channels))
    for show in (learn.show_image_batch, learn.show_batch, learn.show_results):
        drawn = show(max_n=2).flat[0].images[0]
        assert drawn.get_cmap().name == "gray"
        assert np.asarray(drawn.get_array()).shape == ((6, 6) if channels == 1 else (6, 6, 3))
        assert show(max_n=2, cmap="magma").flat[0].images[0].get_cmap().name == "magma"
