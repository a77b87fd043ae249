"""Initialisation against formulas, and LSUV against its promise."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from minilearn import (
    GeneralRelu,
    act_gr,
    conv,
    get_model,
    init_weights,
    lsuv,
    lsuv_init,
    resnet,
)

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def state(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def assert_same_state(model, before):
    now = model.state_dict()
    assert now.keys() == before.keys()
    assert all(torch.equal(now[k], before[k]) for k in now)


def hooks_of(model):
    return sum(len(m._forward_hooks) for m in model.modules())


def moments(model, m, xb):
    """Mean and std of what `m` puts out, by a hook of torch's own."""
    outs = []
    with torch.no_grad(), m.register_forward_hook(lambda *a: outs.append(a[-1])):
        model(xb)
    return outs[-1].mean().item(), outs[-1].std().item()


# init_weights


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("leaky", [0.0, 0.1, 0.5])
def test_init_weights_has_the_std_of_kaimings_formula(dims, leaky):
    m = CONVS[dims](64, 128, 3)
    bias = m.bias.clone()
    init_weights(m, leaky)
    expected = math.sqrt(2 / (1 + leaky**2) / (64 * 3**dims))
    assert m.weight.std().item() == pytest.approx(expected, rel=0.02)
    assert torch.equal(m.bias, bias)


def test_init_weights_equals_torchs_function_to_the_bit():
    ours, theirs = nn.Conv2d(8, 16, 3), nn.Conv2d(8, 16, 3)
    torch.manual_seed(1)
    init_weights(ours, leaky=0.1)
    torch.manual_seed(1)
    nn.init.kaiming_normal_(theirs.weight, a=0.1)
    assert torch.equal(ours.weight, theirs.weight)


def test_init_weights_leaves_all_but_convolutions_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ConvTranspose1d(4, 4, 3))
    before = state(model)
    model.apply(init_weights)
    assert_same_state(model, before)


def test_init_weights_keeps_activations_in_size_through_fifty_layers():
    model = nn.Sequential(*[nn.Sequential(nn.Conv1d(256, 256, 1), nn.ReLU()) for _ in range(50)])
    x = torch.randn(64, 256, 1)
    assert model(x).std() < 0.1  # torch's own default fades
    model.apply(init_weights)
    assert 0.3 < model(x).pow(2).mean().sqrt() < 3


def test_init_weights_reaches_through_weight_norm():
    m = nn.utils.parametrizations.weight_norm(nn.Conv2d(64, 128, 3))
    init_weights(m)
    assert m.weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)


# lsuv_init

layers = st.tuples(st.integers(1, 12), st.integers(2, 24), st.sampled_from([1, 3, 5]))
acts = st.sampled_from(
    [act_gr, nn.Identity, nn.Tanhshrink, partial(GeneralRelu, leak=0.2, sub=0.3)]
)


@settings(max_examples=40)
@given(layers, acts, st.floats(0.01, 30), st.floats(-5, 5), st.integers(0, 100))
def test_lsuv_init_gives_mean_0_and_std_1(layer, act, scale, shift, seed):
    torch.manual_seed(seed)
    ni, nf, ks = layer
    model = conv(ni, nf, ks, stride=1, act=act)
    xb = torch.randn(8, ni, 9, 9) * scale + shift
    lsuv_init(model, model[1], model[0], xb)
    mean, std = moments(model, model[1], xb)
    assert abs(mean) <= 1e-3 and abs(std - 1) <= 1e-3
    assert hooks_of(model) == 0


def test_lsuv_init_as_the_course_calls_it():
    model, xb = get_model(act_gr).cpu(), torch.randn(64, 1, 28, 28)
    relus = [o for o in model.modules() if isinstance(o, GeneralRelu)]
    convs = [o for o in model.modules() if isinstance(o, nn.Conv2d)]
    for ms in zip(relus, convs, strict=False):
        lsuv_init(model, *ms, xb)
    for relu in relus:
        assert moments(model, relu, xb) == pytest.approx((0, 1), abs=2e-3)


def test_lsuv_init_changes_nothing_but_its_layer():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), act_gr(), nn.Dropout(0.5), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
    )
    model[2].eval()  # a mode of its own
    modes, before = [m.training for m in model.modules()], state(model)
    xb = torch.randn(16, 1, 12, 12)
    generator = torch.get_rng_state()
    lsuv_init(model, model[1], model[0], xb)
    after = state(model)
    assert {k for k in after if not torch.equal(after[k], before[k])} == {"0.weight", "0.bias"}
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_lsuv_init_comes_to_an_end_with_dropout_before_the_layer():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(30, 20), act_gr())
    lsuv_init(model, model[2], model[1], torch.randn(20, 30))


def test_lsuv_init_without_a_bias_sets_the_std_alone():
    model, xb = nn.Sequential(nn.Linear(30, 20, bias=False), act_gr()), torch.randn(20, 30)
    lsuv_init(model, model[1], model[0], xb)
    assert moments(model, model[1], xb)[1] == pytest.approx(1, abs=1e-3)


def test_lsuv_init_keeps_the_parameters_that_an_optimizer_holds():
    model = conv(1, 8, act=act_gr)
    params = list(model.parameters())
    lsuv_init(model, model[1], model[0], torch.randn(8, 1, 9, 9))
    assert all(a is b for a, b in zip(params, model.parameters(), strict=True))


def test_lsuv_init_measures_before_a_later_layer_works_in_place():
    model, xb = (
        nn.Sequential(nn.Linear(20, 20), act_gr(), nn.ReLU(inplace=True)),
        torch.randn(50, 20),
    )
    lsuv_init(model, model[1], model[0], xb)
    assert moments(model[:2], model[1], xb) == pytest.approx((0, 1), abs=2e-3)


class Stubborn(nn.Module):
    def forward(self, x):
        return x / x.std() * 2


FAILURES = {
    "constant": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Threshold(1e9, 0.0)), "constant"),
    "plain ReLU": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), "take act_gr"),
    "undone": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), Stubborn()), "undoes the scaling"),
    "spectral": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 4, 3, bias=False)), act_gr()
        ),
        "does not converge in 100 steps",
    ),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_lsuv_init_that_fails_says_why_and_leaves_the_weights_as_they_were(kind):
    make, message = FAILURES[kind]
    model, xb = make(), torch.randn(8, 1, 8, 8)
    before = state(model)
    with pytest.raises(ValueError, match=message):
        lsuv_init(model, model[1], model[0], xb)
    assert_same_state(model, before)
    assert hooks_of(model) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_lsuv_init_refuses_an_output_that_is_not_finite(bad):
    model, xb = conv(1, 4, act=act_gr), torch.randn(8, 1, 8, 8)
    xb[0, 0, 4, 4] = bad
    before = state(model)
    with pytest.raises(ValueError, match="not finite"):
        lsuv_init(model, model[1], model[0], xb)
    assert_same_state(model, before)


def test_lsuv_init_names_a_wrong_module():
    model, xb = conv(1, 4, act=act_gr), torch.randn(8, 1, 8, 8)
    with pytest.raises(TypeError, match="no weight"):
        lsuv_init(model, model[1], model[1], xb)
    with pytest.raises(ValueError, match="does not run"):
        lsuv_init(model, nn.ReLU(), model[0], xb)


def test_lsuv_init_restores_when_the_model_itself_fails():
    class Failing(nn.Module):
        runs = 0

        def forward(self, x):
            self.runs += 1
            if self.runs == 2:
                raise RuntimeError("broken model")
            return x

    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 5), act_gr(), Failing())
    before = state(model)
    with pytest.raises(RuntimeError, match="broken model"):
        lsuv_init(model, model[2], model[1], torch.randn(9, 5) + 3)
    assert_same_state(model, before)
    assert hooks_of(model) == 0


# lsuv


def test_lsuv_sets_each_layer_of_a_plain_cnn():
    model, xb = get_model(act_gr).cpu(), torch.randn(64, 1, 28, 28)
    assert lsuv(model, xb) == [f"{i}.0" for i in range(5)]
    for block in model[:4]:
        assert moments(model, block[1], xb) == pytest.approx((0, 1), abs=2e-3)
    assert moments(model, model[4], xb) == pytest.approx((0, 1), abs=2e-3)


class Swapped(nn.Module):
    """Runs its layers in another order than it declares them, and one activation twice."""

    def __init__(self):
        super().__init__()
        self.last, self.first, self.act = nn.Linear(20, 20), nn.Linear(20, 20), act_gr()

    def forward(self, x):
        return self.act(self.last(self.act(self.first(x))))


def test_lsuv_pairs_by_execution_order_and_knows_shared_activations():
    model, xb = Swapped(), torch.randn(200, 20) * 4
    assert lsuv(model, xb) == ["first", "last"]
    once = model.act(model.first(xb))
    twice = model.act(model.last(once))
    for out in once, twice:
        assert (out.mean().item(), out.std().item()) == pytest.approx((0, 1), abs=2e-3)


def test_lsuv_measures_after_pooling_and_an_activation_of_the_users_own():
    class Shifted(nn.Module):
        def forward(self, x):
            return x.relu() - 0.4

    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.Identity(), Shifted())
    xb = torch.randn(16, 1, 12, 12)
    lsuv(model, xb)
    assert moments(model, model[3], xb) == pytest.approx((0, 1), abs=2e-3)


def test_lsuv_measures_a_layer_at_its_own_output_where_no_activation_takes_it():
    model = nn.Sequential(nn.Linear(10, 30), nn.Linear(30, 5), nn.Softmax(1))
    xb = torch.randn(50, 10)
    assert lsuv(model, xb) == ["0", "1"]
    assert moments(model, model[1], xb) == pytest.approx((0, 1), abs=2e-3)


def test_lsuv_leaves_layers_before_a_norm_alone():
    model, xb = resnet(nfs=(4, 8)), torch.randn(16, 1, 12, 12)
    before = state(model)
    assert lsuv(model, xb) == ["1.idconv.0", "3"]  # the shortcut, the head
    after = state(model)
    changed = {k.rpartition(".")[0] for k in after if not torch.equal(after[k], before[k])}
    assert changed == {"1.idconv.0", "3"}


def test_lsuv_works_on_residual_blocks():
    model, xb = resnet(nfs=(4, 8), norm=None), torch.randn(16, 1, 12, 12)
    assert len(lsuv(model, xb)) == 5
    assert moments(model, model[1].convs[0][1], xb) == pytest.approx((0, 1), abs=2e-3)


def test_lsuv_reaches_through_weight_norm():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(20, 20)), act_gr())
    xb = torch.randn(50, 20)
    assert lsuv(model, xb) == ["0"]
    assert moments(model, model[1], xb) == pytest.approx((0, 1), abs=2e-3)


def test_lsuv_that_fails_names_the_layer_and_leaves_all_layers_as_they_were():
    model = nn.Sequential(nn.Linear(10, 10), act_gr(), nn.Linear(10, 10), nn.ReLU())
    before = state(model)
    with pytest.raises(ValueError, match="LSUV of 2"):
        lsuv(model, torch.randn(50, 10))
    assert_same_state(model, before)
    assert hooks_of(model) == 0


def test_lsuv_makes_the_dying_cnn_learnable():
    """Through twenty layers of torch's default the signal fades; after LSUV it does not."""
    model = nn.Sequential(*[conv(8, 8, stride=1, act=act_gr) for _ in range(20)])
    xb = torch.randn(8, 8, 10, 10)
    assert model(xb).std() < 0.3
    lsuv(model, xb)
    assert model(xb).std().item() == pytest.approx(1, abs=2e-3)
