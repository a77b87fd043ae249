"""Files that older versions wrote are read as they were meant; newer ones are refused by name."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import optim

import minilearn
from minilearn import load_learner, load_model
from minilearn.base.files import FORMATS, CorruptFileError, NewerFormatError
from minilearn.checkpoint.inspect import contents
from tests.formats.write import FOLDER, images, learner, write
from tests.toys import assert_same_weights, linear, toy_dls, train_by_hand

VERSIONS = sorted(path for path in FOLDER.iterdir() if path.name[0].isdigit())
versions = pytest.mark.parametrize("folder", VERSIONS, ids=lambda path: path.name)


def by_hand(epochs):
    """The model of the files, trained by a loop without minilearn."""
    model = linear()
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train_by_hand(model, toy_dls(), opt, epochs)
    return model


def assert_close_weights(ours, theirs):
    """Other processors and versions of torch may round otherwise."""
    torch.testing.assert_close(dict(ours.named_parameters()), dict(theirs.named_parameters()))


@versions
def test_a_fit_goes_on_inside_an_epoch_from_a_checkpoint_of_every_version(folder):
    learn = learner()
    learn.fit(2, resume=folder / "inside_an_epoch.ckpt")
    assert_close_weights(learn.model, by_hand(2))
    assert [row["epoch"] for row in learn.history] == [0, 1]


@versions
def test_a_checkpoint_of_every_version_gives_back_its_history_and_optimizer(folder):
    learn = learner()
    learn.load_checkpoint(folder / "after_60_epochs.ckpt")
    assert [row["epoch"] for row in learn.history] == list(range(60))
    learn.fit(61, resume=folder / "after_60_epochs.ckpt")
    assert_close_weights(learn.model, by_hand(61))


@versions
def test_weights_of_every_version_are_those_of_a_loop_by_hand(folder):
    model = load_model(folder / "weights.safetensors", linear(seed=1))
    assert_close_weights(model, by_hand(60))
    assert_same_weights(
        model, load_model(folder / "after_60_epochs.ckpt", linear(2), averaged=False)
    )


@versions
def test_an_export_of_every_version_predicts_what_its_model_did(folder):
    learn = load_learner(folder / "export", "cpu")
    with torch.no_grad():
        outputs = learn.model(images())
    expected = torch.tensor(json.loads((folder / "outputs.json").read_text()))
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    assert learn.dls.pipeline.classes == ["cat", "dog"]


def test_this_version_has_its_files():
    assert minilearn.__version__ in {path.name for path in VERSIONS}


def numbers(folder):
    """The number of the format in each file of a folder."""
    with safe_open(folder / "weights.safetensors", "pt") as file:
        weights = int(file.metadata()["minilearn_format"])
    return {
        "checkpoint": torch.load(folder / "after_60_epochs.ckpt", weights_only=True)["format"],
        "export": json.loads((folder / "export" / "metadata.json").read_text())["format"],
        "weights": weights,
    }


def test_every_kind_of_file_says_its_format(tmp_path):
    """A number that is raised needs files of the version that raises it."""
    write(tmp_path)
    assert numbers(tmp_path) == FORMATS == numbers(FOLDER / minilearn.__version__)


def with_format(number, folder):
    """Copies of this version's files that say another format."""
    shutil.copytree(FOLDER / minilearn.__version__, folder, dirs_exist_ok=True)
    path = folder / "after_60_epochs.ckpt"
    torch.save(torch.load(path, weights_only=True) | {"format": number}, path)
    shutil.copy(path, folder / "other_suffix.pt")
    path = folder / "export" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": number}))
    path = folder / "weights.safetensors"
    save_file(load_file(path), path, metadata={"minilearn_format": str(number)})
    return folder


READERS = {
    "resume": lambda folder: learner().fit(61, resume=folder / "after_60_epochs.ckpt"),
    "load_checkpoint": lambda folder: learner().load_checkpoint(folder / "after_60_epochs.ckpt"),
    "weights of a checkpoint": lambda folder: load_model(folder / "after_60_epochs.ckpt", linear()),
    "a checkpoint's other name": lambda folder: load_model(folder / "other_suffix.pt", linear()),
    "inspect": lambda folder: contents(folder / "after_60_epochs.ckpt"),
    "load_learner": lambda folder: load_learner(folder / "export"),
    "load_model": lambda folder: load_model(folder / "weights.safetensors", linear()),
}
readers = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


@readers
def test_a_newer_format_is_refused_with_what_to_do(read, tmp_path):
    with pytest.raises(NewerFormatError, match="format 2, and .* up to 1: .* Update minilearn"):
        read(with_format(2, tmp_path))


@readers
def test_a_format_that_is_no_number_is_a_corrupt_file(read, tmp_path):
    with pytest.raises(CorruptFileError, match="format 'x'"):
        read(with_format("x", tmp_path))


def test_a_folder_whose_newest_checkpoint_is_newer_does_not_go_back_to_an_older_one(tmp_path):
    with_format(2, tmp_path)
    learn = learner()
    with pytest.raises(NewerFormatError):
        learn.load_checkpoint(tmp_path)


def test_files_without_a_format_are_of_the_first(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(linear().state_dict(), path)  # as Hugging Face's libraries write them
    assert_same_weights(load_model(path, linear(seed=1)), linear())


def test_the_page_on_compatibility_says_the_formats_of_today():
    page = (Path(__file__).parents[1] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \|.*\| (\d+) \|$", page, re.MULTILINE)
    assert {kind: int(number) for kind, number in rows} == FORMATS
