"""Gradient statistics equal those by hand; diagnose names broken layers, and nothing that works."""

from functools import partial

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from minilearn import ActivationStats, MetricsCB, act_gr, get_model, init_weights
from minilearn.callbacks.gradients import GradAccumCB, NonFiniteCB
from minilearn.callbacks.training import TrainCB
from minilearn.data import DataLoaders, fashion_mnist
from minilearn.insight import diagnosis, gradient_stats, hooks
from minilearn.insight.diagnosis import DebugCB
from minilearn.insight.gradient_stats import GradientStats
from minilearn.learner import Learner, MomentumLearner, TrainLearner
from tests.insight.test_lr_finder import check_no_trace
from tests.toys import Before, batches


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def learner(*cbs, model=None, **kwargs):
    dls = (batches(5, 8, seed=1), None)
    return Learner(model or net(), dls, F.mse_loss, cbs=[TrainCB(), *cbs], **{"lr": 0.1} | kwargs)


def by_hand(model, lr, every):
    norms, ratios = [], []
    opt = optim.SGD(model.parameters(), lr, momentum=0.9)
    layers = [list(m.parameters()) for m in model if list(m.parameters())]
    join = lambda tensors: torch.cat([t.flatten() for t in tensors])  # noqa: E731
    for i, (x, y) in enumerate(batches(5, 8, seed=1)):
        F.mse_loss(model(x), y).backward()
        old = [join(ps).detach().clone() for ps in layers]
        grads = [join([p.grad for p in ps]).norm() for ps in layers]
        opt.step()
        opt.zero_grad()
        if i % every == 0:
            norms.append(torch.stack(grads))
            ratios.append(
                torch.stack(
                    [
                        (join(ps).detach() - o).norm() / o.norm()
                        for ps, o in zip(layers, old, strict=True)
                    ]
                )
            )
    return torch.stack(norms), torch.stack(ratios)


@pytest.mark.parametrize("every", [1, 2])
def test_norms_and_ratios_equal_those_by_hand(every):
    stats = GradientStats(every=every)
    learn = learner(opt_func=partial(optim.SGD, momentum=0.9))
    kept = Before(learn)
    learn.fit(1, cbs=stats)
    kept.assert_nothing_left()
    norms, ratios = by_hand(net(), 0.1, every)
    torch.testing.assert_close(stats.norms, norms)
    torch.testing.assert_close(stats.ratios, ratios)
    assert stats.names == ["0 Linear", "1 BatchNorm1d", "3 Linear"]


class Words(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(9, 4, sparse=sparse), nn.Linear(4, 1)

    def forward(self, i):
        return self.head(self.words(i).sum(1))


def word_learner(sparse, *cbs):
    g = torch.Generator().manual_seed(0)
    data = [(torch.randint(0, 9, (6, 3), generator=g), torch.randn(6, 1)) for _ in range(4)]
    torch.manual_seed(1)
    return Learner(Words(sparse), (data, None), F.mse_loss, cbs=[TrainCB(), *cbs])


def check_sparse():
    """Statistics of sparse gradients are those of dense ones, with rows that come twice."""
    stats = [GradientStats(), GradientStats()]
    for sparse, cb in zip((True, False), stats, strict=True):
        torch.manual_seed(2)
        word_learner(sparse, cb).fit(1)
        assert word_learner(sparse).diagnose(4) == []
    torch.testing.assert_close(stats[0].norms[0], stats[1].norms[0])


@pytest.mark.case("F06")
def test_sparse_gradients_have_the_norms_of_dense_ones():
    check_sparse()


@pytest.mark.case("F06")
def test_the_check_of_sparse_gradients_fails(monkeypatch):
    monkeypatch.setattr(gradient_stats, "_dense", lambda t: t)
    with pytest.raises((NotImplementedError, RuntimeError, AssertionError)):
        check_sparse()


@pytest.mark.case("F06")
def test_the_check_of_sparse_gradients_notices_rows_that_are_not_added_up(monkeypatch):
    monkeypatch.setattr(gradient_stats, "_dense", lambda t: t._values() if t.is_sparse else t)
    with pytest.raises(AssertionError):
        check_sparse()


def test_a_group_of_batches_is_one_record():
    stats = GradientStats()
    learner(GradAccumCB(2), stats).fit(1)
    assert stats.norms.shape == (3, 3)


def test_gradient_plot():
    stats = GradientStats()
    with pytest.raises(ValueError, match="no update was recorded"):
        stats.plot_stats()
    learner(stats).fit(1)
    norms, ratios = stats.plot_stats()
    assert [line.get_label() for line in norms.lines] == stats.names
    assert ratios.get_yscale() == "log"
    plt.close("all")


@pytest.fixture(scope="module")
def dls():
    return DataLoaders.from_dd(fashion_mnist(), 256)


@pytest.fixture(scope="module")
def failing(dls):
    """The seed's failing CNN: plain convolutions and ReLU at a rate of 0.6."""
    torch.manual_seed(3)
    learn = TrainLearner(get_model(), dls, F.cross_entropy, lr=0.6)
    learn.fit(1, valid=False)
    return learn


def dead_by_hand(learn, near=0.05, n=50):
    """The ReLUs with over 90% of their values near zero, in the loader's first batches."""
    shares, x = {}, learn.dls.train.dataset
    with torch.no_grad():
        for xb, _ in learn.dls.train:
            x = xb
            for i, block in enumerate(learn.model):
                for j, m in enumerate(block if isinstance(block, nn.Sequential) else [block]):
                    x = m(x)
                    if isinstance(m, nn.ReLU):
                        shares.setdefault(f"{i}.{j} ReLU", []).append(
                            (x.abs() < near).float().mean()
                        )
    return {name for name, values in shares.items() if torch.stack(values).mean() > 0.9}


def test_the_failing_cnn_is_named(failing):
    found = failing.diagnose()
    named = {" ".join(line.split()[:2]) for line in found if " is dead" in line and "ReLU" in line}
    assert named == dead_by_hand(failing) and named
    assert "\n".join(found) == repr(found)


def test_the_tuned_cnn_is_left_in_peace(dls):
    torch.manual_seed(1)
    model = get_model(act_gr, norm=nn.BatchNorm2d).apply(partial(init_weights, leaky=0.1))
    learn = MomentumLearner(model, dls, F.cross_entropy, lr=0.2)
    learn.fit(2, valid=False)
    assert learn.diagnose() == []
    assert "no layer" in repr(learn.diagnose())


def test_exploding_and_frozen_layers_are_named():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    model[1].weight.data *= 1e6
    assert any("1 Linear is exploding" in line for line in learner(model=model).diagnose())
    model[1].weight.data.fill_(torch.nan)
    found = learner(model=model).diagnose(2)
    assert "1 Linear is exploding: not all values are finite" in found
    assert "0 Linear is exploding: its gradient is not finite" in found

    class Cut(nn.Module):
        def forward(self, x):
            return x.detach()

    cut = nn.Sequential(nn.Linear(3, 4), Cut(), nn.Linear(4, 4), nn.Linear(4, 1))
    cut[2].requires_grad_(False)
    assert learner(model=cut).diagnose() == ["0 Linear is frozen: no gradient reaches its weights"]


def test_thresholds_are_arguments():
    learn = learner()
    assert learn.diagnose() == []
    assert any("2 ReLU is dead" in line for line in learn.diagnose(dead=0.3))
    assert any("exploding" in line for line in learn.diagnose(exploding=0.01))
    assert any("frozen" in line for line in learn.diagnose(frozen=1e3))


@pytest.mark.parametrize("cbs", [[], [GradAccumCB(2)]])
def test_diagnose_changes_nothing(cbs):
    check_no_trace(learner(*cbs), lambda learn: learn.diagnose(12))


# ---- values that are not finite ----


class Fails(nn.Module):
    """Applies a function from the nth training batch on."""

    def __init__(self, fn, nth):
        super().__init__()
        self.fn, self.left = fn, nth

    def forward(self, x):
        self.left -= self.training
        return self.fn(x) if self.left < 0 else x


def debugged(model, match, *, error=FloatingPointError, loss=F.mse_loss, steps=2, cbs=()):
    """Let a fit fail; see that no bad update was made, and that nothing is left behind."""
    learn = Learner(model, (batches(5, 8, seed=1), batches(1)), loss, cbs=[TrainCB(), *cbs], lr=0.1)
    learn.add_cb(DebugCB())
    kept = Before(learn)
    with pytest.raises(error, match=match):
        learn.fit(1)
    assert learn.steps_done == steps
    assert all(p.isfinite().all() for p in model.parameters() if p.requires_grad)
    assert not torch.is_anomaly_enabled()
    kept.assert_nothing_left()


def test_the_first_module_whose_output_is_not_finite_is_named_before_the_update():
    model = nn.Sequential(nn.Linear(3, 4), Fails(lambda x: -(1 + x * x).log().neg().sqrt(), 2))
    model.append(nn.Linear(4, 1))
    debugged(
        model, r"^the loss is not finite. First module.*: 1 \(Fails\); first parameter: none\n"
    )


def test_a_part_of_the_loss_is_named():
    calls = []

    def loss(preds, targs):
        calls.append(1)
        return {"a": F.mse_loss(preds, targs), "b": preds.mean() / (0 if len(calls) > 2 else 1)}

    debugged(net(), "^the loss part 'b' is not finite.*output is not: none;", loss=loss)


def test_a_weight_and_a_batch_that_are_not_finite_are_named():
    model = net()
    model.append(nn.Linear(1, 1).requires_grad_(False))
    with torch.no_grad():
        model[4].bias.fill_(float("nan"))
    debugged(model, r"not: 4 \(Linear\); first parameter: 4.bias", steps=0)
    data = batches(3, 8)
    data[1][0][0, 0] = float("inf")
    with pytest.raises(FloatingPointError, match=r"not: 0 \(Linear\).*nor is the batch"):
        Learner(net(), (data, None), F.mse_loss, cbs=[TrainCB(), DebugCB()], lr=0.1).fit(1)


def test_a_gradient_that_is_not_finite_is_named_by_its_parameter():
    model = net()
    model[0].bias.register_hook(lambda grad: grad.sign() / 0)
    match = "the loss is finite, and the gradient of 0.bias is not"
    debugged(model, match, steps=0, cbs=[NonFiniteCB()])


def test_a_nan_that_begins_in_the_backward_pass_is_torchs_to_name():
    model = nn.Sequential(nn.Linear(3, 4), Fails(lambda x: (0 * x).sqrt() + x, 2), nn.Linear(4, 1))
    with pytest.warns(UserWarning, match="forward call that caused the error"):
        debugged(model, "Backward0.*nan", error=RuntimeError)


def test_a_fit_that_is_watched_is_the_same_to_the_bit():
    ours, theirs = net(), net()
    learner(model=theirs).fit(2)
    learner(DebugCB(), model=ours).fit(2)
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )


# ---- layers whose outputs are no dense tensors ----


class Odd(nn.Module):
    """Returns something odd, and is used for nothing else."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


class Beside(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layer, self.odd = nn.Linear(3, 1), Odd(make)

    def forward(self, x):
        self.odd(x.detach())
        return self.layer(x)


OUTPUTS = {
    "nothing": lambda x: None,
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1, :2]]),
    "jagged": lambda x: torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged),
    "meta": lambda x: x.to("meta"),
    "complex": lambda x: torch.complex(x, x),
    "of eight bits": lambda x: x.to(torch.float8_e4m3fn),
    "flags": lambda x: x > 0,
    "no rows": lambda x: x[:0],
    "a distribution": lambda x: torch.distributions.Normal(x, 1.0),
    "words": lambda x: {"words": ["a"], "x": (x, 1)},
}


def check_odd_output(make):
    """Statistics, summaries and searches leave alone what they cannot measure."""
    astats, layer = ActivationStats(), Beside(make)
    cbs = [TrainCB(), MetricsCB(quiet=True), astats, GradientStats(), DebugCB()]
    learn = Learner(layer, (batches(4), batches(2)), F.mse_loss, 0.01, cbs)
    learn.fit(1)
    assert learn.steps_done == 4 and len(next(iter(astats)).stats[0]) == 4
    assert str(learn.summary()) and learn.diagnose(2) == []


@pytest.mark.case("F06")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", OUTPUTS.values(), ids=OUTPUTS)
def test_a_layer_that_returns_no_dense_tensor_ends_no_statistics(make):
    check_odd_output(make)


@pytest.mark.case("F06")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["sparse", "nested", "meta"])
def test_the_check_of_odd_outputs_fails_where_all_are_measured(name, monkeypatch):
    for module in (hooks, diagnosis):
        monkeypatch.setattr(module, "is_dense", lambda x: True)
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        check_odd_output(OUTPUTS[name])
