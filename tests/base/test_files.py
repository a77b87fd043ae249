"""Writing touches nothing of others: links, pipes, folders and odd names stay what they are."""

import os
import stat
import tempfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import minilearn
from minilearn import CheckpointCB, DataLoaders, Learner, RunCB, load_learner
from minilearn.base import files
from minilearn.base.files import free, replaced, user_path

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


def write(path, data=b"new"):
    with files.replaced(path) as file:
        file.write(data)


def link_to_file(folder):
    (folder / "target").write_bytes(b"old")
    (folder / "a").symlink_to("target")


def link_to_a_link(folder):
    link_to_file(folder)
    (folder / "a").rename(folder / "b")
    (folder / "a").symlink_to("b")


def dangling(folder):
    (folder / "a").symlink_to("target")


@pytest.mark.case("F36")
@pytest.mark.parametrize("make", [link_to_file, link_to_a_link, dangling])
def test_a_link_stays_and_what_it_leads_to_is_written(make, tmp_path):
    make(tmp_path)
    check_link(tmp_path)


def check_link(folder):
    write(folder / "a")
    assert (folder / "a").is_symlink() and (folder / "target").read_bytes() == b"new"
    assert not list(folder.glob("*.part"))


@pytest.mark.case("F36")
def test_the_check_notices_a_link_that_is_replaced(tmp_path, monkeypatch):
    link_to_file(tmp_path)
    monkeypatch.setattr(files.os.path, "realpath", lambda path: path)
    with pytest.raises(AssertionError):
        check_link(tmp_path)


@needs_pipes
@pytest.mark.case("F36")
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_left_alone(make, tmp_path):
    make(path := tmp_path / "a")
    kind = stat.S_IFMT(os.lstat(path).st_mode)
    with pytest.raises(FileExistsError, match="is no file, and is left alone"):
        write(path)
    assert stat.S_IFMT(os.lstat(path).st_mode) == kind and list(tmp_path.iterdir()) == [path]


def test_the_content_of_a_hard_link_stays(tmp_path):
    write(tmp_path / "a", b"old")
    os.link(tmp_path / "a", tmp_path / "kept")
    write(tmp_path / "a")
    assert (tmp_path / "kept").read_bytes() == b"old"


@pytest.mark.case("F36")
@settings(max_examples=60, deadline=None)
@given(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1).filter(
        lambda name: name not in (".", "..") and len(os.fsencode(name)) <= 255
    )
    | st.sampled_from(["x" * 255, "é" * 127, "~", "~nobody", "-rf", "a\nb", '"', " ", "%s{0}", "*"])
)
def test_a_file_may_be_called_like_anything(name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        write(path, b"old")
        write(path)
        assert os.listdir(folder) == [name] and path.read_bytes() == b"new"
        with pytest.raises(FileExistsError), replaced(path, overwrite=False):
            pass
        assert os.listdir(folder) == [name]


def test_a_number_is_free_where_no_link_has_it_either(tmp_path):
    (tmp_path / "a_1.csv").symlink_to("nowhere")
    (tmp_path / "a_2.csv").mkdir()
    assert free(tmp_path / "a.csv") == tmp_path / "a_3.csv"


def test_the_home_folder_has_a_short_name(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert user_path("~/runs") == tmp_path / "runs"
    assert user_path("~nobody$/runs") == Path("~nobody$/runs")  # a name like any other


def test_a_package_that_is_not_installed_but_imported_from_a_folder_saves_all_the_same(
    tmp_path, monkeypatch
):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(files, "version", version)
    dls = DataLoaders.from_arrays(torch.randn(8, 3), torch.randn(8, 1), bs=4)
    cbs = [CheckpointCB(tmp_path / "run"), RunCB(tmp_path)]
    learn = Learner(nn.Linear(3, 1), dls, F.mse_loss, metrics=[], cbs=cbs)
    learn.fit(1)
    learn.fit(2, resume=True)
    assert learn.history["epoch"] == [0, 1]
    learn.save(tmp_path / "w.safetensors")
    learn.load(tmp_path / "w.safetensors")
    learn.export(tmp_path / "model", pt2=True)
    assert load_learner(tmp_path / "model", trust=True).model is not None
    assert minilearn.__version__ == "unknown"
