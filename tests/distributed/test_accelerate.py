"""AccelerateCB where it is alone, and the parts that processes are dealt."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minilearn import (
    AccelerateCB,
    ClipGradCB,
    DataLoaders,
    GradAccumCB,
    Learner,
    MetricsCB,
    MixedPrecision,
    ScaledPrecision,
    TrainCB,
    accuracy,
    set_seed,
)
from minilearn.core.events import ActionConflictError
from minilearn.distributed.shards import parts
from minilearn.metrics.callback import skips_bad_updates
from tests.toys import assert_same_weights


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("MINILEARN_DEVICE", "cpu")


def fitted(trainer, *cbs):
    set_seed(1)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)]
    dls = DataLoaders.from_arrays(torch.randn(50, 4), torch.randint(3, (50,)), bs=7)
    learn = Learner(nn.Sequential(*layers), dls, F.cross_entropy, cbs=[trainer, *cbs])
    learn.fit(2)
    return learn


@pytest.mark.parametrize("cbs", [(), (GradAccumCB(3),), (ClipGradCB(0.1), MetricsCB(accuracy))])
def test_alone_it_is_a_TrainCB_to_the_bit_and_leaves_the_model_as_it_was(cbs):
    theirs, ours = fitted(TrainCB(), *cbs), fitted(AccelerateCB(), *cbs)
    assert_same_weights(ours.model, theirs.model)
    assert vars(ours.model).keys() == vars(theirs.model).keys()
    assert ours.find(AccelerateCB).processes is None


def test_half_precision_is_accelerates_and_goes_with_the_fit():
    learn = fitted(AccelerateCB(mixed_precision="no"))
    with pytest.raises(ActionConflictError, match="mixed_precision='bf16'"):
        learn.fit(1, cbs=MixedPrecision("bf16"))
    assert "forward" not in vars(learn.model)


@pytest.mark.parametrize(("scaled", "skips"), [(None, False), (ScaledPrecision(), True)])
def test_a_scaler_of_accelerates_is_known_to_skip_what_is_not_finite(scaled, skips):
    cb = AccelerateCB()
    cb._scaled = scaled  # accelerate makes a scaler on a GPU only
    assert skips_bad_updates(SimpleNamespace(cbs=[cb])) == skips


def test_accelerates_own_accumulation_is_refused():
    with pytest.raises(ValueError, match="GradAccumCB"):
        AccelerateCB(gradient_accumulation_steps=2)


@pytest.mark.parametrize("n", [2, 3, 4, 64])
@pytest.mark.parametrize("size", [1, 5, 83, 96])
def test_parts_are_together_the_large_batches(n, size):
    order = torch.randperm(size)
    dealt = [list(parts(order.split(5), rank, n, False, False)) for rank in range(n)]
    for number, large in enumerate(order.split(5 * n)):
        group = [mine[number] for mine in dealt if number < len(mine)]
        assert torch.equal(torch.cat(group), large)
        assert max(map(len, group)) - min(map(len, group)) <= 1


@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize("size", [7, 40, 83])
def test_in_training_all_have_as_many_batches_and_no_sample_comes_twice(n, size):
    batches = [list(range(size))[i : i + 4] for i in range(0, size, 4)]
    dealt = [list(parts(batches, rank, n, True, False)) for rank in range(n)]
    assert len({len(mine) for mine in dealt}) == 1
    seen = [i for mine in dealt for part in mine for i in part]
    assert len(seen) == len(set(seen)) > size - n
