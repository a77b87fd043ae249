"""The words of a command line: what they give, and the help that lists what they may be.

Stands on options and values.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_origin

from .converting import SWITCHED
from .files import number, shown
from .kinds import in_words
from .near import near_option
from .options import REQUIRED, Option
from .values import Given, unknown

COMMON = [
    Option("config", str | None, None, "a file of YAML with values; the words here win over it"),
    Option("print_config", bool, False, "print all values as YAML and end"),
    Option("debug", bool, False, "show where an error or a warning comes from"),
    Option("help", bool, False, "show this list and end"),
]
SHORT = {"-c": "--config", "-h": "--help"}


def read_words(
    argv: Sequence[str], options: Iterable[Option], positional: Sequence[str] = ()
) -> tuple[list[Given], list[str]]:
    """Return what the words of a command line give, in their order, and what is wrong with them.

    `--key value`, `--key=value`; `--key` and `--no_key` for switches; `--key.inner value` into a
    dict; words without a key go to the positional options, all that are left to the last of those
    where that is a list. Wrong are keys that are unknown or have no value.
    """
    known = {option.key: option for option in (*options, *COMMON)}
    given: list[Given] = []
    alone: list[str] = []
    problems: list[str] = []
    words = deque(argv)
    while words:
        word = words.popleft()
        word = SHORT.get(word, word)
        if not word.startswith("--"):
            if word[:1] == "-" and isinstance(number(word), str):
                problems.append(_single_dash(word, known))
            else:
                alone.append(word)
            continue
        key, has_value, value = word[2:].partition("=")
        off = _switched_off(key, known)
        if off and not has_value:
            given.append(Given(off, False))
            continue
        option = _option(key, known)
        if not has_value:
            value = _value(option, words)
        if off:
            problems.append(f"--{key} takes no value, got {value!r}; --{off} does")
        elif option is None:
            problems.append(unknown(Given(key, value), known))
        elif value is None:
            problems.append(f"--{key} needs a value ({in_words(option.kind)})")
        else:
            given.append(Given(key, value))
    given += _in_places(alone, known, positional)
    if len(alone) > len(positional) and not _ends_in_list(known, positional) and not problems:
        stray = alone[len(positional)]  # not where it may be the value of an unknown key
        problems.append(f"what is {stray!r}? A value stands behind its option: --key value")
    return given, problems


def _single_dash(word: str, known: Mapping[str, Option]) -> str:
    name = word.partition("=")[0]
    return f"{name} is no option{near_option(name[1:], known, '--')}"


def _option(key: str, options: Mapping[str, Option]) -> Option | None:
    if key in options:
        return options[key]
    groups = (options.get(key[:i]) for i, char in enumerate(key) if char == ".")
    return next((group for group in groups if group is not None and group.is_open), None)


def _switched_off(key: str, options: Mapping[str, Option]) -> str | None:
    name = key.removeprefix("no_").removeprefix("no-")
    known = name != key and key not in options and name in options
    return name if known and options[name].is_switch else None


def _value(option: Option | None, words: deque[str]) -> str | bool | None:
    """Return the next word where it is this option's value; True for a switch without one."""
    following = words[0] if words and words[0][:2] != "--" and words[0] not in SHORT else None
    if option is not None and option.is_switch:
        return words.popleft() if following and following.lower() in SWITCHED else True
    if following is not None:
        return words.popleft()
    return True if option is not None and option.value_is_optional else None


def _in_places(
    alone: list[str], options: Mapping[str, Option], positional: Sequence[str]
) -> list[Given]:
    given = [Given(key, word) for key, word in zip(positional, alone, strict=False)]
    if len(given) == len(positional) and _ends_in_list(options, positional):
        given[-1] = Given(positional[-1], alone[len(positional) - 1 :])
    return given


def _ends_in_list(options: Mapping[str, Option], positional: Sequence[str]) -> bool:
    return bool(positional) and get_origin(options[positional[-1]].kind) is list


def help_text(
    prog: str, about: str, options: Iterable[Option], positional: Sequence[str] = ()
) -> str:
    """Return what `--help` prints: every option with type, default and meaning."""
    parser = argparse.ArgumentParser(
        prog,
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=" ".join([f"{prog} [options]", *(f"[{key.upper()}]" for key in positional)]),
        add_help=False,
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in (*options, *COMMON):
        if option.title not in groups:
            groups[option.title] = parser.add_argument_group(option.title)
        short = [word for word, key in SHORT.items() if key == f"--{option.key}"]
        kind: dict[str, Any] = (
            {"action": "store_true"} if option.is_switch else {"metavar": "VALUE"}
        )
        groups[option.title].add_argument(*short, f"--{option.key}", help=_help(option), **kind)
    return parser.format_help()


def _help(option: Option) -> str:
    parts = [] if option.is_switch else [in_words(option.kind).removesuffix(" | null")]
    if option.default is REQUIRED:
        parts.append("required")
    elif option.is_switch and option.default:
        parts.append(f"default true; --no_{option.key}")
    elif option.default not in (None, False, {}, [], ""):
        parts.append(f"default {shown(option.default)}")
    return " ".join([option.help, f"({', '.join(parts)})" if parts else ""]).replace("%", "%%")
