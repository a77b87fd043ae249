"""The command `minilearn`, and the same for scripts of yours: `run`.

Stands on everything. Options come from the signatures of functions (`options`), values from words
and files (`words`, `files`, `values`); `command` puts them together. What a command does is in
`training` and `using`; what it needs is imported when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .build import build_dls, build_model
from .command import Command, ended, run
from .converting import BadInput
from .learner import build_learner
from .near import near_option
from .predict import evaluate, inspect_file, predict
from .train import SEARCH, TRAIN, train

__all__ = ["BadInput", "build_dls", "build_learner", "build_model", "main", "run", "train"]

COMMANDS: dict[str, Command] = {
    "train": TRAIN,
    "lr-find": SEARCH,
    "eval": Command.of(evaluate, ("model", "data")),
    "predict": Command.of(predict, ("model", "files")),
    "inspect": Command.of(inspect_file, ("path",)),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: the arguments, by default the process's own.

    Returns:
        0, 130 after Ctrl-C, 2 for bad input, with one line on stderr.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    status, result = ended("minilearn", lambda: _run(words), "--debug" in words)
    return status or result or 0


def _run(words: Sequence[str]) -> int | None:
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]].run(f"minilearn {words[0]}", words[1:])
    if {"-h", "--help"} & set(words):
        print(_overview(), end="")
        return 0
    if not words:
        raise BadInput(f"which subcommand? There are {', '.join(COMMANDS)}; see minilearn --help")
    hint = near_option(words[0], COMMANDS)
    raise BadInput(f"there is no subcommand {words[0]}{hint or '; see minilearn --help'}")


def _overview() -> str:
    lines = [
        f"  {name:<8}  {(command.about.splitlines() or [''])[0]}"
        for name, command in COMMANDS.items()
    ]
    commands = "\n".join(lines)
    return (
        "usage: minilearn COMMAND [options]\n\nTrain networks with minilearn, and use them.\n\n"
        f"{commands}\n\nminilearn COMMAND --help lists the options of a command.\n"
    )
