"""Dropout that stays on in predictions, and leaves training alone."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from examples.callbacks.mc_dropout import MCDropoutCB
from minilearn import DataLoaders, Learner, TrainCB
from tests.toys import linear


def classifier(model, cbs=()):
    """Three classes of vectors (4,)."""
    torch.manual_seed(1)
    x, y = torch.randn(10, 4), torch.randint(0, 3, (10,))
    dls = DataLoaders(None, DataLoader(TensorDataset(x, y), 4))
    return Learner(model, dls, F.cross_entropy, cbs=[TrainCB(), *cbs])


def test_dropout_stays_on_in_predictions_and_only_dropout():
    model = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 3))
    learn = classifier(model)
    plain, _ = learn.get_preds()
    mean, _ = learn.tta(200, cbs=MCDropoutCB())
    single, _ = learn.tta(1, cbs=MCDropoutCB())
    assert (single - plain).abs().max() > 1e-3
    assert (mean - plain).abs().max() < (single - plain).abs().max()
    assert torch.equal(learn.get_preds()[0], plain)
    assert torch.equal(model[1].running_mean, torch.zeros(64))  # the norm was in eval mode


def test_a_fit_with_mc_dropout_trains_as_without():
    states = []
    for cbs in ([], [MCDropoutCB()]):
        torch.manual_seed(0)
        learn = classifier(nn.Sequential(linear(n_in=4, n_out=3), nn.Dropout(0.5)), cbs)
        learn.dls.train = learn.dls.valid
        learn.fit(2)
        states.append(learn.model[0].weight.clone())
    assert torch.equal(*states)
