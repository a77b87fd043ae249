"""Windows, means and sums against plain Python; what the documents of the seeds show."""

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minilearn import HistoryBuffer, MetricStorage

VALUES = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=300)


@given(VALUES, st.integers(1, 30), st.booleans())
def test_a_buffer_is_what_plain_python_says(values, size, as_tensors):
    buffer = HistoryBuffer(window_size=size)
    for value in values:
        buffer.update(torch.tensor(value) if as_tensors else value)
    window = values[-size:]
    assert buffer.latest == values[-1]
    assert buffer.avg == statistics.fmean(window)
    assert buffer.median == statistics.median(window)
    assert buffer.global_sum == pytest.approx(sum(values), abs=1e-9)
    assert buffer.global_avg == pytest.approx(sum(values) / len(values), abs=1e-9)


def test_the_example_of_the_window_of_two():
    buffer, shown = HistoryBuffer(2), []
    for value in (0.5, 0.8, 0.3, 0.4, 0.3):
        buffer.update(value)
        shown.append(buffer.avg)
    assert shown == pytest.approx([0.5, 0.65, 0.55, 0.35, 0.35])


def test_a_window_has_twenty_values_by_default():
    buffer = HistoryBuffer()
    for value in range(100):
        buffer.update(value)
    assert buffer.avg == statistics.fmean(range(80, 100))


def test_numbers_and_tensors_may_take_turns():
    buffer = HistoryBuffer(3)
    for value in (1, torch.tensor([2.0]), 3.5):
        buffer.update(value)
    assert (buffer.window, buffer.global_sum) == ([1, 2.0, 3.5], 6.5)


def test_a_buffer_goes_on_where_it_was():
    whole, first, second = HistoryBuffer(4), HistoryBuffer(4), HistoryBuffer(4)
    values = torch.randn(10)
    for value in values[:6]:
        whole.update(value)
        first.update(value)
    whole.state_dict()
    second.load_state_dict(first.state_dict())
    for value in values[6:]:
        whole.update(value)
        second.update(value)
    assert second.state_dict() == whole.state_dict()


def test_the_example_of_the_storage():
    storage = MetricStorage()
    storage.update(iter=0, loss=0.2)
    storage.update(iter=0, lr=0.01, smooth=False)
    storage.update(iter=1, loss=0.1)
    storage.update(iter=1, lr=0.001, smooth=False)
    assert storage.values_maybe_smooth == {"loss": (1, pytest.approx(0.15)), "lr": (1, 0.001)}
    assert storage["loss"].avg == pytest.approx(0.15)


def test_iterations_count_themselves_and_must_rise():
    storage = MetricStorage(window_size=2)
    for value in (1.0, 2.0, 4.0):
        storage.update(loss=value)
    assert storage.values_maybe_smooth == {"loss": (2, 3.0)}
    with pytest.raises(ValueError, match="'loss' must rise: it was 2, and now is 2"):
        storage.update(iter=2, loss=1.0)
    storage.update(iter=9, loss=6.0)
    assert storage.values_maybe_smooth == {"loss": (9, 5.0)}


def test_a_name_may_show_its_median_as_detectron2_prints_losses():
    storage = MetricStorage(window_size=3)
    for loss in (9.0, 1.0, 2.0, 7.0):
        storage.update(loss=torch.tensor(loss), smooth="median")
    assert storage.values_maybe_smooth == {"loss": (3, 2.0)}
    fresh = MetricStorage(window_size=3)
    fresh.load_state_dict(storage.state_dict())
    fresh.update(loss=3.0, smooth="median")
    assert fresh.values_maybe_smooth == {"loss": (4, 3.0)}


def test_smoothing_is_fixed_for_a_name():
    storage = MetricStorage()
    storage.update(lr=0.1, smooth=False)
    with pytest.raises(ValueError, match="'lr' began with smooth=False"):
        storage.update(lr=0.1)


def test_a_storage_goes_on_where_it_was():
    storage, other = MetricStorage(2), MetricStorage(2)
    storage.update(loss=torch.tensor(1.0), lr=0.5)
    storage.update(smooth=False, n=3)
    other.load_state_dict(storage.state_dict())
    for each in (storage, other):
        each.update(loss=2.0)
    assert other.values_maybe_smooth == storage.values_maybe_smooth
    with pytest.raises(ValueError, match="began with smooth=False"):
        other.update(n=4)
