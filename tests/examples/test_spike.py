"""Jumps of the training loss: which are found, and what is done about them."""

import math

import pytest
import torch

from examples.callbacks.spike import SpikeCB
from minilearn import Callback, Order
from tests.toys import batches, toy_learner

NAN, INF = float("nan"), float("inf")


class Losses(Callback):
    """Says what the loss of each training batch is."""

    order = Order.TRAIN

    def __init__(self, losses):
        self.losses = iter(losses)

    def after_batch(self, learn):
        if learn.training:
            learn.loss = torch.tensor(next(self.losses))


def spikes(losses, **kwargs):
    cb = SpikeCB(**{"every": 1} | kwargs)
    learn = toy_learner([Losses(losses), cb], (batches(len(losses)), batches(1)))
    learn.fit(1)
    return cb.spikes, learn


def test_a_jump_of_the_loss_is_reported_with_its_position():
    with pytest.warns(UserWarning, match="loss is 4 in epoch 0, batch 2; its lowest was 1"):
        found, learn = spikes([2.0, 1.0, 4.0, 1.5])
    assert found == [(0, 2, 4.0)]
    assert learn.steps_done == 4


def test_means_are_looked_at_and_only_those(recwarn):
    assert spikes([1.0, 1.0, 1.0, 4.0], every=2)[0] == []
    assert len(recwarn) == 0
    with pytest.warns(UserWarning):
        assert spikes([1.0, 1.0, 4.0, 4.0], every=2)[0] == [(0, 3, 4.0)]


def test_a_divergence_ends_the_fit_when_asked():
    with pytest.warns(UserWarning, match="the fit ends here"):
        _, learn = spikes([1.0, 4.0, 9.0], stop=True)
    assert learn.steps_done == 2


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_loss_that_is_not_finite_is_a_spike_and_no_measure_for_others(bad):
    with pytest.warns(UserWarning):
        found, _ = spikes([1.0, bad, 2.0, 4.0])
    assert [spike[1] for spike in found] == [1, 3]
    assert not math.isfinite(found[0][2])


def test_negative_losses_have_no_factor(recwarn):
    assert spikes([-1.0, -5.0, -0.1, 0.3])[0] == []


def test_bad_settings_raise():
    for kwargs in ({"factor": 1.0}, {"every": 0}):
        with pytest.raises(ValueError, match="factor"):
            SpikeCB(**kwargs)
