"""The command `minilearn`, and `run`, which makes a command line of any function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from .build import build_dls, build_learner, build_model
from .parser import ended, run, run_function
from .predict import evaluate, inspect_file, predict_files
from .train import search_command, train, train_command
from .values import BadInput, near_option

__all__ = ["BadInput", "build_dls", "build_learner", "build_model", "main", "run", "train"]


def _command(name: str, fn: Callable[..., int], *positional: str) -> Callable[..., int | None]:
    return partial(run_function, fn, f"minilearn {name}", positional=positional)


COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], int | None]]] = {
    "train": ("Train on images, and write the run to a folder.", train_command),
    "lr-find": ("Search for a learning rate.", search_command),
    "eval": (
        "Print loss and accuracy of a trained model.",
        _command("eval", evaluate, "model", "data"),
    ),
    "predict": ("Print classes of images.", _command("predict", predict_files, "model", "files")),
    "inspect": ("Print what a checkpoint holds.", _command("inspect", inspect_file, "path")),
}
OVERVIEW = """usage: minilearn COMMAND [options]

Train networks with minilearn, and use them.

{commands}

minilearn COMMAND --help lists the options of a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: the words, by default those of the process.

    Returns:
        0, 130 after Ctrl-C, 2 for bad input, with one line on stderr.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    status, result = ended("minilearn", lambda: _run(words), "--debug" in words)
    return status or result or 0


def _run(words: Sequence[str]) -> int | None:
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]][1](words[1:])
    if {"-h", "--help"} & {*words}:
        commands = "\n".join(f"  {name:<8}  {about}" for name, (about, _) in COMMANDS.items())
        print(OVERVIEW.format(commands=commands), end="")
        return 0
    if not words:
        raise BadInput(f"which subcommand? There are {', '.join(COMMANDS)}; see minilearn --help")
    hint = near_option(words[0], COMMANDS) or "; see minilearn --help"
    raise BadInput(f"there is no subcommand {words[0]}{hint}")
