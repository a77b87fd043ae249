"""PlateauCB: who reads a column of the history, when, and what it says of one that is missing."""

import math

import pytest
from torch.optim import lr_scheduler

from minilearn.callbacks.monitor import Monitor
from minilearn.optim.sched_callbacks import BatchSchedCB, PlateauCB
from tests.rates import (
    Row,
    fit,
)


def check_plateau(cb, rates, values=(3, 2, 2.5), **kwargs):
    learn, used = fit(Row(values=values), cb, n_epochs=6, valid_every=2, **kwargs)
    assert cb.schedo.last_epoch == 3
    assert used.of_epochs() == pytest.approx(rates)


@pytest.mark.case("C045")
def test_a_plateau_is_stepped_only_after_validations():
    check_plateau(PlateauCB("valid_loss", patience=1), [1] * 6)
    check_plateau(PlateauCB("valid_loss", patience=0), [1, 1, 1, 1, 0.1, 0.1], values=(2, 3, 1))


@pytest.mark.case("C045")
def test_the_check_finds_a_plateau_that_counts_old_values_again():
    class Again(PlateauCB):
        def after_round(self, learn):
            self._advance(learn.row.get("valid_loss", 3.0))

    with pytest.raises(AssertionError):
        check_plateau(Again("valid_loss", patience=1), [1] * 6)


@pytest.mark.case("C045")
def test_an_unknown_column_raises_at_the_first_validation_and_near_names_are_listed():
    with pytest.raises(KeyError, match="val_loss.*did you mean 'valid_loss'.*valid_loss"):
        fit(Row(), PlateauCB("val_loss"), n_epochs=6, valid_every=2)


def test_a_plateau_given_as_a_schedule_is_sent_to_plateaucb():
    with pytest.raises(TypeError, match="PlateauCB"):
        fit(BatchSchedCB(lr_scheduler.ReduceLROnPlateau))


def test_better_is_strictly_better_than_the_best_so_far():
    low, high = Monitor("valid_loss", min_delta=0.1), Monitor("accuracy", "max")
    assert [low.update(v) for v in (1.0, 0.95, 0.85, 0.85, math.nan, -math.inf)] == [
        True,
        False,
        True,
        False,
        False,
        False,
    ]
    assert [high.update(v) for v in (math.inf, 0.5, 0.5, 0.6)] == [False, True, False, True]
    assert (low.best, high.best) == (0.85, 0.6)
    again = Monitor("accuracy", "max")
    again.load_state_dict(high.state_dict())
    assert not again.better(0.6) and again.better(0.61)


@pytest.mark.parametrize("kwargs", [{}, {"mode": "up"}, {"mode": "max", "min_delta": -1}])
def test_a_direction_must_be_known(kwargs):
    with pytest.raises(ValueError):
        Monitor("accuracy", **kwargs)


def test_a_value_that_is_missing_once_is_no_validation():
    cb = PlateauCB("valid_loss", patience=0)
    fit(Row(values=[1.0, None, 2.0]), cb, n_epochs=3)
    assert cb.schedo.last_epoch == 2


@pytest.mark.parametrize("value", [[0.5, 0.6], "good", {"a": 1.0}])
def test_a_column_without_one_number_cannot_be_watched_and_is_named(value):
    with pytest.raises(TypeError, match="column 'parts' has .* one number"):
        fit(Row("parts", [value]), PlateauCB("parts", "max"), n_epochs=1)
