"""`minilearn train` from a configuration: equal runs, runs that go on, parts of your own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn

import minilearn
from minilearn import MixCB, cli
from minilearn.cli import build
from minilearn.cli import predict as using
from minilearn.cli import run_folder as folder
from minilearn.cli.augment import Aug
from minilearn.cli.build import build_dls, build_learner, build_model, timm_options

training = sys.modules["minilearn.cli.train"]  # the package has a function of that name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def few():
    """64 images of each split instead of 12,000."""
    from datasets import DatasetDict

    whole = minilearn.fashion_mnist()
    return DatasetDict({name: whole[name].shuffle(seed=1).select(range(64)) for name in whole})


@pytest.fixture(autouse=True)
def here(few, monkeypatch, tmp_path):
    monkeypatch.setattr(minilearn, "fashion_mnist", lambda full=False: few)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def train(*options):
    return cli.main(["train", "--bs", "16", "--device", "cpu", *options])


def rows(run):
    """The rows of `history.csv`, without the column that holds times."""
    return [line.rsplit(",", 1)[0] for line in Path(run, "history.csv").read_text().splitlines()]


def assert_same_weights():
    """The runs a and b have left the same bits."""
    one, two = (load_file(Path(run, "model.safetensors")) for run in "ab")
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


ALL = """
bs: 16
epochs: 3
lr: auto
sched: flat_cos
warmup: 2
opt: sgd
opt_args: {momentum: 9e-1}
ema: 0.9
accum: 2
clip: 1.0
mixup: 0.4
aug: {flip: 0.5, shift: 2, erase: 0.2}
log: [csv, jsonl]
log_every: 1
device: cpu
"""


def test_the_saved_configuration_starts_an_equal_run(capsys):
    Path("all.yaml").write_text(ALL)
    assert cli.main(["train", "-c", "all.yaml", "--out", "a"]) == 0
    assert "lr: " in capsys.readouterr().out
    saved = yaml.safe_load(Path("a/config.yaml").read_text())
    assert saved["opt_args"] == {"momentum": 0.9} and isinstance(saved["lr"], float)
    assert not {"out", "resume"} & set(saved)
    assert cli.main(["train", "-c", "a/config.yaml", "--out", "b"]) == 0
    assert rows("a") == rows("b") and len(rows("a")) == 4
    assert Path("a/config.yaml").read_text() == Path("b/config.yaml").read_text()


def test_a_run_says_what_it_was_made_of():
    train("--epochs", "1", "--out", "a", "--opt", "sgd", "--wd", "1e-3")
    (entry,) = json.loads(Path("a/run.json").read_text())
    config = entry["settings"]["config"]
    assert config == yaml.safe_load(Path("a/config.yaml").read_text())
    assert config["wd"] == 1e-3 and entry["error"] is None and entry["opt"]["name"] == "SGD"


def test_train_from_python_is_the_command():
    config = {"bs": 16, "device": "cpu", "epochs": 2, "aug": {"flip": 0.5}}
    learn = cli.train(config | {"out": "a"})
    train("--epochs", "2", "--aug.flip", "0.5", "--out", "b")
    assert rows("a") == rows("b") and learn.history["epoch"] == [0, 1]
    with pytest.raises(cli.BadInput, match="'epohcs' is not accepted; did you mean epochs"):
        cli.train({"epohcs": 1})


def test_every_option_becomes_its_callback():
    dls = build_dls(bs=16)
    wishes = {"ema": 0.9, "accum": 2, "clip": 1.0, "mixup": 0.4, "amp": "bf16", "compile": True}
    others = build_learner(dls, build_model(dls), swa=0.5, cutmix=1.0)
    assert {"SWACB", "CutMixCB"} <= {type(cb).__name__ for cb in others.cbs}
    both = build_learner(dls, build_model(dls), mixup=0.4, cutmix=1.0).find(MixCB)
    assert [(type(cb).__name__, cb.alpha) for cb in both.mixers] == [
        ("MixUpCB", 0.4),
        ("CutMixCB", 1.0),
    ]
    aug = Aug(flip=0.5)
    learn = build_learner(dls, build_model(dls), **wishes, channels_last=True, aug=aug, wd=0.1)
    names = {type(cb).__name__ for cb in learn.cbs}
    assert names >= {"EMACB", "GradAccumCB", "ClipGradCB", "MixUpCB", "MixedPrecision"}
    assert names >= {"CompileCB", "ChannelsLastCB", "AugmentCB", "TrainCB", "DeviceCB"}
    plain = build_learner(dls, build_model(dls))
    assert [type(cb).__name__ for cb in plain.cbs] == [
        "TrainCB",
        "DeviceCB",
        "MetricsCB",
        "ProgressCB",
    ]


def test_layers_are_frozen_or_slower_as_is_asked_for():
    dls = build_dls(bs=16)
    learn = build_learner(dls, build_model(dls), freeze=True)
    *body, head = [p for p in learn.model.parameters()]
    assert head.requires_grad and not body[0].requires_grad
    names = [name for name, _ in learn.model.named_parameters()]
    learn = build_learner(dls, build_model(dls), freeze=f"{names[0]},{names[3]}")
    assert [n for n, p in learn.model.named_parameters() if not p.requires_grad] == names[0:4:3]
    learn = build_learner(dls, build_model(dls), layer_decay=0.5)
    rates = sorted({group["lr"] for group in learn.opt_func(learn.model, 0.8).param_groups})
    assert rates[-1] == 0.8 and all(a == b / 2 for a, b in zip(rates, rates[1:], strict=False))


def test_the_mean_of_weights_of_swa_is_what_is_saved_and_evaluated(capsys):
    train("--epochs", "2", "--swa", "0.5", "--out", "a", "--lr", "1e-3", "--sched", "none")
    capsys.readouterr()
    assert cli.main(["eval", "a", "--device", "cpu"]) == 0
    found = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    train("--epochs", "2", "--out", "b", "--lr", "1e-3", "--sched", "none")
    one, two = (load_file(Path(run, "model.safetensors")) for run in "ab")
    assert any(not torch.equal(one[name], two[name]) for name in one if name.endswith("weight"))
    assert 0 <= float(found["accuracy"]) <= 1


def test_rows_go_to_every_log_that_is_asked_for():
    assert train("--epochs", "1", "--out", "a", "--log", "csv,jsonl,tensorboard") == 0
    written = {path.name for path in Path("a").iterdir()}
    assert written >= {"log.csv", "log.jsonl", "tensorboard"}
    last = json.loads(Path("a/log.jsonl").read_text().splitlines()[-1])
    assert rows("a")[-1].split(",")[2] == str(last["train_loss"])


# ---- going on ----


def break_off(monkeypatch, at):
    """Press Ctrl-C in the training batch after number `at`."""
    step, count = minilearn.Learner.close_group, [0]

    def one_step(self):
        count[0] += 1
        if count[0] > at:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(minilearn.Learner, "close_group", one_step)


@pytest.mark.parametrize("at", [1, 6, 9])
@pytest.mark.parametrize("resume", [["--resume", "b"], ["--resume", "--out", "b"]])
def test_a_run_that_was_broken_off_goes_on_to_the_same_bits(at, resume, capsys):
    options = [
        "--epochs",
        "3",
        "--mixup",
        "0.4",
        "--ema",
        "0.9",
        "--log",
        "csv",
        "--log_every",
        "1",
    ]
    train(*options, "--out", "a")
    with pytest.MonkeyPatch.context() as patch:
        break_off(patch, at)
        assert train(*options, "--out", "b") == 130
    assert cli.main(["train", *resume]) == 0
    assert rows("a") == rows("b")
    assert_same_weights()
    logs = [Path(run, "log.csv").read_text().splitlines() for run in "ab"]
    assert len(logs[0]) == len(logs[1])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_process_that_was_killed_goes_on_to_the_same_bits(few, tmp_path):
    few.save_to_disk("few")
    program = (
        "import sys, minilearn, torch, datasets\n"
        "torch.set_num_threads(1)\n"
        f"few = datasets.load_from_disk({str(tmp_path / 'few')!r})\n"
        "minilearn.fashion_mnist = lambda full=False: few\n"
        "from minilearn import cli\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, "train"]
    options = ["--bs", "16", "--epochs", "20", "--device", "cpu"]
    cli.main(["train", *options, "--out", "a"])
    for how in (signal.SIGKILL, signal.SIGINT):
        shutil.rmtree("b", ignore_errors=True)
        process = subprocess.Popen([*command, *options, "--out", "b"], stdout=subprocess.DEVNULL)
        while len(list(Path("b").glob("checkpoints/*.ckpt"))) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(how)
        assert process.wait() != 0
        cli.main(["train", "--resume", "b"])
        assert rows("a") == rows("b")
        assert_same_weights()


def test_true_goes_on_with_the_run_of_the_file_or_the_newest():
    train("--epochs", "1", "--out", "runs/x", "--sched", "none")
    train("--epochs", "1", "--out", "runs/y", "--sched", "none")
    os.utime("runs/x/config.yaml", (1, 1))
    assert cli.main(["train", "--resume", "--epochs", "2"]) == 0
    assert [len(rows(f"runs/{name}")) for name in "xy"] == [2, 3]
    assert cli.main(["train", "-c", "runs/x/config.yaml", "--resume", "--epochs", "2"]) == 0
    assert [len(rows(f"runs/{name}")) for name in "xy"] == [3, 3]


def test_resume_in_a_new_folder_begins(capsys):
    assert train("--epochs", "1", "--out", "new", "--resume") == 0
    assert "begins afresh" in capsys.readouterr().out and len(rows("new")) == 2


def test_a_resume_from_a_file_takes_that_checkpoint():
    train("--epochs", "2", "--out", "a")
    first = sorted(Path("a/checkpoints").glob("*.ckpt"))[0]
    before = rows("a")
    assert cli.main(["train", "--resume", str(first)]) == 0
    assert rows("a") == before


def check_how_to_go_on(capsys):
    """A finished run says that nothing is left, and what makes it longer; that works."""
    train("--epochs", "1", "--out", "a")
    capsys.readouterr()
    assert cli.main(["train", "--resume", "a"]) == 0
    said = capsys.readouterr().out
    assert "all 1 epochs are done" in said and "nothing is left to train. For more" in said
    assert "--epochs N --lr 1e-4" in said
    before = Path("a/config.yaml").read_text()
    for words, why in [
        (["--epochs", "2"], "the schedule one_cycle is over after 1 epochs. Give the rate"),
        (["--epochs", "2", "--sched", "none"], "Give the rate with which it goes on: --lr 1e-4"),
        (["--sched", "cosine"], "the schedule one_cycle for 1 epochs"),
        (["--warmup", "3", "--sched", "linear"], "the schedule one_cycle for 1 epochs"),
        (["--epochs", "2", "--lr", "auto"], "Give the rate with which it goes on"),
    ]:
        assert cli.main(["train", "--resume", "a", *words]) == 2
        err = capsys.readouterr().err
        assert why in err and "total_steps" not in err
        assert Path("a/config.yaml").read_text() == before
    weights = load_file("a/model.safetensors")
    assert cli.main(["train", "--resume", "a", "--epochs", "2", "--lr", "1e-4"]) == 0
    assert len(rows("a")) == 3 and "nothing is left" not in capsys.readouterr().out
    moved = load_file("a/model.safetensors")
    names = [name for name in weights if name.endswith(("weight", "bias"))]
    steps = [(moved[name] - weights[name]).abs().max() for name in names]
    assert 1e-5 < max(steps) < 1e-3  # Adam moves a weight by the rate: not one_cycle's 1e-7, 1e-2
    saved = yaml.safe_load(Path("a/config.yaml").read_text())
    assert (saved["epochs"], saved["sched"], saved["lr"], saved["bs"]) == (2, "none", 1e-4, 16)
    assert cli.main(["train", "--resume", "a", "--epochs", "3"]) == 0  # no schedule is left
    assert len(rows("a")) == 4


@pytest.mark.case("F33")
def test_a_finished_run_says_how_to_go_on(capsys):
    check_how_to_go_on(capsys)


@pytest.mark.case("F33")
@pytest.mark.parametrize("broken", ["silent", "unchecked"])
def test_the_check_notices_a_run_that_cannot_go_on(broken, capsys, monkeypatch):
    if broken == "silent":
        monkeypatch.setattr(training, "print", lambda *_: None, raising=False)
    else:
        monkeypatch.setattr(training.Training, "check", lambda self: None)
    with pytest.raises(AssertionError):
        check_how_to_go_on(capsys)


def test_a_run_whose_rate_was_searched_goes_on_with_that_rate():
    words = ["--epochs", "2", "--lr", "auto"]
    train(*words, "--out", "a", "--resume")  # there is nothing yet: it begins
    found = str(yaml.safe_load(Path("a/config.yaml").read_text())["lr"])
    with pytest.MonkeyPatch.context() as patch:
        break_off(patch, 5)
        assert train("--epochs", "2", "--lr", found, "--out", "b") == 130
    assert train(*words, "--out", "b", "--resume") == 0
    assert rows("a") == rows("b")
    assert_same_weights()


def test_a_finished_run_is_made_longer_from_python():
    config = {"bs": 16, "device": "cpu", "epochs": 1, "out": "a"}
    cli.train(config)
    with pytest.raises(cli.BadInput, match="Give the rate"):
        cli.train({"resume": "a", "epochs": 2})
    assert len(cli.train({"resume": "a", "epochs": 2, "lr": 1e-4}).history) == 2


def test_a_run_inside_its_schedule_is_not_made_longer(monkeypatch, capsys):
    with pytest.MonkeyPatch.context() as patch:
        break_off(patch, 6)
        train("--epochs", "3", "--out", "a")
    before = Path("a/config.yaml").read_text()
    assert cli.main(["train", "--resume", "a", "--epochs", "4", "--lr", "1e-4"]) == 2
    assert "one_cycle for 3 epochs, and goes on with it" in capsys.readouterr().err
    assert Path("a/config.yaml").read_text() == before


def test_a_resume_that_the_checkpoint_refuses_leaves_the_configuration(capsys):
    train("--epochs", "1", "--sched", "none", "--out", "a")
    before = Path("a/config.yaml").read_text()
    assert cli.main(["train", "--resume", "a", "--model", "resnet", "--epochs", "2"]) == 2
    assert Path("a/config.yaml").read_text() == before


def test_a_run_by_updates_validates_by_updates_and_goes_on_to_the_same_bits(capsys):
    options = ["--steps", "10", "--valid_every", "3", "--mixup", "0.4", "--sched", "cosine"]
    train(*options, "--out", "a")
    assert [row.split(",")[1] for row in rows("a")[1:]] == ["3", "6", "9", "10"]
    with pytest.MonkeyPatch.context() as patch:
        break_off(patch, 5)
        assert train(*options, "--out", "b") == 130
    assert cli.main(["train", "--resume", "b"]) == 0
    assert rows("a") == rows("b")
    assert_same_weights()
    assert cli.main(["train", "--resume", "b", "--steps", "12"]) == 2
    assert "is over after 10 updates. Give the rate" in capsys.readouterr().err
    assert cli.main(["train", "--resume", "b", "--steps", "12", "--lr", "1e-4"]) == 0
    assert [row.split(",")[1] for row in rows("b")[1:]][-1] == "12"


def test_patience_ends_a_run_that_has_stopped_improving():
    train("--epochs", "40", "--lr", "1e-12", "--sched", "none", "--patience", "2", "--out", "a")
    found = [float(row.split(",")[3]) for row in rows("a")[1:]]
    # two in a row that are not better than all before them
    last = next(i for i in range(2, 40) if min(found[i - 1 : i + 1]) >= min(found[: i - 1]))
    assert len(found) == last + 1 < 40


def test_a_run_with_a_constant_rate_is_made_longer_without_more(capsys):
    train("--epochs", "3", "--sched", "none", "--out", "a")
    train("--epochs", "1", "--sched", "none", "--out", "b")
    assert cli.main(["train", "--resume", "b", "--epochs", "3"]) == 0
    assert rows("a") == rows("b")
    assert_same_weights()


# ---- parts of your own ----


@pytest.fixture
def mine(monkeypatch):
    """A module of the user's in the working folder."""
    Path("mine.py").write_text(
        "import torch, minilearn\n"
        "from torch import nn\n"
        "def dls(n: int = 32, bs: int = 8):\n"
        '    """Make.\n\n    Args:\n        n: how many points\n    """\n'
        "    x = torch.randn(n, 2)\n"
        "    return minilearn.DataLoaders.from_arrays(x, (x[:, 0] > 0).long(), bs=bs, seed=0)\n"
        "def net(dls, width: int = 3):\n"
        "    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))\n"
        "def pictures(n_in: int, num_classes: int, width: int = 4):\n"
        "    return nn.Sequential(nn.Conv2d(n_in, width, 3), nn.AdaptiveAvgPool2d(1),\n"
        "                         nn.Flatten(), nn.Linear(width, num_classes))\n"
        "def slow(params, lr, momentum=0.5):\n"
        "    return torch.optim.SGD(params, lr / 10, momentum=momentum)\n"
    )
    yield
    sys.modules.pop("mine", None)
    with contextlib.suppress(ValueError):
        sys.path.remove(os.getcwd())


def test_each_part_can_be_a_function_of_ones_own_with_its_own_options(mine, capsys):
    words = ["--build_dls", "mine:dls", "--build_model", "mine:net", "--device", "cpu"]
    assert (
        cli.main(["train", *words, "--n", "40", "--width", "5", "--epochs", "1", "--out", "a"]) == 0
    )
    saved = yaml.safe_load(Path("a/config.yaml").read_text())
    assert (saved["n"], saved["width"], saved["bs"]) == (40, 5, 8) and "full" not in saved
    assert cli.main(["train", "-c", "a/config.yaml", "--out", "b"]) == 0
    assert rows("a") == rows("b")
    capsys.readouterr()
    assert cli.main(["train", *words, "--help"]) == 0
    assert "how many points (type: int, default: 32)" in capsys.readouterr().out
    assert cli.main(["train", *words, "--model", "cnn"]) == 2


def test_a_model_by_its_callable_is_given_the_sizes_of_the_data_and_predicts(mine, few, capsys):
    model = ["--model", "mine:pictures", "--model_args.width", "6"]
    assert train(*model, "--epochs", "1", "--out", "a", "--opt", "mine:slow") == 0
    assert Path("a/model.pt2").exists()  # another process does not know mine.py
    few["test"][0]["image"].save("x.png")
    assert cli.main(["predict", "a", "x.png", "--device", "cpu", "--trust", "true"]) == 0
    assert cli.main(["eval", "a", "--device", "cpu", "--trust", "true"]) == 0


# ---- lr-find, eval ----


def test_lr_find_prints_suggestions_and_takes_the_files_of_a_training(capsys):
    train("--epochs", "1", "--out", "a")
    capsys.readouterr()
    assert cli.main(["lr-find", "-c", "a/config.yaml", "--plot", "lr.png"]) == 0
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert set(lines) == {"valley", "steep"}
    assert all(1e-5 <= float(lr) <= 10 for lr in lines.values()) and Path("lr.png").exists()


def test_eval_gives_what_the_last_validation_gave(capsys):
    train("--epochs", "2", "--out", "a", "--ema", "0.5")
    capsys.readouterr()
    assert cli.main(["eval", "a", "--device", "cpu"]) == 0
    found = {n: float(v) for n, v in (x.split("\t") for x in capsys.readouterr().out.splitlines())}
    last = dict(zip(rows("a")[0].split(","), rows("a")[-1].split(","), strict=True))
    assert found["accuracy"] == pytest.approx(float(last["accuracy"]))
    assert found["loss"] == pytest.approx(float(last["valid_loss"]), rel=1e-4)


def test_a_folder_of_images_trains_is_evaluated_and_predicted(few, capsys):
    for split, role in (("train", "train"), ("test", "val")):
        for i, row in enumerate(few[split]):
            path = Path("pics", role, f"class{row['label']}", f"{i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            row["image"].save(path)
    assert train("pics", "--channels", "1", "--epochs", "2", "--out", "a") == 0
    last = dict(zip(rows("a")[0].split(","), rows("a")[-1].split(","), strict=True))
    for data in ([], ["pics"]):
        capsys.readouterr()
        assert cli.main(["eval", "a", *data, "--device", "cpu"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert f"accuracy\t{float(last['accuracy']):.6g}" in lines
    assert cli.main(["eval", "a", "pics/val", "--device", "cpu"]) == 0
    assert f"accuracy\t{float(last['accuracy']):.6g}" in capsys.readouterr().out
    picture = str(next(Path("pics/val").rglob("*.png")))
    assert cli.main(["predict", "a", picture, "--device", "cpu"]) == 0
    assert capsys.readouterr().out.split("\t")[1].startswith("class")


# ---- pieces ----


def test_the_loss_follows_the_targets():
    preds, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    several = torch.tensor([[1.0, 0, 1]] * 4)
    cross = nn.functional.cross_entropy(preds, labels)
    assert torch.equal(build.class_loss(preds, labels), cross)
    binary = nn.functional.binary_cross_entropy_with_logits(preds, several)
    assert torch.equal(build.class_loss(preds, several), binary)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothed_losses_are_those_of_the_formula(smoothing):
    preds, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    soft = nn.functional.one_hot(labels, 3) * (1 - smoothing) + smoothing / 3
    by_hand = -(soft * preds.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(build.class_loss(preds, labels, smoothing=smoothing), by_hand)
    several = torch.tensor([[1.0, 0, 1]] * 4)
    p, soft = preds.sigmoid(), several * (1 - smoothing) + smoothing / 2
    by_hand = -(soft * p.log() + (1 - soft) * (1 - p).log()).mean()
    torch.testing.assert_close(build.class_loss(preds, several, smoothing=smoothing), by_hand)


def test_options_of_images_reach_the_sample(few):
    assert build_dls(bs=8, size=20).pipeline.size == (20, 20)
    assert build_dls(bs=8, channels=3).pipeline.channels == 3
    dls = build_dls(bs=8, mean=[0.5], std=[0.5])
    assert dls.pipeline.mean == [0.5] and next(iter(dls.valid))[0].min() == -1


def test_ours_keep_the_normalisation_of_the_data():
    assert timm_options("cnn", {}) == {} and timm_options(None, {}) == {}


def test_several_processes_need_a_folder_in_common(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert train() == 2
    assert "--out" in capsys.readouterr().err


def test_what_cannot_be_exported_leaves_its_weights(capsys):
    learn = minilearn.Learner(nn.LSTM(2, 2), cbs=[minilearn.TrainCB()])
    folder.write_model(learn, Path("."))
    assert "only the weights are saved" in capsys.readouterr().out
    assert Path("model.safetensors").exists()


BAD_ARGUMENTS = [
    ("model_args: {nfs: [8, 1.5]}", "model_args.nfs: Expected a int. Got value: 1.5"),
    ("model_args: {nsf: [8]}", "model_args.nsf is no argument of cnn; did you mean 'nfs'?"),
    ("model_args: {act: {torch.nn: ReLu}}", "did you mean 'ReLU'"),
    ("model_args: {act: {}}", "names no layer"),
    ("opt_args: {betas: [0.9, x]}", "opt_args.betas: "),
    ("opt_args: {lr: 1}", "opt_args.lr is no argument of adamw"),
    ("opt: mine:slow\nopt_args: {momentun: 1}", "did you mean 'momentum'?"),
    ("sched_args: {pct_strat: 0.1}", "did you mean 'pct_start'?"),
    (
        "sched_args: {anneal_strategy: 5}",
        "sched_args.anneal_strategy: Expected a Literal['cos', 'linear']",
    ),
    ("model:", "model: it has a value by default, and takes no null"),
    ("build_dls: os:path", "os:path is no function"),
    ("bs: 0", "bs: Not of type PositiveInt"),
    ("ema: 1", "--ema is below 1"),
    ("swa: 1", "--swa is below 1"),
    ("ema: 0.9\nswa: 0.5", "give one of them"),
    ("seed: -1", "seed: Not of type NonNegativeInt"),
]


@pytest.mark.case("C145")
@pytest.mark.parametrize(("text", "named"), BAD_ARGUMENTS)
def test_arguments_of_parts_are_checked_before_data_are_read(
    text, named, mine, capsys, monkeypatch
):
    monkeypatch.setattr(minilearn, "fashion_mnist", lambda full: pytest.fail("data were read"))
    Path("c.yaml").write_text(text)
    assert train("-c", "c.yaml") == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--workers", "-1"], ["--size", "[0, 8]"], ["--valid", "2"]])
def test_limits_of_image_dls_end_the_command_in_a_line(words, few, capsys):
    Path("pics/a").mkdir(parents=True)
    few["train"][0]["image"].save("pics/a/0.png")
    assert train("pics", *words) == 2
    assert f"{words[0][2:]} is " in capsys.readouterr().err


@pytest.mark.case("C146")
def test_arguments_of_parts_become_what_their_functions_take():
    model = build_model(build_dls(bs=16), "cnn", model_args={"nfs": [8, 10]})
    assert [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)][:2] == [8, 10]
    args = {"eps": "1e-3", "amsgrad": "yes", "weight_decay": 1}
    learn = build_learner(build_dls(bs=16), model, opt_args=args)
    group = learn.opt_func(model, 0.1).param_groups[0]
    found = [group[name] for name in ("eps", "amsgrad", "weight_decay")]
    assert found == [1e-3, True, 1.0] and type(found[1]) is bool


def test_images_with_several_labels_are_predicted_with_all_of_them(few, capsys):
    Path("pics").mkdir()
    lines = ["path,label"]
    for i, row in enumerate(few["train"]):
        row["image"].save(f"pics/{i}.png")
        names = [name for name, bit in (("low", 1), ("high", 4)) if row["label"] & bit]
        lines.append(f"pics/{i}.png,{' '.join(names)}")
    Path("table.csv").write_text("\n".join(lines) + "\n")
    words = ["table.csv", "--sep", " ", "--channels", "1", "--epochs", "1", "--out", "a"]
    assert train(*words, "--paths", "path", "--labels", "label") == 0
    names = [f"pics/{i}.png" for i in range(64)]
    capsys.readouterr()
    assert cli.main(["predict", "a", *names, "--device", "cpu"]) == 0
    learn = minilearn.load_learner("a", "cpu")
    seen = set()
    for line, name in zip(capsys.readouterr().out.splitlines(), names, strict=True):
        file, *found = line.split("\t")
        output = learn.infer(name).output.sigmoid().tolist()
        above = [(c, p) for c, p in zip(learn.dls.pipeline.classes, output, strict=True) if p > 0.5]
        above.sort(key=lambda pair: -pair[1])
        assert file == name
        assert found == ([x for c, p in above for x in (c, f"{p:.4f}")] or ["none"])
        seen.add(len(above))
    assert seen - {1}  # a single class would be what softmax finds


def test_labels_are_printed_from_the_most_probable_on_or_none():
    learn = minilearn.Learner(nn.Linear(1, 3), minilearn.DataLoaders())
    learn.dls.pipeline = minilearn.Pipeline(classes=["a", "b", "c"])
    for shares, expected in [
        ([0.6, 0.5, 0.9], ["c", "0.9000", "a", "0.6000"]),
        ([0.1, 0.2, 0.3], ["none"]),
    ]:
        one = minilearn.Prediction("c", 0.9, torch.tensor(shares), None)
        assert using._labels(one, learn, True) == expected
