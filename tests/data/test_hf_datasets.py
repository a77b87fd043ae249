"""Hugging Face data sets: transforms, collating, decoding, against datasets, PIL and torch."""

import io
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from picklable import add_one, double, doubled
from PIL import Image as PILImage
from torch.utils.data import DataLoader, default_collate

from minilearn.data import DataLoaders, collate_dict, inplace
from minilearn.data.columns import channel_stats, load_columns
from minilearn.data.hf_datasets import has_own_format
from minilearn.data.pipeline import Pipeline

HERE = Path(__file__).parent


@pytest.fixture
def plain():
    return Dataset.from_dict({"x": [1, 2, 3, 4], "y": [0, 1, 0, 1]})


def images(n=6, mode="L", size=(8, 6), format="PNG"):
    rng = np.random.default_rng(0)
    raw = [rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8) for _ in range(n)]
    files = []
    for pixels in raw:
        file = io.BytesIO()
        PILImage.fromarray(pixels).convert(mode).save(file, format)
        files.append({"bytes": file.getvalue(), "path": None})
    features = Features({"image": Image(), "label": ClassLabel(names=["a", "b"])})
    return Dataset.from_dict({"image": files, "label": [i % 2 for i in range(n)]}, features)


def by_pil(ds, mode=None):
    pixels = [np.array(p.convert(mode) if mode else p) for p in ds["image"]]
    return torch.tensor(np.stack([p.reshape(*p.shape[:2], -1).transpose(2, 0, 1) for p in pixels]))


# inplace


def test_inplace_returns_the_batch_that_it_changed():
    batch = {"x": [1]}
    assert add_one(batch) is batch
    assert batch == {"x": [2]}
    assert (add_one.__name__, add_one.__doc__) == ("add_one", "Add one.")


def test_inplace_can_be_pickled_as_decorator_and_as_function():
    assert pickle.loads(pickle.dumps(add_one)) is add_one
    copy = pickle.loads(pickle.dumps(doubled))
    assert (copy.f, copy({"x": [3]})) == (double, {"x": [6]})


def test_inplace_of_a_local_function_says_that_it_cannot_be_pickled():
    with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
        pickle.dumps(inplace(lambda batch: None))


def test_a_redefined_transform_looks_new_to_datasets(plain):
    space = {"__name__": "__main__", "inplace": inplace}
    main, prints = sys.modules["__main__"], []
    for constant in (1, 2, 1):
        exec(f"@inplace\ndef t(b): b['x'] = {constant}", space)  # noqa: S102
        main.t = space["t"]
        prints.append(plain.with_transform(main.t)._fingerprint)
    del main.t
    assert prints[0] != prints[1]
    assert prints[0] == prints[2]


SCRIPT = """
from datasets import Dataset, DatasetDict
from minilearn.data import DataLoaders, inplace
from picklable import doubled

@inplace
def plus(batch):
    batch["x"] = [x + 10 for x in batch["x"]]

if __name__ == "__main__":
    ds = Dataset.from_dict({"x": [1, 2, 3], "y": [0, 1, 2]})
    for transform in (plus, doubled):
        dd = DatasetDict(train=ds, test=ds).with_transform(transform)
        dls = DataLoaders.from_dd(dd, 2, num_workers=1, multiprocessing_context="spawn")
        print([batch[0].tolist() for batch in dls.valid])
"""


def test_transforms_and_collating_reach_spawned_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {"PYTHONPATH": ":".join([str(HERE), *sys.path]), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[[11, 12, 13]]", "[[2, 4, 6]]"], done.stderr


# collate_dict


def test_collate_dict_gives_columns_in_the_order_of_features(plain):
    rows = [{"y": 0, "x": 1}, {"y": 1, "x": 2}]
    x, y = collate_dict(plain)(rows)
    assert torch.equal(x, default_collate(rows)["x"])
    assert torch.equal(y, default_collate(rows)["y"])


def test_collate_dict_gives_a_tuple_for_one_feature_too():
    batch = collate_dict(Dataset.from_dict({"x": [1, 2]}))([{"x": 1}, {"x": 2}])
    assert isinstance(batch, tuple)
    assert len(batch) == 1


@pytest.mark.parametrize(
    ("features", "seen", "expected"),
    [
        ("image label", "label pixels", "pixels label"),
        ("text label", "label ids mask", "ids mask label"),
        ("id text label", "label ids", "ids label"),
        ("label text", "ids label", "label ids"),
        ("x y", "x y z", "x y z"),
        ("x y", "z", "z"),
    ],
)
def test_new_columns_stand_where_the_first_dropped_one_stood(features, seen, expected):
    collate = collate_dict(Dataset.from_dict({name: [0] for name in features.split()}))
    collate([dict.fromkeys(seen.split(), 0)])
    assert collate.keys == expected.split()


def test_collate_dict_names_the_columns_seen_when_one_is_missing(plain):
    with pytest.raises(KeyError, match=r"no column 'z' in the batch, which has \['x', 'y'\]"):
        collate_dict(plain, ["z"])([plain[0]])


def test_collate_dict_names_the_column_that_cannot_be_collated():
    ds = images(2)
    with pytest.raises(TypeError, match="(?s)column 'image'.*with_transform"):
        collate_dict(ds)([ds[0], ds[1]])


def test_collate_dict_can_be_pickled_before_and_after_its_first_batch(plain):
    collate = collate_dict(plain)
    for _ in range(2):
        twin = pickle.loads(pickle.dumps(collate))
        assert [c.tolist() for c in twin([plain[0]])] == [[1], [0]]
        collate([plain[0]])


def test_usage_lines_of_the_course_run_as_written():
    train = images(8)
    x, y = train.features

    @inplace
    def transformi(b):
        b[x] = [torch.flatten(torch.tensor(np.array(o)) / 255) for o in b[x]]

    tdsf = train.with_transform(transformi)
    dlf = DataLoader(tdsf, batch_size=4, collate_fn=collate_dict(tdsf))
    xb, yb = next(iter(dlf))
    assert y == "label"
    assert (xb.shape, yb.tolist()) == ((4, 48), [0, 1, 0, 1])
    dls = DataLoaders.from_dd(DatasetDict(train=tdsf, test=tdsf), 4, num_workers=0)
    assert [b.shape for b in next(iter(dls.train))] == [(4, 48), (4,)]


# formats


def test_own_format_is_a_transform_a_type_or_a_choice_of_columns(plain):
    assert not has_own_format(plain)
    assert has_own_format(plain.with_transform(add_one))
    assert has_own_format(plain.with_format("torch"))
    assert has_own_format(plain.with_format(None, columns=["x"]))


def check_transform_sees_all_columns(make_dls):
    seen = []

    def transform(batch):
        seen.append(sorted(batch))
        return {
            "pixel_values": [torch.tensor(np.array(p)) for p in batch["image"]],
            "label": batch["label"],
        }

    ds = images(6)
    dls = make_dls(DatasetDict(train=ds, validation=ds).with_transform(transform))
    for _ in range(2):
        for xb, yb in [*dls.train, *dls.valid]:
            assert (xb.shape[1:], yb.shape) == ((6, 8), xb.shape[:1])
    assert len(seen) == 2 * 3
    assert all(columns == ["image", "label"] for columns in seen)


@pytest.mark.case("C093")
def test_transform_sees_all_original_columns_on_every_epoch():
    check_transform_sees_all_columns(lambda dd: DataLoaders.from_dd(dd, 3))


@pytest.mark.case("C093")
def test_check_of_the_columns_sees_removed_ones():
    with pytest.raises((AssertionError, KeyError)):
        check_transform_sees_all_columns(
            lambda dd: DataLoaders.from_dd(dd.remove_columns("image"), 3)
        )


# columns in memory


@pytest.mark.parametrize("format", ["PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1"])
def test_images_in_memory_equal_those_of_pil(mode, format):
    if format == "WEBP" and mode not in ("RGB", "RGBA"):
        pytest.skip("WEBP knows no such mode")
    ds = images(mode=mode, format=format)
    shown = {"P": "RGB", "1": "L"}.get(mode)
    assert torch.equal(load_columns(ds)["image"], by_pil(ds, shown))


def test_large_images_equal_those_of_pil():
    ds = images(2, "RGB", (80, 70))
    assert torch.equal(load_columns(ds)["image"], by_pil(ds))


def test_a_mode_asked_for_by_the_feature_is_kept():
    ds = images(mode="L").cast_column("image", Image(mode="RGB"))
    assert torch.equal(load_columns(ds)["image"], by_pil(ds))


def test_images_in_files_are_read(tmp_path):
    PILImage.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).save(tmp_path / "a.png")
    ds = Dataset.from_dict({"image": [str(tmp_path / "a.png")]}).cast_column("image", Image())
    assert load_columns(ds)["image"].flatten().tolist() == list(range(12))


def test_rows_follow_a_shuffled_selection():
    ds = images(6).shuffle(seed=1).select([4, 1, 0])
    columns = load_columns(ds)
    assert torch.equal(columns["image"], by_pil(ds))
    assert columns["label"].tolist() == ds["label"]


def test_numbers_become_tensors_and_texts_stay_lists():
    ds = Dataset.from_dict(
        {"n": [1, 2], "v": [[0.5, 1.0], [2.0, 3.0]], "t": ["a", "b"], "r": [[1], [1, 2]]}
    )
    columns = load_columns(ds)
    assert (columns["n"].dtype, columns["v"].shape, columns["v"].dtype) == (
        torch.int64,
        (2, 2),
        torch.float32,
    )
    assert (columns["t"], columns["r"]) == (["a", "b"], [[1], [1, 2]])
    assert list(load_columns(ds, ["t", "n"])) == ["t", "n"]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: join(images(1), images(1, size=(5, 5))),
            ValueError,
            "(?s)row 0.*row 1.*with_transform",
        ),
        (lambda: join(images(1), images(1, "RGB")), ValueError, "(?s)differ.*cast_column"),
        (lambda: images(1, "I;16"), ValueError, "(?s)mode 'I;16'.*with_transform"),
        (lambda: Dataset.from_dict({"y": [1, None]}), ValueError, "'y' has no value in row 1"),
    ],
)
def test_what_does_not_fit_into_one_tensor_is_an_error_that_helps(make, error, message):
    with pytest.raises(error, match=message):
        load_columns(make())


def join(*parts):
    from datasets import concatenate_datasets

    return concatenate_datasets(list(parts))


def test_unknown_columns_and_too_many_images_are_errors():
    with pytest.raises(KeyError, match=r"no column 'z' .* \['image', 'label'\]"):
        load_columns(images(1), ["z"])
    with pytest.raises(MemoryError, match="(?s)6 images.*cache=True"):
        load_columns(images(6), limit=6 * 48 - 1)
    assert len(load_columns(images(6), limit=6 * 48)["image"]) == 6


def test_scale_and_stats_follow_the_formulas():
    raw = torch.randint(0, 256, (50, 3, 4, 5), dtype=torch.uint8)
    scaled = raw.double() / 255
    mean, std = channel_stats(raw)
    torch.testing.assert_close(mean, scaled.mean((0, 2, 3)).float())
    torch.testing.assert_close(std, scaled.std((0, 2, 3), unbiased=False).float())
    m, s = mean[:, None, None], std[:, None, None]
    assert torch.equal(scaled_by(mean, std, raw), (raw.float() / 255 - m) / s)
    assert torch.equal(Pipeline().scale(raw), raw.float() / 255)


def scaled_by(mean, std, images):
    return Pipeline(mean=mean.tolist(), std=std.tolist()).scale(images)


def test_a_constant_channel_stays_finite():
    raw = torch.full((2, 1, 2, 2), 7, dtype=torch.uint8)
    assert scaled_by(*channel_stats(raw), raw).abs().max() < 1e-6
