"""Layers against torch's own functions and formulas."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from minilearn import (
    Dropout,
    GeneralRelu,
    GlobalAvgPool,
    ResBlock,
    act_gr,
    cnn_layers,
    conv,
    get_model,
)

maybe = st.none() | st.floats(-2, 2)


def general_relu_by_hand(x, leak, sub, maxv):
    y = torch.where(x > 0, x, x * (leak or 0.0)) - (sub or 0.0)
    return y if maxv is None else torch.minimum(y, torch.tensor(maxv))


@given(leak=maybe, sub=maybe, maxv=maybe)
def test_general_relu_follows_its_formula_and_leaves_the_input_alone(leak, sub, maxv):
    x = torch.linspace(-3, 3, 61)
    before = x.clone()
    expected = general_relu_by_hand(x, leak, sub, maxv)
    torch.testing.assert_close(GeneralRelu(leak, sub, maxv)(x), expected)
    assert torch.equal(x, before)


@pytest.mark.parametrize("leak", [None, 0.1])
def test_general_relu_has_the_gradient_of_its_formula(leak):
    ours, theirs = (torch.linspace(-3, 3, 60, requires_grad=True) for _ in range(2))
    GeneralRelu(leak, 0.4, 1.5)(ours).sum().backward()
    general_relu_by_hand(theirs, leak, 0.4, 1.5).sum().backward()
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("args", [{}, {"leak": 1, "sub": 1}, {"leak": 0.1, "sub": 0.4, "maxv": 6}])
def test_general_relu_can_be_scripted_and_compiled(args):
    act, x = GeneralRelu(**args), torch.randn(20)
    assert torch.equal(torch.jit.script(act)(x), act(x))
    assert torch.equal(torch.compile(act, fullgraph=True, backend="eager")(x), act(x))


def test_general_relu_shows_the_arguments_that_were_given():
    assert repr(act_gr()) == "GeneralRelu(leak=0.1, sub=0.4)"
    assert repr(GeneralRelu(maxv=6)) == "GeneralRelu(maxv=6)"


@pytest.mark.parametrize(
    ("args", "kinds"),
    [
        ({}, [nn.Conv2d, nn.ReLU]),
        ({"act": True}, [nn.Conv2d, nn.ReLU]),
        ({"act": False}, [nn.Conv2d]),
        ({"act": None, "norm": False}, [nn.Conv2d]),
        ({"act": act_gr}, [nn.Conv2d, GeneralRelu]),
        ({"norm": nn.BatchNorm2d}, [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]),
        ({"norm": partial(nn.GroupNorm, 1), "act": None}, [nn.Conv2d, nn.GroupNorm]),
    ],
)
def test_conv_is_a_convolution_then_norm_then_activation(args, kinds):
    assert [type(m) for m in conv(4, 8, **args)] == kinds


@pytest.mark.parametrize("norm", [None, nn.BatchNorm2d, nn.InstanceNorm2d])
def test_conv_has_a_bias_unless_one_asks_for_none(norm):
    assert conv(4, 8, norm=norm)[0].bias is not None
    assert conv(4, 8, norm=norm, bias=False)[0].bias is None


class CourseBlock(nn.Module):
    """The structure of the course's residual block, written from its description."""

    def __init__(self, ni, nf, ks, norm):
        super().__init__()
        one, two = nn.Conv2d(ni, nf, ks, 1, ks // 2), nn.Conv2d(nf, nf, ks, 2, ks // 2)
        self.convs = nn.Sequential(
            nn.Sequential(one, norm(nf), nn.ReLU()) if norm else nn.Sequential(one, nn.ReLU()),
            nn.Sequential(two, norm(nf)) if norm else nn.Sequential(two),
        )
        self.idconv = nn.Identity() if ni == nf else nn.Sequential(nn.Conv2d(ni, nf, 1))
        self.pool = nn.AvgPool2d(2, ceil_mode=True)

    def forward(self, x):
        return F.relu(self.convs(x) + self.idconv(self.pool(x)))


@pytest.mark.parametrize("norm", [None, nn.BatchNorm2d, partial(nn.GroupNorm, 1)])
@pytest.mark.parametrize("ni", [8, 3])
def test_a_residual_block_of_the_course_has_its_parameters_and_its_results(ni, norm):
    theirs, ours = CourseBlock(ni, 8, 5, norm), ResBlock(ni, 8, 2, 5, nn.ReLU, norm)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, ni, 9, 9)
    assert torch.equal(ours(x), theirs(x))


def test_a_plain_cnn_of_the_course_has_its_parameters_and_its_results():
    nfs = [1, 8, 16, 32, 64, 10]
    convs = [nn.Conv2d(ni, nf, 3, 2, 1) for ni, nf in zip(nfs, nfs[1:], strict=False)]
    layers = [nn.Sequential(c, nn.BatchNorm2d(c.out_channels), nn.ReLU()) for c in convs[:-1]]
    theirs = nn.Sequential(*layers, nn.Sequential(convs[-1]), nn.Flatten())
    ours = get_model(norm=nn.BatchNorm2d).cpu()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 1, 28, 28)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("ks", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_conv_equals_torchs_function(ks, stride):
    c, x = conv(3, 8, ks, stride), torch.randn(2, 3, 13, 10)
    y = F.relu(F.conv2d(x, c[0].weight, c[0].bias, stride=stride, padding=ks // 2))
    assert torch.equal(c(x), y)
    assert y.shape == (2, 8, -(-13 // stride), -(-10 // stride))


@pytest.mark.parametrize("args", [{"act": nn.ReLU()}, {"norm": nn.BatchNorm2d(8)}, {"norm": True}])
def test_conv_refuses_a_module_where_a_maker_belongs(args):
    with pytest.raises(TypeError, match="class or a partial"):
        conv(4, 8, **args)


def test_conv_refuses_a_layer_norm_over_the_width():
    with pytest.raises(TypeError, match="GroupNorm"):
        conv(4, 8, norm=nn.LayerNorm)


def test_group_norm_of_one_group_is_layer_norm_over_an_image():
    norm, x = partial(nn.GroupNorm, 1)(4), torch.randn(2, 4, 5, 6)
    torch.testing.assert_close(norm(x), F.layer_norm(x, (4, 5, 6)))


def resblock_by_hand(b, x, stride):
    y = F.conv2d(act_gr()(F.conv2d(x, b.convs[0][0].weight, padding=1)), b.convs[1][0].weight,
                 stride=stride, padding=1)  # fmt: skip
    short = F.avg_pool2d(x, stride, ceil_mode=True) if stride > 1 else x
    return act_gr()(y + F.conv2d(short, b.idconv[0].weight))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4, 7, 28])
def test_resblock_equals_its_sum_written_by_hand(stride, size):
    block, x = ResBlock(3, 8, stride), torch.randn(2, 3, size, size)
    for m in block.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.zeros_(m.bias)
    out = block(x)
    torch.testing.assert_close(out, resblock_by_hand(block, x, stride))
    assert out.shape == (2, 8, -(-size // stride), -(-size // stride))


def test_resblock_without_change_of_size_passes_its_input_on_as_it_is():
    block = ResBlock(8, 8, act=nn.ReLU, zero_init=True)
    x = torch.randn(2, 8, 5, 5)
    assert isinstance(block.idconv, nn.Identity) and isinstance(block.pool, nn.Identity)
    assert torch.equal(block(x), x.relu())


def test_resblock_gives_both_convolutions_a_norm_but_not_the_shortcut():
    block = ResBlock(4, 8, 2, norm=nn.BatchNorm2d)
    assert [type(m) for m in block.idconv] == [nn.Conv2d]
    assert [type(c[1]) for c in block.convs] == [nn.BatchNorm2d] * 2


@pytest.mark.parametrize("norm", [None, nn.BatchNorm2d, partial(nn.GroupNorm, 2)])
def test_zero_init_starts_with_the_shortcut_alone(norm):
    block, x = ResBlock(4, 8, 2, norm=norm, zero_init=True), torch.randn(3, 4, 6, 6)
    assert torch.equal(block(x), block.act(block.idconv(block.pool(x))))


def test_resblock_refuses_what_cannot_work():
    with pytest.raises(ValueError, match="odd"):
        ResBlock(4, 8, ks=4)
    with pytest.raises(ValueError, match="with parameters"):
        ResBlock(4, 8, norm=nn.InstanceNorm2d, zero_init=True)


def test_resblock_without_activation_is_the_plain_sum():
    assert not any(
        isinstance(m, (nn.ReLU, GeneralRelu)) for m in ResBlock(4, 8, act=None).modules()
    )


def test_global_avg_pool_equals_torchs():
    x = torch.randn(2, 3, 5, 7)
    torch.testing.assert_close(GlobalAvgPool()(x), F.adaptive_avg_pool2d(x, 1).flatten(1))


def test_dropout_is_torchs():
    assert Dropout is nn.Dropout


def test_cnn_layers_are_those_of_the_lesson():
    model = nn.Sequential(*cnn_layers())
    assert model(torch.randn(2, 1, 28, 28)).shape == (2, 10)
    assert sum(isinstance(m, nn.ReLU) for m in model.modules()) == 4
    assert sum(p.numel() for p in model.parameters()) == 208 + 1168 + 4640 + 18496 + 5770


@pytest.mark.parametrize("make", ["weight_norm", "spectral_norm"])
def test_torchs_parametrisations_take_our_convolution(make):
    wrapped = getattr(nn.utils.parametrizations, make)(conv(3, 8, act=None)[0])
    wrapped(torch.randn(2, 3, 8, 8)).sum().backward()
    assert all(p.grad is not None for p in wrapped.parameters())
