"""Transforms of whole batches, and random changes of images for them."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys import At, batches, toy_learner

from minilearn import (
    AugmentCB,
    Learner,
    RandCopy,
    RandErase,
    RandomCrop,
    RandomFlip,
    rand_copy,
    rand_erase,
    tfm_batch,
)
from minilearn.callbacks.device import DeviceCB
from minilearn.callbacks.training import TrainCB
from minilearn.callbacks.transforms import BatchTransformCB
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
def test_it_works_in_the_epochs_that_were_chosen(on_train, on_val):
    look = Look()
    toy_learner([BatchTransformCB(zeros, on_train, on_val), look]).fit(1)
    changed = {(training, x == 0) for training, x in look.seen}
    assert changed == {(True, on_train), (False, on_val)}


def test_augmentation_changes_the_inputs_of_training_batches_only():
    look, data = Look(), (batches(3), batches(2))
    learn = toy_learner([AugmentCB(torch.negative, lambda x: x + 1), look], data)
    learn.fit(1)
    plain = [(False, x.sum().item()) for x, _ in data[1]]
    assert look.seen == [(True, (1 - x).sum().item()) for x, _ in data[0]] + plain
    assert repr(AugmentCB(len, abs)) == "AugmentCB(len, abs)"


def test_augmentation_finds_the_inputs_of_a_dict():
    data = [{"y": y, "name": "a", "x": x} for x, y in batches(2)]
    kept = []
    look = At("after_predict", lambda learn: kept.append(learn.batch), times=2)
    cbs = [TrainCB(inputs="x", targets="y"), AugmentCB(torch.negative), look]
    Learner(nn.Linear(3, 1), (data, None), F.mse_loss, cbs=cbs).fit(1)
    for batch, own in zip(kept, data, strict=True):
        assert torch.equal(batch["x"], -own["x"]) and batch["y"] is own["y"]


def test_augmentation_leaves_targets_that_are_the_inputs():
    x, kept = torch.randn(2, 3), []
    look = At("after_predict", lambda learn: kept.append(learn.batch))
    cbs = [TrainCB(), AugmentCB(torch.negative), look]
    Learner(nn.Linear(3, 3), ([(x, x)], None), F.mse_loss, cbs=cbs).fit(1)
    assert torch.equal(kept[0][0], -x) and kept[0][1] is x


def test_an_augmentation_that_returns_nothing_is_named():
    with pytest.raises(TypeError, match="<lambda> returned None"):
        toy_learner([AugmentCB(lambda x: None)]).fit(1)


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


# ---- random changes of images ----


def pictures(n=64, size=(10, 12), dtype=torch.float32):
    """Images whose values are all different, and so show where they come from."""
    x = torch.arange(n * 2 * size[0] * size[1]).view(n, 2, *size)
    return (x % 251).to(torch.uint8) if dtype == torch.uint8 else x.to(dtype)


CHANGES = {
    "erase": RandErase,
    "erase by sample": partial(RandErase, per_sample=True),
    "copy": RandCopy,
    "copy by sample": partial(RandCopy, per_sample=True),
    "crop": RandomCrop,
    "flip": RandomFlip,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_keeps_shape_type_and_its_input(change, dtype):
    x = pictures(dtype=dtype)
    before = x.clone()
    changed = CHANGES[change]()(x)
    assert torch.equal(x, before)
    assert (changed.shape, changed.dtype) == (x.shape, x.dtype)
    assert changed.is_contiguous()
    assert not torch.equal(changed, x)


@pytest.mark.parametrize("change", CHANGES)
def test_the_same_generator_gives_the_same_change_and_the_global_one_is_left_alone(change):
    x, state = pictures(), torch.get_rng_state()
    first, second, other = (
        CHANGES[change](generator=torch.Generator().manual_seed(seed))(x) for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def rectangles(x, changed):
    """Which pixels differ, (B, H, W), where all channels agree."""
    differ = x != changed
    assert torch.equal(differ[:, 0], differ[:, 1])
    return differ[:, 0]


def test_erased_rectangles_have_their_size_and_noise_of_the_images_kind():
    x = torch.randn(500, 2, 20, 20) * 3 + 1
    changed = rand_erase(x, pct=0.25, max_num=1, per_sample=True)
    erased = rectangles(x, changed)
    sizes = erased.sum((1, 2)).tolist()
    assert set(sizes) == {0, 25}
    assert 200 < sizes.count(0) < 300
    noise = changed.transpose(0, 1)[:, erased]
    assert noise.mean().item() == pytest.approx(1, abs=0.2)
    assert noise.std().item() == pytest.approx(3, abs=0.2)
    assert noise.min() >= x.min() and noise.max() <= x.max()


def test_places_reach_from_edge_to_edge():
    x = torch.randn(2000, 2, 10, 10)
    erased = rectangles(x, rand_erase(x, pct=0.2, max_num=1, per_sample=True)).any(0)
    assert erased[:, :-1][:-1].all()
    number = rectangles(x, rand_erase(x, pct=0.1, max_num=4, per_sample=True)).sum((1, 2))
    assert set(number.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("mode", "values"), [("pixel", 16), ("channel", 1), ("constant", 1)])
def test_rectangles_are_filled_by_pixel_by_channel_or_with_zeros(mode, values):
    torch.manual_seed(0)
    x = torch.rand(64, 3, 8, 8) + 1  # no zeros
    changed = rand_erase(x, pct=0.5, max_num=1, per_sample=True, mode=mode)
    filled = changed != x
    seen = 0
    for image, inside in zip(changed, filled, strict=True):
        if inside.any():
            seen += 1
            found = [image[c][inside[c]].unique() for c in range(3)]
            assert all(len(v) > values / 2 for v in found) if values > 1 else True
            assert all(len(v) == 1 for v in found) if values == 1 else True
            if mode == "constant":
                assert not torch.cat(found).any()
            if mode == "channel":
                assert len(torch.cat(found).unique()) > 1
    assert seen > 10
    assert mode == "constant" or changed.min() >= x.min() and changed.max() <= x.max()


@pytest.mark.parametrize("per_sample", [True, False])
def test_images_are_erased_with_a_probability(per_sample):
    torch.manual_seed(0)
    x = torch.rand(20, 1, 8, 8)
    erase = partial(rand_erase, pct=0.5, max_num=1, per_sample=per_sample)

    def erased(prob):
        return torch.cat([(erase(x, prob=prob) != x).flatten(1).any(1) for _ in range(300)])

    share = {prob: erased(prob) for prob in (0.0, 0.3, 1.0)}
    assert not share[0.0].any()  # half of all numbers of rectangles are 0
    assert share[0.3].float().mean().item() == pytest.approx(0.15, abs=0.08)
    assert share[1.0].float().mean().item() == pytest.approx(0.5, abs=0.15)
    torch.manual_seed(1)
    default = rand_erase(x)
    torch.manual_seed(1)
    assert torch.equal(default, rand_erase(x, prob=1.0, mode="pixel"))
    with pytest.raises(ValueError, match="mode is 'pixel'"):
        RandErase(mode="blue")(x)


@pytest.mark.parametrize("change", [rand_erase, rand_copy])
def test_one_set_of_rectangles_serves_the_batch_unless_each_image_has_its_own(change):
    x = pictures(dtype=torch.float64)
    for _ in range(9):
        together = rectangles(x, change(x, max_num=1, pct=0.3))
        assert (together == together[0]).all()
    apart = rectangles(x, change(x, max_num=1, pct=0.3, per_sample=True))
    assert not (apart == apart[0]).all()


@pytest.mark.parametrize("per_sample", [False, True])
def test_a_copied_rectangle_is_found_elsewhere_in_its_image(per_sample):
    x = torch.randn(40, 2, 10, 12)
    changed = rand_copy(x, pct=0.3, max_num=1, per_sample=per_sample)
    for picture, now in zip(x, changed, strict=True):
        differ = (picture != now)[0]
        if not differ.any():
            continue
        rows, columns = differ.any(1).nonzero(), differ.any(0).nonzero()
        patch = now[:, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        h, w = patch.shape[1:]
        assert h <= 3 and w <= 3
        windows = picture.unfold(1, h, 1).unfold(2, w, 1).permute(1, 2, 0, 3, 4)
        assert (windows == patch).flatten(2).all(2).sum() == 1


def test_flips_mirror_some_images_whole():
    x = pictures(200)
    changed = RandomFlip(0.25)(x)
    mirrored = (changed == x.flip(-1)).flatten(1).all(1)
    assert torch.equal(changed[~mirrored], x[~mirrored])
    assert 25 < mirrored.sum() < 80
    assert torch.equal(RandomFlip(1.0, dim=-2)(x), x.flip(-2))
    assert RandomFlip(0.5)(torch.randn(4, 3, 5)).shape == (4, 3, 5)


def test_crops_are_windows_of_the_padded_image_each_at_its_own_position():
    x = pictures(200)
    changed = RandomCrop(2, fill=-1)(x)
    padded = nn.functional.pad(x, [2] * 4, value=-1)
    windows = padded.unfold(2, 10, 1).unfold(3, 12, 1)  # (B, C, 5, 5, H, W)
    same = (windows == changed[:, :, None, None]).flatten(4).all(4).all(1)  # (B, 5, 5)
    assert (same.flatten(1).sum(1) == 1).all()
    assert same.any(0).all()  # every place comes up
    assert torch.equal(RandomCrop(0)(x), x)


def test_a_batch_that_is_no_images_is_an_error():
    with pytest.raises(ValueError, match=r"\(B, C, H, W\)"):
        RandErase()(torch.randn(4, 3))


def test_the_courses_way_of_putting_them_together_works():
    tfms = nn.Sequential(RandomCrop(padding=1), RandomFlip(), RandErase(), RandCopy(0.2, 4))
    augcb = BatchTransformCB(partial(tfm_batch, tfm_x=tfms), on_val=False)
    data = [(torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,)), "id")]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    look = Look()
    learn = Learner(
        model, (data, data), lambda p, y, _: F.cross_entropy(p, y), cbs=[TrainCB(), augcb, look]
    )
    learn.fit(1)
    sums = [data[0][0].sum().item()]
    assert look.seen[0][1] != sums[0] and look.seen[1][1] == sums[0]
    x, y, rest = tfm_batch(data[0], tfm_y=lambda y: y + 1)
    assert x is data[0][0] and torch.equal(y, data[0][1] + 1) and rest == "id"
