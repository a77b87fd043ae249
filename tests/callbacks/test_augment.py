"""Transforms of whole batches."""

import pytest
import torch
from torch import nn
from toys import batches, toy_learner

from minilearn.callbacks.augment import BatchTransformCB
from minilearn.callbacks.device import DeviceCB
from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback


class Look(Callback):
    in_probe = True

    def __init__(self):
        self.seen = []

    def after_predict(self, learn):
        self.seen.append((learn.training, learn.batch[0].sum().item()))


def zeros(batch):
    return torch.zeros_like(batch[0]), batch[1]


@pytest.mark.parametrize(
    ("on_train", "on_val"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_it_works_in_the_passes_that_were_chosen(on_train, on_val):
    look = Look()
    toy_learner([BatchTransformCB(zeros, on_train, on_val), look]).fit(1)
    changed = {(training, x == 0) for training, x in look.seen}
    assert changed == {(True, on_train), (False, on_val)}


def test_it_works_after_the_move_to_the_device_and_before_the_model():
    assert DeviceCB.order < BatchTransformCB.order < TrainCB.order


def test_the_seeds_spelling_works():
    """norm = BatchTransformCB(_norm), as in the course."""
    xb = batches(2)[0][0]
    xmean, xstd = xb.mean(), xb.std()

    def _norm(b):
        return (b[0] - xmean) / xstd, b[1]

    look = Look()
    norm = BatchTransformCB(_norm)
    toy_learner([norm, look], (batches(1), None)).fit(1)
    assert abs(look.seen[0][1]) < 1e-5
    assert "_norm" in repr(norm)


def test_a_module_and_a_change_in_place_are_fine_and_the_loaders_batch_may_be_a_copy():
    class Halve(nn.Module):
        def forward(self, batch):
            return batch[0] / 2, batch[1]

    look = Look()
    learn = toy_learner([BatchTransformCB(Halve(), on_val=False), look])
    learn.fit(1)
    expected = learn.dls[0][0][0].sum().item() / 2
    assert look.seen[0][1] == pytest.approx(expected)


def test_errors_name_the_transform_and_what_it_was_given():
    def fails(batch):
        raise KeyError("x")

    with pytest.raises(KeyError) as e:
        toy_learner([BatchTransformCB(fails)]).fit(1)
    notes = "\n".join(e.value.__notes__)
    assert "fails was given tuple(Tensor[2, 3], Tensor[2, 1])" in notes
    assert "in BatchTransformCB.before_batch, epoch 0, batch 0 (training)" in notes


def test_a_forgotten_return_is_found():
    with pytest.raises(TypeError, match="returned None for tuple"):
        toy_learner([BatchTransformCB(lambda b: None)]).fit(1)


def test_predictions_are_made_of_transformed_batches():
    learn = toy_learner()
    plain = learn.get_preds()[0]
    flipped = learn.get_preds(cbs=BatchTransformCB(lambda b: (-b[0], b[1])))[0]
    bias = learn.model.bias
    torch.testing.assert_close(flipped - bias, bias - plain)
