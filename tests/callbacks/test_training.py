"""What TrainCB makes of a batch, of what a model returns, and of the gradients."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from toys import At, toy_learner

from minilearn.callbacks.training import TrainCB, own_loss
from minilearn.learner import Learner

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


X, Z, Y = torch.ones(2, 3), torch.full((2, 3), 2.0), torch.zeros(2, 1)


@pytest.mark.parametrize(
    ("train", "batch", "args", "keywords", "targets"),
    [
        (TrainCB(), (X, Y), [X], {}, [Y]),
        (TrainCB(), [X, Y], [X], {}, [Y]),
        (TrainCB(2), (X, Z, Y), [X, Z], {}, [Y]),
        (TrainCB(), X, [X], {}, []),
        (TrainCB(targets="y"), {"x": X, "z": Z, "y": Y}, [], {"x": X, "z": Z}, [Y]),
        (TrainCB(targets="y"), {"x": X}, [], {"x": X}, []),
        (TrainCB(), {"x": X, "z": Z}, [], {"x": X, "z": Z}, []),
        (TrainCB(inputs=["z", "x"], targets=["y"]), {"x": X, "z": Z, "y": Y}, [Z, X], {}, [Y]),
        (TrainCB(inputs={"a": "x"}, targets="y"), {"x": X, "y": Y}, [], {"a": X}, [Y]),
    ],
)
def test_a_batch_is_split_into_inputs_and_targets(train, batch, args, keywords, targets):
    found = train.split(batch)
    assert [[id(x) for x in found[0]], [id(x) for x in found[2]]] == [
        [id(x) for x in args],
        [id(x) for x in targets],
    ]
    assert {name: id(x) for name, x in found[1].items()} == {n: id(x) for n, x in keywords.items()}


def test_a_batch_that_cannot_be_split_is_described():
    with pytest.raises(TypeError, match="can split a tuple, list, dict or tensor; this batch is"):
        TrainCB().split(3)
    with pytest.raises(KeyError, match=r"the batch has no 'z': it is dict\(x=Tensor"):
        TrainCB(inputs="z").split({"x": X})


@pytest.mark.parametrize(
    ("loss_func", "note"),
    [
        (lambda preds, y: (preds - y).square(), r"the loss is Tensor\[2, 1\], and gradients come"),
        (lambda preds, y: 0.5, "the loss is float, and gradients come from a scalar tensor"),
        (lambda preds, y: (preds - y).detach().mean(), "no weight that trains led to the loss"),
    ],
)
def test_a_loss_without_a_gradient_is_explained(loss_func, note):
    learn = Learner(nn.Linear(3, 1), ([(X, Y)],), loss_func, cbs=[TrainCB()])
    with pytest.raises((AttributeError, RuntimeError)) as caught:
        learn.fit(1)
    assert any(re.search(note, text) for text in caught.value.__notes__)


def test_an_error_of_a_sound_loss_is_not_explained():
    learn = toy_learner([At("before_backward", lambda learn: learn.loss.backward())])
    with pytest.raises(RuntimeError, match="backward through the graph a second time") as caught:
        learn.fit(1)
    assert not any("the loss" in note for note in caught.value.__notes__)


def test_targets_that_the_loss_needs_and_a_dict_lacks_are_named():
    train = TrainCB(inputs="x", targets="y")
    learn = Learner(nn.Linear(3, 1), ([{"x": X}],), cbs=[train])
    with pytest.raises(KeyError, match="the batch has no 'y'"):
        learn.fit(1)
    learn = Learner(nn.Linear(3, 1), ([X],), lambda preds: preds.mean(), cbs=[TrainCB()])
    learn.fit(1)  # a loss of the predictions alone
    assert learn.steps_done == 1
    free = Learner(
        nn.Linear(3, 1), ([{"x": X}],), lambda preds: preds.mean(), cbs=[TrainCB(inputs="x")]
    )
    free.fit(1)
    assert free.steps_done == 1
