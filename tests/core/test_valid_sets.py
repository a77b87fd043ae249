"""Several validation sets: each has an epoch in every round, and columns of its own."""

import pytest
import torch
import torch.nn.functional as F
from toys import assert_same_weights, batches, linear, toy_learner

from minilearn import Learner, TrainCB
from minilearn.core.events import CancelEpochException
from minilearn.data.loaders import DataLoaders
from minilearn.metrics.callback import MetricsCB
from minilearn.metrics.functions import mae


def learner(**named):
    dls = DataLoaders(batches(3), batches(2, seed=2), **named)
    learn = toy_learner([MetricsCB(mae=mae)], dls)
    learn.cbs[1]._log = lambda row: None
    return learn


def test_each_set_has_an_epoch_and_columns_in_every_round():
    far, near = batches(1, seed=5), batches(4, seed=6)
    learn, passes = learner(far=far, near=near), []
    learn.on("after_epoch", lambda x: passes.append((x.training, x.valid_name, x.plan.length)))
    learn.fit(2)
    assert (
        passes
        == [
            (True, None, 3),
            (False, None, 2),
            (False, "far", 1),
            (False, "near", 4),
        ]
        * 2
    )
    row = learn.history[-1]
    for name, data in (("far", far), ("near", near)):
        x, y = (torch.cat(column) for column in zip(*data, strict=True))
        with torch.no_grad():
            preds = learn.model(x)
        assert row[f"{name}_loss"] == pytest.approx(F.mse_loss(preds, y).item())
        assert row[f"{name}_mae"] == pytest.approx(mae(preds, y).item())
    assert {"train_loss", "valid_loss", "train_mae", "mae"} <= row.keys()
    assert learn.valid_name is None


def test_they_do_not_change_the_training():
    more, fewer = learner(far=batches(1)), learner()
    more.fit(2)
    fewer.fit(2)
    assert_same_weights(more.model, fewer.model)


def test_an_error_leaves_no_name_and_a_cancel_ends_one_set_only():
    learn, seen = learner(far=batches(3), near=batches(2)), []

    @learn.on("before_batch", when=lambda learn: learn.valid_name == "far")
    def skip(learn):
        raise CancelEpochException

    learn.on("after_batch", lambda learn: seen.append(learn.valid_name))
    learn.fit(1)
    assert "far" not in seen and "near" in seen

    learn.on("after_batch", lambda learn: 1 / 0, when=lambda learn: learn.valid_name == "near")
    with pytest.raises(ZeroDivisionError):
        learn.fit(1)
    assert learn.valid_name is None


def test_one_set_is_validated_by_its_name():
    learn = learner(far=batches(1, seed=5))
    learn.model = linear(seed=3)
    x, y = batches(1, seed=5)[0]
    assert learn.validate("far").mae == pytest.approx(mae(learn.model(x), y).item())
    assert set(learn.validate("far")) == {"mae", "loss"}


@pytest.mark.parametrize("name", ["valid", "val", "validation", "dev", "test"])
def test_validation_data_may_have_any_of_its_usual_names(name):
    learn = Learner(linear(), {"train": batches(2), name: batches(1)}, cbs=[TrainCB(), MetricsCB()])
    learn.fit(1)
    assert "valid_loss" in learn.history.columns
    if name != "test":  # which DataLoaders keeps for later
        assert DataLoaders(batches(2), **{name: batches(1)}).valid is not None


def test_a_loader_that_no_fit_would_use_is_an_error():
    with pytest.raises(ValueError, match="no fit uses a loader 'vaild'; did you mean 'valid'"):
        Learner(linear(), {"train": batches(2), "vaild": batches(1)})
    with pytest.raises(ValueError, match="no fit uses a loader 'hard'"):
        DataLoaders(batches(2), hard=batches(1))
