"""The command `minilearn`, and `run`, which makes a command line of any function."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .build import build_dls, build_learner, build_model
from .parser import about, ended, run, run_function
from .predict import evaluate, inspect_file, predict_files
from .train import search_command, train, train_command
from .values import BadInput, near_option

__all__ = ["BadInput", "build_dls", "build_learner", "build_model", "main", "run", "train"]

# a function of the words; or one whose arguments are the options, and the positional ones of those
COMMANDS: dict[str, tuple[Any, Sequence[str]]] = {
    "train": (train_command, ()),
    "lr-find": (search_command, ()),
    "eval": (evaluate, ("model", "data")),
    "predict": (predict_files, ("model", "files")),
    "inspect": (inspect_file, ("path",)),
}
OVERVIEW = """usage: minilearn COMMAND [options]

Train networks with minilearn, and use them.

{commands}

minilearn COMMAND --help lists the options of a command."""


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
        fn, positional = COMMANDS[words[0]]
        if positional:
            return run_function(fn, f"minilearn {words[0]}", words[1:], positional)
        return fn(words[1:])
    if {"-h", "--help"} & {*words}:
        lines = [f"  {name:<8}  {about(fn).splitlines()[0]}" for name, (fn, _) in COMMANDS.items()]
        print(OVERVIEW.format(commands="\n".join(lines)))
        return 0
    if not words:
        raise BadInput(f"which subcommand? There are {', '.join(COMMANDS)}; see minilearn --help")
    hint = near_option(words[0], COMMANDS) or "; see minilearn --help"
    raise BadInput(f"there is no subcommand {words[0]}{hint}")
