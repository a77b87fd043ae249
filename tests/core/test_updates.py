"""When an update counts: only where there were gradients for it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from toys import At, assert_same_weights, batches

from minilearn.callbacks.averaging import EMACB
from minilearn.callbacks.gradients import ClipGradCB, GradAccumCB
from minilearn.callbacks.precision import ScaledPrecision
from minilearn.callbacks.training import TrainCB
from minilearn.core.events import with_cbs
from minilearn.core.fit import Fitting
from minilearn.core.learner import Loop
from minilearn.learner import Learner
from minilearn.optim.sched_callbacks import BatchSchedCB


class Detached(nn.Module):
    """Its output in the batches of numbers `at`, from 1 on, leads to no weight."""

    def __init__(self, at=(2,)):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.at, self.n = nn.Linear(3, 1), at, 0
        self.other = [torch.ones(1, requires_grad=True)]

    def forward(self, x):
        self.n += 1
        out = self.layer(x)
        return out.detach() * self.other[0] if self.n in self.at else out


class SometimesNoBackward(TrainCB):
    """Its backward does nothing in some batches."""

    def backward(self, learn):
        if learn.iter != 1:
            super().backward(learn)


def by_hand(model, data, left_out):
    opt = sgd(model.parameters(), 0.1)
    for number, (x, y) in enumerate(data):
        if number not in left_out:
            F.mse_loss(model.layer(x), y).backward()
            opt.step()
            opt.zero_grad()
    return model


def sgd(params, lr):
    return optim.SGD(params, lr, momentum=0.9)


def check_no_update(cbs, at=(2,), left_out=(1,)):
    """One batch gives no gradient: nothing moves in it, and it counts for nothing."""
    data, ours = batches(8), Detached(at)
    updates, average = [], EMACB(0.5)
    sched = BatchSchedCB(lambda opt: optim.lr_scheduler.LambdaLR(opt, lambda step: 1.0))
    learn = Learner(ours, (data, None), F.mse_loss, 0.1, [*cbs, sched, average], sgd)
    learn.on("after_step", lambda learn: updates.append(learn.iter))
    learn.fit(1)
    assert learn.steps_done == 8 - len(left_out) == average.n_averaged == len(updates)
    assert_same_weights(ours.layer, by_hand(Detached(at), data, left_out).layer)


def scaled():
    return ScaledPrecision(scaler=torch.amp.GradScaler("cpu", init_scale=1.0))


@pytest.mark.case("F13")
def test_a_batch_without_a_gradient_makes_no_update_and_counts_for_nothing():
    check_no_update([TrainCB()])


@pytest.mark.case("F13")
def test_a_backward_that_does_nothing_in_a_batch_makes_no_update():
    check_no_update([SometimesNoBackward()], at=())


@pytest.mark.case("F13")
@pytest.mark.parametrize("cb", [scaled(), ClipGradCB(1e9)], ids=repr)
def test_a_scaler_and_clipping_take_a_batch_without_a_gradient(cb):
    learn = Learner(Detached(), (batches(8), None), cbs=[TrainCB(), cb])
    learn.fit(1)
    assert learn.steps_done == 7


@pytest.mark.case("F13")
@pytest.mark.parametrize(("at", "updates"), [((2,), 4), ((1, 2), 3), ((7, 8), 3)])
def test_a_group_of_batches_without_any_gradient_makes_no_update(at, updates):
    learn = Learner(Detached(at), (batches(8), None), cbs=[TrainCB(), GradAccumCB(2)])
    learn.fit(1)
    assert learn.steps_done == updates


@pytest.mark.case("F13")
def test_the_check_of_updates_notices_one_without_gradients(monkeypatch):
    monkeypatch.setattr(Fitting, "_can_step", lambda self: True)
    with pytest.raises(AssertionError):
        check_no_update([TrainCB()])


def test_a_step_of_the_users_own_needs_no_gradients():
    class Evolves(TrainCB):
        def backward(self, learn):
            pass

        def step(self, learn):
            with torch.no_grad():
                learn.model.weight.add_(1)

    learn = Learner(nn.Linear(3, 1), (batches(4), None), cbs=[Evolves()])
    learn.fit(1)
    assert learn.steps_done == 4


# ---- gradients that are there, and go before the step ----


def drops(p):
    p.grad = None


WAYS = {
    "the optimizer's own": lambda learn: learn.opt.zero_grad(),
    "the model's own": lambda learn: learn.model.zero_grad(),
    "by hand": lambda learn: [drops(p) for p in learn.model.parameters()],
    "by the action": lambda learn: learn.zero_grad(),
    "all at once": lambda learn: learn.clear_grads(),
}


@pytest.mark.case("F13")
@pytest.mark.parametrize("event", ["after_backward", "before_step"])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_that_a_callback_clears_make_no_update(way, event):
    clears = At(event, WAYS[way], when=lambda learn: learn.iter == 1)
    check_no_update([TrainCB(), clears], at=())


@pytest.mark.case("F13")
def test_the_check_of_updates_notices_gradients_that_went_before_the_step(monkeypatch):
    monkeypatch.setattr(Loop, "_one_step", with_cbs("step", after=False)(step_without_looking))
    clears = At("before_step", WAYS["by hand"], when=lambda learn: learn.iter == 1)
    with pytest.raises(AssertionError):
        check_no_update([TrainCB(), clears], at=())


def step_without_looking(self):
    self.step()
    self.plan.steps_done += 1
    self.callback("after_step")
    self.zero_grad()


@pytest.mark.case("F13")
def test_a_group_whose_gradients_go_before_the_step_makes_no_update():
    clears = At("before_step", WAYS["by hand"], when=lambda learn: learn.iter == 3)
    learn = Learner(Detached(()), (batches(8), None), cbs=[TrainCB(), GradAccumCB(2), clears])
    learn.fit(1)
    assert learn.steps_done == 3


class Plain:
    """An optimizer that has a step and nothing else."""

    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr

    @torch.no_grad()
    def step(self):
        for p in self.params:
            p.add_(p.grad, alpha=-self.lr)


@pytest.mark.case("F13")
def test_an_optimizer_that_has_a_step_alone_trains_as_by_hand():
    data, ours, theirs = batches(8), Detached(), Detached()
    learn = Learner(ours, (data, None), F.mse_loss, 0.1, [TrainCB(), ClipGradCB(1e9)], Plain)
    learn.fit(1)
    assert learn.steps_done == 7
    opt = optim.SGD(theirs.parameters(), 0.1)
    for number, (x, y) in enumerate(data):
        if number != 1:
            opt.zero_grad()
            F.mse_loss(theirs.layer(x), y).backward()
            opt.step()
    assert_same_weights(ours.layer, theirs.layer)


@pytest.mark.case("F13")
def test_two_optimizers_in_one_make_an_update_where_one_of_them_has_gradients():
    class Both(Plain):
        def __init__(self, *opts):
            self.opts = opts

        def step(self):
            for opt in self.opts:
                opt.step()

    model = nn.ModuleDict({"made": nn.Linear(3, 1), "judged": nn.Linear(1, 1)})

    class Turns(TrainCB):
        def predict(self, learn):
            made = model["made"](learn.batch[0])
            learn.preds = made if learn.iter % 2 else model["judged"](made.detach())

    opt = Both(*(optim.SGD(part.parameters(), 0.1) for part in model.values()))
    learn = Learner(model, (batches(8), None), lr=None, opt=opt, cbs=[Turns(), average := EMACB()])
    learn.fit(1)
    assert learn.steps_done == average.n_averaged == 8
