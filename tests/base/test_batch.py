"""Batches of any structure: walked, moved, counted and described."""

from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from minilearn.base import batch as batch_module
from minilearn.base.batch import (
    batch_size,
    default_device,
    describe,
    detach,
    map_batch,
    n_batches,
    n_rows,
    tensors,
    to_cpu,
    to_device,
)

Point = namedtuple("Point", "x y")


@dataclass
class Sample:
    image: Any
    name: str
    boxes: list = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    x: Any
    hidden: Any = field(init=False, default=None)


def nest():
    t = torch.ones(2, 3)
    return {
        "dict": OrderedDict(a=t, b=[t, t.long()]),
        "named": Point(t, None),
        "data": Sample(t, "cat", [t, 7]),
        "frozen": Frozen(t),
        "words": ["a", "b"],
        "none": None,
        "number": 5,
        "pair": (t, (t,)),
    }


def leaves(x):
    """All that is neither container nor dataclass, depth first; written apart from the package."""
    if isinstance(x, dict):
        return [leaf for v in x.values() for leaf in leaves(v)]
    if isinstance(x, (list, tuple)):
        return [leaf for v in x for leaf in leaves(v)]
    if hasattr(x, "__dataclass_fields__"):
        return [leaf for name in x.__dataclass_fields__ for leaf in leaves(getattr(x, name))]
    return [x]


def shape_of(x):
    """The types and names of all containers."""
    if isinstance(x, dict):
        return type(x), {k: shape_of(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x), [shape_of(v) for v in x]
    if hasattr(x, "__dataclass_fields__"):
        return type(x), {n: shape_of(getattr(x, n)) for n in x.__dataclass_fields__}
    return type(x)


def check_moves(move):
    old = nest()
    before = leaves(old)
    new = move(old)
    assert shape_of(new) == shape_of(old)
    for a, b in zip(before, leaves(new), strict=True):
        if isinstance(a, torch.Tensor):
            assert b.device.type == "meta" and b.shape == a.shape and b.dtype == a.dtype
        else:
            assert b is a
    after = leaves(old)
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert all(leaf.device.type == "cpu" for leaf in after if isinstance(leaf, torch.Tensor))


@pytest.mark.case("C088")
def test_every_tensor_of_a_nest_moves_and_all_else_stays_the_same_object():
    check_moves(lambda batch: to_device(batch, "meta"))


@pytest.mark.case("C088")
def test_the_check_of_moves_notices_a_walk_that_turns_tuples_and_dataclasses_into_others():
    def faulty(x):
        if isinstance(x, torch.Tensor):
            return x.to("meta")
        if isinstance(x, dict):
            return {k: faulty(v) for k, v in x.items()}
        return type(x)([faulty(v) for v in x]) if type(x) in (list, tuple) else x

    with pytest.raises(AssertionError):
        check_moves(faulty)


def test_mapping_subclasses_keep_their_class_and_what_hangs_on_them():
    class Encoding(UserDict):
        def __init__(self, data=None, note=None):
            super().__init__(data)
            self.note = note

    t = torch.ones(2)
    new = to_device(old := Encoding({"ids": t}, note="n"), "meta")
    assert type(new) is Encoding and new.note == "n" and new["ids"].device.type == "meta"
    assert old["ids"] is t
    new = to_device(old := defaultdict(list, ids=t), "meta")
    assert new.default_factory is list and old["ids"] is t
    new = to_device(MappingProxyType({"ids": t}), "meta")
    assert isinstance(new, MappingProxyType) and new["ids"].device.type == "meta"


class Boxes(list):
    """A list with something of its own."""


class Pair(tuple):
    """A tuple whose constructor takes its items one by one."""

    def __new__(cls, *items):
        return super().__new__(cls, items)


class Measured(namedtuple("Base", "x y")):
    """A named tuple whose constructor takes something else than its fields."""

    def __new__(cls, x):
        return super().__new__(cls, x, len(x))


@pytest.mark.case("C088")
@pytest.mark.parametrize(
    "make",
    [
        lambda t: Boxes([t, "a"]),
        lambda t: Pair(t, "a"),
        Measured,
        lambda t: deque([t, "a"], maxlen=7),
        lambda t: UserList([t, "a"]),
        lambda t: torch.max(t, 0),
    ],
)
def test_sequences_keep_their_class_and_what_hangs_on_them(make):
    old = make(torch.ones(2, 3))
    if hasattr(old, "__dict__"):
        old.note = "n"
    items = list(old)
    new = to_device([old], "meta")[0]
    assert type(new) is type(old) and len(new) == 2
    assert getattr(new, "note", "n") == "n" and hasattr(new, "note") is hasattr(old, "note")
    assert getattr(new, "maxlen", None) == getattr(old, "maxlen", None)
    assert new[0].device.type == "meta"
    assert all(a is b for a, b in zip(old, items, strict=True))
    assert len([*tensors(old)]) == sum(isinstance(x, torch.Tensor) for x in items)


def test_a_mapping_with_a_store_of_its_own_is_not_changed_by_the_walk():
    class Store(MutableMapping):
        def __init__(self, note, **items):
            self.note, self.items_ = note, items

        def __getitem__(self, key):
            return self.items_[key]

        def __setitem__(self, key, value):
            self.items_[key] = value

        def __delitem__(self, key):
            del self.items_[key]

        def __iter__(self):
            return iter(self.items_)

        def __len__(self):
            return len(self.items_)

    old = Store("note", x=torch.ones(2), y=None)
    new = to_device(old, "meta")
    assert isinstance(new, Store) and new.note == "note" and new["y"] is None
    assert (new["x"].device.type, old["x"].device.type) == ("meta", "cpu")


def test_objects_that_move_themselves_are_asked_to():
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = to_device(packed, "meta")
    assert isinstance(moved, PackedSequence) and moved.data.device.type == "meta"

    class Own:
        device = "cpu"

        def to(self, device):
            new = Own()
            new.device = device
            return new

    own = Own()
    assert str(to_device([own], "meta")[0].device) == "meta" and own.device == "cpu"


def test_a_custom_mapping_with_a_to_of_its_own_still_has_its_tensors_moved():
    class Encoding(UserDict):
        def to(self, device):
            return Encoding({k: v.to(device) for k, v in self.items()})

    assert to_device(Encoding(x=torch.ones(1)), "meta")["x"].device.type == "meta"


def test_strings_numbers_and_none_are_returned_as_they_are():
    for x in ("text", b"bytes", 5, 2.5, None, True, object()):
        assert map_batch(lambda t: 1 / 0, x) is x


structures = st.recursive(
    st.sampled_from([None, "s", 3]) | st.integers(1, 4).map(torch.ones),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner).map(lambda pair: Point(*pair))
        | inner.map(lambda x: Sample(x, "n"))
    ),
    max_leaves=12,
)


@given(structures)
def test_walks_of_random_structures_visit_every_tensor_once_and_keep_the_shape(structure):
    seen = []
    new = map_batch(lambda t: (seen.append(t), t + 1)[1], structure)
    expected = [leaf for leaf in leaves(structure) if isinstance(leaf, torch.Tensor)]
    assert [id(t) for t in seen] == [id(t) for t in expected]
    assert [id(t) for t in tensors(structure)] == [id(t) for t in expected]
    assert shape_of(new) == shape_of(structure)
    assert isinstance(describe(structure), str)


def test_to_cpu_detaches_and_makes_half_precision_fit_for_numpy():
    half = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    new = to_cpu({"a": half, "b": torch.ones(1, dtype=torch.int64), "c": "s"})
    assert new["a"].dtype == torch.float32 and not new["a"].requires_grad
    assert new["b"].dtype == torch.int64 and new["c"] == "s"
    new["a"].numpy()


def test_detach_cuts_every_tensor_from_its_graph():
    x = torch.ones(2, requires_grad=True) * 2
    new = detach({"x": x, "n": 3, "y": (x,)})
    assert not new["x"].requires_grad and not new["y"][0].requires_grad and new["n"] == 3
    plain = torch.ones(1)
    assert detach(plain) is plain and detach(None) is None


def images(*sizes):
    return [torch.ones(3, n, n) for n in sizes]


SIZES = {
    "tensors": ((torch.ones(4, 2), torch.ones(4)), 4),
    "a scalar beside": ({"scale": torch.tensor(1.0), "x": torch.ones(5)}, 5),
    "strings": ((["a", "b", "c"], [1, 2, 3]), 3),
    "a dict with a word": ({"split": "train", "text": ["a"] * 32}, 32),
    "a dict that begins with a row": ({"at": torch.ones(1, 7), "x": torch.ones(6, 7)}, 6),
    "a data class": (Sample(torch.ones(6), "s"), 6),
    "sequences": ((pack_sequence([torch.ones(n, 2) for n in (5, 3)]), torch.ones(2)), 2),
    "a list of images": ((images(8, 9, 7, 5), torch.ones(4)), 4),
    "a tuple of images": ((tuple(images(8, 9)), torch.ones(2)), 2),
    "images and boxes": ((images(8, 9), [{"boxes": torch.ones(3, 4)}] * 2), 2),
    "two inputs in a list": (([torch.ones(5, 2), torch.ones(5, 3)], torch.ones(5)), 5),
    "arrays": ((np.ones((4, 2)), np.ones(4)), 4),
    "ids with offsets": ((torch.ones(9), torch.tensor([0, 4]), torch.ones(2)), None),
    "a sparse tensor": ((torch.eye(3).to_sparse(), torch.ones(3)), 3),
    "no targets": ((torch.ones(3, 2),), 3),
    "an object and targets": ((object(), torch.ones(5)), 5),
    "inputs and targets that disagree": ((torch.ones(4, 2), torch.ones(3)), None),
    "two inputs that disagree": ({"x": torch.ones(4, 2), "z": torch.ones(3)}, None),
    "a scalar": (torch.tensor(1.0), None),
    "nothing": (None, None),
    "an object": (object(), None),
}


@pytest.mark.case("F12")
@pytest.mark.parametrize(("batch", "size"), SIZES.values(), ids=SIZES)
def test_the_size_of_a_batch_is_what_inputs_and_targets_share(batch, size):
    assert batch_size(batch) == size


@pytest.mark.case("F12")
def test_the_size_follows_the_split_into_inputs_and_targets():
    batch = torch.ones(9), torch.tensor([0, 4]), torch.ones(2)
    assert batch_size(batch, lambda b: (b[:2], {}, b[2:])) == 2
    assert n_rows(batch) == 9


def test_a_batch_is_described_in_a_line():
    batch = {"x": torch.zeros(2, 3), "ids": [1, torch.zeros(2, dtype=torch.long)]}
    assert describe(batch) == "dict(x=Tensor[2, 3], ids=list(int, Tensor[2] int64))"
    assert "… 15 more" in describe(list(range(20)))
    assert describe([[[[[[torch.ones(1)]]]]]]) == "list(list(list(list)))"


def test_the_number_of_batches_is_none_without_a_length():
    assert n_batches([1, 2]) == 2
    assert n_batches(iter([1])) is None

    class Unsure:
        def __len__(self):
            raise NotImplementedError

    assert n_batches(Unsure()) is None


def test_the_default_device_can_be_named_by_the_environment(monkeypatch):
    monkeypatch.setenv("MINILEARN_DEVICE", "meta")
    assert default_device() == batch_module.def_device == torch.device("meta")
    assert to_device(torch.ones(1)).device.type == "meta"
    monkeypatch.delenv("MINILEARN_DEVICE")
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert default_device() == torch.device("cpu")
    with pytest.raises(AttributeError, match="no_such"):
        _ = batch_module.no_such


class Graph:
    """A batch of two graphs, as torch_geometric has them."""

    def __init__(self):
        self.x, self.edge_index, self.num_graphs = torch.ones(9, 3), torch.ones(2, 20), 2


def item(size):
    return {"image": torch.ones(3, size, size), "height": size, "file_name": "a.png"}


OTHERS = {
    "items of detectron2": ([item(8), item(9)], 2),
    "items of one size": ([item(8)] * 4, 4),
    "items with an image alone": ([{"image": torch.ones(3, 8, 8)}] * 5, 5),
    "one item": ([item(8)], 1),
    "items of tensors": ([{"image": torch.ones(3, 8, 8), "boxes": torch.ones(7, 4)}] * 2, 2),
    "two views as dicts": ([{"ids": torch.ones(4, 7)}, {"ids": torch.ones(4, 9)}], 4),
    "an item with its target": ((torch.ones(3, 8, 8), torch.tensor(1.0)), None),
    "a graph and targets": ((Graph(), torch.ones(2)), 2),
    "a graph": (Graph(), None),
    "nodes, edges, targets": ((torch.ones(9, 3), torch.ones(2, 20), torch.ones(9)), 9),
    "nodes and edges by name": ({"x": torch.ones(9, 3), "edge_index": torch.ones(2, 20)}, None),
    "time first": ((torch.ones(9, 4, 3), torch.ones(4)), None),
    "targets joined": ((torch.ones(4, 7), torch.ones(28)), None),
    "sound and its text": ((torch.ones(4, 1, 99), torch.ones(4), torch.ones(31), torch.ones(4)), 4),
    "positions of one row": ({"ids": torch.ones(4, 7), "position_ids": torch.ones(1, 7)}, 4),
    "names of classes": ({"x": torch.ones(4, 3), "classes": ["cat", "dog"]}, None),
    "masks of each image": ({"x": torch.ones(2, 3, 8, 8), "masks": [torch.ones(5, 8, 8)] * 2}, 2),
    "views and labels": (([torch.ones(6, 3), torch.ones(6, 3)], torch.ones(6)), 6),
    "words of each text": (([[1, 2], [3], [4, 5, 6]], [0, 1, 0]), 3),
    "nested tensors": (
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), [0, 1]),
        2,
    ),
    "states of an environment": (
        {"obs": {"eye": torch.ones(4, 3, 8), "pose": torch.ones(4, 2)}, "reward": torch.ones(4)},
        4,
    ),
    "no samples": ((torch.ones(0, 3), torch.ones(0)), 0),
    "on meta": ((torch.ones(4, 3, device="meta"), torch.ones(4, device="meta")), 4),
}


@pytest.mark.case("F12")
@pytest.mark.parametrize(("batch", "size"), OTHERS.values(), ids=OTHERS)
def test_what_other_libraries_call_a_batch_is_counted_or_unknown(batch, size):
    assert batch_size(batch) == size


@pytest.mark.case("F12")
@pytest.mark.parametrize("name", ["items of detectron2", "items of one size", "one item"])
def test_the_check_notices_items_that_are_taken_for_inputs_and_targets(name, monkeypatch):
    monkeypatch.setattr(batch_module, "holds_items", lambda batch: False)
    with pytest.raises(AssertionError):
        test_what_other_libraries_call_a_batch_is_counted_or_unknown(*OTHERS[name])


def of_items(n):
    """Values of n items each, and what has no items."""
    lengths = st.lists(st.integers(1, 9), min_size=n, max_size=n)
    value = st.one_of(
        st.lists(st.integers(1, 9), max_size=2).map(lambda shape: torch.ones(n, *shape)),
        st.just(np.ones((n, 2))),
        st.just(["a"] * n),
        lengths.map(lambda ns: [torch.ones(2, m) for m in ns]),
        lengths.map(lambda ns: pack_sequence([torch.ones(m) for m in ns], enforce_sorted=False)),
    )
    named = st.dictionaries(st.sampled_from("abcd"), value, min_size=1)
    beside = st.sampled_from([{}, {"epoch": 3}, {"split": "train"}, {"none": None}])
    return st.one_of(
        st.tuples(value, value),
        st.tuples(value, value, value),
        st.tuples(named, value),
        st.builds(lambda values, more: values | more, named, beside),
    )


@pytest.mark.case("F12")
@given(st.integers(3, 50).flatmap(lambda n: st.tuples(st.just(n), of_items(n))))
def test_a_number_of_items_is_the_right_one_or_unknown(found):
    n, batch = found
    assert batch_size(batch) in (n, None)


@pytest.mark.parametrize("error", [RuntimeError, ValueError, OSError, AttributeError, KeyError])
def test_a_length_that_raises_anything_is_unknown(error):
    class Lazy:
        def __len__(self):
            raise error("not counted yet")

    assert n_batches(Lazy()) is None


def test_a_nested_tensor_can_be_described():
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert describe((ragged, torch.ones(2))) == "tuple(Tensor[2, nested], Tensor[2])"
