"""Single items by name, test-time augmentation, dropout as doubt; nothing changes."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from examples.callbacks.mc_dropout import MCDropoutCB
from minilearn import (
    BatchTransformCB,
    DataLoaders,
    Learner,
    Pipeline,
    TrainCB,
    fashion_mnist,
    get_model,
    tfm_batch,
)
from tests.toys import linear

CLASSES = ["no", "yes", "maybe"]


def classifier(model=None, cbs=(), n=10, **kwargs):
    """Three classes of vectors (4,)."""
    torch.manual_seed(1)
    x, y = torch.randn(n, 4), torch.randint(0, 3, (n,))
    dls = DataLoaders(None, DataLoader(TensorDataset(x, y), 4))
    dls.pipeline = Pipeline(classes=CLASSES)
    model = linear(n_in=4, n_out=3) if model is None else model
    return Learner(model, dls, F.cross_entropy, cbs=[TrainCB(), *cbs], **kwargs)


@pytest.fixture(scope="module")
def pictures():
    """A learner of Fashion-MNIST, its model as it was made, and 12 images with their file."""
    dd = fashion_mnist()
    dd = type(dd)({name: ds.select(range(12)) for name, ds in dd.items()})
    dls = DataLoaders.from_dd(dd, 8, splits={"valid": "test"})
    return Learner(get_model().eval(), dls, F.cross_entropy, cbs=[TrainCB()]), dd["test"]


# ---- infer ----


def test_one_item_gives_one_prediction_and_a_list_a_list():
    learn = classifier()
    x = learn.dls.valid.dataset.tensors[0]
    one, (again, second) = learn.infer(x[0]), learn.infer([x[0], x[1]])
    expected = learn.model(x[:2]).softmax(1).detach()
    torch.testing.assert_close(torch.stack([one.probabilities, second.probabilities]), expected)
    assert one.label == again.label == CLASSES[int(expected[0].argmax())]
    assert one.probability == pytest.approx(float(expected[0].max()))
    assert torch.equal(one.output, learn.model(x[:1])[0].detach())
    assert learn.infer([]) == []


def test_many_items_are_predicted_in_batches_and_keep_their_order():
    learn = classifier()
    x = torch.randn(11, 4)
    found = learn.infer(list(x), bs=4)
    torch.testing.assert_close(
        torch.stack([p.probabilities for p in found]), learn.model(x).softmax(1).detach()
    )


def test_images_are_prepared_as_those_of_the_training(pictures, tmp_path):
    learn, ds = pictures
    preds, _ = learn.get_preds(act=lambda p: p.softmax(1))
    ds[3]["image"].save(tmp_path / "a.png")
    pixels = np.array(ds[3]["image"])
    items = [ds[3]["image"], tmp_path / "a.png", str(tmp_path / "a.png"), pixels]
    items += [torch.tensor(pixels), ds[3]["image"].convert("P"), ds[3]["image"].convert("RGBA")]
    for found in learn.infer(items):
        torch.testing.assert_close(found.probabilities, preds[3])
        assert found.label == ds.features["label"].names[int(preds[3].argmax())]


def test_an_image_of_another_size_is_brought_to_the_size_of_the_training(pictures):
    learn, ds = pictures
    image = ds[0]["image"].resize((56, 56), Image.Resampling.NEAREST)
    shapes = []
    with learn.on("before_batch", lambda learn: shapes.append(learn.batch[0].shape)):
        learn.cbs[-1].in_probe = True
        learn.infer([image, ds[1]["image"]])
    assert shapes == [(2, 1, 28, 28)]


def test_callbacks_that_prepare_the_validation_prepare_single_items_too():
    doubled = BatchTransformCB(lambda b: tfm_batch(b, tfm_x=lambda x: 2 * x))
    learn, x = classifier(cbs=[doubled]), torch.randn(4)
    torch.testing.assert_close(learn.infer(x).output, learn.model(2 * x).detach())


def test_without_classes_or_cross_entropy_there_is_the_output_alone():
    learn = Learner(linear(), (None, []), F.mse_loss, cbs=[TrainCB()])
    found = learn.infer(torch.zeros(3))
    assert (found.label, found.probability, found.probabilities) == (None, None, None)
    assert torch.equal(found.output, learn.model.bias.detach())
    learn = Learner(linear(n_out=2), (None, []), nn.CrossEntropyLoss(), cbs=[TrainCB()])
    assert learn.infer(torch.zeros(3)).label == int(learn.model.bias.argmax())


def test_an_activation_of_ones_own_makes_the_probabilities():
    learn, x = classifier(), torch.randn(4)
    found = learn.infer(x, act=torch.sigmoid)
    torch.testing.assert_close(found.probabilities, learn.model(x).sigmoid().detach())


def test_inference_leaves_everything_as_it_was():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    learn = classifier(model)
    model.train()
    before, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    learn.infer([torch.randn(4, generator=torch.Generator()) for _ in range(3)])
    learn.tta(2, lambda b: (b[0] + torch.randn_like(b[0]), b[1]), cbs=MCDropoutCB())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(m.training for m in model.modules())
    assert torch.is_grad_enabled() and learn.history == []


# ---- test-time augmentation ----


def test_tta_is_the_mean_over_the_transforms_in_turn():
    learn = classifier()
    x, y = learn.dls.valid.dataset.tensors
    preds, targs = learn.tta(
        3, lambda b: b, lambda b: (b[0].flip(-1), b[1]), act=partial(F.softmax, dim=1)
    )
    p, q = learn.model(x).softmax(1), learn.model(x.flip(-1)).softmax(1)
    torch.testing.assert_close(preds, ((2 * p + q) / 3).detach())
    assert torch.equal(targs, y)


def test_random_transforms_draw_anew_in_each_epoch_and_follow_the_seed():
    learn, noise = classifier(), []

    def shake(b):
        noise.append(torch.rand(()))
        return b

    for _ in range(2):
        torch.manual_seed(3)
        learn.tta(3, shake)
    draws = torch.stack(noise).reshape(2, 3, -1)
    assert torch.equal(draws[0], draws[1])
    assert len(set(draws[0, :, 0].tolist())) == 3
    with pytest.raises(ValueError, match="at least once"):
        learn.tta(0)


def test_train_and_valid_are_names_of_loaders_in_tuples_too():
    loaders = [[(torch.zeros(2, 3), torch.zeros(2, 1))], [(torch.ones(1, 3), torch.ones(1, 1))]]
    for dls in (loaders, tuple(loaders), DataLoaders(*loaders)):
        learn = Learner(linear(), dls, cbs=[TrainCB()])
        assert [len(learn.get_preds(name)[0]) for name in ("train", "valid")] == [2, 1]
