"""A monitored column that some rounds lack, and one that none has."""

import math
import warnings

import pytest
from toys import linear, toy_dls, toy_learner

from minilearn import (
    Callback,
    CancelBatchException,
    CheckpointCB,
    DataLoaders,
    EarlyStopCB,
    LambdaCB,
    Learner,
    MetricsCB,
    PlateauCB,
    TrainCB,
)
from minilearn.callbacks import early_stopping as stopping
from minilearn.callbacks.monitor import Monitor


class Skips(Callback):
    """Cancels every batch of some epochs."""

    def __init__(self, rounds, training=False):
        self.rounds, self.training = rounds, training

    def before_batch(self, learn):
        if learn.training is self.training and learn.epoch in self.rounds:
            raise CancelBatchException


WATCHERS = {
    "stop": lambda name, folder: EarlyStopCB(name, "min", patience=9),
    "plateau": lambda name, folder: PlateauCB(name, "min", patience=9),
    "saver": lambda name, folder: CheckpointCB(folder, monitor=name, mode="min", save_last=False),
}


def parts(preds, targs):
    return (preds - targs).abs().mean()


def check_passed_over(watcher, name, rounds, folder):
    """Fit where nothing is measured in some rounds; return the column."""
    cb = WATCHERS[watcher](name, folder)
    skips = Skips(rounds, training=name.startswith("train_"))
    learn = toy_learner([MetricsCB(parts=parts, quiet=True), skips, cb])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learn.fit(4)
    said = [str(w.message) for w in caught if f"has no {name!r}" in str(w.message)]
    assert len(said) == 1 and f"epoch {rounds[0]} " in said[0]
    assert [i for i, row in enumerate(learn.history) if name not in row] == rounds
    values = [row[name] for row in learn.history if name in row]
    found = cb.schedo.best if watcher == "plateau" else cb.monitor.best
    assert found == min(values, default=math.inf if watcher == "plateau" else None)


@pytest.mark.parametrize("rounds", [[0], [1, 2], [3], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("name", ["valid_loss", "train_loss", "parts", "train_parts"])
@pytest.mark.parametrize("watcher", WATCHERS)
def test_a_round_in_which_nothing_was_measured_is_ignored_with_one_warning(
    watcher, name, rounds, tmp_path
):
    check_passed_over(watcher, name, rounds, tmp_path)


class Blind(Monitor):
    """Broken: what the first round lacks is taken for a name that no round ever has."""

    def _may_come(self, learn):
        return False


def test_a_monitor_that_takes_it_for_a_wrong_name_would_be_seen(monkeypatch, tmp_path):
    monkeypatch.setattr(stopping, "Monitor", Blind)
    with pytest.raises(KeyError, match="no column 'valid_loss'"):
        check_passed_over("stop", "valid_loss", [0], tmp_path)


class Two:
    """A metric of two columns, whose names nobody knows before they are there."""

    def reset(self):
        self.n = 0

    def update(self, preds, targs):
        self.n += len(preds)

    def compute(self):
        return {"a": 1.0, "b": float(self.n)}


def watched_two(watcher, name, folder):
    cbs = [MetricsCB(two=Two(), quiet=True), Skips([0]), WATCHERS[watcher](name, folder)]
    return toy_learner(cbs)


@pytest.mark.parametrize("watcher", WATCHERS)
def test_columns_that_are_known_only_when_they_are_there_are_waited_for(watcher, tmp_path):
    learn = watched_two(watcher, "two_b", tmp_path)
    with pytest.warns(UserWarning, match="epoch 0 has no 'two_b'"):
        learn.fit(3)
    assert learn.history["two_b"] == [None, 2.0, 2.0]


@pytest.mark.parametrize("watcher", WATCHERS)
def test_a_wrong_name_raises_after_the_first_round_in_which_something_was_measured(
    watcher, tmp_path
):
    learn = watched_two(watcher, "two_c", tmp_path)
    with (
        pytest.warns(UserWarning, match="epoch 0 has no 'two_c'"),
        pytest.raises(KeyError, match="'two_c' to monitor; did you mean .*two_b"),
    ):
        learn.fit(3)
    assert len(learn.history) == 2


@pytest.mark.parametrize("watcher", WATCHERS)
def test_a_name_of_epochs_that_are_not_run_is_an_error(watcher, tmp_path):
    learn = toy_learner([MetricsCB(quiet=True), WATCHERS[watcher]("train_loss", tmp_path)])
    with pytest.raises(KeyError, match="no column 'train_loss'"):
        learn.fit(2, train=False)


# ---- at the start ----


def check_wrong_name(watcher, name, folder, near, cbs=None, **kwargs):
    """A name that nobody provides is an error before the first batch, with near names."""
    cbs = [MetricsCB(parts=parts, quiet=True)] if cbs is None else cbs
    learn = toy_learner([*cbs, WATCHERS[watcher](name, folder)], **kwargs)
    with pytest.raises(KeyError, match=f"no column '{name}' to monitor; {near}"):
        learn.fit(2)
    assert learn.steps_done == 0


@pytest.mark.case("F45")
@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("prats", "did you mean 'parts'"),
        ("valid_parts", "did you mean"),
        ("val_loss", "did you mean 'valid_loss'"),
        ("loss", "the columns are: train_loss, valid_loss"),
        ("train_prats", "did you mean"),
    ],
)
@pytest.mark.parametrize("watcher", WATCHERS)
def test_a_name_that_nobody_provides_is_an_error_before_the_first_batch(
    watcher, name, near, tmp_path
):
    check_wrong_name(watcher, name, tmp_path, near)


@pytest.mark.case("F45")
def test_where_nobody_measures_that_is_an_error_too(tmp_path):
    check_wrong_name("stop", "valid_loss", tmp_path, r"the columns are: none \(add", cbs=[])


@pytest.mark.case("F45")
@pytest.mark.parametrize("watcher", WATCHERS)
def test_an_error_after_the_first_round_would_be_seen(watcher, tmp_path, monkeypatch):
    monkeypatch.setattr(Monitor, "check", lambda self, learn: None)
    with pytest.raises(AssertionError):
        check_wrong_name(watcher, "prats", tmp_path, "did you mean 'parts'")


class Writes(Callback):
    def after_epoch(self, learn):
        learn.row = {**learn.row, "mine": 1.0}


def write_mine(learn):
    learn.row["mine"] = 1.0


def loss_of_parts(preds, targs):
    return {"mine": (preds - targs).square().mean(), "other": preds.square().mean()}


def named_dls():
    return DataLoaders(*toy_dls(), extra=toy_dls()[1])


PROVIDERS = {
    "a callback": lambda: (toy_learner([MetricsCB(quiet=True), Writes()]), "mine"),
    "a function": lambda: (
        toy_learner([MetricsCB(quiet=True), LambdaCB(after_epoch=write_mine)]),
        "mine",
    ),
    "a part of the loss": lambda: (
        Learner(linear(), toy_dls(), loss_of_parts, cbs=[TrainCB(), MetricsCB(quiet=True)]),
        "mine",
    ),
    "a part of a metric": lambda: (toy_learner([MetricsCB(two=Two(), quiet=True)]), "two_b"),
    "training": lambda: (toy_learner([MetricsCB(two=Two(), quiet=True)]), "train_two_b"),
    "another set": lambda: (toy_learner([MetricsCB(quiet=True)], dls=named_dls()), "extra_loss"),
    "a set's metric": lambda: (
        toy_learner([MetricsCB(two=Two(), quiet=True)], dls=named_dls()),
        "extra_two_a",
    ),
    "the loop": lambda: (toy_learner([MetricsCB(quiet=True)]), "time"),
}


@pytest.mark.case("F45")
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("watcher", WATCHERS)
def test_a_name_that_may_come_ends_no_fit(watcher, provider, tmp_path):
    learn, name = PROVIDERS[provider]()
    learn.fit(2, cbs=WATCHERS[watcher](name, tmp_path))
    assert len(learn.history[name]) == 2


@pytest.mark.parametrize("watcher", WATCHERS)
@pytest.mark.parametrize("cbs", [[], [Skips([])]], ids=["ours", "mine"])
def test_a_column_of_a_validation_that_the_fit_does_not_have_is_an_error(watcher, cbs, tmp_path):
    watch = WATCHERS[watcher]("valid_loss", tmp_path)
    for dls, valid in (((toy_dls()[0],), True), (toy_dls(), False)):
        learn = toy_learner([MetricsCB(quiet=True), *cbs, watch], dls=dls)
        with pytest.raises(KeyError, match="'valid_loss' to monitor.*has no validation"):
            learn.fit(3, valid=valid)
        assert len(learn.history) <= len(cbs)  # a callback of mine may have added it


def test_a_name_that_is_nearly_a_column_warns_at_the_start_where_a_callback_may_add_it():
    learn = toy_learner(
        [MetricsCB(parts=parts, quiet=True), Skips([]), EarlyStopCB("prats", "min")]
    )
    with pytest.warns(UserWarning, match="so far there is no column 'prats'.* mean 'parts'"):
        with pytest.raises(KeyError, match="no column 'prats'"):
            learn.fit(2)
