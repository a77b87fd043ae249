"""From data sets and arrays to the loaders of a Learner."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from picklable import Draws
from PIL import Image as PILImage
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from minilearn.data import ArrayLoader, DataLoaders, SeededLoader, fashion_mnist, get_dls
from minilearn.data import Dataset as ArrayDataset

X, Y = torch.arange(20.0).reshape(10, 2), torch.arange(10)


def images(n, mode="L"):
    rng = np.random.default_rng(n)
    features = Features({"image": Image(), "label": ClassLabel(names=["a", "b"])})
    images = [
        PILImage.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).convert(mode)
        for _ in range(n)
    ]
    return Dataset.from_dict({"image": images, "label": [i % 2 for i in range(n)]}, features)


def raw(ds):
    return torch.tensor(np.stack([np.array(p) for p in ds["image"]]))[:, None]


def numbers(n):
    return Dataset.from_dict({"x": list(range(n))})


# Dataset and get_dls


def test_dataset_gives_items_slices_and_index_lists_of_every_array():
    ds = ArrayDataset(X, Y)
    assert (len(ds), ds.x is X, ds.y is Y) == (10, True, True)
    for i in (3, slice(2, 5), [7, 1]):
        x, y = ds[i]
        assert torch.equal(x, X[i])
        assert torch.equal(y, Y[i])
    assert [a.tolist() for a in ArrayDataset(X, Y, -Y)[1]] == [[2, 3], 1, -1]
    assert ArrayDataset(X.numpy(), Y.numpy())[[0, 1]][1].tolist() == [0, 1]


def test_dataset_refuses_arrays_of_different_lengths():
    with pytest.raises(ValueError, match=r"\[10, 9\]"):
        ArrayDataset(X, Y[:9])


@pytest.mark.parametrize(
    "ds", [ArrayDataset(X, Y), TensorDataset(X, Y), list(zip(X, Y, strict=True))]
)
def test_get_dls_shuffles_training_and_doubles_the_validation_batch(ds):
    train, valid = get_dls(ds, ds, 4, seed=1)
    assert (len(train), len(valid), train.dataset is ds) == (3, 2, True)
    assert [len(y) for _, y in train] == [4, 4, 2]
    assert torch.cat([y for _, y in valid]).tolist() == Y.tolist()
    shuffled = torch.cat([y for _, y in train])
    assert shuffled.tolist() != Y.tolist()
    assert shuffled.sort()[0].tolist() == Y.tolist()


def test_get_dls_takes_sizes_and_keeps_all_of_validation():
    train, valid = get_dls(ArrayDataset(X, Y), ArrayDataset(X, Y), 4, bs_valid=3, drop_last=True)
    assert [len(y) for _, y in train] == [4, 4]
    assert [len(y) for _, y in valid] == [3, 3, 3, 1]


def test_a_subclass_that_changes_items_is_read_item_by_item():
    class Noisy(TensorDataset):
        def __getitem__(self, i):
            return super().__getitem__(i)[1] + 100

    train, valid = get_dls(Noisy(X, Y), Noisy(X, Y), 10)
    assert next(iter(valid)).tolist() == (Y + 100).tolist()


def test_workers_live_on_and_memory_is_pinned_only_for_a_gpu():
    train, valid = get_dls(Draws(), Draws(), 4, num_workers=1)
    assert isinstance(train, SeededLoader)
    assert (train.persistent_workers, valid.num_workers) == (True, 1)
    assert train.pin_memory == torch.cuda.is_available()
    alone, _ = get_dls(Draws(), Draws(), 4, pin_memory=False)
    assert (alone.persistent_workers, alone.pin_memory) == (False, False)


class NotShared(IterableDataset):
    def __len__(self):
        return 100

    def __iter__(self):
        return iter(range(100))


def check_every_batch_of_the_stream_comes(loader):
    assert len(loader) == 13
    assert len(list(loader)) == 26


@pytest.mark.case("C087")
def test_a_stream_longer_than_declared_is_read_to_its_end():
    check_every_batch_of_the_stream_comes(get_dls(NotShared(), NotShared(), 8, num_workers=2)[0])


@pytest.mark.case("C087")
def test_check_of_the_stream_sees_a_loader_that_stops_at_its_length():
    class Cut(DataLoader):
        def __iter__(self):
            return (b for _, b in zip(range(len(self)), super().__iter__(), strict=False))

    with pytest.raises(AssertionError):
        check_every_batch_of_the_stream_comes(Cut(NotShared(), 8, num_workers=2))


def check_names_phase_samples_batch_size_and_drop_last(make, phase, n):
    with pytest.raises(ValueError, match=f"'{phase}' .*{n} samples, batch size 4, drop_last=True"):
        make(4, drop_last=True)


@pytest.mark.case("C086")
def test_data_without_a_batch_are_refused_with_all_that_matters():
    few, none = ArrayDataset(X[:3], Y[:3]), ArrayDataset(X[:0], Y[:0])
    check = check_names_phase_samples_batch_size_and_drop_last
    check(lambda bs, **kw: get_dls(few, few, bs, **kw), "train", 3)
    check(
        lambda bs, **kw: DataLoaders.from_dd({"train": numbers(3), "dev": numbers(9)}, bs, **kw),
        "train",
        3,
    )
    with pytest.raises(ValueError, match="'valid' .* 0 samples"):
        get_dls(few, none, 2)
    with pytest.raises(ValueError, match="'dev' .* 0 samples"):
        DataLoaders.from_dd({"train": numbers(3), "dev": numbers(0)}, 2)


@pytest.mark.case("C086")
def test_check_of_empty_data_sees_a_loader_that_is_silent():
    def silent(bs, **kwargs):
        return DataLoader(ArrayDataset(X[:3], Y[:3]), bs, **kwargs)

    with pytest.raises(pytest.fail.Exception):
        check_names_phase_samples_batch_size_and_drop_last(silent, "train", 3)


# DataLoaders


def test_dataloaders_take_any_iterables_by_position_or_name():
    batches = [(X, Y)]
    assert DataLoaders(batches).train is batches
    assert DataLoaders(batches).valid is None
    dls = DataLoaders([], batches)
    assert (dls.train, dls.valid, dls.test) == ([], batches, None)
    dls.train = dls.test = batches
    assert dls["test"] is dls["train"] is batches
    assert dict(dls) == {"train": batches, "valid": batches, "test": batches}


def test_further_validation_sets_have_names():
    dls = DataLoaders([0], [1], hard=[2])
    assert dls.valids == {"valid": [1], "hard": [2]}
    assert (dls.keys(), dls["hard"]) == (["train", "valid", "hard"], [2])
    assert DataLoaders([0]).valids == {}
    with pytest.raises(KeyError, match=r"no loader 'test'; there are \['train'\]"):
        DataLoaders([0])["test"]


def test_from_dsets_makes_all_three():
    ds = ArrayDataset(X, Y)
    dls = DataLoaders.from_dsets(ds, ds, ds, bs=4, seed=1)
    assert [len(dls[name]) for name in ("train", "valid", "test")] == [3, 2, 2]
    assert DataLoaders.from_dsets(ds, bs=4).keys() == ["train"]


# from_arrays


@pytest.mark.parametrize("of", [torch.as_tensor, np.asarray])
def test_from_arrays_splits_by_a_seeded_permutation(of):
    parts = [DataLoaders.from_arrays(of(X), of(Y), of(-Y), bs=4, seed=s) for s in (1, 1, 2)]
    held = [torch.cat([b[1] for b in dls.valid]).tolist() for dls in parts]
    assert held[0] == held[1] != held[2]
    for x, y, z in [*parts[0].train, *parts[0].valid]:
        assert torch.equal(x, X[y])
        assert torch.equal(z, -y)
    everything = torch.cat([b[1] for dl in (parts[0].train, parts[0].valid) for b in dl])
    assert sorted(everything.tolist()) == Y.tolist()
    assert len(held[0]) == 2


def test_from_arrays_takes_a_given_validation_set_or_none():
    given = DataLoaders.from_arrays(X, Y, x_valid=X[:3], y_valid=Y[:3], bs=4)
    assert [len(dl.dataset) for dl in (given.train, given.valid)] == [10, 3]
    assert DataLoaders.from_arrays(X, valid_pct=0).keys() == ["train"]


def test_numpys_doubles_become_torchs_default_type_and_tensors_keep_theirs():
    (x,) = next(iter(DataLoaders.from_arrays(np.zeros((10, 2))).train))
    assert x.dtype == torch.float32
    (x,) = next(iter(DataLoaders.from_arrays(X.double()).train))
    assert x.dtype == torch.float64


def test_from_arrays_serves_the_rows_of_a_permutation_without_copying_the_arrays():
    x, y = torch.randn(1000, 5).numpy(), np.arange(1000)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(7))
    valid, train = order[:200], order[200:]  # 0.2 of them
    dls = DataLoaders.from_arrays(x, y, bs=64, seed=7)
    copies = get_dls(*(TensorDataset(torch.from_numpy(y[i]), i) for i in (train, valid)), 64)
    for loader, copy in zip((dls.train, dls.valid), copies, strict=True):
        loader.seed = copy.seed = 3
        for _ in range(2):
            for (xb, yb), (expected, _) in zip(loader, copy, strict=True):
                assert torch.equal(yb, expected) and torch.equal(xb, torch.from_numpy(x)[yb])
    assert torch.equal(dls.valid.dataset.y, valid) and dls.valid.dataset[3][1] == valid[3]
    assert torch.equal(dls.train.dataset[1:3][1], train[1:3]) and len(dls.train.dataset) == 800
    x[:] = 0
    assert not next(iter(dls.train))[0].any()


def test_a_summary_counts_the_classes_of_each_part_of_the_arrays():
    dls = DataLoaders.from_arrays(X, Y % 2, bs=4, seed=7)
    valid = (torch.randperm(10, generator=torch.Generator().manual_seed(7))[:2] % 2).bincount()
    counts = dls.summary().counts
    assert [counts[k].get("valid", 0) for k in ("0", "1")] == valid.tolist()
    assert [counts[k]["train"] for k in ("0", "1")] == (5 - valid).tolist()


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.arange(10, dtype="float32")[::-1], torch.float32),
        (np.arange(10, dtype=">f4"), torch.float32),
        (np.arange(10, dtype=np.uint16), torch.int64),
        (np.arange(10, dtype=np.uint8), torch.uint8),
        (np.arange(20, dtype="float32")[::2], torch.float32),
    ],
)
def test_arrays_that_torch_does_not_take_as_they_are_are_converted(array, dtype):
    x, i = next(iter(DataLoaders.from_arrays(array, np.arange(10), bs=10, valid_pct=0).train))
    assert x.dtype == dtype and x.tolist() == array[i.numpy()].tolist()


def test_arrays_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match=r"\[10, 9\]"):
        DataLoaders.from_arrays(X, Y[:9])
    with pytest.raises(ValueError, match="leaves 2 for training and 0 for validation"):
        DataLoaders.from_arrays(X[:2], Y[:2])
    with pytest.raises(ValueError, match="2 arrays for training and 1 for validation"):
        DataLoaders.from_arrays(X, Y, x_valid=X)


INDICES = {
    "range": range(10),
    "shuffled": np.random.default_rng(0).permutation(10),
    "gaps": np.arange(10) * 3,
    "texts": list("abcdefghij"),
    "twice": [0] * 10,
}


def check_rows_keep_their_order(x, y, **valid):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of arrays that torch may not write to, say
        dls = DataLoaders.from_arrays(x, y, bs=10, valid_pct=0, **valid)
    xb, yb = next(iter(dls.train))
    assert torch.equal(xb[yb.argsort()], X) and torch.equal(yb.sort()[0], Y)
    assert (xb.dtype, yb.dtype) == (torch.float32, torch.int64)


@pytest.mark.case("F44")
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_tables_and_columns_of_pandas_are_taken_by_their_order(index):
    x, y = pd.DataFrame(X.numpy(), index=index), pd.Series(Y.numpy(), index=index)
    check_rows_keep_their_order(x, y)
    check_rows_keep_their_order(x.astype(float), Y.numpy())
    check_rows_keep_their_order(X, y.astype("Int64"), x_valid=x, y_valid=y)
    mixed = pd.DataFrame({"a": X[:, 0].numpy(), "b": X[:, 1].numpy().astype(int)}, index=index)
    check_rows_keep_their_order(mixed, y)
    assert ArrayDataset(pd.Series(list("abc"), index=[2, 0, 1]), [0, 1, 2])[1] == ("b", 1)
    assert ArrayDataset(pd.Series([[1], [1, 2]], index=[1, 0]))[1] == ([1, 2],)
    assert ArrayDataset(x, y)[3][1] == 3 and ArrayDataset(x, y)[[2, 1]][0].tolist() == [
        [4, 5],
        [2, 3],
    ]


@pytest.mark.case("F44")
def test_the_check_notices_rows_that_are_found_by_their_label():
    y = pd.Series(Y.numpy(), index=INDICES["shuffled"])
    with pytest.raises(AssertionError):
        check_rows_keep_their_order(X, [y[i] for i in range(10)])


@pytest.mark.case("F44")
def test_arrays_that_may_not_be_written_to_are_copied():
    x = X.numpy().copy()
    x.flags.writeable = False
    check_rows_keep_their_order(x, Y)


@pytest.mark.case("F44")
@pytest.mark.parametrize("values", [list("abcdefghij"), [None] + [1] * 9, [[1]] * 5 + [[1, 2]] * 5])
def test_columns_that_are_no_numbers_are_refused_with_advice(values):
    with pytest.raises((TypeError, ValueError), match=r"\.cat\.codes|inhomogeneous"):
        DataLoaders.from_arrays(X, pd.Series(values, dtype=object))
    with pytest.raises(TypeError, match=r"cat\.codes"):
        DataLoaders.from_arrays(X, pd.Series(list("ab") * 5, dtype="category"))


@pytest.mark.case("F44")
def test_errors_name_the_columns_that_hold_no_numbers():
    table = pd.DataFrame({"age": [1.0, 2.0] * 5, "town": list("ab") * 5, "day": pd.Timestamp(0)})
    with pytest.raises(TypeError, match=r"columns \['town', 'day'\] .*cat\.codes .*days"):
        DataLoaders.from_arrays(table, Y)
    with pytest.raises(TypeError, match=r"column 'town' of str .*cat\.codes"):
        DataLoaders.from_arrays(table[["age"]], table["town"])
    with pytest.raises(TypeError, match="column 'day' of datetime64"):
        DataLoaders.from_arrays(X, table["day"])


# from_dd


@pytest.mark.parametrize("name", ["validation", "valid", "val", "dev"])
def test_splits_are_chosen_by_name_whatever_their_order(name):
    dd = {"test": numbers(4), name: numbers(3), "train": numbers(8), "extra": numbers(5)}
    dls = DataLoaders.from_dd(dd, 2)
    assert dls.splits == {"train": "train", "valid": name, "test": "test"}
    assert [len(dls[role].dataset) for role in dls.splits] == [8, 3, 4]
    assert (
        repr(dls)
        == f"DataLoaders(train='train' (8 rows), valid='{name}' (3 rows), test='test' (4 rows))"
    )


def test_test_split_validates_where_there_is_no_other():
    dls = DataLoaders.from_dd(DatasetDict(train=numbers(8), test=numbers(4)), 2)
    assert dls.splits["valid"] == "test"
    assert [len(dl.dataset) for dl in (dls.train, dls.valid, dls.test)] == [8, 4, 4]


def test_splits_can_be_named_and_validation_left_out():
    dd = {"a": numbers(8), "b": numbers(4), "test": numbers(2)}
    assert DataLoaders.from_dd(dd, 2, splits={"train": "a", "valid": "b"}).splits["valid"] == "b"
    alone = DataLoaders.from_dd({"train": numbers(8)}, 2, splits={"valid": None})
    assert alone.keys() == ["train"]
    more = DataLoaders.from_dd(dd, 2, splits={"train": "a", "hard": "b"})
    assert list(more.valids) == ["valid", "hard"]


@pytest.mark.case("F22")
@pytest.mark.parametrize(("make", "cache"), [(images, None), (numbers, None), (numbers, False)])
def test_a_dict_without_training_data_can_be_validated(make, cache):
    dd = {"val": make(4), "other": make(2)}
    dls = DataLoaders.from_dd(dd, 2, splits={"train": None, "valid": "val"}, cache=cache)
    assert dls.keys() == ["valid"] and len(list(dls.valid)) == 1


@pytest.mark.parametrize(
    ("dd", "splits", "message"),
    [
        ({"a": 1, "test": 1}, None, r"no split 'train' .*\['a', 'test'\].*splits="),
        (
            {"train": 1, "a": 1},
            None,
            r"no split to validate on; .*\['train', 'a'\].*train_test_split",
        ),
        ({"train": 1}, {"train": None, "valid": None}, "no split is used"),
        ({"train": 1, "test": 1}, {"valid": "b"}, r"no split 'b' for valid; .*\['train', 'test'\]"),
    ],
)
def test_missing_splits_are_named_with_what_there_is(dd, splits, message):
    with pytest.raises(KeyError, match=message):
        DataLoaders.from_dd(dd, 2, splits=splits)


def test_splits_that_differ_are_errors():
    plain = images(4)
    formatted = plain.with_transform(lambda b: b)
    with pytest.raises(ValueError, match=r"only \['train'\] have a format"):
        DataLoaders.from_dd({"train": formatted, "test": plain}, 2)
    with pytest.raises(ValueError, match="differ in columns"):
        DataLoaders.from_dd({"train": plain, "test": plain.remove_columns("label")}, 2)
    with pytest.raises(ValueError, match="other channels"):
        DataLoaders.from_dd({"train": plain, "test": images(4, "RGB")}, 2)


def test_plain_images_are_normalised_by_the_training_split():
    dd = DatasetDict(train=images(9), test=images(5))
    dls = DataLoaders.from_dd(dd, 4, seed=1)
    pixels = raw(dd["train"]).float() / 255
    torch.testing.assert_close(dls.mean, pixels.mean()[None])
    torch.testing.assert_close(dls.std, pixels.std(unbiased=False)[None])
    xb, yb = next(iter(dls.valid))
    assert torch.equal(xb, (raw(dd["test"]).float() / 255 - dls.mean[0]) / dls.std[0])
    assert yb.tolist() == dd["test"]["label"]
    assert isinstance(dls.train, ArrayLoader)
    assert dls.train.columns["image"].dtype == torch.uint8
    assert dls.train.dataset is dd["train"]


def test_normalisation_can_be_given_or_left_out():
    dd = DatasetDict(train=images(4), test=images(4))
    zero_to_one = raw(dd["test"]).float() / 255
    plain = DataLoaders.from_dd(dd, 4, normalize=False)
    assert torch.equal(next(iter(plain.valid))[0], zero_to_one)
    assert (plain.mean, plain.std) == (None, None)
    given = DataLoaders.from_dd(dd, 4, normalize=([0.5], [0.25]))
    assert torch.equal(next(iter(given.valid))[0], (zero_to_one - 0.5) / 0.25)


@pytest.mark.parametrize(
    "transform", [None, lambda b: {k: v for k, v in b.items() if k == "label"}]
)
def test_as_tuple_false_gives_dicts(transform):
    ds = images(4)
    dd = DatasetDict(train=ds, test=ds)
    dls = DataLoaders.from_dd(dd.with_transform(transform) if transform else dd, 4, as_tuple=False)
    batch = next(iter(dls.valid))
    assert list(batch) == (["label"] if transform else ["image", "label"])
    assert batch["label"].tolist() == [0, 1, 0, 1]


def test_keys_choose_columns_and_their_order():
    dd = DatasetDict(train=images(4), test=images(4))
    y, x = next(iter(DataLoaders.from_dd(dd, 4, keys=["label", "image"]).valid))
    assert (y.shape, x.shape) == ((4,), (4, 1, 4, 4))
    (y,) = next(iter(DataLoaders.from_dd(dd, 4, keys=["label"]).train))
    assert y.shape == (4,)


def test_a_transform_runs_on_every_epoch_and_once_when_cached():
    calls = []

    def transform(batch):
        calls.append(len(batch["x"]))
        return {"x": [2 * x for x in batch["x"]]}

    dd = DatasetDict(train=numbers(6), test=numbers(3)).with_transform(transform)
    dls = DataLoaders.from_dd(dd, 4)
    assert [b.tolist() for (b,) in [*dls.valid, *dls.valid]] == [[0, 2, 4]] * 2
    assert calls == [3, 3]
    calls.clear()
    kept = DataLoaders.from_dd(dd, 4, cache=True)
    assert [b.tolist() for (b,) in [*kept.valid, *kept.valid]] == [[0, 2, 4]] * 2
    assert calls == [6, 3]


def test_a_users_collate_function_is_used():
    dd = DatasetDict(train=numbers(4), test=numbers(4))
    dls = DataLoaders.from_dd(dd, 2, collate_fn=len)
    assert list(dls.train) == [2, 2]
    with pytest.raises(ValueError, match="only one"):
        DataLoaders.from_dd(dd, 2, collate_fn=len, cache=True)


def test_plain_data_can_be_read_item_by_item():
    dls = DataLoaders.from_dd(DatasetDict(train=numbers(4), test=numbers(3)), 4, cache=False)
    assert isinstance(dls.train, SeededLoader)
    assert next(iter(dls.valid))[0].tolist() == [0, 1, 2]


def test_streams_of_datasets_are_served_in_their_order():
    stream = numbers(5).to_iterable_dataset()
    dls = DataLoaders.from_dd({"train": stream, "test": stream}, 2)
    assert [b.tolist() for (b,) in dls.train] == [[0, 1], [2, 3], [4]]


def test_the_sample_becomes_loaders_that_can_be_pickled():
    dls = DataLoaders.from_dd(fashion_mnist(), 256, seed=1)
    twin = pickle.loads(pickle.dumps(dls))
    (x, y), (x2, y2) = next(iter(dls.train)), next(iter(twin.train))
    assert (x.shape, x.dtype, y.dtype) == ((256, 1, 28, 28), torch.float32, torch.int64)
    assert torch.equal(x, x2)
    assert torch.equal(y, y2)
    assert abs(x.mean()) < 0.1
