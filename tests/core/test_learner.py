"""The Learner: what it takes, what it keeps, how callbacks come and go between fits."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fastcore.foundation import L
from torch import optim
from toys import (
    ACTIONS,
    At,
    Before,
    Trace,
    linear,
    plain_trace,
    toy_dls,
    toy_learner,
)

from minilearn.callbacks.training import TrainCB
from minilearn.core import events
from minilearn.core.callback import Callback
from minilearn.core.learner import Loop
from minilearn.core.state import LoopState
from minilearn.learner import Learner
from minilearn.metrics.callback import MetricsCB

# ---- what a Learner takes ----


@pytest.mark.parametrize(
    "make",
    [
        lambda cb: cb,
        lambda cb: [cb],
        lambda cb: (cb,),
        lambda cb: L(cb),
        lambda cb: (c for c in [cb]),
        lambda cb: {cb},
    ],
)
def test_callbacks_come_as_one_or_in_any_collection(make):
    learn = Learner(linear(), toy_dls(), cbs=make(train := TrainCB()))
    assert type(learn.cbs) is list and learn.cbs == [train]
    trace = Trace()
    learn.fit(1, cbs=make(trace))
    assert trace.events and learn.cbs == [train]


def test_metrics_are_short_for_the_usual_callbacks_and_not_beside_others():
    learn = Learner(linear(), toy_dls(), metrics=F.l1_loss)
    kinds = [type(cb).__name__ for cb in learn.cbs]
    assert kinds == ["TrainCB", "DeviceCB", "MetricsCB", "ProgressCB"]
    with pytest.raises(ValueError, match="short for a list of callbacks"):
        Learner(linear(), toy_dls(), cbs=[TrainCB()], metrics=F.l1_loss)


def test_an_object_of_another_library_may_be_the_only_callback():
    class Foreign:
        def after_step(self, learn):
            self.seen = learn.steps_done

    learn = Learner(linear(), toy_dls(), cbs=TrainCB())
    learn.fit(1, cbs=(foreign := Foreign()))
    assert foreign.seen == 2 and learn.cbs != [foreign]


def test_a_class_stands_for_a_callback_made_without_arguments():
    learn = Learner(linear(), toy_dls(), cbs=TrainCB)
    assert isinstance(learn.cbs[0], TrainCB)
    learn.fit(1, cbs=[Trace])
    assert Learner(linear(), toy_dls()).cbs == []


def test_the_user_s_list_is_copied():
    mine = [TrainCB()]
    learn = Learner(linear(), toy_dls(), cbs=mine)
    learn.add_cb(Trace())
    assert len(mine) == 1
    mine.clear()
    assert len(learn.cbs) == 2


def test_a_callback_that_is_there_already_is_neither_doubled_nor_removed():
    learn = toy_learner([trace := Trace()])
    learn.fit(1, cbs=[trace])
    assert trace.events == [e for e in plain_trace() if e not in ACTIONS]
    assert learn.cbs[-1] is trace
    learn.add_cb(trace)
    assert len(learn.cbs) == 2


@pytest.mark.parametrize("kind", [tuple, list, "dict", "object"])
def test_loaders_come_in_any_of_the_usual_forms(kind):
    train, valid = toy_dls(2, 1)
    forms = {"dict": {"train": train, "valid": valid}}
    forms["object"] = type("DLs", (), {"train": train, "valid": valid})()
    dls = forms[kind] if isinstance(kind, str) else kind((train, valid))
    trace = Trace()
    toy_learner([trace], dls=dls).fit(1)
    assert trace.events.count("before_batch") == 3


def test_a_model_may_be_any_callable():
    w = torch.zeros(1, requires_grad=True)
    learn = Learner(lambda x: x[:, :1] * w, toy_dls(), cbs=TrainCB(), opt=optim.SGD([w], 0.1))
    learn.fit(2)
    assert w.item() != 0 and w.grad is None


# ---- what a Learner keeps ----


@pytest.mark.parametrize("end", [None, "CancelFitException", "KeyboardInterrupt"])
def test_batch_preds_loss_and_optimizer_stay_readable_after_a_fit(end):

    cbs = []
    if end:
        error = getattr(events, end, KeyboardInterrupt)
        cbs = [At("after_loss", error, when=lambda learn: learn.iter == 1)]
    learn = toy_learner(cbs)
    learn.fit(1, valid=False, on_interrupt="stop")
    x, y = learn.dls[0][1]
    assert learn.batch[0] is x
    assert learn.preds.shape == y.shape and not learn.preds.requires_grad
    assert not learn.loss.requires_grad and learn.opt is not None
    learn.free()
    assert learn.batch is learn.preds is learn.loss is learn.opt is None
    learn.fit(1)


def check_dropped(learn):
    """F27: after an error no tensor of its batch stays on the Learner."""
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), learn.on("after_loss", At("after_loss", error).after_loss):
            learn.fit(1, valid=False)
        assert learn.batch is learn.preds is learn.loss is None
        assert learn.opt is not None


@pytest.mark.case("F27")
def test_after_an_error_no_tensor_of_the_batch_stays():
    check_dropped(toy_learner())


@pytest.mark.case("F27")
def test_the_check_notices_a_batch_that_stays(monkeypatch):
    learn = toy_learner()
    end = type(learn)._end

    def keep(learn):
        learn.batch = 1
        end(learn)

    monkeypatch.setattr(type(learn), "_end", keep)
    with pytest.raises(AssertionError):
        check_dropped(learn)


def test_callbacks_are_found_by_type():
    class Special(Trace): ...

    learn = toy_learner([first := Special(), Trace()])
    assert learn.find(Special) is learn.find(Trace) is first
    assert learn.find(TrainCB) is learn.cbs[0]
    assert learn.find(KeyError) is None
    assert learn.find(Callback) is learn.cbs[0]


def test_callbacks_can_be_added_and_removed_by_object_or_class():
    learn = toy_learner()
    trace = learn.add_cb(Trace)
    assert isinstance(trace, Trace) and learn.cbs[-1] is trace
    learn.add_cb(other := Trace())
    learn.remove_cb(trace)
    assert learn.cbs[1:] == [other]
    learn.add_cb(trace)
    learn.remove_cb(Trace)
    assert learn.find(Trace) is None
    assert trace.events == other.events == []


def test_every_public_attribute_is_declared_in_the_class_body():
    learn = toy_learner()
    learn.fit(1)
    declared = {
        name for kind in type(learn).__mro__ for name in vars(kind).get("__annotations__", {})
    }
    assert {name for name in vars(learn) if not name.startswith("_")} <= declared


def test_a_fit_inside_a_fit_is_refused():
    learn = toy_learner([At("after_batch", lambda learn: learn.fit(1))])
    before = Before(learn)
    with pytest.raises(RuntimeError, match="running"):
        learn.fit(1)
    before.assert_nothing_left()


def test_a_learner_shows_what_will_run():
    text = repr(toy_learner([Trace()], lr=0.25))
    for part in ("Learner", "Linear", "0.25", "mse_loss", "SGD", "TrainCB()", "Trace()"):
        assert part in text
    assert "none" in repr(Learner(F.relu, opt_func=partial(optim.SGD, momentum=0.9)))


@pytest.mark.case("F11")
@pytest.mark.parametrize("cbs", [[None, TrainCB], (TrainCB(), None), L(None, TrainCB()), [None]])
def test_callbacks_that_are_none_are_left_out(cbs):
    learn = Learner(linear(), toy_dls(), cbs=cbs)
    assert [type(cb) for cb in learn.cbs] == [TrainCB] * (len(cbs) - 1)


@pytest.mark.case("F11")
def test_the_check_notices_what_is_neither_none_nor_a_callback():
    with pytest.raises(TypeError, match="is no callback"):
        Learner(linear(), toy_dls(), cbs=[TrainCB(), 0])


def test_a_learner_stores_at_most_25_attributes_and_each_is_declared():
    methods = vars(Learner).keys() | vars(Loop).keys()
    declared = vars(LoopState)["__annotations__"].keys() - methods
    assert len(declared) <= 25, sorted(declared)
    learn = toy_learner([MetricsCB(quiet=True)])
    learn.fit(1)
    dispatch = {"_table", "_owners", "_wrap", "handling", "unheard"}  # of events and actions
    assert vars(learn).keys() <= declared | dispatch
