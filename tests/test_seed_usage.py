"""The spellings that people know from the course work as they are written there.

Usage lines only, on `from minilearn.all import *`, on real images; a `to_tensor` stands in for
torchvision's.
"""

import math
import sys
import types
import weakref

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import minilearn.all
from minilearn.all import *  # noqa: F403
from minilearn.all import (
    DataLoaders,
    DeviceCB,
    F,
    GeneralRelu,
    Learner,
    MetricsCB,
    MomentumLearner,
    MulticlassAccuracy,
    ProgressCB,
    SingleBatchCB,
    TrainCB,
    TrainLearner,
    collate_dict,
    fashion_mnist,
    fc,
    inplace,
    nn,
    optim,
    partial,
    torch,
)


def to_tensor(image):
    return torch.from_numpy(np.array(image)).float().div(255)[None]


@pytest.fixture(autouse=True)
def torchvision(monkeypatch):
    name = "torchvision.transforms.functional"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[name].to_tensor = to_tensor


@pytest.fixture(scope="module")
def dsd():
    dd = fashion_mnist()
    return type(dd)(train=dd["train"].select(range(256)), test=dd["test"].select(range(128)))


@pytest.fixture
def dls(dsd):
    TF = minilearn.all.TF

    @inplace
    def transformi(b):
        b["image"] = [TF.to_tensor(o) for o in b["image"]]

    return DataLoaders.from_dd(dsd.with_transform(transformi), 64, num_workers=0)


def test_a_data_set_with_a_transform_gives_batches_as_tuples(dls, dsd):
    xb, yb = next(iter(dls.train))
    assert xb.shape == (64, 1, 28, 28) and yb.shape == (64,)
    assert len(next(iter(dls.valid))[1]) == 128  # twice the batch size


def test_collate_dict_is_a_collate_function(dsd):
    @inplace
    def transformi(b):
        b["image"] = [torch.flatten(minilearn.all.TF.to_tensor(o)) for o in b["image"]]

    tdsf = dsd["train"].with_transform(transformi)
    dlf = minilearn.all.DataLoader(tdsf, batch_size=4, collate_fn=collate_dict(tdsf))
    xb, yb = next(iter(dlf))
    assert xb.shape == (4, 784) and yb.tolist() == dsd["train"][:4]["label"]


def test_the_usual_list_of_callbacks_trains(dls, capsys):
    metrics = MetricsCB(accuracy=MulticlassAccuracy())
    cbs = [TrainCB(), DeviceCB(), metrics, ProgressCB(plot=True)]
    model = minilearn.all.get_model()
    learn = Learner(model, dls, F.cross_entropy, lr=0.1, cbs=cbs, opt_func=optim.AdamW)
    learn.fit(1)
    assert metrics.rows[-1]["train"] == "eval" and 0 <= metrics.rows[-1]["accuracy"] <= 1
    assert "accuracy" in capsys.readouterr().out


def test_train_learner_and_momentum_learner_need_no_traincb(dls):
    cbs = [DeviceCB(), MetricsCB(accuracy=MulticlassAccuracy()), ProgressCB()]
    model = minilearn.all.get_model(minilearn.all.act_gr).apply(
        partial(minilearn.all.init_weights, leaky=0.1)
    )
    learn = MomentumLearner(model, dls, F.cross_entropy, lr=0.2, cbs=cbs)
    learn.fit(1)
    TrainLearner(model, dls, F.cross_entropy, lr=2e-2, cbs=cbs, opt_func=optim.AdamW).fit(1)
    assert math.isfinite(learn.history["valid_loss"][0])


def test_lsuv_over_pairs_of_layers(dls):
    model = minilearn.all.get_model(minilearn.all.act_gr)
    xb, _ = next(iter(dls.train))
    relus = [o for o in model.modules() if isinstance(o, GeneralRelu)]
    convs = [o for o in model.modules() if isinstance(o, nn.Conv2d)]
    for ms in zip(relus, convs, strict=False):
        minilearn.all.lsuv_init(model, *ms, xb.to(minilearn.all.def_device))
    with torch.no_grad():
        out = nn.Sequential(*list(model)[: len(relus)])(xb)
    assert abs(out.std() - 1) < 1e-2 and abs(out.mean()) < 1e-2


def _lr(cb):
    return cb.pg["lr"]


def _beta1(cb):
    return cb.pg["betas"][0]


def test_one_cycle_by_hand_records_rate_and_momentum(dls):
    lr, epochs = 1e-2, 2
    tmax = epochs * len(dls.train)
    sched = partial(minilearn.all.lr_scheduler.OneCycleLR, max_lr=lr, total_steps=tmax)
    rec = minilearn.all.RecorderCB(lr=_lr, mom=_beta1)
    xtra = [minilearn.all.BatchSchedCB(sched), rec]
    cbs = [DeviceCB(), MetricsCB(accuracy=MulticlassAccuracy()), ProgressCB()]
    model = minilearn.all.get_model()
    TrainLearner(model, dls, F.cross_entropy, lr=lr, cbs=cbs + xtra, opt_func=optim.AdamW).fit(2)
    assert len(rec.recs["lr"]) == tmax == len(rec.recs["mom"])
    opt = optim.AdamW([nn.Parameter(torch.zeros(1))], lr)
    torchs, expected = sched(opt), []
    for _ in range(tmax):
        expected.append(opt.param_groups[0]["lr"])
        opt.step()
        torchs.step()
    assert rec.recs["lr"] == pytest.approx(expected)
    rec.plot()


def test_a_fastcore_list_of_callbacks(dls):
    cbs = fc.L(TrainCB(), DeviceCB())
    learn = Learner(minilearn.all.get_model(), dls, F.cross_entropy, cbs=cbs + fc.L(MetricsCB()))
    learn.fit(1, cbs=SingleBatchCB())
    assert learn.batch[0].shape == (64, 1, 28, 28)


class SGD:
    """An optimizer as a notebook writes it: no groups, no state."""

    def __init__(self, params, lr, wd=0.0):
        self.params, self.lr, self.wd = list(params), lr, wd
        self.i = 0

    def step(self):
        with torch.no_grad():
            for p in self.params:
                p *= 1 - self.lr * self.wd
                p -= p.grad * self.lr
        self.i += 1

    def zero_grad(self):
        for p in self.params:
            p.grad.data.zero_()


def test_an_optimizer_of_a_notebook_trains_like_torchs(dls):
    torch.manual_seed(0)
    ours = minilearn.all.get_model()
    theirs = minilearn.all.get_model()
    theirs.load_state_dict(ours.state_dict())
    data = [next(iter(dls.train)) for _ in range(2)]
    TrainLearner(ours, (data,), F.cross_entropy, lr=0.1, opt_func=SGD).fit(1)
    TrainLearner(theirs, (data,), F.cross_entropy, lr=0.1, opt_func=optim.SGD).fit(1)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


class BareLearner:
    """The Learner of the course's first lesson, written in a notebook on our callbacks."""

    def __init__(self, model, dls, loss_func, lr, cbs, opt_func=optim.SGD):
        self.model, self.dls, self.loss_func, self.lr = model, dls, loss_func, lr
        self.cbs, self.opt_func = cbs, opt_func
        for cb in cbs:
            cb.learn = self

    def one_batch(self):
        self.callback("before_batch")
        self.callback("predict")
        self.callback("get_loss")
        if self.model.training:
            for action in ("backward", "step", "zero_grad"):
                self.callback(action)
        self.callback("after_batch")

    def one_epoch(self, train):
        self.model.train(train)
        self.dl = self.dls.train if train else self.dls.valid
        self.callback("before_epoch")
        for self.iter, self.batch in enumerate(self.dl):  # noqa: B020
            self.one_batch()
        self.callback("after_epoch")

    def fit(self, n_epochs):
        self.n_epochs = n_epochs
        self.epochs = range(n_epochs)
        self.opt = self.opt_func(self.model.parameters(), self.lr)
        self.callback("before_fit")
        for self.epoch in self.epochs:  # noqa: B020
            self.one_epoch(True)
            with torch.no_grad():
                self.one_epoch(False)
        self.callback("after_fit")

    def callback(self, name):
        minilearn.all.run_cbs(self.cbs, name, self)


def test_our_callbacks_work_on_a_minimal_learner(dls, capsys):
    metrics = MetricsCB(accuracy=MulticlassAccuracy())
    cbs = [TrainCB(), DeviceCB(), metrics, ProgressCB()]
    learn = BareLearner(minilearn.all.get_model(), dls, F.cross_entropy, 0.1, cbs)
    learn.fit(2)
    assert [row["train"] for row in metrics.rows] == ["train", "eval"] * 2
    assert "accuracy" in capsys.readouterr().out


def test_run_cbs_needs_no_learner():
    class CompletionCB(minilearn.all.Callback):
        def before_fit(self, learn):
            self.count = 0

        def after_batch(self, learn):
            self.count += 1

    cb = CompletionCB()
    for name in ("before_fit", "after_batch"):
        minilearn.all.run_cbs([cb], name)
    assert cb.count == 1


def test_with_cbs_on_a_class_of_ones_own():
    class Stages:
        heard = []

        def callback(self, name):
            self.heard.append(name)

        @minilearn.all.with_cbs("batch")
        def one(self):
            raise minilearn.all.CancelBatchException

    stages = Stages()
    stages.one()
    assert stages.heard == ["before_batch", "cleanup_batch"]


def test_fit_without_a_learner_equals_one(dls):
    data = [next(iter(dls.train)) for _ in range(2)]
    torch.manual_seed(0)
    model = minilearn.all.get_model()
    learn = TrainLearner(minilearn.all.get_model(), (data, data), F.cross_entropy, lr=0.1)
    learn.model.load_state_dict(model.state_dict())
    opt = optim.SGD(model.parameters(), lr=0.1)
    loss, acc = minilearn.all.fit(2, model, F.cross_entropy, opt, data, data)
    learn.fit(2, cbs=MetricsCB(accuracy=minilearn.all.accuracy))
    assert loss == learn.history["valid_loss"][-1] and acc == learn.history["accuracy"][-1]


def test_a_callback_that_keeps_the_learner_lets_it_go(dls):
    class Peeks(minilearn.all.HasLearnCB):
        def after_batch(self, learn):
            self.seen = self.learn

    cb = Peeks()
    learn = TrainLearner(minilearn.all.get_model(), dls, F.cross_entropy)
    learn.fit(1, cbs=[cb, SingleBatchCB()])
    assert cb.seen is learn and cb.learn is None


def test_a_subclass_of_the_progress_bar_draws_what_it_wants(dls):
    class Preview(ProgressCB):
        def after_batch(self, learn):
            learn.dl.comment = f"{learn.loss:.3f}"
            if not (hasattr(learn, "metrics") and learn.training):
                return
            self.losses.append(learn.loss.item())
            if not hasattr(self.mbar, "drawn"):
                self.mbar.drawn = 0
            self.mbar.drawn += 1

    bar = Preview()
    learn = TrainLearner(minilearn.all.get_model(), dls, F.cross_entropy, cbs=[MetricsCB(), bar])
    for _ in range(2):
        learn.fit(1)
        assert len(bar.losses) == bar.mbar.drawn == len(dls.train)
        assert bar.val_losses == []


def test_metrics_with_a_log_of_their_own_are_told_each_row(dls):
    told = []

    class TrackerCB(MetricsCB):
        def _log(self, d):
            told.append({("train_" if d["train"] == "train" else "val_") + "loss": d["loss"]})

    learn = TrainLearner(minilearn.all.get_model(), dls, F.cross_entropy)
    learn.fit(1, cbs=[TrackerCB(), ProgressCB(plot=True)])
    assert [list(d) for d in told] == [["train_loss"], ["val_loss"]]


def test_a_model_is_in_eval_after_a_fit_with_a_validation_so_that_one_sample_works(dls):
    model = minilearn.all.get_model(norm=nn.BatchNorm2d)
    learn = TrainLearner(model, dls, F.cross_entropy, cbs=DeviceCB())
    learn.fit(1)
    stats = model[0][1].running_mean.clone()
    assert model(dls.train.dataset[0]["image"][None]).shape == (1, 10)
    assert torch.equal(model[0][1].running_mean, stats)


def test_a_residual_block_starts_as_zero_by_its_weights_and_biases():
    block = minilearn.all.ResBlock(8, 3, norm=nn.BatchNorm2d)
    with torch.no_grad():
        for layer in (block.convs[-1][-1], block.idconv[0]):
            layer.weight.zero_()
            layer.bias.zero_()
    assert torch.equal(block(torch.randn(2, 8, 4, 4)), block.act(torch.zeros(2, 3, 4, 4)))
    assert sum(p.numel() for p in block.parameters()) == 342  # the course's


def test_clean_mem_frees_what_the_last_error_and_the_outputs_hold():
    class Big:
        pass

    def fails(big):
        raise ValueError

    shell = InteractiveShell.instance()
    try:
        big = Big()
        held = weakref.ref(big)
        try:
            fails(big)
        except ValueError as e:
            sys.last_type, sys.last_value, sys.last_traceback = type(e), e, e.__traceback__
        shell.user_ns["big"] = big
        shell.run_cell("big", store_history=True)
        del shell.user_ns["big"], big
        assert held() is not None
        minilearn.all.clean_mem()
        assert held() is None and not hasattr(sys, "last_traceback")
    finally:
        InteractiveShell.clear_instance()
