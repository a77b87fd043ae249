"""What `learn.log` is given becomes columns of the history."""

import pytest
from toys import batches, linear

from minilearn import Callback, EarlyStopCB, Learner, MetricsCB, TrainCB


class Sizes(Callback):
    """Logs the largest input of each batch, the epoch, and what no column can hold."""

    def after_batch(self, learn):
        learn.log(largest=learn.batch[0].max(), text="no number", many=learn.batch[0])

    def after_round(self, learn):
        learn.log(number=learn.epoch)


def uneven(seed):
    (x, y), *more = batches(3, seed=seed)
    return [(x[:1], y[:1]), *more]


def fitted(*cbs, epochs=2):
    learn = Learner(linear(), (uneven(1), uneven(2)), cbs=[TrainCB(), MetricsCB(quiet=True), *cbs])
    learn.fit(epochs)
    return learn.history


def test_logged_values_are_columns_of_the_history_as_means_over_the_items():
    def mean(data):
        return sum(len(x) * x.max().item() for x, y in data) / sum(len(x) for x, y in data)

    history = fitted(Sizes())
    assert history["train_largest"] == pytest.approx([mean(uneven(1))] * 2)
    assert history["largest"] == pytest.approx([mean(uneven(2))] * 2)
    assert history["number"] == [0, 1]
    assert not {"text", "many", "train_number"} & set(history.columns)


def test_a_monitor_may_name_a_logged_value():
    history = fitted(Sizes(), EarlyStopCB("largest", "max", patience=1), epochs=9)
    assert len(history) == 2  # it never changes


def test_a_logged_value_with_the_name_of_another_column_is_an_error():
    class Clashes(Callback):
        def after_batch(self, learn):
            learn.log(loss=1.0)

    with pytest.raises(ValueError, match="another column 'loss'"):
        fitted(Clashes())
