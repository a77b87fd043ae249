"""A monitored column that some rounds lack, and one that none has."""

import math
import warnings

import pytest
from toys import toy_learner

from minilearn import (
    Callback,
    CancelBatchException,
    CheckpointCB,
    EarlyStopCB,
    MetricsCB,
    PlateauCB,
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
