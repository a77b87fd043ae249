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
    Callback,
    CancelBatchException,
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


class Named(nn.Module):
    """Returns a dict, with one entry for each item that is no tensor."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        boxes = [x[i, : i + 1] for i in range(len(x))]  # as many as there are
        return {"logits": self.layer(x), "pair": (x.sum(1), x), "boxes": boxes}


def test_dict_outputs_are_split_as_get_preds_joins_them():
    learn = classifier(Named())
    x = learn.dls.valid.dataset.tensors[0]
    found, preds = learn.infer(list(x), bs=4), learn.get_preds(with_targs=False)
    probabilities = preds["logits"].softmax(1)
    for i, one in enumerate(found):
        assert one.label == CLASSES[int(probabilities[i].argmax())]
        torch.testing.assert_close(one.probabilities, probabilities[i])
        torch.testing.assert_close(one.output["logits"], preds["logits"][i])
        torch.testing.assert_close(one.output["pair"][1], x[i])
        torch.testing.assert_close(one.output["boxes"], preds["boxes"][i])
    others = classifier(Named())
    others.model.forward = lambda x: {"a": x}
    one = others.infer(x[0])  # nothing to choose by
    assert one.label is None and torch.equal(one.output["a"], x[0])


class Recurrent(nn.Module):
    """Takes padded sequences (B, L, 2) and lengths, or sequences of one length."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x, lengths=None):
        last = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
        return self.head(self.rnn(x)[0][torch.arange(len(x)), last - 1])


def padded(batch):
    """A batch as a loader of the user's makes it."""
    x = nn.utils.rnn.pad_sequence([item[0] for item in batch], batch_first=True)
    return x, torch.tensor([len(item[0]) for item in batch]), torch.tensor([y for _, y in batch])


def test_items_are_collated_as_the_loader_does():
    torch.manual_seed(0)
    data = [(torch.randn(n, 2), n % 3) for n in (3, 5, 2, 5, 4)]
    dls = DataLoaders(None, DataLoader(data, 2, collate_fn=padded))
    learn = Learner(Recurrent(), dls, F.cross_entropy, cbs=[TrainCB(n_inp=2)])
    expected, _ = learn.get_preds()
    found = learn.infer([(x, 0) for x, _ in data])  # any target
    torch.testing.assert_close(torch.stack([one.output for one in found]), expected)
    with pytest.raises(ValueError, match=r"collate_fn cannot make a batch .*any target"):
        learn.infer([x for x, _ in data])


def test_items_of_unequal_length_are_predicted_without_padding():
    torch.manual_seed(0)
    items = [torch.randn(n, 2) for n in (3, 5, 5, 2, 2, 2, 3)]
    learn = Learner(Recurrent(), (None, []), F.cross_entropy, cbs=[TrainCB()])
    for one, x in zip(learn.infer(items, bs=4), items, strict=True):
        torch.testing.assert_close(one.output, learn.model(x[None])[0].detach())


def test_a_batch_that_a_callback_cancels_is_an_error_and_not_a_shift():
    class Second(Callback):
        in_probe, n = True, 0

        def before_batch(self, learn):
            self.n += 1
            if self.n == 1:
                raise CancelBatchException

    with pytest.raises(RuntimeError, match="1 of 2 predicted|cancelled"):
        classifier().infer([torch.zeros(4), torch.ones(4)], bs=1, cbs=Second())


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
