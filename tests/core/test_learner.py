"""The Learner: what it takes, what it keeps, how callbacks come and go between fits."""

from functools import partial

import numpy as np
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
from minilearn.core.events import MissingActionError
from minilearn.core.learner import Loop
from minilearn.core.state import LoopState
from minilearn.distributed.accelerate import AccelerateCB
from minilearn.learner import Learner, TrainLearner
from minilearn.metrics.callback import MetricsCB
from minilearn.progress.callback import ProgressCB

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


USUAL = ["TrainCB", "DeviceCB", "MetricsCB", "ProgressCB"]


def kinds(learn):
    return [type(cb).__name__ for cb in learn.cbs]


def test_metrics_come_with_the_usual_callbacks():
    assert kinds(Learner(linear(), toy_dls(), metrics=F.l1_loss)) == USUAL


def test_callbacks_beside_metrics_take_the_place_of_the_usual_ones_or_are_added():
    class Own(TrainCB): ...

    given = [trace := Trace(), own := Own(n_inp=1), ProgressCB]
    learn = Learner(linear(), toy_dls(), cbs=given, metrics=F.l1_loss)
    assert kinds(learn) == ["Own", *USUAL[1:], "Trace"]
    assert learn.cbs[0] is own and learn.cbs[-1] is trace
    learn.fit(1)
    assert "l1_loss" in learn.history.columns


def test_metrics_in_two_places_are_an_error_but_an_empty_list_of_them_is_not():
    with pytest.raises(ValueError, match="metrics= and in a MetricsCB"):
        Learner(linear(), toy_dls(), cbs=MetricsCB(F.l1_loss), metrics=F.mse_loss)
    learn = Learner(linear(), toy_dls(), cbs=(own := MetricsCB(F.l1_loss)), metrics=[])
    assert learn.find(MetricsCB) is own and kinds(learn) == USUAL


def test_a_callback_that_places_batches_leaves_no_device_callback_beside_it():
    pytest.importorskip("accelerate")
    learn = Learner(linear(), toy_dls(), cbs=AccelerateCB(cpu=True), metrics=[])
    assert kinds(learn) == ["AccelerateCB", "MetricsCB", "ProgressCB"]


def test_a_learner_that_lists_nothing_trains_as_with_an_empty_list_of_metrics(capsys):
    ours, theirs = linear(seed=0), linear(seed=0)
    learn = Learner(ours, toy_dls())
    assert learn.cbs == []
    learn.fit(2)
    shown = capsys.readouterr().out
    Learner(theirs, toy_dls(), metrics=[]).fit(2)
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=0, atol=0)
    assert kinds(learn) == USUAL and "valid_loss" in shown
    train = learn.find(TrainCB)
    learn.fit(1)
    assert learn.find(TrainCB) is train  # the usual ones stay


def test_whether_the_usual_callbacks_come_is_judged_with_those_of_the_fit():
    learn = Learner(linear(), toy_dls())
    learn.fit(1, cbs=TrainCB())
    assert kinds(learn) == [] and learn.history.columns == ["epoch", "steps", "time"]
    learn.fit(1, cbs=[mine := MetricsCB(F.l1_loss), Trace()])
    assert "l1_loss" in learn.history.columns
    assert sorted(kinds(learn)) == sorted(USUAL) and learn.find(MetricsCB) is not mine
    learn.fit(1)
    assert "valid_loss" in learn.history.columns


def test_a_learner_that_answers_its_actions_gets_no_usual_callbacks():
    learn = TrainLearner(linear(), toy_dls())
    learn.fit(1)
    assert kinds(learn) == []
    with pytest.raises(MissingActionError, match="'predict'"):
        Learner(linear(), toy_dls(), cbs=[]).fit(1)
    with pytest.raises(MissingActionError, match="'predict'"):
        Learner(linear(), toy_dls(), cbs=[MetricsCB()]).fit(1)


@pytest.mark.parametrize("probe", ["validate", "get_preds", "summary", "dry_run", "lr_find"])
def test_nested_runs_of_a_learner_that_lists_nothing_work_and_add_nothing(probe):
    learn = Learner(linear(), toy_dls())
    before = linear().weight
    getattr(learn, probe)()
    assert learn.cbs == [] and torch.equal(learn.model.weight, before)


def test_the_repr_shows_the_callbacks_that_a_fit_would_have():
    assert "ProgressCB() (the usual ones, since none are listed)" in repr(
        Learner(linear(), toy_dls())
    )
    assert "usual" not in repr(Learner(linear(), toy_dls(), cbs=[]))


class Kept(Callback):
    """What a fit was asked for."""

    def before_fit(self, learn):
        self.lr = learn.opt and learn.opt.param_groups[0]["lr"]
        self.phases = []

    def before_epoch(self, learn):
        self.phases.append(learn.training)


@pytest.mark.parametrize(
    "args, phases, lr",
    [
        ((), [True, False], 0.1),
        ((2,), [True, False] * 2, 0.1),
        ((1, 0.5), [True, False], 0.5),
        ((1, 1), [True, False], 1),  # a number, not a bool
        ((1, None), [True, False], 0.1),
        ((1, 0.5, "cb"), [True, False], 0.5),
        ((1, True), [True, False], 0.1),
        ((1, False), [False], None),
        ((1, np.bool_(False)), [False], None),
        ((1, True, False), [True], 0.1),
        ((1, False, True), [False], None),
        ((1, True, True, "cb"), [True, False], 0.1),
        ((1, True, False, "cb", 0.5), [True], 0.5),
    ],
)
def test_a_bool_after_the_epochs_means_the_order_of_miniai(args, phases, lr):
    learn, kept = Learner(linear(), toy_dls(), cbs=TrainCB()), Kept()
    given = tuple(kept if arg == "cb" else arg for arg in args)
    learn.fit(*given, **({} if "cb" in args else {"cbs": kept}))
    assert kept.phases == phases and kept.lr == lr


def test_arguments_of_miniais_order_mix_with_keywords_and_not_with_themselves():
    learn, kept = Learner(linear(), toy_dls(), cbs=TrainCB()), Kept()
    learn.fit(1, True, lr=0.5, cbs=kept)
    assert kept.lr == 0.5 and kept.phases == [True, False]
    learn.fit(n_epochs=1, train=True, valid=False, cbs=kept)
    assert kept.phases == [True]
    with pytest.raises(TypeError, match=r"fit\(1, True, …\).* twice"):
        learn.fit(1, True, train=True)
    with pytest.raises(TypeError, match="too many"):
        learn.fit(1, True, True, None, 0.1, 3)
    with pytest.raises(TypeError, match="positional"):
        learn.fit(1, 0.1, None, True)


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
    assert Learner(linear(), toy_dls(), cbs=[]).cbs == []


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
    before.assert_fit_left_nothing()


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
