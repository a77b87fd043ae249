"""The sample of Fashion-MNIST, against the original files where Debian's package has them."""

import gzip
import subprocess
import sys
import zlib

import numpy as np
import pytest
from datasets import Dataset

from minilearn.data import fashion_mnist
from minilearn.data import fashion_mnist as _function
from minilearn.data.columns import load_columns

module = sys.modules[_function.__module__]
PER_CLASS = {"train": 1000, "test": 200}
original = pytest.mark.skipif(
    not module.DEBIAN.is_dir(), reason="the package dataset-fashion-mnist is not installed"
)


@pytest.fixture(scope="module")
def sample():
    return fashion_mnist()


def test_splits_have_equal_numbers_of_every_class(sample):
    for split, per_class in PER_CLASS.items():
        assert np.bincount(sample[split]["label"], minlength=10).tolist() == [per_class] * 10


def test_features_are_a_image_and_the_class_names_of_the_course(sample):
    features = sample["train"].features
    assert list(features) == ["image", "label"]
    assert type(features["image"]).__name__ == "Image"
    assert features["label"].int2str([9, 0]) == ["Ankle boot", "T - shirt / top"]
    row = sample["train"][0]
    assert (row["image"].mode, row["image"].size) == ("L", (28, 28))


def test_sample_takes_at_most_7_megabytes_and_has_its_licence_beside_it():
    files = list(module.SAMPLE.iterdir())
    assert sum(f.stat().st_size for f in files) <= 7 * 2**20
    assert "Zalando" in (module.SAMPLE / "LICENSE.txt").read_text()


def test_sample_decodes_to_the_pixels_it_was_made_of(sample):
    checksums = {"train": 2405960814, "test": 1488830692}  # of the original pixels
    for split, checksum in checksums.items():
        assert zlib.crc32(load_columns(sample[split])["image"].numpy()) == checksum


@original
def test_sample_is_the_first_images_of_each_class_in_the_original_files(sample):
    for split, per_class in PER_CLASS.items():
        images, labels = module.read_original(split)
        seen, rows = dict.fromkeys(range(10), 0), []
        for row, label in enumerate(labels.tolist()):
            seen[label] += 1
            if seen[label] <= per_class:
                rows.append(row)
        columns = load_columns(sample[split])
        assert np.array_equal(columns["image"][:, 0].numpy(), images[rows])
        assert np.array_equal(columns["label"].numpy(), labels[rows])


@original
def test_full_data_equal_the_original_files():
    full = fashion_mnist(full=True)
    assert {split: len(ds) for split, ds in full.items()} == {"train": 60_000, "test": 10_000}
    images, labels = module.read_original("test")
    columns = load_columns(full["test"])
    assert np.array_equal(columns["image"][:, 0].numpy(), images)
    assert np.array_equal(columns["label"].numpy(), labels)
    assert np.array_equal(
        np.array(full["train"][59_999]["image"]), module.read_original("train")[0][-1]
    )


def test_original_files_of_any_length_become_rows_in_their_order(tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (2001, 28, 28), dtype=np.uint8)
    labels = (np.arange(2001) % 10).astype(np.uint8)
    for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
        head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
        path = tmp_path / f"train-{kind}-ubyte.gz"
        path.write_bytes(gzip.compress(head + values.tobytes(), 1))
    table = module.as_table(*module.read_original("train", tmp_path), level=0)
    columns = load_columns(Dataset(table))
    assert np.array_equal(columns["image"][:, 0].numpy(), images)
    assert np.array_equal(columns["label"].numpy(), labels)


def test_full_data_that_are_nowhere_name_both_ways_to_get_them(monkeypatch, tmp_path):
    def offline(name):
        raise ConnectionError(name)

    monkeypatch.setattr(module, "DEBIAN", tmp_path / "missing")
    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(FileNotFoundError, match="(?s)dataset-fashion-mnist.*load_dataset"):
        fashion_mnist(full=True)


def test_full_data_come_from_the_hub_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "DEBIAN", tmp_path / "missing")
    monkeypatch.setattr("datasets.load_dataset", lambda name: f"from the hub: {name}")
    assert fashion_mnist(full=True) == "from the hub: fashion_mnist"


def test_file_of_another_kind_is_refused(tmp_path):
    import gzip

    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"\x00\x00\x0d\x01rest"))
    with pytest.raises(ValueError, match="no IDX file"):
        module._read_idx(path)


def test_sample_needs_neither_network_nor_a_place_to_write(tmp_path):
    code = "from minilearn.data import fashion_mnist as f; print(f()['test'][0]['label'])"
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=home, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert [p for p in home.rglob("*") if p.is_file()] == []
