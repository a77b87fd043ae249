"""What messages and tables are made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minilearn.base.text import did_you_mean, few, in_columns, whole, without_address


@pytest.mark.parametrize("value", [1, 3, np.int64(3), 10**12])
def test_a_whole_number_is_taken_as_an_int(value):
    assert whole("n", value) == value and type(whole("n", value)) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, True, "3", None, float("nan"), np.float32(1)])
def test_what_is_no_number_of_things_is_refused_by_name(value):
    with pytest.raises(ValueError, match=r"n is a number of batches, 1 or more; got "):
        whole("n", value, of="batches")


def test_zero_is_whole_where_it_is_the_least():
    assert whole("n", 0, least=0) == 0
    with pytest.raises(ValueError, match="n is a whole number, 0 or more; got -1"):
        whole("n", -1, least=0)


def test_a_near_name_is_found_whatever_its_case():
    assert did_you_mean("ADAMV", ["SGD", "AdamW"]) == "; did you mean 'AdamW'?"
    assert did_you_mean("adam", ["AdamW", "Adam", "SGD"], n=2).endswith("'Adam' or 'AdamW'?")
    assert did_you_mean("zzz", ["SGD", "AdamW"]) == ""


def test_few_names_say_how_many_more_there_are():
    assert few(["a", "b"]) == "a, b"
    assert few(list("abcdef")) == "a, b, c, d and 2 more"
    assert few(list("abcdefghij"), 3) == "a, b, c and 7 more"
    assert few(list("abc"), 3) == "a, b, c"


cells = st.text("ab é", max_size=5)


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1)
    )
)
def test_every_cell_is_under_the_one_above(rows):
    lines = in_columns(rows, [str.ljust])
    start = 0
    for i, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        just = str.ljust if i == 0 else str.rjust
        for line, cell in zip(lines, column, strict=True):
            assert line.ljust(start + width)[start : start + width] == just(cell, width)
        start += width + 2


def test_an_object_is_shown_alike_in_any_process_and_where_its_repr_fails():
    class Broken:
        def __repr__(self):
            raise AttributeError("set by a fit")

    assert without_address(object()) == "<object object>"
    assert without_address(Broken()) == "<Broken>"
