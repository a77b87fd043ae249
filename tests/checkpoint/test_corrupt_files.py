"""Every corrupt file is one error that names the file, says what was seen and what to do."""

import json
import shutil
import zipfile
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import save
from torch import nn

from minilearn import load_learner, load_model
from minilearn.base.files import CorruptFileError, reading
from minilearn.checkpoint import weights as weights_module
from minilearn.cli import main
from tests.inference.test_export import Unknown, learner

METADATA, WEIGHTS, GRAPH = "metadata.json", "model.safetensors", "model.pt2"


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Two exports: by a registered function, and as a graph."""
    folder = tmp_path_factory.mktemp("exports")
    return {
        METADATA: learner().export(folder / "registered"),
        WEIGHTS: folder / "registered",
        GRAPH: learner(Unknown()).export(folder / "graph", pt2=True),
    }


def changed(**values):
    """Metadata with other values; those that are None are left out."""

    def change(content):
        metadata = json.loads(content) | values
        return json.dumps({k: v for k, v in metadata.items() if v is not None}).encode()

    return change


def flipped(content):
    middle = len(content) // 3
    return content[:middle] + bytes(b ^ 255 for b in content[middle : middle + 200])


def part_replaced(part, content):
    """A `.pt2` archive with one of its parts replaced; without it where that is None."""

    def change(_, path):
        with zipfile.ZipFile(path) as old:
            parts = {name: old.read(name) for name in old.namelist()}
        with zipfile.ZipFile(path, "w") as new:
            for name, was in parts.items():
                now = content if part in name else was
                if now is not None:
                    new.writestr(name, now)

    return change


CORRUPTIONS = {
    "cut metadata": (METADATA, lambda content: content[:100]),
    "empty metadata": (METADATA, lambda content: b""),
    "metadata in words": (METADATA, lambda content: b"hello"),
    "metadata of bytes": (METADATA, lambda content: b"\xff\xfe\x00"),
    "metadata that is a list": (METADATA, lambda content: b"[1, 2]"),
    "metadata that is a number": (METADATA, lambda content: b"3"),
    "metadata without batch": (METADATA, changed(batch=None)),
    "metadata without model": (METADATA, changed(model=None)),
    "metadata without pipeline": (METADATA, changed(pipeline=None)),
    "metadata with a list as pipeline": (METADATA, changed(pipeline=[1])),
    "metadata with an unknown setting": (METADATA, changed(batch={"n_inputs": 2})),
    "metadata with an unknown field": (METADATA, changed(pipeline={"sizes": 5})),
    "metadata whose model has no name": (METADATA, changed(model={"arguments": {}})),
    "metadata whose model has no arguments": (METADATA, changed(model={"name": "two_layers"})),
    "metadata whose arguments are a list": (
        METADATA,
        changed(model={"name": "x", "arguments": [1]}),
    ),
    "cut weights": (WEIGHTS, lambda content: content[:-5]),
    "cut header": (WEIGHTS, lambda content: content[:40]),
    "empty weights": (WEIGHTS, lambda content: b""),
    "weights in words": (WEIGHTS, lambda content: b"hello " * 50),
    "cut graph": (GRAPH, lambda content: content[: len(content) // 2]),
    "empty graph": (GRAPH, lambda content: b""),
    "flipped graph": (GRAPH, flipped),
    "graph without its graph": (GRAPH, part_replaced("models/model.json", None)),
    "graph whose graph is cut": (GRAPH, part_replaced("models/model.json", b'{"a":')),
    "graph whose graph is a list": (GRAPH, part_replaced("models/model.json", b"[]")),
    "graph with a cut weight": (GRAPH, part_replaced("weights/weight_0", b"12")),
}


def corrupted(exports, kind, folder):
    name, change = CORRUPTIONS[kind]
    shutil.copytree(exports[name], folder)
    path = folder / name
    if change.__code__.co_argcount == 2:
        change(None, path)
    else:
        path.write_bytes(change(path.read_bytes()))
    return path


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corrupt_export_is_named_with_its_file_and_what_to_do(kind, exports, tmp_path):
    path = corrupted(exports, kind, tmp_path / "m")
    with pytest.raises(CorruptFileError, match="no complete .* again") as caught:
        load_learner(tmp_path / "m", trust=True)
    assert str(caught.value).startswith(f"{path} is no complete")


@pytest.mark.parametrize("missing", [WEIGHTS, GRAPH])
def test_a_missing_part_of_an_export_is_named(missing, exports, tmp_path):
    shutil.copytree(exports[missing], tmp_path / "m")
    (tmp_path / "m" / missing).unlink()
    with pytest.raises(FileNotFoundError, match=f"no {missing}: copy the whole folder"):
        load_learner(tmp_path / "m")


def test_what_need_not_be_in_the_metadata_is_not_missed(exports, tmp_path):
    shutil.copytree(exports[METADATA], tmp_path / "m")
    path = tmp_path / "m" / METADATA
    few = {key: json.loads(path.read_text())[key] for key in ("model", "batch", "pipeline")}
    path.write_text(json.dumps(few))
    x = torch.randn(2, 4)
    torch.testing.assert_close(
        load_learner(tmp_path / "m", "cpu").model(x),
        load_learner(exports[METADATA], "cpu").model(x),
    )


def test_arguments_that_the_function_does_not_take_any_more_are_said(exports, tmp_path):
    shutil.copytree(exports[METADATA], tmp_path / "m")
    path = tmp_path / "m" / METADATA
    metadata = json.loads(path.read_text())
    metadata["model"]["arguments"] = {"depth": 3}
    path.write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="two_layers with .*'depth': 3.*export the model again"):
        load_learner(tmp_path / "m")


@pytest.mark.parametrize("tied", ["{", "[1]", '{"a": "nothing"}'])
def test_weights_whose_note_of_tied_ones_is_corrupt_are_named(tied, tmp_path):
    path = tmp_path / WEIGHTS
    path.write_bytes(save({"weight": torch.zeros(1, 2)}, metadata={"tied": tied}))
    with pytest.raises(CorruptFileError, match="no complete safetensors file"):
        load_model(path, nn.Linear(2, 1, bias=False))


def check_cut_file_of_torch(folder, cut, trust):
    path = folder / "m.pt"
    torch.save(nn.Linear(2, 1).state_dict(), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CorruptFileError, match="m.pt is no complete file of weights"):
        load_model(path, nn.Linear(2, 1), trust=trust)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("cut", [0, 4, -30])
def test_a_cut_file_of_torch_is_corrupt_and_not_a_matter_of_trust(cut, trust, tmp_path):
    check_cut_file_of_torch(tmp_path, cut, trust)


def test_that_check_sees_the_raw_error(tmp_path, monkeypatch):
    monkeypatch.setattr(weights_module, "reading", lambda *_: nullcontext())
    with pytest.raises(RuntimeError):
        check_cut_file_of_torch(tmp_path, -30, False)


def test_a_cut_file_of_a_whole_learner_is_named(tmp_path):
    path = tmp_path / "learn.pkl"
    torch.save({"a": torch.zeros(3)}, path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(CorruptFileError, match="learn.pkl is no complete file of a Learner"):
        load_learner(path, trust=True)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("it is cut.\nsecond line"), "it is cut"),
        (KeyError("name"), "KeyError: 'name'"),
        (TypeError("no list"), "TypeError: no list"),
        (EOFError(), "EOFError"),
    ],
)
def test_the_reason_is_the_first_line_of_the_error_or_its_kind(error, reason):
    with pytest.raises(CorruptFileError) as caught, reading("a.pt", "file", "Copy it."):
        raise error
    assert str(caught.value) == f"a.pt is no complete file: {reason}. Copy it."
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("command", ["predict", "eval"])
def test_the_command_line_says_it_in_one_line(command, exports, tmp_path, capsys):
    path = corrupted(exports, "cut metadata", tmp_path / "m")
    assert main([command, str(tmp_path / "m"), "x.png"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"minilearn: {path} is no complete metadata") and told.count("\n") == 1
