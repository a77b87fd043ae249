"""The command `minilearn`: each function of COMMANDS is a subcommand, its arguments are options.

Stands on everything. What a command needs is imported when it runs.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse import ActionYesNo, ArgumentError, ArgumentParser
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

if TYPE_CHECKING:
    import torch

    from minilearn.core.history import History
    from minilearn.core.learner import Learner

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: the arguments, by default the process's own.

    Returns:
        0, 130 after Ctrl-C, 2 for bad input, with one line on stderr.
    """
    debug = "--debug" in (sys.argv if argv is None else argv)
    try:
        args = make_parser().parse_args(None if argv is None else list(argv))
        options = {k: v for k, v in args[args.subcommand].items() if k != "debug"}
        return COMMANDS[args.subcommand](**options)
    except SystemExit as e:  # --help
        return int(e.code or 0)
    except KeyboardInterrupt:
        print("\nminilearn: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ArgumentError, ValueError, OSError, FloatingPointError) as e:
        if debug:
            raise
        print(f"minilearn: {' '.join(str(e).split())}", file=sys.stderr)
        return BAD_INPUT


def make_parser() -> ArgumentParser:
    """Return the parser: one subcommand for each function of COMMANDS."""
    parser = ArgumentParser(
        prog="minilearn",
        description="Train networks with minilearn, and use them.",
        exit_on_error=False,
        allow_abbrev=False,
    )
    commands = parser.add_subcommands()
    for name, command in COMMANDS.items():
        sub = ArgumentParser(exit_on_error=False, allow_abbrev=False)
        params = inspect.signature(command).parameters.items()
        flags = [n for n, p in params if p.default is False]
        lists = [n for n, p in params if p.annotation == "list[str]"]
        sub.add_function_arguments(command, skip={*flags, *lists}, as_positional=True)
        for several in lists:
            sub.add_argument(several, nargs="+", help=HELP[several])
        for flag in flags:
            sub.add_argument(f"--{flag}", action=ActionYesNo, default=False, help=HELP[flag])
        sub.add_argument("--debug", action="store_true", help=HELP["debug"])
        commands.add_subcommand(name, sub, help=inspect.getdoc(command).splitlines()[0])
    return parser


def train(
    epochs: PositiveInt = 5,
    lr: PositiveFloat = 0.01,
    bs: PositiveInt = 64,
    model: Literal["cnn", "resnet"] = "cnn",
    seed: NonNegativeInt = 42,
    device: str | None = None,
    out: Path | None = None,
    full: bool = False,
) -> int:
    """Train on Fashion-MNIST; write history, plot and weights to a folder.

    Args:
        epochs: passes over the training pictures
        lr: the highest learning rate of the one-cycle schedule
        bs: pictures in a batch
        model: which network
        seed: of weights and order; the same seed gives the same history
        device: such as cpu or cuda:0; by default the best there is
        out: the folder, by default runs/ and the time
        full: all 60,000 pictures instead of the sample of 10,000

    Returns:
        The exit status: 0, or 130 where Ctrl-C ended the training early.
    """
    where = pick_device(device)
    folder = new_folder(out)
    learn = make_learner(model, bs, seed, where, full)
    learn.fit_one_cycle(epochs, lr, on_interrupt="stop")
    write_results(learn, folder, model)
    print(f"{'stopped early; ' if learn.interrupted else ''}results are in {folder}")
    return INTERRUPTED if learn.interrupted else 0


def predict(model: Path, files: list[str], device: str | None = None) -> int:
    """Print class and probability of each picture, a line a file.

    Args:
        model: a folder that `minilearn train` or `learn.export` has written
        files: pictures of any kind and size
        device: such as cpu or cuda:0; by default the best there is

    Returns:
        The exit status: 0, or 1 where some file could not be read; it is named on stderr.
    """
    from minilearn import load_learner

    learn = load_learner(model, pick_device(device))
    if learn.dls.pipeline.channels is None:
        raise ValueError(f"the model in {model} was not trained on pictures that it can prepare")
    bad = 0
    for start in range(0, len(files), READ_TOGETHER):
        read = read_pictures(learn, files[start : start + READ_TOGETHER])
        bad += sum(isinstance(picture, Exception) for picture in read.values())
        good = {name: x for name, x in read.items() if not isinstance(x, Exception)}
        for name, found in zip(good, learn.infer(list(good.values())), strict=True):
            print(name, found.label, f"{found.probability:.4f}", sep="\t")
    return 1 if bad else 0


def read_pictures(learn: Learner, files: Sequence[str]) -> dict[str, Any]:
    """Return each picture as the model is given it, or the error that reading it raised."""
    read: dict[str, Any] = {}
    for name in files:
        try:
            read[name] = learn.dls.pipeline(name)
        except Exception as e:  # PIL raises many kinds for what is damaged
            print(f"minilearn: {name}: {' '.join(str(e).split())}", file=sys.stderr)
            read[name] = e
    return read


def inspect_file(path: Path) -> int:
    """Print what a checkpoint, a folder of them or a file of weights holds.

    Args:
        path: the file or the folder

    Returns:
        The exit status: 0.
    """
    from minilearn.inspecting import contents

    print(contents(path))
    return 0


COMMANDS: dict[str, Callable[..., int]] = {
    "train": train,
    "predict": predict,
    "inspect": inspect_file,
}
READ_TOGETHER = 64
HELP = {
    "files": "pictures of any kind and size",
    "full": "all 60,000 pictures instead of the sample of 10,000",
    "debug": "show the traceback of an error",
}


def pick_device(name: str | None) -> torch.device:
    """Return a device that works.

    Raises:
        ValueError: there is no such device here.
    """
    import torch

    from minilearn.core.batch import default_device

    try:
        device = default_device() if name is None else torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        reason = str(e).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used: {reason}. Try cpu.") from e
    return device


def new_folder(out: Path | None) -> Path:
    """Make the folder for results: `out`, or one in `runs` that is named after the time.

    Raises:
        FileExistsError: `out` is there and not empty.
    """
    if out is not None:
        if out.is_file() or (out.is_dir() and any(out.iterdir())):
            raise FileExistsError(f"{out} is there already; give --out another folder")
        out.mkdir(parents=True, exist_ok=True)
        return out
    stem, number = Path("runs") / time.strftime("%Y-%m-%d_%H-%M-%S"), 1
    folder = stem
    while folder.exists():  # two runs in one second
        number += 1
        folder = stem.with_name(f"{stem.name}_{number}")
    folder.mkdir(parents=True)
    return folder


def make_learner(model: str, bs: int, seed: int, device: torch.device, full: bool) -> Learner:
    """Return a Learner for Fashion-MNIST, whose weights and order of batches follow `seed`."""
    import torch.nn.functional as F
    from torch import nn, optim

    from minilearn import (
        DataLoaders,
        DeviceCB,
        Learner,
        MetricsCB,
        ProgressCB,
        TrainCB,
        accuracy,
        act_gr,
        fashion_mnist,
        get_model,
        resnet,
        set_seed,
    )

    set_seed(seed)
    dls = DataLoaders.from_dd(fashion_mnist(full=full), bs, seed=seed)
    cnn = partial(get_model, act_gr, (1, 16, 32, 64, 128), nn.BatchNorm2d)
    makers = {"cnn": cnn, "resnet": resnet}
    cbs = [TrainCB(), DeviceCB(device), MetricsCB(accuracy=accuracy), ProgressCB()]
    return Learner(makers[model]().to(device), dls, F.cross_entropy, cbs=cbs, opt_func=optim.AdamW)


def write_results(learn: Learner, folder: Path, model: str) -> None:
    """Write `history.csv`, `losses.png`, and the model as `minilearn predict` takes it."""
    learn.export(folder)
    learn.history.to_csv(folder / "history.csv")
    plot_losses(learn.history, folder / "losses.png", f"{model}: loss after each epoch")


def plot_losses(history: History, path: Path, title: str) -> None:
    """Draw the training and the validation loss of each epoch to a picture file."""
    from matplotlib.figure import Figure  # without pyplot: no window system is asked for
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    ax = figure.subplots()
    epochs = [row["epoch"] + 1 for row in history]
    for name in ("train_loss", "valid_loss"):
        if name in history.columns:
            values: list[Any] = history[name]
            ax.plot(epochs, values, marker="o", label=name.replace("_", " "))
    ax.set(title=title, xlabel="epoch", ylabel="loss (cross-entropy)")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(alpha=0.3)
    if history:
        ax.legend()
    figure.savefig(path, dpi=120)
