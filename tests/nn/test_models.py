"""The two models: shapes, devices, sizes, and that they learn."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minilearn import GeneralRelu, act_gr, get_model, init_weights, resnet
from minilearn.base.batch import default_device


def overfit(model, steps=40, size=28):
    x, y = torch.randn(20, 1, size, size), torch.arange(20) % 10
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
    return loss.item()


@pytest.mark.parametrize("size", [28, 32, 64])
@pytest.mark.parametrize("make", [get_model, resnet])
def test_models_give_one_row_of_outputs_an_image_whatever_its_size(make, size):
    model = make(n_in=3, n_out=7).cpu()
    assert type(model) is nn.Sequential
    assert model(torch.randn(2, 3, size, size)).shape == (2, 7)


def test_the_courses_spelling_of_get_model_works():
    model = get_model(act_gr, nfs=[1, 8, 16], norm=nn.BatchNorm2d)
    model.apply(partial(init_weights, leaky=0.1))
    kinds = [type(m) for m in model.modules()]
    assert kinds.count(nn.Conv2d) == 3
    assert kinds.count(nn.BatchNorm2d) == kinds.count(GeneralRelu) == 2


def test_get_model_by_default_is_five_convolutions_on_the_default_device():
    model = get_model()
    assert [c[0].out_channels for c in model[:5]] == [8, 16, 32, 64, 10]
    assert all(p.device.type == default_device().type for p in model.parameters())


def test_get_model_refuses_channels_that_contradict_each_other():
    assert get_model(nfs=[3, 8])[0][0].in_channels == 3
    with pytest.raises(ValueError, match="nfs starts with 1"):
        get_model(nfs=[1, 8], n_in=3)


@pytest.mark.parametrize(
    "make", [partial(get_model, act_gr), resnet, partial(resnet, zero_init=True)]
)
def test_models_fit_a_few_images(make):
    assert overfit(make(nfs=(1, 8, 16, 32)).cpu()) < 0.5


def test_resnet_halves_the_image_with_each_block():
    model, x, sizes = resnet(nfs=(4, 8, 16, 32)), torch.randn(1, 1, 28, 28), []
    for block in model[:-2]:
        x = block(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes == [(4, 28, 28), (8, 14, 14), (16, 7, 7), (32, 4, 4)]


def test_resnet_of_the_course_has_its_size():
    n = sum(p.numel() for p in resnet(nfs=(16, 32, 64, 128, 256)).parameters())
    assert 1.2e6 < n < 1.3e6
    assert sum(p.numel() for p in resnet().parameters()) < 1e5
