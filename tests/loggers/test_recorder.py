"""RecorderCB: what each update used."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim import lr_scheduler

from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import CancelFitException, CancelStepException, Order
from minilearn.learner import Learner
from minilearn.loggers.recorder import RecorderCB


def _lr(cb):
    return cb.pg["lr"]


def _beta1(cb):
    return cb.pg["betas"][0]


class OneCycle(Callback):
    """Moves the scheduler after each update, as schedules do."""

    order = Order.SCHEDULE

    def before_fit(self, learn):
        self.sched = lr_scheduler.OneCycleLR(learn.opt, 0.1, total_steps=8)

    def after_step(self, learn):
        self.sched.step()


def fit(*cbs, opt_func=optim.AdamW, n=2, **kwargs):
    data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(4)]
    learn = Learner(nn.Linear(3, 1), (data, data), F.mse_loss, 0.1, [TrainCB(), *cbs], opt_func)
    learn.fit(n, **kwargs)
    return learn


def one_cycle_by_hand():
    opt = optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.1)
    sched, lrs, moms = lr_scheduler.OneCycleLR(opt, 0.1, total_steps=8), [], []
    for _ in range(8):
        lrs.append(opt.param_groups[0]["lr"])
        moms.append(opt.param_groups[0]["betas"][0])
        opt.step()
        sched.step()
    return lrs, moms


@pytest.mark.parametrize("first", [True, False], ids=["listed first", "listed last"])
def test_it_records_the_value_that_each_update_used(first):
    rec, sched = RecorderCB(lr=_lr, mom=_beta1), OneCycle()
    fit(*((rec, sched) if first else (sched, rec)))
    lrs, moms = one_cycle_by_hand()
    assert rec.recs == {"lr": lrs, "mom": moms}
    assert rec.pg["lr"] != lrs[-1]  # the group of the fit's own optimizer, as the schedule left it


def test_names_stand_for_hyper_parameters_of_any_optimizer():
    rec = RecorderCB("lr", "mom", decay="wd")
    fit(rec, n=1)
    assert rec.recs == {"lr": [0.1] * 4, "mom": [0.9] * 4, "decay": [0.01] * 4}
    rec = RecorderCB("mom", "nesterov")
    fit(rec, n=1, opt_func=lambda params, lr: optim.SGD(params, lr, momentum=0.8))
    assert rec.recs == {"mom": [0.8] * 4, "nesterov": [False] * 4}
    assert repr(rec) == "RecorderCB(mom, nesterov)"


def test_each_group_has_its_value_where_asked_for():
    def two_groups(params, lr):
        weight, bias = params
        return optim.SGD([{"params": [weight]}, {"params": [bias], "lr": lr / 10}], lr)

    rec, first = RecorderCB("lr", groups=True), RecorderCB("lr")
    fit(rec, first, n=1, opt_func=two_groups)
    assert rec.recs["lr"] == [[0.1, 0.01]] * 4
    assert first.recs["lr"] == [0.1] * 4


def test_batches_without_an_update_are_not_recorded():
    class EverySecond(Callback):
        def before_step(self, learn):
            if learn.iter % 2 == 0:
                raise CancelStepException

    rec = RecorderCB(lr=_lr)
    fit(rec, EverySecond())
    assert len(rec.recs["lr"]) == 4


def test_each_fit_begins_anew_and_a_fit_that_only_validates_records_nothing():
    rec = RecorderCB(lr=_lr)
    learn = fit(rec)
    learn.fit(1)
    assert len(rec.recs["lr"]) == 4
    learn.fit(1, train=False)
    assert rec.recs == {"lr": []}


def test_tensors_are_copied_and_read_when_the_fit_ends():
    kinds = []

    class Look(Callback):
        order = Order.STOP

        def after_batch(self, learn):
            if learn.training:
                kinds.append(type(rec.recs["weight"][-1]))
                if learn.iter == 2:
                    raise CancelFitException

    def weight(cb):
        return cb.pg["params"][0][0, 0]

    rec = RecorderCB(weight=weight)
    learn = fit(rec, Look(), opt_func=optim.SGD)
    assert kinds == [torch.Tensor] * 3
    values = rec.recs["weight"]
    assert all(type(v) is float for v in values) and len(set(values)) == 3
    assert values[-1] == learn.model.weight[0, 0].item()


def test_a_learner_from_a_notebook_is_recorded_by_batches():
    class Small:
        def __init__(self):
            self.model = nn.Linear(1, 1)
            self.opt = optim.SGD(self.model.parameters(), lr=0.5)

    learn, rec = Small(), RecorderCB(lr=_lr)
    rec.before_fit(learn)
    for training in (True, True, False):
        learn.model.train(training)
        rec.after_batch(learn)
    assert rec.recs == {"lr": [0.5, 0.5]}


def test_what_cannot_be_recorded_says_so():
    class Bare:
        def __init__(self, params, lr):
            self.params = list(params)

        def step(self):
            pass

        zero_grad = step

    with pytest.raises(ValueError, match="Bare has none"):
        fit(RecorderCB("lr"), opt_func=Bare)
    with pytest.raises(ValueError, match="have no 'rho'; there are lr"):
        fit(RecorderCB("rho"))
    with pytest.raises(TypeError, match="not 3"):
        RecorderCB(lr=3)
    with pytest.raises(ValueError, match="nothing was recorded"):
        RecorderCB("lr").plot()


def test_plot_returns_labelled_axes_one_a_record():
    import matplotlib.pyplot as plt

    rec = RecorderCB("lr", "mom", groups=True)
    fit(rec, OneCycle())
    lr, mom = rec.plot()
    assert (lr.get_title(), mom.get_title(), lr.get_xlabel()) == ("lr", "mom", "update")
    assert lr.lines[0].get_xdata().tolist() == list(range(1, 9))
    assert lr.lines[0].get_ydata().tolist() == one_cycle_by_hand()[0]
    plt.close("all")


def test_records_survive_a_resume_and_a_pickle(tmp_path):
    rec = RecorderCB("lr")
    fit(rec, n=1)
    torch.save(rec.state_dict(), tmp_path / "rec")
    again = pickle.loads(pickle.dumps(RecorderCB("lr")))
    again.load_state_dict(torch.load(tmp_path / "rec", weights_only=True))
    assert again.recs == rec.recs
