"""Files that cannot be read: counted, named once, left out by policy up to a fraction."""

import warnings

import pytest
import torch
from image_files import CORRUPT, add_corrupt, add_unusual, all_of, fail_on_bright, write_folder

from minilearn import Learner, TrainCB, image_dls
from minilearn.data.images import dataset as images
from minilearn.data.images.errors import ImageError

WAYS = pytest.mark.parametrize(
    "how",
    [{}, {"memory_gb": 0}, {"memory_gb": 0, "workers": 2}],
    ids=["in memory", "by item", "in workers"],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("images"), 48)
    add_corrupt(folder)
    return folder


def loaded(folder, how, passes=1, **options):
    """Return the loaders, what an epoch over the training images gave, and all warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        dls = image_dls(folder, 8, **{**how, **options})
        for _ in range(passes):
            batches = list(dls.train)
    return dls, batches, [str(w.message) for w in found if issubclass(w.category, UserWarning)]


@WAYS
def test_corrupt_files_are_left_out_and_named_in_one_summary(folder, how):
    dls, batches, said = loaded(folder, how, passes=2)
    assert sum(len(y) for _, y in batches) == 48
    (said,) = said
    assert said.startswith("3 of 51 images of 'train' could not be read")
    assert all(f"{name} ({reason}" in said for name, reason in CORRUPT.items())
    found = dls.summary().errors
    assert found.keys() == {"train"} and found["train"].keys() == CORRUPT.keys()
    assert all(found["train"][name].startswith(reason) for name, reason in CORRUPT.items())
    assert len(dls.filenames["train"]) == 48 and not CORRUPT.keys() & set(dls.filenames["train"])


@WAYS
def test_on_request_the_first_corrupt_file_ends_the_run(folder, how):
    with pytest.raises(ImageError, match=r"^train/(bag|coat)/\w+\.\w+: \w") as e:
        loaded(folder, how, on_error="raise")
    assert e.value.__cause__ is not None or "PIL" in e.value.__notes__[0]


@WAYS
def test_more_than_the_fraction_ends_the_run_by_names(folder, how):
    loaded(folder, how, max_errors=3 / 51)
    with pytest.raises(ImageError, match=r"could not be read: train/.*max_errors=0\.03 allows"):
        loaded(folder, how, max_errors=0.03)


@WAYS
def test_missing_files_of_a_table_are_errors(folder, how, tmp_path):
    files = sorted((folder / "train/bag").glob("0*"))
    rows = [f"{path},{'bag' if i % 2 else 'boot'}" for i, path in enumerate(files)]
    rows.append("gone.png,bag")
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]))
    dls, _, said = loaded(tmp_path / "t.csv", how, valid=0)
    assert said == [
        f"1 of {len(files) + 1} images of 'train' could not be read: gone.png (no such file). "
        "They are left out; dls.summary() lists them"
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_a_transform_are_handled_like_corrupt_files(folder, workers):
    dls, batches, said = loaded(folder, {"workers": workers}, tfms=fail_on_bright, max_errors=1.0)
    reasons = [*dls.summary().errors["train"].values()]
    bright = reasons.count("too bright to transform")
    assert bright > 5 and len(reasons) == bright + 3
    assert sum(len(b[1]) for b in batches if b is not None) == 51 - len(reasons)
    with pytest.raises(ImageError, match="too bright to transform"):
        loaded(folder, {"workers": workers}, tfms=fail_on_bright, max_errors=0.2)


def test_the_policy_holds_while_a_learner_trains_and_predicts(folder):
    dls = image_dls(folder, 1, memory_gb=0)  # a batch of one that is corrupt has nothing left
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 28 * 28, 3))
    learn = Learner(model, dls, torch.nn.functional.cross_entropy, lr=0.01, cbs=TrainCB())
    with pytest.warns(UserWarning, match="3 of 51 images of 'train'"):
        learn.fit(1)
    assert learn.steps_done == 48
    with pytest.warns(UserWarning, match="empty batches"):
        preds, targs = learn.get_preds("train")
    names = dls.filenames["train"]
    assert len(preds) == len(names) == 48
    classes = dls.pipeline.classes
    assert [classes[i] for i in targs] == [name.split("/")[1] for name in names]


def check_all_are_seen(folder, **options):
    expected = add_unusual(folder)
    dls = image_dls(folder, **options)
    assert set(dls.filenames["test"]) == expected.keys()
    assert all_of(dls.test)[0].shape == (len(expected), 3, 28, 28)


def test_unusual_files_are_no_corrupt_ones(tmp_path):
    check_all_are_seen(tmp_path)


def test_the_check_sees_a_reader_that_takes_only_rgb(tmp_path, monkeypatch):
    def rgb_only(self, source):
        image = images.open_image(source)
        if image.mode != "RGB":
            raise ValueError(f"mode {image.mode}")
        return self.pipeline.pixels(image)

    monkeypatch.setattr(images.Reader, "__call__", rgb_only)
    with pytest.raises((AssertionError, ImageError)):
        check_all_are_seen(tmp_path, max_errors=1.0, size=28, normalize=False)
