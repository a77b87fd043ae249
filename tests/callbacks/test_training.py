"""What TrainCB makes of a batch, of what a model returns, and of the gradients."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from toys import At, toy_learner

from minilearn.callbacks.training import TrainCB, own_loss
from minilearn.core.learner import Learner

LOSS, OTHER = torch.tensor(2.0), torch.tensor(3.0)


@pytest.mark.parametrize(
    ("output", "preds", "loss"),
    [
        (LOSS, None, LOSS),
        (SimpleNamespace(loss=LOSS, logits="logits"), "logits", LOSS),
        ({"loss": LOSS, "logits": "logits"}, "logits", LOSS),
        ({"box": LOSS, "mask": OTHER}, None, {"box": LOSS, "mask": OTHER}),
        (("preds", LOSS), "preds", LOSS),
        (["preds", LOSS], "preds", LOSS),
    ],
)
def test_a_loss_is_found_in_what_models_return(output, preds, loss):
    assert own_loss(output) == (preds, loss)


@pytest.mark.parametrize(
    "output",
    [
        torch.ones(2),
        {},
        {"box": 2.0},
        {"box": torch.ones(2)},
        ("preds", 2.0),
        (LOSS,),
        None,
        "loss",
    ],
)
def test_what_holds_no_loss_is_refused_with_its_description(output):
    with pytest.raises(TypeError, match="the model must return its loss; it returned"):
        own_loss(output)


def test_with_a_loss_function_the_model_gets_the_inputs_of_a_dict_alone():
    batch = {"x": torch.ones(2, 3), "y": torch.zeros(2, 1)}
    train = TrainCB(inputs="x", targets="y")
    learn = Learner(nn.Linear(3, 1), ([batch],), nn.functional.mse_loss, cbs=[train])
    learn.fit(1)
    assert learn.steps_done == 1


def test_no_gradient_is_left_of_the_update_before():
    left = []
    watch = At("cleanup_batch", lambda learn: left.extend(p.grad for p in learn.model.parameters()))
    toy_learner([watch]).fit(1, valid=False)
    assert left == [None, None]
