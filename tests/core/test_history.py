"""The history: one row a round, read by row and by column."""

import csv
import math

import pytest
from toys import At, toy_learner

from minilearn.core.callback import Callback
from minilearn.core.events import (
    CancelBatchException,
    CancelEpochException,
    CancelFitException,
    CancelRoundException,
)
from minilearn.core.history import History, format_value, in_order


class Columns(Callback):
    """Adds columns to the row, in an order that is not theirs."""

    def after_epoch(self, learn):
        learn.row["train_loss" if learn.training else "valid_loss"] = float(learn.epoch)
        learn.row["train_accuracy" if learn.training else "accuracy"] = 0.5


def test_the_history_is_empty_before_the_first_fit_and_anew_with_each():
    learn = toy_learner()
    assert learn.history == [] and isinstance(learn.history, History)
    assert "no rows yet" in repr(learn.history)
    learn.fit(3)
    learn.fit(2)
    assert learn.history["epoch"] == [0, 1]


def test_columns_of_the_training_come_before_those_of_the_validation():
    row = {"time": 1, "accuracy": 2, "train_accuracy": 3, "valid_loss": 4, "epoch": 5}
    assert list(in_order(row)) == ["epoch", "valid_loss", "train_accuracy", "accuracy", "time"]


def test_a_row_a_round_with_its_columns_in_order():
    learn = toy_learner([Columns()])
    learn.fit(3, valid_every=2)
    names = ["epoch", "steps", "train_loss", "valid_loss", "train_accuracy", "accuracy", "time"]
    assert learn.history.columns == names
    assert list(learn.history[1]) == names
    assert learn.history["steps"] == [2, 4, 6]
    assert learn.history["valid_loss"] == [None, 1.0, None]
    assert all(t >= 0 for t in learn.history["time"])


def test_rows_are_complete_when_after_round_comes_and_learn_row_is_the_last():
    seen = []
    learn = toy_learner([At("after_round", lambda learn: seen.append(dict(learn.history[-1])))])
    learn.fit(1)
    assert seen == learn.history
    assert learn.row is learn.history[-1]


CANCELS = [CancelBatchException, CancelEpochException, CancelRoundException, CancelFitException]


@pytest.mark.parametrize("cancel", CANCELS)
def test_a_round_that_was_cancelled_has_its_row(cancel):
    at = At("after_loss", cancel, lambda learn: learn.epoch == 1)
    learn = toy_learner([at])
    learn.fit(3)
    assert learn.history["epoch"] == ([0, 1] if cancel is CancelFitException else [0, 1, 2])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("training", [True, False])
def test_errors_and_interrupts_leave_no_half_row(error, training):
    when = {"when": lambda learn: (learn.epoch, learn.training) == (1, training)}
    learn = toy_learner([At("after_loss", error, **when)])
    with pytest.raises(error):
        learn.fit(3)
    assert learn.history["epoch"] == [0]


def table():
    return History(
        [
            {"epoch": 0, "time": 1.5, "train_loss": 0.1 + 0.2, "kind": "first, half"},
            {"epoch": 1, "time": 2.0, "train_loss": math.nan, "accuracy": 1e-5},
        ]
    )


def test_columns_and_rows_can_be_read():
    history = table()
    assert history[0]["epoch"] == 0 and history["epoch"] == [0, 1]
    assert isinstance(history[:1], History) and history[:1].columns == [
        *["epoch", "train_loss", "kind", "time"]
    ]
    assert history["accuracy"] == [None, 1e-5]
    with pytest.raises(KeyError, match="no column 'acc'.*accuracy"):
        history["acc"]
    with pytest.raises(KeyError, match="no rows yet"):
        History()["loss"]


def test_a_csv_has_numbers_in_full_and_gaps_where_a_row_lacks_a_column(tmp_path):
    table().to_csv(tmp_path / "h.csv")
    with (tmp_path / "h.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["train_loss"]) == 0.1 + 0.2
    assert rows[0]["kind"] == "first, half" and rows[0]["accuracy"] == ""
    assert math.isnan(float(rows[1]["train_loss"]))


def test_a_data_frame_has_the_same_columns_and_rows():
    pytest.importorskip("pandas")
    frame = table().to_pandas()
    assert list(frame.columns) == table().columns
    assert frame["train_loss"][0] == 0.1 + 0.2 and math.isnan(frame["accuracy"][0])


def test_the_text_is_a_table_whose_lines_are_of_one_length():
    lines = str(table()).splitlines()
    assert len({len(line) for line in lines}) == 1 and len(lines) == 3
    assert lines[0].split() == ["epoch", "train_loss", "kind", "accuracy", "time"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (3, "3"),
        (0.25, "0.2500"),
        (1e-5, "1e-05"),
        (0.0, "0.0000"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        ("x" * 40, "x" * 23 + "…"),
    ],
)
def test_values_are_shown_short(value, text):
    assert format_value(value) == text
