"""lr_find changes nothing, goes round short loaders, stops in time, and answers or says why not."""

import copy
import math
import os
import random
import subprocess
import sys
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from minilearn.base.seed import preserved_random_states, random_states
from minilearn.callbacks.gradients import GradAccumCB
from minilearn.callbacks.precision import MixedPrecision
from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import CancelFitException, Order
from minilearn.insight import lr_finder
from minilearn.insight.lr_finder import LRFinderCB, LRFound, limit
from minilearn.learner import Learner, MomentumLearner
from minilearn.loggers.recorder import RecorderCB
from minilearn.metrics.callback import MetricsCB
from minilearn.optim.sched_callbacks import BatchSchedCB
from tests.toys import At, Before, assert_same_weights, batches, linear, toy_dls

pytestmark = pytest.mark.filterwarnings("ignore:the loss fell by less than its noise")
find = partial(Learner.lr_find, plot=False)


def net():
    """Something with all that a search could leave a trace in."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


def learner(*cbs, model=None, dls=None, **kwargs):
    dls = (batches(5, 8, seed=1), batches(2, 8, seed=2)) if dls is None else dls
    return Learner(
        net() if model is None else model, dls, F.mse_loss, cbs=[TrainCB(), *cbs], **kwargs
    )


def adam(**kwargs):
    return learner(opt_func=partial(optim.Adam, weight_decay=0.1), lr=0.01, **kwargs)


def flat(x):
    """Everything in a nest, with the tensors as bytes."""
    if isinstance(x, torch.Tensor):
        return x.detach().numpy().tobytes()
    if isinstance(x, dict):
        return {k: flat(v) for k, v in x.items()}
    return [flat(v) for v in x] if isinstance(x, (list, tuple)) else x


def snapshot(learn):
    """Every parameter, buffer, gradient, mode, optimizer value, random state and attribute."""
    opt = learn.opt.state_dict() if hasattr(learn.opt, "state_dict") else learn.opt
    attributes = {
        k: (id(v), copy.copy(v) if type(v) in (list, dict) else None)
        for k, v in vars(learn).items()
    }
    states = random_states()
    return copy.deepcopy(
        (
            flat(learn.model.state_dict()),
            [flat(p.grad) for p in learn.model.parameters()],
            [m.training for m in learn.model.modules()],
            flat(opt),
            (states.python, states.numpy[1].tobytes(), flat(states.torch)),
            {k: v[0] for k, v in attributes.items()},
            len(learn.history),
            [
                {k: flat(v) for k, v in vars(cb).items() if type(v) in (int, float, list, dict)}
                for cb in learn.cbs
            ],
        )
    )


def check_no_trace(learn, search, error=None):
    before, kept = snapshot(learn), Before(learn)
    if error is None:
        search(learn)
    else:
        with pytest.raises(error):
            search(learn)
    assert snapshot(learn) == before
    kept.assert_nothing_left()


def traceful(learn):
    """The search as miniai has it."""
    learn.fit(1, lr=1e-5, cbs=LRFinderCB())


@pytest.mark.case("C050")
@pytest.mark.parametrize("fitted", [False, True])
def test_no_trace_is_left(fitted):
    learn = adam()
    if fitted:
        learn.fit(1)
    check_no_trace(learn, find)


@pytest.mark.case("C050")
@pytest.mark.parametrize("error", [ValueError("in the step"), KeyboardInterrupt()])
def test_no_trace_is_left_by_a_search_that_failed(error):
    learn = adam()
    learn.add_cb(bad := At("before_batch", error, when=lambda learn: learn.steps_done == 7))
    bad.in_probe = True
    check_no_trace(learn, find, type(error))


@pytest.mark.case("C050")
def test_a_trace_would_be_seen():
    with pytest.raises(AssertionError):
        check_no_trace(adam(), traceful)


@pytest.mark.case("C050")
def test_two_searches_with_one_seed_give_one_curve():
    learn, found = adam(), []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(find(learn))
    assert (found[0].lrs, found[0].losses) == (found[1].lrs, found[1].losses)


def check_fit_is_the_same(search):
    ours, theirs = adam(), adam()
    for learn, before in ((ours, search), (theirs, lambda learn: None)):
        torch.manual_seed(1)
        before(learn)
        learn.fit(2)
    assert_same_weights(ours.model, theirs.model)


@pytest.mark.case("C051")
def test_a_fit_after_the_search_equals_a_fit_without_it():
    check_fit_is_the_same(find)


@pytest.mark.case("C051")
def test_a_fit_after_a_search_with_traces_would_differ():
    with pytest.raises(AssertionError):
        check_fit_is_the_same(traceful)


@pytest.mark.case("C051")
def test_a_ready_optimizer_keeps_state_and_rates_with_their_ratio():
    model = net()
    opt = optim.SGD(
        [
            {"params": model[0].parameters(), "lr": 0.3},
            {"params": model[3].parameters(), "lr": 0.03},
        ],
        momentum=0.9,
    )
    rates = RecorderCB(lr=lambda cb: cb.pg["lr"], groups=True)
    rates.in_probe, kept = True, []
    learn = learner(
        rates,
        At("after_step", lambda learn: kept.append(list(rates.recs["lr"])), times=99),
        model=model,
        opt=opt,
        lr=None,
    )
    learn.cbs[-1].in_probe, learn.cbs[-1].order = True, Order.STOP
    learn.fit(1)
    kept.clear()
    check_no_trace(learn, find)
    found = find(learn, num_it=20)
    assert found.lrs == pytest.approx(list(np.geomspace(1e-5, 10, 20))[: len(found.lrs)])
    assert [a for a, _ in kept[-1]] == pytest.approx(found.lrs[: len(kept[-1])])
    assert all(a / b == pytest.approx(10) for a, b in kept[-1])


SEARCH = """
import os, sys, torch
sys.path.insert(0, {root!r})
from tests.insight.test_lr_finder import adam, find, flat
learn = adam()
before = flat(learn.model.state_dict())
find(adam())  # imports what it needs
if os.geteuid() == 0:
    os.setuid(65534)  # root may write anywhere
{search}
assert flat(learn.model.state_dict()) == before
"""
WITH_FILE = """
torch.save(learn.model.state_dict(), 'tmp.pth')
find(learn)
learn.model.load_state_dict(torch.load('tmp.pth'))
"""


def check_needs_no_folder(folder, search):
    folder.chmod(0o555)
    root = os.getcwd()
    code = SEARCH.format(root=root, search=search)
    jobs = [
        subprocess.Popen([sys.executable, "-c", code], cwd=folder, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    errors = [job.communicate()[1].decode() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], errors
    assert not list(folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    for parent in (tmp_path, *tmp_path.parents):
        if os.geteuid() == 0 and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    yield tmp_path
    tmp_path.chmod(0o755)


@pytest.mark.case("C052")
def test_two_processes_search_in_a_folder_where_nobody_may_write(folder):
    check_needs_no_folder(folder, "find(learn)")


@pytest.mark.case("C052")
def test_a_search_that_writes_a_file_would_be_seen(folder):
    with pytest.raises(AssertionError):
        check_needs_no_folder(folder, WITH_FILE)


def check_goes_round(search):
    learn = learner(model=linear(), dls=(batches(3, 64, seed=1), batches(1, 4)), lr=None)
    seen = At("before_batch", lambda learn: seen.phases.append(learn.training), times=math.inf)
    seen.phases, seen.in_probe = [], True
    learn.add_cb(seen)
    lrs, losses = search(learn)
    assert (len(lrs), len(losses)) == (100, 100)
    assert lrs == pytest.approx(list(np.geomspace(1e-5, 0.1, 100)))
    assert seen.phases == [True] * 100 or seen.phases == []  # those of the scope are put back


@pytest.mark.case("C053")
def test_three_batches_serve_a_hundred_updates():
    check_goes_round(
        lambda learn: (lambda r: (r.lrs, r.losses))(find(learn, num_it=100, end_lr=0.1))
    )


@pytest.mark.case("C053")
def test_a_search_that_ends_with_the_loader_would_be_seen():
    def one_pass(learn):
        learn.fit(1, cbs=(cb := LRFinderCB(end_lr=0.1, num_it=100)), lr=1e-5)
        return cb.lrs, cb.losses

    with pytest.raises(AssertionError):
        check_goes_round(one_pass)


def test_a_loader_without_a_length_serves():
    found = find(learner(dls=(iter_of(batches(3, 8)), None)), num_it=20, end_lr=0.1)
    assert len(found.lrs) == 20


def iter_of(items):
    class Stream:
        def __iter__(self):
            return iter(items)

    return Stream()


class Saver(Callback):
    """Writes a file whenever there is something to save, and stops when nothing gets better."""

    order = Order.SAVE

    def __init__(self, path):
        self.path, self.best, self.waits = path, math.inf, 0

    def after_epoch(self, learn):
        self.waits += 1
        self.path.write_text("saved")
        self.best = min(self.best, learn.row["valid_loss" if not learn.training else "train_loss"])


def check_others_do_not_see_it(tmp_path, search):
    saver, metrics = Saver(tmp_path / "best"), MetricsCB()
    sched = BatchSchedCB(partial(optim.lr_scheduler.OneCycleLR, max_lr=0.1))
    learn = learner(saver, metrics, sched)
    learn.fit(1)
    saver.path.unlink()
    before = (saver.best, saver.waits, list(metrics.rows), sched.steps, len(learn.history))
    search(learn)
    assert (saver.best, saver.waits, list(metrics.rows), sched.steps, len(learn.history)) == before
    assert not saver.path.exists()


@pytest.mark.case("C054")
def test_checkpoints_stoppers_metrics_and_schedules_do_not_see_the_search(tmp_path):
    check_others_do_not_see_it(tmp_path, find)


@pytest.mark.case("C054")
def test_a_search_with_all_callbacks_would_be_seen(tmp_path):
    with pytest.raises(Exception):  # noqa: B017  a KeyError, or a difference
        check_others_do_not_see_it(tmp_path, traceful)


def test_accumulation_gives_a_point_an_update_with_the_mean_loss_of_the_group():
    dls = ([*batches(2, 4, seed=1), *batches(1, 2, seed=5)], None)
    frozen = {"lr": 0.5, "opt_func": lambda p, lr: optim.SGD(p, lr)}
    finder = LRFinderCB(num_it=2, start_lr=1e-30)
    model = linear()
    losses = [F.mse_loss(model(x), y).item() for x, y in dls[0]]
    learner(GradAccumCB(2), model=model, dls=dls, **frozen).fit(1, cbs=finder)
    assert finder.losses == pytest.approx([(losses[0] + losses[1]) / 2, losses[2]])
    assert len(find(learner(GradAccumCB(2), **frozen), num_it=9, max_mult=100).lrs) == 9


def test_mixed_precision_and_a_momentum_learner_take_part():
    learn = learner(MixedPrecision("bf16"), lr=None)
    check_no_trace(learn, find)
    momentum = MomentumLearner(net(), learn.dls, F.mse_loss)
    check_no_trace(momentum, find)
    assert momentum.lr is None


class ToyOpt:
    """An optimizer as the course has it: without groups."""

    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr

    def step(self):
        with torch.no_grad():
            for p in self.params:
                p -= p.grad * self.lr

    def zero_grad(self):
        for p in self.params:
            p.grad.zero_()


def test_an_optimizer_without_groups_moves_by_its_lr_and_equals_torchs():
    found = [find(learner(opt_func=f)) for f in (ToyOpt, optim.SGD)]
    assert found[0].losses == pytest.approx(found[1].losses, rel=1e-4)
    toy = ToyOpt(linear().parameters(), 0.1)
    del toy.lr
    with pytest.raises(ValueError, match="neither param_groups nor lr"):
        find(learner(opt=toy))


def test_the_curve_equals_a_search_by_hand():
    learn, model = learner(), net().train()
    torch.manual_seed(1)
    found = find(learn)
    data, lr, losses = batches(5, 8, seed=1), 1e-5, []
    torch.manual_seed(1)
    while len(losses) < len(found.losses):
        x, y = data[len(losses) % 5]
        loss = F.mse_loss(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.add_(g, alpha=-lr)
        losses.append(loss.item())
        lr *= 1.3
    assert found.losses == losses
    assert found.lrs == pytest.approx([1e-5 * 1.3**i for i in range(len(losses))])


def test_negative_losses_do_not_stop_the_search_at_once():
    loss_func = lambda p, y: -torch.sigmoid(p).mean()  # noqa: E731
    learn = Learner(linear(), toy_dls(), loss_func, cbs=TrainCB())
    assert len(find(learn).lrs) == 1 + math.ceil(math.log(1e6) / math.log(1.3))
    assert limit([-1.0, -5.0], 3) == 5.0
    assert min(-0.5, -0.6) > 3 * -0.6  # where miniai would have stopped


def test_a_loss_that_is_not_finite_ends_the_search_before_the_update():
    model = linear()
    loss_func = lambda p, y: F.mse_loss(p, y) / (0 if seen.n == 6 else 1)  # noqa: E731
    seen = At("before_batch", lambda learn: setattr(seen, "n", seen.n + 1), times=math.inf)
    seen.n = 0
    learn = Learner(model, toy_dls(), loss_func, cbs=[TrainCB(), MetricsCB(), seen])
    finder = LRFinderCB()
    learn.fit(9, cbs=finder)
    assert len(finder.lrs) == len(finder.losses) == 6 and math.isinf(finder.losses[-1])
    assert all(p.isfinite().all() for p in model.parameters())


def test_two_diverged_updates_end_it_and_a_single_one_does_not():
    learn = learner(lr=1.0)
    finder = LRFinderCB()
    finder.before_fit(learn_with_opt(learn))
    for loss in (*[1.0] * 10, 9.0, 1.0, 9.0):
        after_batch(finder, learn, loss)
    with pytest.raises(CancelFitException):
        after_batch(finder, learn, 9.0)


def learn_with_opt(learn):
    learn.opt = optim.SGD(learn.model.parameters(), 1.0)
    learn.batch = (torch.zeros(2, 3),)
    return learn


def after_batch(finder, learn, loss):
    learn.loss = torch.tensor(loss)
    finder.after_loss(learn)
    learn.plan.steps_done += 1
    finder.after_batch(learn)


def test_max_epochs_is_a_bound():
    assert len(find(learner(), max_epochs=2).lrs) == 10


CURVE = np.geomspace(1e-5, 10, 100)


def curve():
    """Flat to 1e-3, down to the lowest loss at 0.1, up from there."""
    x = np.log10(CURVE)
    return np.interp(x, [-5, -3, -1, 0, 1], [2.0, 2.0, 0.5, 1.5, 9.0])


def test_suggestions_lie_where_their_names_say():
    found = LRFound(list(CURVE), list(curve()), lr_finder.rules_of(("valley", "steep")))
    assert found.valley == pytest.approx(1e-2, rel=0.5)
    assert 2e-3 < found.steep < 6e-2
    assert "valley=" in repr(found) and not hasattr(found, "no_such")
    assert set(found.suggestions) == {"valley", "steep"}


def test_rules_may_be_named_singly_or_be_functions():
    def mine(lrs, losses):
        return lrs[0]

    learn = learner()
    assert set(find(learn, suggest="steep").suggestions) == {"steep"}
    assert find(learn, suggest=["valley", mine]).mine == 1e-5
    with pytest.raises(ValueError, match="unknown rule 'steepest'.*valley, steep"):
        find(learn, suggest="steepest")


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        ([math.nan], "it ended after 1 updates"),
        ([1.0] * 20, "stayed at 1.0"),
        (list(np.geomspace(1, 3, 20)), "only rose"),
        ([], "ended after 0 updates"),
    ],
)
def test_no_answer_says_why(losses, why):
    with pytest.raises(ValueError, match=why):
        LRFound(list(CURVE[: len(losses)]), losses, {})


def test_noise_is_no_answer_to_trust():
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="less than its noise"):
        LRFound(list(CURVE), list(1 + 0.1 * rng.standard_normal(100)), {})


def test_an_easy_first_batch_is_noise_and_no_rise():
    batches = np.tile([0.74, 1.11, 0.82, 1.15], 20)  # flat, and the first batch is the easiest
    losses = [*batches, *np.geomspace(1, 9, 20)]
    with pytest.warns(UserWarning, match="less than its noise"):
        found = LRFound(list(CURVE), losses, lr_finder.rules_of(("valley", "steep")))
    assert found.smooth.argmin() == 0 and all(lr < 1 for lr in found.suggestions.values())


@pytest.mark.parametrize("bad", [{"gamma": 1.0}, {"end_lr": 1e-6}, {"num_it": 1}, {"max_mult": 1}])
def test_rates_that_do_not_rise_are_refused(bad):
    with pytest.raises(ValueError, match="does not raise the rate"):
        find(learner(), **bad)


def test_plot_has_a_log_axis_both_curves_and_a_mark_for_each_suggestion():
    learn = learner()
    found = learn.lr_find()
    (ax,) = plt.gcf().axes
    labels = ax.get_legend_handles_labels()[1]
    assert ax.get_xscale() == "log" and len(ax.lines) == 4
    assert [label.split()[0] for label in labels] == ["each", "smoothed", *found.suggestions]
    own = plt.subplots()[1]
    assert found.plot(own) is own
    plt.close("all")


def test_it_may_be_called_in_mid_fit():
    ours, theirs = adam(), adam()
    calls = []

    def look(learn):
        with preserved_random_states():
            random.random()
        calls.append(find(learn))

    for learn, cbs in (
        (ours, At("after_batch", look, when=lambda learn: learn.training)),
        (theirs, None),
    ):
        torch.manual_seed(1)
        learn.fit(2, cbs=cbs)
    assert len(calls) == 1
    assert_same_weights(ours.model, theirs.model)
