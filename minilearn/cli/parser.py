"""Options from the signatures of functions, by jsonargparse, and how a program ends."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import warnings
from argparse import SUPPRESS
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, get_origin

import yaml
from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser, Namespace

from .values import YAML, BadInput, members, near_option, one_line, read_config, yaml_text

BAD_INPUT = 2
INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
PIPE_CLOSED = 141  # and for one whose reader has gone: `| head -1`
GENERAL = {"config": str, "print_config": bool, "debug": bool}  # options of every program
SWITCHED = ("true", "yes", "on", "false", "no", "off")


class Options:
    """The options of a command: the arguments of functions, in a parser of jsonargparse.

    Args:
        prog: the name of the command in its help.
        about: what it does.
        positional: options whose values may stand without their names; the last may be a list.
    """

    def __init__(self, prog: str = "", about: str = "", positional: Sequence[str] = ()) -> None:
        self.positional = positional
        self.parser = ArgumentParser(
            prog=prog, description=about, exit_on_error=False, parser_mode=YAML
        )
        self.kinds: dict[str, Any] = {}
        self.arguments: dict[Any, list[str]] = {}
        add = self.parser.add_argument
        add("-c", "--config", action=ActionConfigFile, help="a file of values, in YAML or JSON")
        text = "show where an error or a warning comes from"
        add("--debug", action="store_true", default=SUPPRESS, help=text)

    def add(self, fn: Callable[..., Any], title: str = "", supplied: int = 0) -> None:
        """Add the arguments of a function, except for the first ones, which the program supplies.

        An option that two functions share is that of the first.

        Raises:
            TypeError: an argument has the name of an option of all programs.
        """
        own = list(inspect.signature(fn).parameters)
        if taken := [name for name in own if name in GENERAL]:
            raise TypeError(f"rename the argument {taken[0]}: all programs have --{taken[0]}")
        shared = [name for name in own[supplied:] if name in self.kinds or self._is_group(name)]
        parser: Any = self.parser.add_argument_group(title) if title else self.parser
        add = parser.add_class_arguments if isinstance(fn, type) else parser.add_function_arguments
        skip = {*own[:supplied], *shared}
        self.arguments[fn] = shared + add(fn, skip=skip, fail_untyped=False, as_group=False)
        for action in self.parser._actions:
            kind = getattr(action, "_typehint", None)
            if kind is not None and not action.dest.endswith(".help"):
                action.option_strings = [word for word in action.option_strings if word[-1] != "+"]
                self.kinds[action.dest] = kind

    def call(self, fn: Callable[..., Any], *supplied: Any, values: Mapping[str, Any]) -> Any:
        """Call a function with its own of the values."""
        return fn(*supplied, **{name: values[name] for name in self.arguments[fn]})

    def parse(
        self, words: Sequence[str], configs: Iterable[Mapping[str, Any]] = ()
    ) -> dict[str, Any] | None:
        """Return the value of each argument by name; None after `--help` and `--print_config`.

        `self.config` holds the same as YAML can hold it, `self.typed` the names among the words.

        Args:
            words: those of the command line; they win over the files that they name with `-c`.
            configs: mappings that the files win over.

        Raises:
            BadInput: an option is not known, has a value that it does not take, or is missing.
            OSError: a file cannot be read.
        """
        if {"-h", "--help"} & {*words}:
            alone = [
                _usage(name, self.kinds[name]) for name in self.positional if name in self.kinds
            ]
            self.parser.usage = " ".join(["%(prog)s", *alone, "[options]"])
            self.parser.print_help()
            return None
        pairs = self._read(words)
        self.typed = {key for key, _ in pairs}
        texts = [*configs, *(read_config(value) for key, value in pairs if key == "config")]
        if wrong := {key for text in texts for key in text} & {*GENERAL}:
            raise BadInput(f"{wrong.pop()} is no option of a file")
        said = [f"--config={yaml_text(text)}" for text in texts if text]
        said += [f"--{key}={value}" for key, value in pairs if key not in ("config", "debug")]
        try:
            found = self.parser.parse_args(said, env=False)
        except SystemExit:  # after --print_config
            return None
        except ArgumentError as e:
            text = one_line(e)
            unknown = re.search(r"ption '(\S+)'", text)
            raise BadInput(text + (near_option(unknown[1], self.kinds) if unknown else "")) from e
        for key, kind in self.kinds.items():  # jsonargparse takes null, and values for groups
            group = key.rpartition(".")[0]
            if group and not isinstance(found.get(group), Namespace):
                raise BadInput(f"{group} is a group of options, got {found.get(group)!r}")
            if found[key] is None and self.parser.get_default(key) is not None:
                if type(None) not in members(kind):
                    raise BadInput(f"{key}: it has a value by default, and takes no null")
        del found["config"]
        self.config = yaml.safe_load(self.parser.dump(found))
        return vars(self.parser.instantiate(found))

    def _option(self, key: str) -> str:
        """Return the option that a key is, or belongs to as `opt_args.betas` does, or ""."""
        while key not in self.kinds and key:
            key = key.rpartition(".")[0]
        return key

    def _is_group(self, name: str) -> bool:
        return any(key.startswith(f"{name}.") for key in self.kinds)

    def _read(self, words: Sequence[str]) -> list[tuple[str, str]]:
        """Return the options and values of a command line, as jsonargparse takes them."""
        kinds = {**GENERAL, **self.kinds}
        pairs: list[tuple[str, str]] = []
        alone: list[str] = []
        left = deque(words)
        while left:
            word = left.popleft()
            if not word.startswith("-"):
                alone.append(word)
                continue
            name, has_value, value = word.partition("=")
            key = "config" if name == "-c" else name[2:] if name.startswith("--") else ""
            key = key if self._option(key) else key.replace("-", "_")
            positive, kind = key.replace("no_", "", 1), kinds.get(key, dict)
            if kinds.get(positive) is bool and key not in kinds and not has_value:
                key, value = positive, "false"
            elif not (key in GENERAL or self._option(key) or self._is_group(key)):
                hint = near_option(name.lstrip("-"), kinds, "--")
                raise BadInput(f"{name} is no option{hint}")
            elif self._option(key) and key.count(".") > self._option(key).count(".") + 1:
                raise BadInput(f"--{key} is too deep; write --{key.rpartition('.')[0]} '{{…}}'")
            elif not has_value:
                follows = left[0] if left and left[0][:2] != "--" and left[0] != "-c" else None
                if follows is not None and (kind is not bool or follows.lower() in SWITCHED):
                    value = left.popleft()
                elif bool in members(kind):
                    value = "" if key == "print_config" else "true"
                else:
                    raise BadInput(f"--{key} needs a value")
            is_bare = _is_list(kind) and not value.startswith("[")
            pairs.append((key, f"[{value}]" if is_bare else value))
        known = [name for name in self.positional if name in kinds]
        if known and len(alone) >= len(known) and _is_list(kinds[known[-1]]):
            alone[len(known) - 1 :] = [json.dumps(alone[len(known) - 1 :])]
        if len(alone) > len(known):
            raise BadInput(f"what is {alone[len(known)]!r}? Write a value after its option")
        return [*pairs, *zip(known, alone, strict=False)]


def _usage(name: str, kind: Any) -> str:
    text = name.upper() + (" ..." if _is_list(kind) else "")
    return f"[{text}]" if type(None) in members(kind) else text


def _is_list(kind: Any) -> bool:
    return all(get_origin(part) is list for part in members(kind) if part is not type(None))


# ---- how a program ends ----


def run(fn: Callable[..., Any], argv: Sequence[str] | None = None) -> Any:
    """Run a function as a command line: its arguments are the options.

    `-c file.yaml`, `--help`, `--print_config` and `--debug` come with it. A value on the command
    line wins over the file, the file over the default in the signature; an unknown key or a wrong
    type is an error of one line that names what is near, with exit status 2.

    >>> def main(lr: float, epochs: int = 3) -> None: ...
    >>> if __name__ == "__main__":
    ...     minilearn.cli.run(main)

    Args:
        fn: annotated arguments become options `--name`, fields of a dataclass `--group.name`; the
            docstring is the help.
        argv: the words, by default those of the process.

    Returns:
        What `fn` returned; None after `--help` and `--print_config`.

    Raises:
        SystemExit: with status 2 for bad input (a ValueError or OSError of `fn` as well: `--debug`
            shows where), 130 after Ctrl-C.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    prog = Path(sys.argv[0]).name or fn.__name__
    status, result = ended(prog, lambda: run_function(fn, prog, words), "--debug" in words)
    if status:
        raise SystemExit(status)
    return result


def run_function(
    fn: Callable[..., Any], prog: str, words: Sequence[str], positional: Sequence[str] = ()
) -> Any:
    """Return what a function returns for the words of a command line."""
    options = Options(prog, about(fn), positional)
    options.add(fn)
    values = options.parse(words)
    return None if values is None else options.call(fn, values=values)


def about(fn: Callable[..., Any]) -> str:
    """Return what a docstring says before its sections."""
    return (inspect.getdoc(fn) or "").partition("\nArgs:")[0].strip()


def ended(prog: str, act: Callable[[], Any], debug: bool) -> tuple[int, Any]:
    """Run `act`; return the exit status and what it returned.

    Bad input is one line on stderr and status 2, Ctrl-C is 130, a closed pipe 141; other errors
    leave with their traceback, as all do with `debug`. A warning is a line on stderr, without the
    place in the code that only `debug` shows.
    """
    try:
        with nullcontext() if debug else _short_warnings():
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
def _short_warnings() -> Iterator[None]:
    before = warnings.formatwarning
    warnings.formatwarning = lambda text, *_: f"warning: {' '.join(str(text).split())}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before
