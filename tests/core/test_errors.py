"""Errors, interrupts, errors in clean-ups: what leaves the fit, with which notes, what stays."""

import re

import pytest
import torch
import torch.nn.functional as F
from story import Story, disturbed_learner, occurrences
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toys import (
    ACTIONS,
    POINTS,
    At,
    Before,
    Trace,
    batches,
    linear,
    plain_trace,
    toy_dls,
    toy_learner,
)

from minilearn.callbacks.precision import MixedPrecision
from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback, CleanUp
from minilearn.core.events import (
    CancelBatchException,
    CancelEpochException,
    CancelFitException,
    CancelRoundException,
)
from minilearn.learner import Learner


@pytest.mark.parametrize("point", [*POINTS, *ACTIONS])
@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_at_any_point_leaves_the_fit_after_all_clean_up_and_leaves_nothing(kind, point):
    for nth in range(1, min(3, occurrences(point)) + 1):
        error, story = kind("here"), Story(point, nth, kind())
        learn, events, _ = disturbed_learner(point, nth, error)
        before = Before(learn)
        with pytest.raises(kind) as caught:
            learn.fit(2)
        assert caught.value is error
        assert events == story.trace
        assert learn.interrupted is (kind is KeyboardInterrupt)
        before.assert_fit_left_nothing()
        events.clear()
        learn.fit(1)
        assert events == plain_trace(1)
        assert learn.interrupted is False


def notes(error):
    return getattr(error, "__notes__", [])


@pytest.mark.parametrize(
    ("point", "where"),
    [
        ("after_batch", "in At.after_batch, epoch 1, batch 1 (training), batch shapes "),
        ("cleanup_batch", "in At.cleanup_batch, epoch 1, batch 1 (training), batch shapes "),
        ("get_loss", "in TracedTrainCB.get_loss, epoch 1, batch 1 (training), batch shapes "),
    ],
)
def test_an_error_gets_one_note_that_says_where(point, where):
    learn, _, _ = disturbed_learner(point, 1, error := ValueError("x"))
    for cb in learn.cbs:
        if hasattr(cb, "when"):
            cb.when = lambda learn: (learn.training, learn.epoch, learn.iter) == (True, 1, 1)
    with pytest.raises(ValueError):
        learn.fit(2)
    of_loss = ", predictions Tensor[2, 1]" if point == "get_loss" else ""
    assert notes(error) == [where + "tuple(Tensor[2, 3], Tensor[2, 1])" + of_loss]
    assert error.args == ("x",)


def last_batch_of_one(*layers, n=9, bs=4):
    """Fit a model with a batch norm on `n` samples, and return the note on the error."""
    dl = DataLoader(TensorDataset(torch.randn(n, 3), torch.randn(n, 1)), bs)
    model = nn.Sequential(nn.Linear(3, 4), *layers, nn.Flatten(), nn.Linear(4, 1))
    with pytest.raises(ValueError) as caught:
        toy_learner(dls=(dl,), model=model).fit(1)
    return notes(caught.value)[0]


@pytest.mark.case("F40")
@pytest.mark.parametrize(
    "layers",
    [
        [nn.BatchNorm1d(4)],
        [nn.Unflatten(1, (4, 1, 1)), nn.BatchNorm2d(4)],
        [nn.Sequential(nn.SyncBatchNorm(4))],
    ],
)
def test_a_last_batch_of_one_sample_before_a_batch_norm_says_drop_last(layers):
    assert "batch 2 (training)" in (note := last_batch_of_one(*layers))
    assert note.endswith("drop_last=True leaves such a batch out")


@pytest.mark.case("F40")
def test_the_check_notices_another_error_in_the_model():
    with pytest.raises(AssertionError):
        assert last_batch_of_one(nn.BatchNorm2d(4)).endswith(
            "drop_last=True leaves such a batch out"
        )


X, LABELS = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
TO_SCALAR = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))


@pytest.mark.parametrize(
    ("model", "x", "y", "loss", "advice"),
    [
        (nn.Linear(3, 2), X.double(), LABELS, F.cross_entropy, r"inputs\.float\(\)"),
        (nn.Linear(3, 2), X.half(), LABELS, F.cross_entropy, r"inputs\.float\(\)"),
        (nn.Conv1d(1, 2, 3), X[:, None].byte(), LABELS, F.cross_entropy, r"inputs\.float\(\)"),
        (nn.Linear(3, 2), X, LABELS.float(), F.cross_entropy, r"targets\.long\(\)"),
        (nn.Linear(3, 2), X, LABELS.int(), F.cross_entropy, r"targets\.long\(\)"),
        (nn.Linear(3, 2), X, LABELS[:, None], F.cross_entropy, r"targets\.squeeze\(1\)"),
        (nn.Linear(3, 2), X, LABELS + 1, F.cross_entropy, "more classes than outputs"),
        (TO_SCALAR, X, LABELS, F.binary_cross_entropy_with_logits, r"targets\.float\(\)"),
        (
            nn.Linear(3, 1),
            X,
            LABELS.float(),
            F.binary_cross_entropy_with_logits,
            r"Tensor\[4\]\), predictions Tensor\[4, 1\].*preds\.squeeze\(1\)",
        ),
        (nn.Embedding(9, 2), X[:, 0], LABELS, F.cross_entropy, r"inputs\.long\(\)"),
        (nn.Linear(4, 2), X, LABELS, F.cross_entropy, "another number of features"),
        (nn.Conv1d(5, 2, 3), X[:, None], LABELS, F.cross_entropy, "another number of channels"),
    ],
)
def test_a_wrong_type_or_shape_says_what_to_write(model, x, y, loss, advice):
    with pytest.raises((RuntimeError, ValueError, IndexError)) as caught:
        Learner(model, ([(x, y)],), loss, lr=0.1, cbs=TrainCB()).fit(1)
    assert re.search(advice, notes(caught.value)[0]), notes(caught.value)


def test_a_loss_without_targets_for_it_says_who_names_them():
    class OfDicts(nn.Linear):
        def forward(self, x, labels):
            return super().forward(x)

    learn = Learner(OfDicts(3, 2), ([{"x": X, "labels": LABELS}],), F.cross_entropy, cbs=TrainCB())
    with pytest.raises(TypeError) as caught:
        learn.fit(1)
    assert notes(caught.value)[0].endswith("name them, TrainCB(targets=…)")


def test_a_transformer_that_torch_cannot_evaluate_in_half_precision_says_how_it_can():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    class Masked(nn.TransformerEncoder):
        def forward(self, x):
            return super().forward(x, src_key_padding_mask=x[..., 0] > 0)

    x = torch.ones(2, 5, 4)
    x[:, :3, 0] = -1
    data = [(x, torch.zeros(2, 5, 4))]
    learn = Learner(
        Masked(layer, 1), (data, data), F.mse_loss, cbs=[TrainCB(), MixedPrecision("bf16")]
    )
    with pytest.raises(RuntimeError) as caught:
        learn.fit(1)
    assert notes(caught.value)[0].endswith("set_fastpath_enabled(False)")
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        learn.fit(1)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_the_note_says_so_where_the_epoch_is_a_validation():
    error = ValueError()
    learn = toy_learner([At("after_loss", error, when=lambda learn: not learn.training)])
    with pytest.raises(ValueError):
        learn.fit(1)
    assert notes(error)[0].startswith("in At.after_loss, epoch 0, batch 0 (validation)")


def test_cancels_and_interrupts_get_no_note():
    cancel, interrupt = CancelFitException(), KeyboardInterrupt()
    toy_learner([At("after_batch", cancel)]).fit(1)
    with pytest.raises(KeyboardInterrupt):
        toy_learner([At("after_batch", interrupt)]).fit(1)
    assert notes(cancel) == notes(interrupt) == []


class SeesError(Callback):
    """Writes down what `learn.error` holds during each clean-up, and that it is None elsewhere."""

    def __init__(self):
        self.seen = {}

    def after_batch(self, learn):
        assert learn.error is None

    def cleanup_batch(self, learn):
        self.seen.setdefault("batch", []).append(learn.error)

    def cleanup_epoch(self, learn):
        self.seen.setdefault("epoch", []).append(learn.error)

    def cleanup_fit(self, learn):
        self.seen.setdefault("fit", []).append(learn.error)


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt(), CancelFitException()])
def test_during_clean_up_the_learner_holds_what_ended_the_level(error):
    learn = toy_learner([sees := SeesError(), At("after_loss", error)])
    try:
        learn.fit(1)
    except BaseException as raised:
        assert raised is error
    assert sees.seen == {"batch": [error], "epoch": [error], "fit": [error]}
    assert learn.error is None


def test_a_cancel_is_the_error_of_the_levels_that_it_ends_and_of_no_other():
    cancel = CancelEpochException()
    at = At("after_loss", cancel, when=lambda learn: learn.training)
    toy_learner([sees := SeesError(), at]).fit(1)
    assert sees.seen == {"batch": [cancel, None], "epoch": [cancel, None], "fit": [None]}


# ---- errors in clean-ups ----


def test_a_fault_in_a_clean_up_beats_a_cancel_and_notes_it():
    fault, cancel = ValueError("b"), CancelFitException("enough")
    learn = toy_learner([At("after_loss", cancel), At("cleanup_batch", fault)])
    with pytest.raises(ValueError) as caught:
        learn.fit(1)
    assert caught.value is fault
    assert any("CancelFitException" in note for note in notes(fault))


@pytest.mark.parametrize("first", ["narrow", "wide"])
def test_a_wider_cancel_beats_a_narrower_one_whichever_came_first(first):
    pair = [CancelEpochException, CancelRoundException]
    inner, outer = pair if first == "narrow" else pair[::-1]
    trace = Trace()
    train = {"when": lambda learn: learn.training}
    learn = toy_learner([trace, At("after_loss", inner, **train), At("cleanup_batch", outer)])
    learn.fit(1)
    assert trace.events.count("before_epoch") == 1  # the validation went with its round
    assert trace.events[-2:] == ["after_fit", "cleanup_fit"]


def test_a_level_s_own_cancel_in_its_clean_up_changes_nothing():
    learn = toy_learner([trace := Trace(), At("cleanup_batch", CancelBatchException, times=9)])
    learn.fit(1)
    assert trace.events == [e for e in plain_trace(1) if e not in ACTIONS]


def test_an_interrupt_in_the_body_beats_an_error_in_the_clean_up():
    learn = toy_learner(
        [At("after_loss", interrupt := KeyboardInterrupt()), At("cleanup_fit", OSError("b"))]
    )
    with pytest.raises(KeyboardInterrupt):
        learn.fit(1)
    assert any("OSError" in note for note in notes(interrupt))


def check_errors_in_clean_up():
    """Error A in a batch, error B in the clean-up of the first of three callbacks."""
    a, b, cleaned = ValueError("A"), OSError("B"), []
    clean = [At("cleanup_fit", lambda learn, n=n: cleaned.append(n)) for n in (2, 3)]
    learn = toy_learner([At("cleanup_fit", b), *clean, At("after_loss", a)])
    with pytest.raises((ValueError, OSError)) as caught:
        learn.fit(1)
    assert caught.value is a
    assert any("OSError: B" in note for note in notes(a))
    assert sorted(cleaned) == [2, 3]
    # the other way round in the line: the callback that fails is cleaned up first
    cleaned.clear()
    clean = [At("cleanup_fit", lambda learn, n=n: cleaned.append(n)) for n in (1, 2)]
    with pytest.raises(OSError):
        toy_learner([*clean, At("cleanup_fit", OSError("B"))]).fit(1)
    assert sorted(cleaned) == [1, 2]


@pytest.mark.case("C072")
def test_an_error_in_clean_up_neither_hides_the_first_nor_stops_other_clean_up():
    check_errors_in_clean_up()


@pytest.mark.case("C072")
@pytest.mark.parametrize("first", [ValueError("A"), KeyboardInterrupt()], ids=repr)
def test_every_later_error_is_attached_to_the_first(first):
    later = [OSError("B"), KeyError("C"), SystemExit(4), ValueError("D")]
    events = ["cleanup_fit", "cleanup_fit", "cleanup_fit", "cleanup_batch"]
    clean = [At(event, error) for event, error in zip(events, later, strict=True)]
    with pytest.raises(type(first)) as caught:
        toy_learner([*clean, At("after_loss", first)]).fit(1)
    assert caught.value is first
    attached = [note for note in notes(first) if note.startswith("also raised")]
    assert sorted(attached) == sorted(f"also raised: {type(e).__name__}: {e}" for e in later)


@pytest.mark.case("C072")
def test_the_check_of_clean_up_notices_one_that_stops_at_the_first_error(monkeypatch):
    def stop_at_first(self, learn):
        for method in self.methods:
            method(learn)

    monkeypatch.setattr(CleanUp, "__call__", stop_at_first)
    with pytest.raises(AssertionError):
        check_errors_in_clean_up()


# ---- callbacks of one fit ----


def check_temporary_callbacks(learner_class):
    for error in (RuntimeError(), KeyboardInterrupt()):
        learn = learner_class(linear(), (batches(2),), cbs=[TrainCB(), Trace()])
        before = list(learn.cbs)
        with pytest.raises(type(error)):
            learn.fit(1, cbs=[At("after_batch", error, times=99)])
        assert len(learn.cbs) == 2
        assert all(a is b for a, b in zip(learn.cbs, before, strict=True))
        learn.fit(1)


@pytest.mark.case("C071")
def test_callbacks_of_one_fit_are_gone_after_it_failed():
    check_temporary_callbacks(Learner)


@pytest.mark.case("C071")
def test_the_check_of_temporary_callbacks_notices_one_that_stays():
    class Faulty(Learner):
        def fit(self, *args, cbs=(), **kwargs):
            self.cbs.extend(cbs)
            super().fit(*args, **kwargs)
            del self.cbs[len(self.cbs) - len(cbs) :]

    with pytest.raises(AssertionError):
        check_temporary_callbacks(Faulty)


def test_an_error_before_the_fit_began_leaves_nothing_either():
    def no_optimizer(params, lr):
        raise OSError("no optimizer today")

    learn = toy_learner(opt_func=no_optimizer)
    before, trace = Before(learn), Trace()
    with pytest.raises(OSError, match="today"):
        learn.fit(1, cbs=trace)
    before.assert_fit_left_nothing()
    assert trace.events == []


@pytest.mark.parametrize("junk", [1, "TrainCB", object()])
def test_what_is_no_callback_is_refused(junk):
    with pytest.raises(TypeError, match="no callback"):
        Learner(linear(), toy_dls(), cbs=[TrainCB(), junk])


def test_a_callback_that_is_listed_twice_is_refused():
    cb = TrainCB()
    with pytest.raises(ValueError, match="twice"):
        Learner(linear(), toy_dls(), cbs=[cb, cb])


def test_training_without_an_optimizer_says_so_at_once():
    learn = Learner(linear(), toy_dls(), cbs=[TrainCB()], opt_func=None)
    with pytest.raises(ValueError, match="opt_func= or opt="):
        learn.fit(1)


def test_a_note_of_the_users_own_does_not_hide_the_place():
    class Noted(Callback):
        def after_batch(self, learn):
            error = ValueError("upset")
            error.add_note("in production")
            raise error

    with pytest.raises(ValueError) as info:
        Learner(linear(), toy_dls(), cbs=[TrainCB(), Noted()]).fit(1)
    assert info.value.__notes__[1].startswith("in Noted.after_batch, epoch 0, batch 0 (training)")
