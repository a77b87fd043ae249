"""Statistics equal torch's own, stay small and on the CPU, and the hooks are gone in every case."""

import copy
import gc
import io
import pickle

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F
from fastcore.all import risinstance
from torch import nn

from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import CancelEpochException, CancelFitException
from minilearn.insight.activations import (
    BLOCK,
    ActivationStats,
    Stats,
    append_stats,
    get_hist,
    get_min,
)
from minilearn.insight.hooks import Hook, Hooks, HooksCallback
from minilearn.learner import Learner
from tests.toys import At, batches


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))


def learner(*cbs, model=None, n=4):
    dls = (batches(n, 8, seed=1), batches(2, 8, seed=2))
    return Learner(model or net(), dls, F.mse_loss, lr=0.01, cbs=[TrainCB(), *cbs])


def n_hooks(m):
    return sum(len(o._forward_hooks) + len(o._backward_hooks) for o in m.modules())


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
def test_means_and_stds_equal_torchs(exact, layout):
    x = torch.randn(16, 6, 9, 9) * 2 + 1
    x = {"channels_last": x.to(memory_format=torch.channels_last), "sliced": x[:, ::2]}.get(
        layout, x
    )
    hook = Hook(nn.Identity(), append_stats)
    append_stats(hook, None, None, x, exact=exact)
    means, stds, hists = hook.stats
    torch.testing.assert_close(means[0], x.mean(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(stds[0], x.std(), rtol=1e-5, atol=1e-6)
    assert hists[0].shape == (40,)
    if exact:
        assert torch.equal(hists[0], x.abs().flatten().histc(40, 0, 10))


def test_a_histogram_is_of_a_sample_that_meets_every_channel_and_place():
    x = (
        torch.arange(64 * 49.0).reshape(1, 64, 7, 7).expand(64, 64, 7, 7).contiguous()
    )  # n = 49 * 4096
    hook = Hook(nn.Identity(), append_stats)
    append_stats(hook, None, None, (x % 49) / 5)
    (hist,) = hook.stats[2]
    exact = ((x % 49) / 5).flatten().histc(40, 0, 10)
    assert hist.sum() <= 4096
    torch.testing.assert_close(hist / hist.sum(), exact / exact.sum(), rtol=0, atol=0.01)


def test_half_precision_does_not_overflow():
    hook = Hook(nn.Identity(), append_stats)
    append_stats(hook, None, None, torch.full((1000,), 300.0, dtype=torch.float16))
    assert hook.stats[0][0] == 300 and hook.stats[1][0] == 0


def test_images_of_the_statistics():
    hook = Hook(nn.Identity(), append_stats)
    for share in (0.0, 0.5, 1.0):
        append_stats(hook, None, None, torch.where(torch.arange(100) < 100 * share, 0.1, 5.0))
    assert get_min(hook).tolist() == [0, 0.5, 1]
    assert get_hist(hook).shape == (40, 3)
    assert get_hist(hook)[0].tolist() == pytest.approx([0, 51**0 * 3.9318256, 4.6151205])


def test_seed_usage():
    hc = HooksCallback(append_stats, mod_filter=risinstance(nn.Linear))
    learner().fit(2, cbs=hc)
    assert len(hc) == 2 and [len(h.stats[i]) for h in hc for i in (0, 1, 2)] == [8] * 6
    assert [h.name for h in hc] == ["0 Linear", "2 Linear"]
    with Hooks(net(), append_stats) as hooks:
        net()(torch.zeros(2, 3))
    assert len(hooks) == 3
    plt.plot(next(iter(hc)).stats[0])
    plt.close("all")


class ByHand(Callback):
    """Runs the first layer itself, before the update changes it."""

    def __init__(self):
        self.means = []

    def before_batch(self, learn):
        if learn.training:
            self.means.append(learn.model[0](learn.batch[0]).mean().item())


def test_only_training_epochs_of_the_fit_itself_are_recorded():
    astats, hand = ActivationStats(risinstance(nn.Linear)), ByHand()
    hand.in_probe = False
    fit = learner(At("after_batch", lambda learn: learn.validate(), times=1))
    by_hand = ByHand()
    learner().fit(2, cbs=by_hand)
    fit.fit(2, cbs=astats)
    assert [m.item() for m in astats.hooks[0].stats[0]] == pytest.approx(by_hand.means, rel=1e-5)


def test_validation_and_every_nth_batch():
    both = ActivationStats(on_valid=True)
    third = ActivationStats(every=3)
    learner().fit(2, cbs=[both, third])
    assert len(both.hooks[0].stats[0]) == 2 * (4 + 2)
    assert [m.item() for m in third.hooks[0].stats[0]] == [
        both.hooks[0].stats[0][i].item() for i in (0, 3, 6 + 2)
    ]


def live_tensors():
    gc.collect()
    return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())


def check_memory_is_bounded(hookfunc, n=1000):
    """`n` batches of a net of 5 layers: what is kept, and what lives while they run."""
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(5)))
    hc, counts = HooksCallback(hookfunc, risinstance(nn.Linear)), {}
    at = (20, n - 100)
    count = At("after_batch", lambda learn: counts.update({learn.iter: live_tensors()}), times=9)
    count.when = lambda learn: learn.iter in at
    one = (torch.randn(2, 3), torch.randn(2, 3))
    learn = Learner(model, ([one] * n, None), F.mse_loss, cbs=[TrainCB(), count], lr=0.001)
    learn.fit(1, cbs=hc)
    assert counts[n - 100] - counts[20] <= 5 * (n // BLOCK)
    for hook in hc:
        assert [len(s) for s in hook.stats] == [n] * 3
        kept = [t for part in hook.stats for t in part]
        assert all(not t.requires_grad and t.device.type == "cpu" for t in kept)
        assert sum(t.numel() for t in kept) == n * 42
    size = len(pickle.dumps([h.stats for h in hc]))
    assert size < 5 * n * 42 * 4 * 1.1


@pytest.mark.usefixtures("new_objects_alone")
@pytest.mark.case("C116")
def test_memory_is_bounded():
    check_memory_is_bounded(append_stats)


@pytest.mark.usefixtures("new_objects_alone")
@pytest.mark.case("C116")
def test_statistics_with_a_tensor_a_batch_would_be_seen():
    def append(hook, mod, inp, outp):
        if not hasattr(hook, "stats"):
            hook.stats = ([], [], [])
        for part, value in zip(
            hook.stats, (outp.mean(), outp.std(), outp.abs().histc(40, 0, 10)), strict=True
        ):
            part.append(value)

    with pytest.raises(AssertionError):
        check_memory_is_bounded(append, n=200)


class Odd(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.out = out

    def forward(self, x):
        return self.out(x)


class OddNet(nn.Module):
    """Layers that return nested tuples, nothing, and a dict."""

    def __init__(self):
        super().__init__()
        self.lstm, self.nothing = nn.LSTM(3, 4, batch_first=True), Odd(lambda x: None)
        self.dict, self.out = (
            Odd(lambda x: {"n": torch.ones(2).long(), "x": x + 1}),
            nn.Linear(4, 1),
        )

    def forward(self, x):
        x, (h, c) = self.lstm(x[:, None])
        self.nothing(x)
        return self.out(self.dict(x)["x"][:, 0])


def check_odd_layers(hookfunc):
    hc = HooksCallback(hookfunc, lambda m: isinstance(m, (nn.LSTM, Odd)))
    model = OddNet()
    x = batches(4, 8, seed=1)[0][0]
    first = model.lstm(x[:, None])[0]
    learner(model=model).fit(1, cbs=hc)
    lstm, nothing, dictionary = hc
    assert lstm.stats[0][0].item() == pytest.approx(first.mean().item(), abs=1e-6)
    assert len(nothing.stats[0]) == 0 and len(dictionary.stats[0]) == 4
    assert dictionary.stats[0][0].item() == pytest.approx(first.mean().item() + 1, abs=1e-6)


@pytest.mark.case("C117")
def test_layers_that_return_tuples_dicts_or_nothing():
    check_odd_layers(append_stats)


@pytest.mark.case("C117")
def test_a_hook_that_expects_a_tensor_would_be_seen():
    with pytest.raises(AttributeError):
        check_odd_layers(lambda hook, mod, inp, outp: outp.mean())


ENDINGS = {
    "normally": None,
    "error": ValueError("in a batch"),
    "cancel": CancelFitException(),
    "epoch": CancelEpochException(),
    "interrupt": KeyboardInterrupt(),
}


def check_hooks_are_gone(make, ending):
    hc, learn = make(), learner(n=5)
    before = n_hooks(learn.model)
    stop = [At("after_batch", ENDINGS[ending])] if ENDINGS[ending] else []
    try:
        learn.fit(1, cbs=[hc, *stop])
    except (ValueError, KeyboardInterrupt):
        assert ending in ("error", "interrupt")
    assert n_hooks(learn.model) == before
    assert all(len(h.stats[0]) for h in hc)
    torch.save(learn.model, io.BytesIO())
    assert n_hooks(copy.deepcopy(learn.model)) == before
    learn.fit(1, cbs=hc)
    assert [len(h.stats[0]) for h in hc] == [5] * len(hc)


@pytest.mark.case("C118")
@pytest.mark.parametrize("ending", ENDINGS)
def test_hooks_are_gone(ending):
    check_hooks_are_gone(ActivationStats, ending)


class Leaves(ActivationStats):
    """Takes its hooks off after a fit that ended normally, as miniai does."""

    def cleanup_fit(self, learn):
        pass

    def after_fit(self, learn):
        self.hooks.remove()


@pytest.mark.case("C118")
@pytest.mark.parametrize("ending", ["error", "cancel", "interrupt"])
def test_hooks_that_stay_would_be_seen(ending):
    with pytest.raises(AssertionError):
        check_hooks_are_gone(Leaves, ending)


def test_the_learner_is_not_kept_alive():
    astats = ActivationStats()
    learn = learner()
    learn.fit(1, cbs=astats)
    assert learn not in [x for h in astats for x in gc.get_referents(h)]
    assert all(h._f is None for h in astats)


def test_a_shared_module_is_recorded_each_time_it_runs():
    act = nn.ReLU()
    astats = ActivationStats(risinstance(nn.ReLU))
    learner(model=nn.Sequential(nn.Linear(3, 3), act, nn.Linear(3, 1), act)).fit(1, cbs=astats)
    assert [len(h.stats[0]) for h in astats] == [8]


def test_a_compiled_model_gets_a_clear_word():
    with pytest.raises(RuntimeError, match="compiled and does not see new hooks"):
        learner(model=torch.compile(net(), backend="eager")).fit(1, cbs=ActivationStats())


def test_weights_are_as_without_statistics():
    ours, theirs = learner(), learner()
    ours.fit(2, cbs=ActivationStats())
    theirs.fit(2)
    assert all(
        torch.equal(a, b)
        for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
    )


@pytest.mark.parametrize("n_layers", [1, 5, 7, 11, 100])
def test_charts_have_axes_for_each_layer_with_its_name(n_layers):
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(n_layers)))
    one = (torch.randn(2, 3), torch.randn(2, 3))
    astats = ActivationStats()
    Learner(model, ([one], None), F.mse_loss, cbs=[TrainCB(), astats], lr=0.001).fit(1)  # one batch
    names = [f"{i} Linear" for i in range(n_layers)]
    for chart in (astats.color_dim, astats.dead_chart)[: 1 if n_layers > 20 else 2]:
        axes = chart()
        assert [ax.get_title() for ax in axes.flat if ax.axison] == names
    means, stds = astats.plot_stats()
    assert [line.get_label() for line in means.lines] == names
    assert (means.get_title(), stds.get_title()) == ("Means", "Stds")
    assert all(line.get_marker() == "o" for line in means.lines)
    plt.close("all")


def test_charts_of_nothing_say_why():
    with pytest.raises(ValueError, match="nothing was recorded of 0 layers"):
        ActivationStats().color_dim()
    with pytest.raises(IndexError, match=r"histograms \[2\]"):
        Stats()[3]
