"""Whatever is damaged is one error that names the file, says what was seen and what to do."""

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

CARD, WEIGHTS, GRAPH = "card.json", "model.safetensors", "model.pt2"


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Two exports: by a registered function, and as a graph."""
    folder = tmp_path_factory.mktemp("exports")
    return {
        CARD: learner().export(folder / "registered"),
        WEIGHTS: folder / "registered",
        GRAPH: learner(Unknown()).export(folder / "graph", pt2=True),
    }


def changed(**values):
    """A card with other values; those that are None are left out."""

    def change(content):
        card = json.loads(content) | values
        return json.dumps({k: v for k, v in card.items() if v is not None}).encode()

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


DAMAGES = {
    "cut card": (CARD, lambda content: content[:100]),
    "empty card": (CARD, lambda content: b""),
    "card in words": (CARD, lambda content: b"hello"),
    "card of bytes": (CARD, lambda content: b"\xff\xfe\x00"),
    "card that is a list": (CARD, lambda content: b"[1, 2]"),
    "card that is a number": (CARD, lambda content: b"3"),
    "card without batch": (CARD, changed(batch=None)),
    "card without model": (CARD, changed(model=None)),
    "card without pipeline": (CARD, changed(pipeline=None)),
    "card with a list as pipeline": (CARD, changed(pipeline=[1])),
    "card with an unknown setting": (CARD, changed(batch={"n_inputs": 2})),
    "card with an unknown field": (CARD, changed(pipeline={"sizes": 5})),
    "card whose model has no name": (CARD, changed(model={"arguments": {}})),
    "card whose model has no arguments": (CARD, changed(model={"name": "two_layers"})),
    "card whose arguments are a list": (CARD, changed(model={"name": "x", "arguments": [1]})),
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


def damaged(exports, damage, folder):
    name, change = DAMAGES[damage]
    shutil.copytree(exports[name], folder)
    path = folder / name
    if change.__code__.co_argcount == 2:
        change(None, path)
    else:
        path.write_bytes(change(path.read_bytes()))
    return path


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_export_is_named_with_its_file_and_what_to_do(damage, exports, tmp_path):
    path = damaged(exports, damage, tmp_path / "m")
    with pytest.raises(CorruptFileError, match="no complete .* again") as caught:
        load_learner(tmp_path / "m")
    assert str(caught.value).startswith(f"{path} is no complete")


@pytest.mark.parametrize("missing", [WEIGHTS, GRAPH])
def test_a_missing_part_of_an_export_is_named(missing, exports, tmp_path):
    shutil.copytree(exports[missing], tmp_path / "m")
    (tmp_path / "m" / missing).unlink()
    with pytest.raises(FileNotFoundError, match=f"no {missing}: copy the whole folder"):
        load_learner(tmp_path / "m")


def test_what_need_not_be_in_a_card_is_not_missed(exports, tmp_path):
    shutil.copytree(exports[CARD], tmp_path / "m")
    path = tmp_path / "m" / CARD
    few = {key: json.loads(path.read_text())[key] for key in ("model", "batch", "pipeline")}
    path.write_text(json.dumps(few))
    x = torch.randn(2, 4)
    torch.testing.assert_close(
        load_learner(tmp_path / "m", "cpu").model(x), load_learner(exports[CARD], "cpu").model(x)
    )


def test_arguments_that_the_function_does_not_take_any_more_are_said(exports, tmp_path):
    shutil.copytree(exports[CARD], tmp_path / "m")
    path = tmp_path / "m" / CARD
    card = json.loads(path.read_text())
    card["model"]["arguments"] = {"depth": 3}
    path.write_text(json.dumps(card))
    with pytest.raises(ValueError, match="two_layers with .*'depth': 3.*export the model again"):
        load_learner(tmp_path / "m")


@pytest.mark.parametrize("tied", ["{", "[1]", '{"a": "nothing"}'])
def test_weights_whose_note_of_tied_ones_is_damaged_are_named(tied, tmp_path):
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
def test_a_cut_file_of_torch_is_damaged_and_not_a_matter_of_trust(cut, trust, tmp_path):
    check_cut_file_of_torch(tmp_path, cut, trust)


def test_that_check_sees_the_bare_error(tmp_path, monkeypatch):
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
    path = damaged(exports, "cut card", tmp_path / "m")
    assert main([command, str(tmp_path / "m"), "x.png"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"minilearn: {path} is no complete card") and told.count("\n") == 1
