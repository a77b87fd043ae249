"""Options from the signatures of functions, by jsonargparse, and how a program ends.

The words of a command line are one more configuration, which wins over those in files; jsonargparse
parses them together.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser

from .values import (
    MISSING,
    YAML,
    BadInput,
    convert,
    leaves,
    loads,
    near_option,
    number,
    origin,
    plain,
    prepared,
    read_config,
    shown,
    takes_mapping,
    type_name,
    yaml_text,
)

BAD_INPUT = 2
INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
PIPE_CLOSED = 141  # and for one whose reader has gone: `| head -1`
GENERAL = ("config", "print_config", "debug", "help")  # options of every program
OFF = ("false", "no", "off")
SWITCHED = ("true", "yes", "on", *OFF)


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
            prog=prog,
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            exit_on_error=False,
            parser_mode=YAML,
        )
        self.kinds: dict[str, Any] = {"config": str, "print_config": bool, "debug": bool}
        self.required: set[str] = set()
        self.groups: dict[str, list[str]] = {}
        self.arguments: dict[Any, list[str]] = {}
        add = self.parser.add_argument
        add("-c", "--config", action=ActionConfigFile, help="a file of values, in YAML or JSON")
        text = "show where an error or a warning comes from"
        add("--debug", action="store_true", default=argparse.SUPPRESS, help=text)

    def add(self, fn: Callable[..., Any], title: str = "", supplied: int = 0) -> None:
        """Add the arguments of a function, except for the first ones, which the program supplies.

        An option that two functions share is that of the first.

        Raises:
            TypeError: an argument has the name of an option of all programs.
        """
        own = list(inspect.signature(fn).parameters)
        if taken := [name for name in own if name in GENERAL]:
            raise TypeError(f"rename the argument {taken[0]}: all programs have --{taken[0]}")
        shared = [name for name in own[supplied:] if name in self.kinds.keys() | self.groups]
        parser: Any = self.parser.add_argument_group(title) if title else self.parser
        add = parser.add_class_arguments if isinstance(fn, type) else parser.add_function_arguments
        skip = {*own[:supplied], *shared}
        self.arguments[fn] = shared + add(fn, skip=skip, fail_untyped=False, as_group=False)
        self._describe()

    def call(self, fn: Callable[..., Any], *supplied: Any, values: Mapping[str, Any]) -> Any:
        """Call a function with its own of the values."""
        arguments = {name: values[name] for name in self.arguments[fn]}
        known = inspect.signature(fn).parameters.values()
        first = [p.name for p in known if p.kind is p.POSITIONAL_ONLY and p.name in arguments]
        return fn(*supplied, *[arguments.pop(name) for name in first], **arguments)

    def _describe(self) -> None:
        """Note the types of new options, and add types and defaults to their help."""
        for action in self.parser._actions:
            kind, name = getattr(action, "_typehint", None), action.dest
            if name == "print_config":
                action.help, action.metavar = "print all values as YAML and end", ""
            if name == "help" or name in self.kinds:
                continue
            if kind is None or name.endswith(".help"):
                action.help = argparse.SUPPRESS
                continue
            self.kinds[name] = kind
            if group := name.rpartition(".")[0]:
                self.groups.setdefault(group, []).append(name)
            notes = [] if kind is bool else [type_name(kind).removesuffix(" | null")]
            if action.required:
                self.required.add(name)
                notes += ["required"]
            if action.default not in (None, False, {}, []):
                off = f"; --no_{name}" if kind is bool else ""
                notes += [f"default {shown(action.default)}{off}"]
            text = f"{action.help or ''} ({', '.join(notes)})" if notes else action.help or ""
            action.help = " ".join(text.split()).replace("%", "%%")
            action.metavar = "" if kind is bool else name.rpartition(".")[2].upper()
            action.option_strings = [word for word in action.option_strings if word[-1] != "+"]

    def parse(
        self, words: Sequence[str], configs: Iterable[tuple[str, Mapping[str, Any]]] = ()
    ) -> dict[str, Any] | None:
        """Return the value of each argument by name; None after `--help` and `--print_config`.

        Args:
            words: those of the command line; they win over the files that they name with `-c`.
            configs: mappings that the files win over, and how messages name them.

        Raises:
            BadInput: an option is not known, has a value that it does not take, or is missing.
            OSError: a file cannot be read.
        """
        if {"-h", "--help"} & {*words}:
            alone = map(self._usage, self._positional())
            self.parser.usage = " ".join(["%(prog)s", *alone, "[options]"])
            self.parser.print_help()
            return None
        pairs = self._read(words)
        files = [(path, read_config(path)) for key, path in pairs if key == "config"]
        given: dict[str, Any] = {}
        for file, config in [*configs, *files]:
            for key, value in plain(config).items():
                self._put(given, key, value, f"{file}: ")
        for key, value in pairs:
            if key == "debug":
                convert(bool, value, "--debug")
            elif key not in GENERAL:
                self._put(given, key, value, "--")
        config = {}
        for option, value in given.items():
            config = _merged(config, option.split("."), value)
        prints = [x for key, x in pairs if key == "print_config" and x not in OFF]
        prints = [f"--print_config={'' if flags == 'true' else flags}" for flags in prints]
        try:  # with a text, because that is what --config takes, and --print_config comes with it
            found = self.parser.parse_args(["--config", yaml_text(config), *prints], env=False)
        except SystemExit:  # after --print_config
            return None
        except ArgumentError as e:
            if missing := MISSING.search(str(e)):
                hint = "give it as an option, or in a file with -c"
                raise BadInput(f"missing: {missing[1]}; {hint}") from e
            raise BadInput(" ".join(str(e).split())) from e
        return {k: v for k, v in vars(self.parser.instantiate(found)).items() if k != "config"}

    def _put(self, given: dict[str, Any], key: str, value: Any, where: str) -> None:
        """Put the value of an option, or of a section with options, into `given`.

        A dict is merged into the one that was given before. Messages begin with `where`.
        """
        option, path = self._split(key)
        kind, names = self.kinds.get(option), self.groups.get(key)
        value = _merged({}, [], value) if names else value  # "{flip: 0.5}" as a mapping
        is_section = isinstance(value, Mapping) and (names or value) and not takes_mapping(kind)
        if option and option not in GENERAL and not is_section:
            if value is None and option in self.required:
                return
            if takes_mapping(kind):
                default = plain(self.parser.get_default(option))
                value = _merged(given.get(option, default), path, value)
            convert(kind, value, f"{where}{option}")
            given[option] = prepared(kind, value, option)
        elif is_section:
            for name, item in value.items():
                self._put(given, f"{key}.{name}", item, where)
        elif not names:
            hint = near_option(key, self.kinds, "--" if where == "--" else "")
            raise BadInput(f"{where}{key} is no option{hint}")
        elif value is not None:
            raise BadInput(f"{where}{key} is a group ({', '.join(names)}), got {value!r}")

    def _positional(self) -> list[str]:
        return [option for option in self.positional if option in self.kinds]

    def _usage(self, option: str) -> str:
        text = option.upper() + (" ..." if origin(self.kinds[option]) is list else "")
        return text if option in self.required else f"[{text}]"

    def _split(self, key: str) -> tuple[str, list[str]]:
        """Return the option that a key belongs to, or "", and the path inside of its dict."""
        parts = key.split(".")
        for n in range(len(parts), 0, -1):
            option = ".".join(parts[:n])
            if option in self.kinds and (n == len(parts) or takes_mapping(self.kinds[option])):
                return option, parts[n:]
        return "", []

    # ---- the words of a command line ----

    def _read(self, words: Sequence[str]) -> list[tuple[str, Any]]:
        """Return the keys and values of a command line, in its order."""
        pairs: list[tuple[str, Any]] = []
        alone: list[str] = []
        left = deque(words)
        while left:
            word = left.popleft()
            if word[:1] != "-" or (word[:2] != "--" and not isinstance(number(word), str)):
                alone.append(word)
                continue
            name, has_value, value = word.partition("=")
            key, is_off = self._key(name)
            if is_off and has_value:
                raise BadInput(f"{name} takes no value, got {value!r}; --{key} does")
            if not has_value:
                value = "false" if is_off else self._value(key, left)
            pairs.append((key, value))
        return [*pairs, *self._placed(alone)]

    def _key(self, name: str) -> tuple[str, bool]:
        """Return the key that a word such as `--batch-size` names, and whether "no" negates it."""
        name = "--config" if name == "-c" else name
        head, dot, inside = name.removeprefix("--").partition(".")
        key = head.replace("-", "_") + dot + inside
        key = key if self._split(key)[0] else key.replace("-", "_")
        if name[:2] == "--" and (self._split(key)[0] or key in self.groups):
            return key, False
        for positive in (key.removeprefix("no_"), key.replace(".no_", ".")):
            if positive != key and self.kinds.get(positive) is bool:
                return positive, True
        known = [*self.kinds, "help"]
        raise BadInput(f"{name} is no option{near_option(name.lstrip('-'), known, '--')}")

    def _value(self, key: str, left: deque[str]) -> str:
        """Return the next word where it is the value of an option; "true" for a bool alone."""
        kind = self.kinds.get(self._split(key)[0], dict)
        following = left[0] if left and left[0][:2] != "--" and left[0] != "-c" else None
        if following is not None and (kind is not bool or following.lower() in SWITCHED):
            return left.popleft()
        if bool in leaves(kind):
            return "true"
        raise BadInput(f"--{key} needs a value ({type_name(kind)})")

    def _placed(self, alone: list[str]) -> list[tuple[str, Any]]:
        """Return the positional options, given as words without a name."""
        known = self._positional()
        pairs: list[tuple[str, Any]] = list(zip(known, alone, strict=False))
        n = len(known)
        if n and len(alone) >= n and origin(self.kinds[known[-1]]) is list:
            pairs[-1] = known[-1], alone[n - 1 :]
        elif alone[n:]:
            raise BadInput(f"what is {alone[n]!r}? Write a value after its option: --key value")
        return pairs


def _merged(before: Any, path: Sequence[str], value: Any) -> Any:
    """Return a dict with a value put at a path; a mapping is merged into the one before."""
    before = before if isinstance(before, Mapping) else {}
    if path:
        return {**before, path[0]: _merged(before.get(path[0]), path[1:], value)}
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        value = loads(value)
    return {**before, **value} if isinstance(value, Mapping) else value


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
