"""dls.summary: counts, sizes, mean and std against torch's own, on text and in a notebook."""

import datasets
import pytest
import torch
from image_files import CORRUPT, add_corrupt, raw, sample, write_folder

from minilearn import DataLoaders, fashion_mnist, image_dls
from minilearn.data.data_summary import DataSummary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("images"), 48)
    add_corrupt(folder)
    return folder


@pytest.mark.filterwarnings("ignore:3 of 51 images")
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("memory_gb", [2.0, 0.0])
def test_summary_of_images(folder, normalize, memory_gb):
    dls = image_dls(folder, 8, normalize=normalize, memory_gb=memory_gb)
    list(dls.train)  # meets the corrupt files
    summary = dls.summary()
    assert summary.totals == {"train": 48, "valid": 48}
    assert summary.counts == dict.fromkeys(("bag", "boot", "coat"), {"train": 16, "valid": 16})
    x = raw(dls, "train").double() / 255
    assert summary.mean == pytest.approx(x.mean((0, 2, 3)).tolist(), abs=1e-5)
    assert summary.std == pytest.approx(x.std((0, 2, 3), correction=0).tolist(), abs=1e-5)
    assert summary.images == "28×28, given as 3×28×28"
    assert summary.errors["train"].keys() == CORRUPT.keys()


@pytest.mark.filterwarnings("ignore:3 of 51 images")
def test_summary_as_text(folder):
    summary = image_dls(folder, 8).summary()
    lines = str(summary).splitlines()
    assert lines[:5] == [
        "       train  valid",
        "bag       16     16",
        "boot      16     16",
        "coat      16     16",
        "items     48     48",
    ]
    assert lines[7] == "train: 3 files could not be read"
    assert lines[10] == "  train/coat/zero.jpg: the file is empty"
    assert repr(summary) == str(summary)


def test_many_classes_and_files_are_few():
    counts = {f"class {i}": {"train": 1} for i in range(1000)}
    errors = {"train": {f"{i}.png": "gone" for i in range(100)}}
    text = str(DataSummary(counts, {"train": 1000}, errors=errors))
    assert len(text.splitlines()) == 1 + 29 + 1 + 1 + 1 + 20 + 1
    assert "… 971 more" in text and "… 80 more, in summary.errors['train']" in text


def test_summary_of_other_loaders():
    dd = fashion_mnist()
    dd = datasets.DatasetDict({name: ds.select(range(50)) for name, ds in dd.items()})
    summary = DataLoaders.from_dd(dd, 8).summary()
    labels = torch.tensor(dd["train"][:]["label"])
    assert [c["train"] for c in summary.counts.values()] == labels.bincount(minlength=10).tolist()
    assert summary.images == "1×28×28" and len(summary.mean) == 1
    summary = DataLoaders.from_arrays(torch.randn(20, 3), torch.randn(20, 1)).summary()
    assert str(summary) == "       train  valid\nitems     16      4"


def test_several_classes_of_a_image_count_for_each_and_a_stream_is_not_read(folder, tmp_path):
    files = sorted((folder / "valid" / "bag").iterdir())[:3]
    rows = [f"{f},{tags}" for f, tags in zip(files, ("a b", "b", ""), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["path,tags", *rows]))
    summary = image_dls(tmp_path / "t.csv", sep=" ", valid=0).summary()
    assert summary.counts == {"a": {"train": 1}, "b": {"train": 2}}
    columns = {"image": sample()[:4], "label": [0, 1, 0, 1]}
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    ds = datasets.Dataset.from_dict(columns, features=features).to_iterable_dataset()
    lines = str(image_dls(ds, 2, valid=0).summary()).splitlines()
    assert lines[:4] == ["       train", "a          ?", "b          ?", "items      ?"]


def test_images_are_shown_with_the_classes_that_they_have(folder, tmp_path):
    files = sorted((folder / "valid" / "bag").iterdir())[:2]
    (tmp_path / "t.csv").write_text(f"path,tags\n{files[0]},a b\n{files[1]},\n")
    dls = image_dls(tmp_path / "t.csv", sep=" ", valid=0)
    assert {ax.get_title() for ax in dls.show_batch().flat[:2]} == {"a, b", ""}
    flat = image_dls(folder / "valid" / "bag", pipeline=dls.pipeline)
    assert {ax.get_title() for ax in flat.show_batch(2).flat} == {""}
    assert [ax.get_title() for ax in image_dls(folder / "valid", valid=0).show_batch(4).flat[:4]]
