"""Exported models predict the same anywhere; nothing half is left; loading runs no code."""

import contextlib
import copy
import io
import json
import pickle
import subprocess
import sys
import warnings
import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from examples.callbacks.mc_dropout import MCDropoutCB
from minilearn import (
    EMACB,
    BatchTransformCB,
    Callback,
    DataLoaders,
    DeviceCB,
    Learner,
    MetricsCB,
    Pipeline,
    TrainCB,
    accuracy,
    act_gr,
    create_model,
    fashion_mnist,
    get_model,
    load_learner,
    register_model,
    resnet,
)
from minilearn.base.files import CorruptFileError
from minilearn.inference import export as export_module
from minilearn.inference.graph import Program
from minilearn.nn.registry import MODELS, built_by
from tests.toys import assert_same_weights, linear


@register_model
def two_layers(n_in: int = 4, hidden: int = 5, n_out: int = 3, *, norm=None) -> nn.Module:
    """A small net that this module registers."""
    layers = [nn.Linear(n_in, hidden), *([norm(hidden)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, n_out))


class Unknown(nn.Module):
    """A model that nobody registered."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) * 2


def data(n=10):
    torch.manual_seed(1)
    return TensorDataset(torch.randn(n, 4), torch.randint(0, 3, (n,)))


def learner(model=None, cbs=(), dl=None, **kwargs):
    dl = DataLoader(data(), 4) if dl is None else dl
    torch.manual_seed(0)
    model = two_layers() if model is None else model
    cbs = [TrainCB(), MetricsCB(accuracy), *cbs]
    return Learner(model, (dl, dl), F.cross_entropy, cbs=cbs, **kwargs)


@pytest.fixture(scope="module")
def trained():
    """A learner of Fashion-MNIST after an epoch on 64 images, and the test images."""
    dd = fashion_mnist()
    dd = type(dd)({name: ds.select(range(64)) for name, ds in dd.items()})
    dls = DataLoaders.from_dd(dd, 32, splits={"valid": "test"}, seed=0)
    model = get_model(act_gr, (1, 8, 16), nn.BatchNorm2d)
    cbs = [TrainCB(), MetricsCB(accuracy)]
    learn = Learner(model, dls, F.cross_entropy, 1e-2, cbs, optim.AdamW)
    learn.fit(1)
    return learn, dd["test"]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- there and back ----


def test_a_registered_model_comes_back_with_its_pipeline_and_predicts_the_same(trained, tmp_path):
    learn, ds = trained
    assert learn.export(tmp_path / "model") == tmp_path / "model"
    again = load_learner(tmp_path / "model", "cpu")
    assert again.dls.pipeline == learn.dls.pipeline
    assert_same_weights(again.model, learn.model)
    images = [row["image"] for row in ds.select(range(5))]
    for ours, theirs in zip(learn.infer(images), again.infer(images), strict=True):
        assert ours.label == theirs.label
        assert torch.equal(ours.output, theirs.output)
    assert torch.equal(again.get_preds(learn.dls.valid)[0], learn.get_preds()[0])


def test_the_metadata_say_what_was_trained(trained, tmp_path):
    learn, ds = trained
    learn.export(tmp_path / "model")
    metadata = json.loads((tmp_path / "model" / "metadata.json").read_text())
    assert metadata["model"]["name"] == "get_model"
    assert metadata["model"]["arguments"]["nfs"] == [1, 8, 16]
    assert metadata["inputs"] == {"0": "Tensor[1, 1, 28, 28]"}
    assert metadata["pipeline"]["classes"] == ds.features["label"].names
    assert metadata["metrics"]["accuracy"] == learn.history[-1]["accuracy"]
    assert [row["epoch"] for row in metadata["history"]] == [0]
    assert metadata["versions"]["torch"] == torch.__version__


def test_the_metadata_are_json_whatever_the_history_holds(tmp_path):
    learn = learner()
    learn.history.append({"epoch": 0, "valid_loss": float("nan"), "x": torch.tensor(1.0)})
    metadata = json.loads(
        (learn.export(tmp_path / "m") / "metadata.json").read_text(), parse_constant=int
    )
    assert metadata["metrics"] == {"epoch": 0, "valid_loss": "NaN", "x": "tensor(1.)"}


FRESH = """
import sys, torch
from minilearn import load_learner
x = torch.load(sys.argv[1])
torch.save([load_learner(path, "cpu", trust="graph" in path).get_preds([(x,)], with_targs=False)
            for path in sys.argv[3:]],
           sys.argv[2])
assert "tests" not in sys.modules and "PIL" not in sys.modules
"""


def test_a_fresh_process_without_the_script_predicts_the_same(trained, tmp_path):
    learn, _ = trained
    x = next(iter(learn.dls.valid))[0]
    torch.save(x, tmp_path / "x.pt")
    strange = Learner(nn.Sequential(nn.Flatten(), nn.Linear(784, 10), _Halves()), learn.dls)
    strange.cbs, strange.loss_func = [TrainCB()], F.cross_entropy
    folders = [learn.export(tmp_path / "made"), strange.export(tmp_path / "graph", pt2=True)]
    script = tmp_path / "fresh.py"
    script.write_text(FRESH)
    args = [sys.executable, script, tmp_path / "x.pt", tmp_path / "preds.pt", *folders]
    done = subprocess.run(args, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = [m.get_preds([(x,)], with_targs=False) for m in (learn, strange)]
    for theirs, ours in zip(torch.load(tmp_path / "preds.pt"), expected, strict=True):
        torch.testing.assert_close(theirs, ours)


class _Halves(nn.Module):
    """A layer that only this file knows."""

    def forward(self, x):
        return x / 2


def test_onnx_predicts_the_same_through_onnxruntime(trained, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    learn, _ = trained
    learn.export(tmp_path / "model", onnx=True)
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    x = next(iter(learn.dls.valid))[0]
    expected = learn.get_preds([(x,)], with_targs=False)
    for n in (1, 7):  # neither is what it was written with
        (theirs,) = session.run(None, {session.get_inputs()[0].name: x[:n].numpy()})
        torch.testing.assert_close(torch.from_numpy(theirs), expected[:n], rtol=1e-4, atol=1e-5)


def test_a_graph_takes_batches_of_any_size_and_lets_the_loop_set_modes(tmp_path):
    learn = learner(Unknown())
    learn.export(tmp_path / "m", pt2=True)
    again = load_learner(tmp_path / "m", "cpu", trust=True)
    for n in (1, 3, 100):
        x = torch.randn(n, 4)
        torch.testing.assert_close(
            again.get_preds([(x,)], with_targs=False), learn.model(x).detach()
        )
    assert again.infer(torch.zeros(4)).label in (0, 1, 2)  # cross-entropy: it chooses


def test_averaged_weights_are_exported_where_the_fit_validates_them(tmp_path):
    learn = learner(cbs=[EMACB(0.9)], lr=0.5)
    learn.fit(2)
    learn.export(tmp_path / "m")
    x = torch.randn(3, 4)
    expected = learn.get_preds([(x,)], with_targs=False)
    assert torch.equal(
        load_learner(tmp_path / "m", "cpu").get_preds([(x,)], with_targs=False), expected
    )
    assert not torch.equal(learn.model(x), expected)


def test_dict_batches_keep_how_they_are_split(tmp_path):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x, factor):
            return self.layer(x) * factor[:, None]

    torch.manual_seed(0)
    batch = {"a": torch.randn(4, 4), "b": torch.rand(4), "y": torch.tensor([0, 1, 2, 0])}
    cb = TrainCB(inputs={"x": "a", "factor": "b"}, targets="y")
    learn = Learner(Scale(), ([batch], [batch]), F.cross_entropy, cbs=[cb])
    again = load_learner(learn.export(tmp_path / "m", pt2=True), "cpu", trust=True)
    items = [{"a": batch["a"][i], "b": batch["b"][i]} for i in range(3)]
    for ours, theirs in zip(learn.infer(items), again.infer(items), strict=True):
        torch.testing.assert_close(ours.output, theirs.output)


# ---- ordinary classes ----


class Deep(nn.Module):
    """Keeps its arguments, but for those that have their defaults."""

    def __init__(self, hidden, norm=nn.BatchNorm1d, p=0.1, sizes=(4, 3), bias=True):
        super().__init__()
        self.hidden, self.norm, self.sizes = hidden, norm, sizes
        self.body = nn.Sequential(nn.Linear(sizes[0], hidden, bias), norm(hidden), nn.Dropout(p))
        self.head = nn.Linear(hidden, sizes[1])

    def forward(self, x):
        return self.head(self.body(x).relu())


class Keeps(nn.Module):
    """Does not keep its argument."""

    def __init__(self, n):
        super().__init__()
        self.layer = nn.Linear(4, n)

    def forward(self, x):
        return self.layer(x)


class Doubles(nn.Module):
    """Keeps another value than it was given; `power` is kept nowhere."""

    def __init__(self, scale=1.0, power=1):
        super().__init__()
        self.scale, self.layer = 2 * scale, nn.Linear(4, 3)
        self.act = torch.square if power == 2 else torch.abs

    def forward(self, x):
        return self.layer(self.act(x)) * self.scale


def test_a_model_of_an_importable_class_comes_back_where_it_is_trusted(tmp_path, capsys):
    learn = learner(Deep(7, nn.LayerNorm, sizes=[4, 3]))
    learn.fit(1)
    capsys.readouterr()
    folder = learn.export(tmp_path / "m")
    assert "trust=True) imports tests.inference.test_export:Deep" in capsys.readouterr().out
    metadata = json.loads((folder / "metadata.json").read_text())
    arguments = {"hidden": 7, "norm": {"torch.nn": "LayerNorm"}, "sizes": [4, 3]}
    assert metadata["model"]["arguments"] == arguments
    with pytest.raises(ValueError, match=r"tests\.inference\.test_export:Deep.* trust=True"):
        load_learner(folder, "cpu")
    again = load_learner(folder, "cpu", trust=True)
    assert str(again.model) == str(learn.model) and type(again.model) is Deep
    assert torch.equal(again.get_preds(learn.dls[1])[0], learn.get_preds()[0])
    metadata["model"]["name"] = "not_here.models:Deep"
    (folder / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match=r"not_here.*on the path.*pt2=True"):
        load_learner(folder, "cpu", trust=True)


@pytest.mark.parametrize(
    "model",
    [
        Deep(7, p=0.5),  # as the default in eval mode, and not where it trains
        Deep(7, bias=False),
        Doubles(3.0),  # keeps 6.0
        Doubles(power=2),
        nn.Linear(4, 3, bias=False),
    ],
)
def test_a_wrong_guess_of_the_arguments_is_an_error_that_offers_a_graph(model, tmp_path):
    with pytest.raises(ValueError, match=r"makes another model.*pt2=True"):
        learner(model).export(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    learner(model).export(tmp_path / "m", pt2=True)


class Hides(nn.Module):
    """Keeps its argument where nobody looks."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.box, self.layer = {"factor": factor}, nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) * self.box["factor"]


def test_an_argument_that_no_attribute_shows_is_found_by_the_output(tmp_path):
    learner(Hides()).export(tmp_path / "m")
    with pytest.raises(ValueError, match=r"predicts otherwise.*pt2=True"):
        learner(Hides(2.0)).export(tmp_path / "n")


def test_classes_of_a_function_or_the_script_are_refused_with_what_to_do(tmp_path, monkeypatch):
    class Local(Unknown):
        pass

    monkeypatch.setattr(Keeps, "__module__", "__main__")
    for model in (Local(), Keeps(3)):
        with pytest.raises(ValueError, match=r"running script or a function.*pt2=True"):
            learner(model).export(tmp_path / "m")


# ---- F41 ----


def check_script_is_named(learn, folder):
    """An export whose function lives in the running script says so when it is written."""
    with pytest.warns(UserWarning, match="two_layers.* in the running script.*pt2=True"):
        learn.export(folder)


@pytest.mark.case("F41")
def test_a_function_in_the_running_script_is_named_at_export(tmp_path, monkeypatch):
    monkeypatch.setattr(MODELS["two_layers"], "__module__", "__main__")
    check_script_is_named(learner(), tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        learner().export(tmp_path / "n", pt2=True)  # the graph needs no function


@pytest.mark.case("F41")
def test_the_check_notices_an_export_of_a_script_without_a_word(tmp_path, monkeypatch):
    monkeypatch.setattr(MODELS["two_layers"], "__module__", "__main__")
    monkeypatch.setattr(export_module.warnings, "warn", lambda *args, **kwargs: None)
    with pytest.raises(pytest.fail.Exception):
        check_script_is_named(learner(), tmp_path / "m")


@pytest.mark.case("F41")
def test_a_script_that_exports_its_own_function_warns(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, minilearn as ml\n"
        "@ml.register_model\n"
        "def mine(n: int = 3):\n    return torch.nn.Linear(n, 1)\n"
        "dl = [(torch.randn(4, 3), torch.randn(4, 1))]\n"
        "ml.Learner(mine(), (dl, dl), cbs=[ml.TrainCB()]).export('m')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mine, which makes the model, is in the running script" in done.stderr


# ---- F42 ----


def file_from_a_gpu(path, monkeypatch):
    """The file of a whole Learner as a machine with CUDA writes it."""
    learn = learner()
    learn.cbs.append(DeviceCB("cpu"))
    learn.cbs[-1].device = torch.device("cuda:0")
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save(learn, path)
    return learn


def check_learner_of_another_device(path, monkeypatch):
    """It is whole, and predicts here."""
    learn = file_from_a_gpu(path, monkeypatch)
    monkeypatch.setenv("MINILEARN_DEVICE", "cpu")
    again = load_learner(path, trust=True)
    x = torch.randn(3, 4)
    assert torch.equal(again.get_preds([(x,)], with_targs=False), learn.model(x).detach())


@pytest.mark.case("F42")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is the device")
def test_a_learner_of_another_device_loads_on_the_cpu(tmp_path, monkeypatch):
    check_learner_of_another_device(tmp_path / "learn.pkl", monkeypatch)


@pytest.mark.case("F42")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is the device")
def test_the_check_notices_a_file_that_is_called_corrupt(tmp_path, monkeypatch):
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, map_location, **kw: load(*a, **kw))
    with pytest.raises(CorruptFileError):
        check_learner_of_another_device(tmp_path / "learn.pkl", monkeypatch)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is the device")
def test_a_device_that_is_not_here_is_no_corrupt_file(tmp_path):
    torch.save(learner(), tmp_path / "learn.pkl")
    with pytest.raises((RuntimeError, AssertionError)) as e:
        load_learner(tmp_path / "learn.pkl", "cuda", trust=True)
    assert not isinstance(e.value, CorruptFileError)


# ---- what cannot be exported ----


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize(
    ("model", "cbs", "message"),
    [
        (Keeps(3), (), r"how this Keeps was made.*'n'.*register_model.*pt2=True"),
        (
            two_layers(norm=lambda n: nn.LayerNorm(n)),
            (),
            r"two_layers\(norm=…\).*<lambda>.*pt2=True",
        ),
        (two_layers(), [MCDropoutCB], None),
        (nn.Sequential(two_layers(), nn.Dropout()), [MCDropoutCB], "how this Sequential was made"),
    ],
)
def test_what_cannot_be_made_again_is_refused_and_leaves_no_trace(
    model, cbs, message, older, tmp_path
):
    if older:
        learner().export(tmp_path / "m")
    before = files(tmp_path / "m") if older else None
    learn = learner(copy.deepcopy(model), [cb() for cb in cbs])
    if message is None:
        learn.export(tmp_path / "m")
        return
    with pytest.raises(ValueError, match=message):
        learn.export(tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == (["m"] if older else [])
    assert not older or files(tmp_path / "m") == before


def test_a_model_that_was_changed_after_it_was_made_is_refused(tmp_path):
    model = two_layers(n_out=3)
    model[1] = nn.Tanh()  # same weights, other numbers
    with pytest.raises(ValueError, match="model.safetensors .*predicts otherwise.*changed after"):
        learner(model).export(tmp_path / "m")
    model[2] = nn.Linear(5, 7)
    with pytest.raises(ValueError, match=r"holds another model(?s:.)*2\.weight"):
        learner(model).export(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


class OfFour(Unknown):
    """Takes batches of four alone."""

    def forward(self, x):
        return self.layer(x.reshape(4, 4))


class Turns(Unknown):
    """Decides by the numbers it is given, which no graph can."""

    def forward(self, x):
        return self.layer(x if x.sum() > 0 else -x)


@pytest.mark.parametrize(
    ("model", "message"),
    [(OfFour(), "pt2 does not serve for a batch of 1"), (Turns(), "cannot trace the graph")],
)
def test_a_graph_that_serves_some_batches_only_is_refused(model, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        learner(model, dl=DataLoader(data(4), 4)).export(tmp_path / "m", pt2=True)
    assert list(tmp_path.iterdir()) == []


def test_what_a_callback_makes_of_the_predictions_is_not_lost_in_silence(tmp_path):
    class Sharper(Callback):
        order = TrainCB.order + 1

        def after_predict(self, learn):
            learn.preds = learn.preds * 10

    with pytest.raises(ValueError, match="not what its model gives.*a callback"):
        learner(cbs=[Sharper()]).export(tmp_path / "m")
    with pytest.raises(ValueError, match="not what its model gives"):
        noisy = nn.Sequential(nn.Dropout(), nn.Linear(4, 3))
        learner(noisy, [MCDropoutCB()]).export(tmp_path / "m", pt2=True)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    learn = learner()
    folder = learn.export(tmp_path / "m")
    learn.export(folder)  # an older export is replaced
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        learn.export(folder)
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.case("F35")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metadata.json", '{"mine": 1}'),
        ("metadata.json", "[]"),
        ("metadata.json", '{"format": 1, "versions": {"torch": "2"}}'),
        ("model.safetensors", "weights of another program"),
        ("model.onnx/data", "a folder"),
        ("model.pt2", ""),
    ],
)
def test_files_of_others_with_the_names_of_an_export_stay(name, content, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(FileExistsError, match="holds other files"):
        learner().export(tmp_path)
    assert (tmp_path / name).read_text() == content and len(list(tmp_path.iterdir())) == 1


@pytest.mark.case("F35")
@pytest.mark.parametrize("kind", ["link", "dangling link", "current folder", "hidden files"])
def test_the_folder_of_an_export_stays_what_it_is(kind, tmp_path, monkeypatch):
    check_folder_stays(kind, tmp_path, monkeypatch)


def check_folder_stays(kind, tmp_path, monkeypatch):
    real = folder = tmp_path / "real"
    if kind != "dangling link":
        real.mkdir()
    if "link" in kind:
        (folder := tmp_path / "m").symlink_to(real)
    monkeypatch.chdir(real if kind == "current folder" else tmp_path)
    if kind == "hidden files":
        (real / ".DS_Store").write_text("x")
    before = None if kind == "dangling link" else real.stat().st_ino
    for _ in range(2):
        assert learner().export("." if kind == "current folder" else folder)
        assert folder.is_symlink() == ("link" in kind)
        assert before in (None, real.stat().st_ino)
    assert {p.name for p in real.iterdir()} - {".DS_Store"} == {
        "metadata.json",
        "model.safetensors",
    }
    assert (real / ".DS_Store").exists() == (kind == "hidden files")
    assert {p.name for p in tmp_path.iterdir()} == {"real", folder.name}
    load_learner(real)


@pytest.mark.case("F35")
def test_the_check_notices_a_folder_that_is_renamed_away(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def renamed(folder):
        part = folder.with_name("part")
        part.mkdir()
        yield part
        if folder.exists():
            folder.rename(folder.with_name("old"))
        part.rename(folder)

    monkeypatch.setattr(export_module, "_complete_or_absent", renamed)
    with pytest.raises((AssertionError, OSError)):
        check_folder_stays("link", tmp_path, monkeypatch)


@pytest.mark.case("C126")
@pytest.mark.parametrize("nth", range(1, 5))
def test_an_error_while_files_get_their_names_leaves_the_older_export(nth, tmp_path, monkeypatch):
    folder = learner().export(tmp_path / "m")
    before, real, calls = files(folder), export_module.os.replace, []

    def replace(source, target):
        calls.append(source)
        if len(calls) == nth:
            raise OSError("the disk is full")
        real(source, target)

    monkeypatch.setattr(export_module.os, "replace", replace)
    with pytest.raises(OSError, match="disk is full"):
        learner(two_layers(hidden=7)).export(folder)
    assert files(folder) == before and [*tmp_path.iterdir()] == [folder]


BITS = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])


@pytest.mark.parametrize(
    ("loss", "target", "several"),
    [
        (F.binary_cross_entropy_with_logits, BITS, True),
        (nn.MultiLabelSoftMarginLoss(), BITS, True),
        (F.mse_loss, BITS / 2, False),  # numbers
        (F.mse_loss, BITS[:, :2], False),  # not one a class
        (nn.CrossEntropyLoss(label_smoothing=0.1), BITS, False),  # soft labels of one class
        (F.cross_entropy, BITS[:, 0].long(), False),
    ],
)
def test_the_metadata_say_whether_items_have_several_labels(loss, target, several, tmp_path):
    learn = learner(two_layers(n_out=3), dl=DataLoader(TensorDataset(torch.randn(4, 4), target), 4))
    learn.dls, learn.loss_func = DataLoaders(*learn.dls), loss
    learn.dls.pipeline = Pipeline(classes=["a", "b", "c"])
    metadata = json.loads((learn.export(tmp_path / "m") / "metadata.json").read_text())
    assert metadata["several_labels"] is several


# ---- C126 ----


@pytest.mark.case("C126")
def test_a_function_that_changes_batches_of_validations_is_warned_of_by_name(tmp_path):
    learn = learner(cbs=[BatchTransformCB(lambda batch: (batch[0] * 2, batch[1]))])
    with pytest.warns(UserWarning, match="BatchTransformCB.* changes the batches of a validation"):
        learn.export(tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        learner(cbs=[BatchTransformCB(lambda b: b, on_val=False)]).export(tmp_path / "n")


def check_complete_or_absent(folder):
    """An export that fails while it writes leaves the older one as it was."""
    learner().export(folder)
    before, changed = files(folder), two_layers()
    changed[1] = nn.Tanh()
    with pytest.raises(ValueError, match="predicts otherwise"):
        learner(changed).export(folder)
    assert files(folder) == before
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


@pytest.mark.case("C126")
def test_a_failure_in_the_middle_leaves_the_older_export(tmp_path, monkeypatch):
    check_complete_or_absent(tmp_path / "m")

    from contextlib import nullcontext

    def in_place(folder):
        folder.mkdir(exist_ok=True)
        return nullcontext(folder)

    monkeypatch.setattr(export_module, "_complete_or_absent", in_place)
    with pytest.raises(AssertionError):
        check_complete_or_absent(
            tmp_path / "n" if (tmp_path / "n").mkdir() else tmp_path / "n" / "m"
        )


@pytest.mark.case("C126")
def test_training_goes_on_after_exports_as_if_there_had_been_none(tmp_path):
    states = []
    for exports in (False, True):
        learn = learner(
            nn.Sequential(nn.Dropout(0.2), linear(n_in=4, n_out=3)), opt_func=optim.AdamW
        )
        torch.manual_seed(5)
        learn.fit(1)
        if exports:
            learn.export(tmp_path / "m", pt2=True)
            with pytest.raises(ValueError, match="An export can hold"):
                learn.export(tmp_path / "m")
        learn.fit(1, reset_opt=False)
        states.append(learn)
    assert_same_weights(states[0].model, states[1].model)


# ---- C127 ----


class Evil:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


def evil_graph(folder):
    """An export whose graph runs code when torch loads it; the path that the code makes."""
    learner(Unknown()).export(folder, pt2=True)
    path, marker = folder / "model.pt2", folder.parent / "marker"
    with zipfile.ZipFile(path) as file:
        parts = {entry: file.read(entry) for entry in file.namelist()}
    (inputs,) = (entry for entry in parts if entry.endswith("data/sample_inputs/model.pt"))
    buffer = io.BytesIO()
    torch.save(Evil(marker), buffer)
    with zipfile.ZipFile(path, "w") as file:
        for entry, value in parts.items():
            file.writestr(entry, buffer.getvalue() if entry == inputs else value)
    return marker


def check_runs_nothing(folder, **kwargs):
    """Loading a graph runs no code that is in it."""
    marker = evil_graph(folder)
    with contextlib.suppress(ValueError):  # a refusal
        load_learner(folder, "cpu", **kwargs)
    assert not marker.exists()


@pytest.mark.case("C127")
def test_a_graph_needs_trust(tmp_path):
    check_runs_nothing(tmp_path / "m")
    with pytest.raises(ValueError, match=r"model\.pt2 is the graph .* trust=True"):
        load_learner(tmp_path / "m")


@pytest.mark.case("C127")
def test_the_check_notices_a_graph_that_is_loaded(tmp_path):
    with pytest.raises(AssertionError):
        check_runs_nothing(tmp_path / "m", trust=True)


def test_a_graph_names_the_function_that_would_need_no_trust(tmp_path, monkeypatch):
    folder = learner().export(tmp_path / "m", pt2=True)
    assert isinstance(load_learner(folder, "cpu").model, nn.Sequential)  # no graph, no trust
    monkeypatch.delitem(MODELS, "two_layers")
    with pytest.raises(ValueError, match="import the module that registers 'two_layers'"):
        load_learner(folder, "cpu")
    assert isinstance(load_learner(folder, "cpu", trust=True).model, Program)


def test_a_graph_holds_no_path_of_this_machine_and_no_data(tmp_path):
    path = learner(Unknown()).export(tmp_path / "m", pt2=True) / "model.pt2"
    with zipfile.ZipFile(path) as file:
        parts = {entry: file.read(entry) for entry in file.namelist()}
    here = str(Path(__file__).parent).encode()
    assert not any(here in value for value in parts.values())
    assert [v for entry, v in parts.items() if "sample_inputs" in entry] == [b""]


@pytest.mark.case("C127")
def test_weights_that_are_a_pickle_are_refused(tmp_path):
    folder, marker = learner().export(tmp_path / "m"), tmp_path / "marker"
    (folder / "model.safetensors").write_bytes(pickle.dumps(Evil(marker)))
    with pytest.raises(Exception, match="no complete safetensors"):
        load_learner(folder)
    assert not marker.exists()


@pytest.mark.case("C127")
def test_metadata_can_name_only_registered_functions_and_layers(tmp_path):
    folder = learner().export(tmp_path / "m")
    metadata = json.loads((folder / "metadata.json").read_text())
    for name, arguments in [
        ("os.system", {"command": "x"}),
        ("os:system", {"command": "x"}),
        ("two_layers", {"norm": {"os": "abort"}}),
    ]:
        metadata["model"] = {"name": name, "arguments": arguments}
        (folder / "metadata.json").write_text(json.dumps(metadata))
        with pytest.raises(ValueError, match="no model|no layer|trust=True"):
            load_learner(folder)
    metadata["model"] = {"name": "os:system", "arguments": {"command": "x"}}
    (folder / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="os:system is no class of a model"):
        load_learner(folder, trust=True)


@pytest.mark.case("C127")
def test_a_whole_learner_needs_trust(tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "learn.pkl"
    torch.save(Evil(marker), path)
    with pytest.raises(ValueError, match="trust=True"):
        load_learner(path)
    assert not marker.exists()
    load_learner(path, trust=True)
    assert marker.exists()  # the file would have run


# ---- the registry ----


def test_arguments_come_back_with_layers_of_torch_and_of_ours():
    for model in (resnet(3, 5, nfs=(4, 8), act=nn.ReLU), get_model(act_gr, (1, 4), nn.BatchNorm2d)):
        name, arguments = built_by(model)
        again = create_model(name, **json.loads(json.dumps(arguments)))
        again.load_state_dict(model.state_dict())
        assert str(again) == str(model)


def test_what_json_cannot_hold_is_named():
    with pytest.raises(ValueError, match=r"resnet\(act=…\).*partial"):
        built_by(resnet(act=partial(nn.LeakyReLU, 0.1)))


def test_only_functions_are_registered_and_each_name_once():
    with pytest.raises(TypeError, match="register a function"):
        register_model(nn.Linear)

    def resnet():
        return nn.Identity()

    before = dict(MODELS)
    with pytest.raises(ValueError, match=r"minilearn\.nn\.models has registered a model 'resnet'"):
        register_model(resnet)
    assert before == MODELS
    with pytest.raises(ValueError, match="no model 'vgg' is registered here; there are cnn"):
        create_model("vgg")
