"""A command: functions whose arguments are its options, and how it ends.

Stands on options, values, words and files.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .converting import BadInput
from .files import nested, read_config, yaml_text
from .options import REQUIRED, Option, Stage
from .values import Given, flat, settle
from .words import COMMON, SHORT, help_text, read_words

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
PIPE_CLOSED = 141  # and for one whose reader has gone: `| head -1`
BAD_INPUT = 2

Stages = Callable[[Mapping[str, Any]], Sequence[Stage]]


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes:
        about: what it does; the first line goes into the list of commands.
        stages: returns the functions that it consists of, given what is said so far.
        call: runs it with the values of all options, by key.
        positional: the options whose values may stand alone, without their key.
        looked_at: the options that `stages` and `base` ask for.
        check: takes the values and returns what is wrong with them together.
        base: takes what is said so far, returns files by name over which all else wins.
    """

    about: str
    stages: Stages
    call: Callable[[dict[str, Any]], Any]
    positional: Sequence[str] = ()
    looked_at: Sequence[str] = ()
    check: Callable[[Mapping[str, Any]], Iterable[str]] = lambda values: ()
    base: Callable[[Mapping[str, Any]], list[tuple[str, dict[str, Any]]]] = lambda said: []

    @classmethod
    def of(cls, fn: Callable[..., Any], positional: Sequence[str] = ()) -> Command:
        """Make the command of one function."""
        stage = Stage(fn)
        about = (inspect.getdoc(fn) or "").partition("\nArgs:")[0].strip()
        return cls(about, lambda _: [stage], lambda values: stage.call(values=values), positional)

    def options(self, chosen: Mapping[str, Any]) -> list[Option]:
        """Return the options; where functions share a name, the first one's counts."""
        found: dict[str, Option] = {}
        for stage in self.stages(chosen):
            for option in stage.options():
                found.setdefault(option.key, option)
        if taken := [option.key for option in COMMON if option.key in found]:
            raise TypeError(f"rename the argument {taken[0]}: all programs have --{taken[0]}")
        return list(found.values())

    def settle(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all options for a configuration of Python's own making.

        Raises:
            BadInput: something is wrong with it; names everything.
        """
        configs = [*self.base(config), ("config", config)]
        options = self.options(self._chosen(configs))
        given = [each for file, config in configs for each in flat(config, options, file)]
        return self._sound(given, options, [])

    def run(self, prog: str, argv: Sequence[str]) -> Any:
        """Run the command for the words of a command line; None where they asked for a look.

        Raises:
            BadInput: something is wrong with the words or a file; names everything.
        """
        said = {key: last for key in self.looked_at for last in spoken(argv, key)[-1:]}
        files = [(path, read_config(path)) for path in spoken(argv, "config", alone=None)]
        configs = [*self.base(said), *files]
        options = self.options(self._chosen([*configs, ("", said)]))
        if {"--help", "-h"} & set(argv):
            print(help_text(prog, self.about, options, self.positional), end="")
            return None
        given = [each for file, config in configs for each in flat(config, options, str(file))]
        words, problems = read_words(argv, options, self.positional)
        general = {option.key for option in COMMON}
        given += [each for each in words if each.key not in general]
        common, more = settle([each for each in words if each.key in general], COMMON)
        problems += more
        if common["print_config"]:
            values = self._sound(given, [_without_need(option) for option in options], problems)
            print(yaml_text(nested(values)), end="")
            return None
        return self.call(self._sound(given, options, problems))

    def _chosen(self, configs: Iterable[tuple[Any, Mapping[str, Any]]]) -> dict[str, Any]:
        return {k: v for _, config in configs for k, v in config.items() if k in self.looked_at}

    def _sound(
        self, given: list[Given], options: list[Option], problems: list[str]
    ) -> dict[str, Any]:
        values, more = settle(given, options)
        if REQUIRED not in values.values():
            more += self.check(values)
        if problems := list(dict.fromkeys([*problems, *more])):
            raise BadInput(*problems)
        return values


def _without_need(option: Option) -> Option:
    return replace(option, default=None) if option.default is REQUIRED else option


def spoken(argv: Sequence[str], key: str, alone: str | None = "true") -> list[str]:
    """Return the values that the words give for one key, whatever the others mean.

    Args:
        argv: the words.
        key: the key.
        alone: its value where none stands behind it; None where that is none.
    """
    names = {f"--{key}", *(word for word, long in SHORT.items() if long == f"--{key}")}
    found = []
    for word, after in zip(argv, [*argv[1:], "--"], strict=False):
        if word in names:
            found.append(alone if after.startswith("--") or after in SHORT else after)
        elif word.startswith(f"--{key}="):
            found.append(word.partition("=")[2])
    return [value for value in found if value]


def ended(prog: str, act: Callable[[], Any], debug: bool) -> tuple[int, Any]:
    """Run `act`; return the exit status and what it returned.

    Bad input is one line on stderr and status 2, Ctrl-C is 130, a closed pipe 141; other errors are
    faults, and leave with their traceback, as all do with `debug`. A warning is a line on stderr,
    without the place in the code that only `debug` shows.
    """
    try:
        with nullcontext() if debug else _warnings_in_words():
            result = act()
        sys.stdout.flush()
        return 0, result
    except BrokenPipeError:
        if debug:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        return PIPE_CLOSED, None
    except KeyboardInterrupt:
        print(f"\n{prog}: interrupted", file=sys.stderr)
        return INTERRUPTED, None
    except (ValueError, OSError, FloatingPointError, ImportError) as e:
        if debug:
            raise
        print(f"{prog}: {' '.join(str(e).split())}", file=sys.stderr)
        return BAD_INPUT, None


@contextmanager
def _warnings_in_words() -> Iterator[None]:
    def in_words(message: Any, *_: Any) -> str:
        return f"warning: {' '.join(str(message).split())}\n"

    before, warnings.formatwarning = warnings.formatwarning, in_words
    try:
        yield
    finally:
        warnings.formatwarning = before


def run(fn: Callable[..., Any], argv: Sequence[str] | None = None) -> Any:
    """Run a function of yours as a command line: its arguments are the options.

    `-c file.yaml`, `--help`, `--print_config` and `--debug` come with it. A value on the command
    line wins over the file, the file over the default in the signature; unknown keys and wrong
    types are errors that name what is near, all of them in one line, with exit status 2.

    >>> def main(lr: float, epochs: int = 3) -> None: ...
    >>> if __name__ == "__main__":
    ...     minilearn.cli.run(main)

    Args:
        fn: annotated arguments become options `--name`, fields of a dataclass `--group.name`; the
            docstring is the help.
        argv: the words, by default the process's own.

    Returns:
        What `fn` returned; None after `--help` and `--print_config`.

    Raises:
        SystemExit: with status 2 for bad input (a ValueError or OSError of `fn` as well: `--debug`
            shows where), 130 after Ctrl-C.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    prog = Path(sys.argv[0]).name or fn.__name__
    status, result = ended(prog, lambda: Command.of(fn).run(prog, words), "--debug" in words)
    if status:
        raise SystemExit(status)
    return result
