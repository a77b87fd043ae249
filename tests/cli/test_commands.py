"""The command line: what it writes, what it says, and how it ends."""

import subprocess
import sys

import pytest
from PIL import Image

import minilearn
from minilearn import cli
from minilearn.cli import predict as using
from minilearn.cli import run_folder as folder

WRITTEN = ["checkpoints", "config.yaml", "history.csv", "losses.png", "metadata.json"]
WRITTEN += ["model.safetensors", "run.json"]


@pytest.fixture(scope="module")
def few():
    """64 images of each split instead of 12,000."""
    from datasets import DatasetDict

    whole = minilearn.fashion_mnist()
    return DatasetDict({name: whole[name].shuffle(seed=1).select(range(64)) for name in whole})


@pytest.fixture(autouse=True)
def asked(few, monkeypatch, tmp_path):
    """Serve few images, in an empty folder; the list of whether all of them were asked for."""
    asked = []
    monkeypatch.setattr(minilearn, "fashion_mnist", lambda full: asked.append(full) or few)
    monkeypatch.chdir(tmp_path)
    return asked


def train(*options):
    return cli.main(["train", "--bs", "16", "--model", "cnn", "--device", "cpu", *options])


def history(folder):
    """The rows of `history.csv`, without the column that holds times."""
    rows = [line.split(",") for line in (folder / "history.csv").read_text().splitlines()]
    assert rows[0][-1] == "time"
    return [row[:-1] for row in rows]


def test_a_run_leaves_its_files_and_says_where(tmp_path, capsys):
    assert train("--epochs", "2") == 0
    (run,) = (tmp_path / "runs").iterdir()
    out = capsys.readouterr().out
    assert f"results are in runs/{run.name}" in out.replace("\\", "/")
    assert ":" not in run.name
    names = sorted(path.name for path in run.iterdir())
    assert names == WRITTEN
    columns, *rows = history(run)
    assert columns == ["epoch", "steps", "train_loss", "valid_loss", "train_accuracy", "accuracy"]
    assert [row[:2] for row in rows] == [["0", "4"], ["1", "8"]]
    assert Image.open(run / "losses.png").size == (840, 540)


def test_the_table_is_printed_a_line_an_epoch(capsys):
    train("--epochs", "2")
    lines = capsys.readouterr().out.splitlines()
    assert "valid_loss" in lines[0] and len(lines) == 4  # columns, two epochs, where


def test_the_folder_of_a_run_is_a_model_that_predicts(few, tmp_path, capsys):
    train("--epochs", "1", "--out", "here")
    few["test"][0]["image"].save("grey.png")
    few["test"][0]["image"].resize((60, 40)).convert("RGBA").convert("P").save("palette.gif")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    files = ["grey.png", "broken.png", "palette.gif", "missing.png"]
    capsys.readouterr()
    assert cli.main(["predict", "here", *files, "--device", "cpu"]) == 1
    out, err = capsys.readouterr()
    lines = [line.split("\t") for line in out.splitlines()]
    assert [line[0] for line in lines] == ["grey.png", "palette.gif"]
    assert [line.split(": ")[1] for line in err.splitlines()] == ["broken.png", "missing.png"]
    expected = minilearn.load_learner("here", "cpu").infer(few["test"][0]["image"])
    assert lines[0][1:] == [expected.label, f"{expected.probability:.4f}"]
    assert cli.main(["predict", "here", "grey.png", "--device", "cpu"]) == 0


def test_more_images_than_are_read_together_are_all_predicted(few, monkeypatch, capsys):
    train("--epochs", "1", "--out", "here")
    names = [f"{i}.png" for i in range(5)]
    for name, row in zip(names, few["test"], strict=False):
        row["image"].save(name)
    monkeypatch.setattr(using, "READ_TOGETHER", 2)
    capsys.readouterr()
    assert cli.main(["predict", "here", *names, "--device", "cpu"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == names


def test_one_seed_gives_one_history(tmp_path):
    for out, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        train("--epochs", "2", "--seed", seed, "--out", out)
    a, b, c = (history(tmp_path / name) for name in "abc")
    assert a == b and a != c


def test_full_asks_for_all_images(asked):
    train("--epochs", "1", "--full")
    train("--epochs", "1")
    assert asked == [True, False]


def interrupt_in_epoch(number, monkeypatch):
    """Press Ctrl-C in the first training batch of an epoch."""
    set_mode = minilearn.core.learner.set_mode

    def interrupt(model, training, frozen):
        set_mode(model, training, frozen)
        interrupt.passes += training and model is not None  # not for the loss
        if training and interrupt.passes > number:
            raise KeyboardInterrupt

    interrupt.passes = 0
    monkeypatch.setattr(minilearn.core.learner, "set_mode", interrupt)


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_ctrl_c_leaves_the_files_of_what_was_reached(finished, monkeypatch, tmp_path, capsys):
    interrupt_in_epoch(finished, monkeypatch)
    assert train("--epochs", "3", "--out", "here") == 130
    assert "results are in here" in capsys.readouterr().out
    names = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert names == [name for name in WRITTEN if finished or name != "losses.png"]
    rows = (tmp_path / "here" / "history.csv").read_text().splitlines()
    assert len([row for row in rows[1:] if row]) == finished


def test_ctrl_c_before_the_training_ends_without_a_traceback(monkeypatch, capsys):
    def interrupt(full):
        raise KeyboardInterrupt

    monkeypatch.setattr(minilearn, "fashion_mnist", interrupt)
    assert train() == 130
    assert capsys.readouterr().err.strip() == "minilearn: interrupted"


BAD = [
    (["train", "--epochs", "none"], "epochs"),
    (["train", "--epochs", "0"], "epochs"),
    (["train", "--lr", "-1"], "lr"),
    (["train", "--bs", "1.5"], "bs"),
    (["train", "--model", "resnt"], "model"),
    (["train", "--device", "abacus"], "abacus"),
    (["train", "--epoch", "3"], "epoch"),
    (["predict"], "model"),
    (["predict", "nowhere"], "files"),
    (["eval", "nowhere"], "nowhere is no folder of learn.export"),
    (["lr-find", "--gama", "2"], "did you mean --gamma?"),
    (["train", "--resume", "nowhere"], "nowhere"),
    (["train", "--resume"], "runs"),
    (["train", "--opt", "adamm"], "'adam'"),
    (["train", "--opt_args.beta", "[1]"], "did you mean 'betas'"),
    (["train", "--model", "timm/x"], "timm"),
    (["train", "--model_args.nff", "[1]"], "did you mean 'nfs'"),
    (["train", "--sched", "cosin"], "did you mean 'cosine'"),
    (["train", "--sched_args.pct", "1", "--sched", "flat_cos"], "pct"),
    (["train", "--pretrained"], "pretrained"),
    (["train", "--build_dls", "os:nothing"], "os has no 'nothing'"),
    (["train", "--log", "tensorbord"], "'tensorboard'"),
    (["train", "nodata"], "nodata"),
    (["predict", "nowhere", "a.png"], "nowhere is no folder of learn.export"),
    (["trian"], "trian"),
    ([], "subcommand"),
]


@pytest.mark.parametrize(
    ("argv", "named"), BAD, ids=lambda x: " ".join(x) if isinstance(x, list) else x
)
def test_bad_input_is_one_line_and_status_2(argv, named, capsys, tmp_path):
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert err.startswith("minilearn: ") and err.count("\n") == 1 and named in err
    assert not out and not (tmp_path / "runs").exists()


def test_a_folder_with_files_is_not_written_over(tmp_path, capsys):
    train("--epochs", "1", "--out", "here")
    before = (tmp_path / "here" / "history.csv").read_text()
    assert train("--epochs", "1", "--out", "here") == 2
    assert "here" in capsys.readouterr().err
    assert (tmp_path / "here" / "history.csv").read_text() == before


def test_two_runs_in_one_second_have_two_folders(monkeypatch, tmp_path):
    monkeypatch.setattr(folder.time, "strftime", lambda form: "now")
    assert [folder.new_folder().name for _ in range(3)] == ["now", "now_2", "now_3"]


@pytest.mark.parametrize(
    ("command", "usage"),
    [("train", "[DATA] [options]"), ("predict", "MODEL FILES ... [options]"), ("inspect", "PATH")],
)
def test_help_begins_with_the_required_arguments(command, usage, capsys):
    assert cli.main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: minilearn {command} {usage}")


def test_help_imports_nothing_heavy():
    program = (
        "import sys\nfrom minilearn import cli\ncli.main(['--help'])\ncli.main(['train', '-h'])\n"
        "assert not {'datasets', 'matplotlib', 'torchvision', 'timm'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_words_may_have_dashes_and_be_negated(asked, tmp_path):
    assert train("--epochs", "1", "--log-every", "3", "--no-full", "--no-normalize") == 0
    assert asked == [False]
    (config,) = tmp_path.glob("runs/*/config.yaml")
    assert "log_every: 3" in config.read_text() and "normalize: false" in config.read_text()


def test_debug_shows_the_traceback():
    with pytest.raises(ValueError, match="abacus"):
        cli.main(["train", "--device", "abacus", "--debug"])


def test_the_module_is_the_command(tmp_path):
    command = [sys.executable, "-m", "minilearn", "train", "--help"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0 and not run.stderr
    options = ("--epochs", "--lr", "--bs", "--model", "--seed", "--device", "--out", "--full")
    assert all(option in run.stdout for option in options)
