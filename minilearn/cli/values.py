"""From what a user gave to values of the right types; all that is wrong is told together.

Stands on options. jsonargparse knows how a text or a value of YAML becomes an int, a union, a path.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

from jsonargparse import ArgumentError, ArgumentParser

from .files import loads, number
from .options import REQUIRED, Option, in_words, leaves


class BadInput(ValueError):
    """What a user gave is wrong; each problem is one line."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Given:
    """A value that somebody gave for a key, and where: "c.yaml" or "" for the command line."""

    key: str
    value: Any
    file: str = ""

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"{self.file}: {self.key}" if self.file else f"--{self.key}"


def flat(config: Mapping[str, Any], options: Iterable[Option], file: str) -> Iterator[Given]:
    """Yield what a configuration gives, with the groups' names before the keys."""
    options = {option.key: option for option in options}

    def walk(mapping: Mapping[str, Any], prefix: str) -> Iterator[Given]:
        for name, value in mapping.items():
            key = f"{prefix}{name}"
            option = options.get(key)
            is_group = any(known.startswith(f"{key}.") for known in options)
            closed = option is not None and not option.is_open
            if isinstance(value, Mapping) and value and (is_group or closed):
                yield from walk(value, f"{key}.")
            elif not (is_group and not value):  # an empty section says nothing
                yield Given(key, value, file)

    yield from walk(config, "")


def settle(given: Iterable[Given], options: Iterable[Option]) -> tuple[dict[str, Any], list[str]]:
    """Return the value of each option by key (the last one given, else its default), and problems.

    Those are unknown keys, values of the wrong type, and what is required and missing.
    """
    options, given = {option.key: option for option in options}, list(given)
    values, problems = {}, []
    for each in given:
        try:
            key, value = _settled(each, options, values)
            values[key] = value
        except BadInput as e:
            problems += e.problems
    named = {each.key for each in given}
    missing = [key for key, o in options.items() if o.default is REQUIRED and key not in named]
    if missing:
        problems.append(
            f"missing: {', '.join(missing)}; give it as an option, or in a file with -c"
        )
    values = {key: values.get(key, option.default) for key, option in options.items()}
    return values, problems


def _settled(
    each: Given, options: Mapping[str, Option], values: Mapping[str, Any]
) -> tuple[str, Any]:
    """Return the key and the value that `each` sets, inside of a dict too."""
    if each.key in options:
        return each.key, convert(options[each.key].kind, each.value, each.where)
    for key, option in options.items():
        if option.is_open and each.key.startswith(f"{key}."):
            path = each.key[len(key) + 1 :].split(".")
            before = values.get(key, option.default)
            return key, _put(before or {}, path, numbers(each.value))
    raise BadInput(unknown(each, options))


def _put(mapping: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    first, *rest = path
    inner = mapping.get(first)
    if rest:
        value = _put(inner if isinstance(inner, Mapping) else {}, rest, value)
    return {**mapping, first: value}


def unknown(each: Given, known: Iterable[str]) -> str:
    """Return the message for a key that is no option, with the one that was meant."""
    dashes = "" if each.file else "--"
    hint = did_you_mean(each.key, known, dashes)
    return f"{each.where} is no option{hint}"


def did_you_mean(name: str, known: Iterable[str], dashes: str = "") -> str:
    """Return "; did you mean 'lr'?", or nothing where no name is near.

    A key in the wrong group is near to the one with its last name.
    """
    known = list(known)
    last = name.rpartition(".")[2]
    same = [key for key in known if key.rpartition(".")[2] == last]
    simple = {_simple(key): key for key in reversed(known)}
    near = difflib.get_close_matches(_simple(name), simple, n=1, cutoff=0.6)
    near = near or difflib.get_close_matches(_simple(last), simple, n=1, cutoff=0.6)
    best = [*same, *(simple[key] for key in near)][:1]
    return f"; did you mean {dashes}{best[0]}?" if best else ""


def _simple(key: str) -> str:
    return re.sub(r"[-_ ]", "", key).lower()


def convert(kind: Any, value: Any, where: str = "the value") -> Any:
    """Return `value`, a text or what YAML gave, as `kind`.

    Raises:
        BadInput: it cannot be; names `where` and the value.
    """
    if kind is Any or any(get_origin(k) is dict or k is dict for k in leaves(kind)):
        value = numbers(_loaded(value))
    if any(get_origin(k) is list for k in leaves(kind)) and not isinstance(value, (list, Mapping)):
        value = _as_list(value, kind)
    parser = _parser(kind)
    for attempt in (value, *_whole(kind, value)):
        try:
            return parser.parse_object({"value": attempt}).value
        except ArgumentError:
            continue
    wrong = [v for v in (value if isinstance(value, list) else [value]) if v not in choices(kind)]
    hint = did_you_mean(str(wrong[0]), choices(kind)) if wrong and choices(kind) else ""
    raise BadInput(f"{where} takes {in_words(kind)}, got {value!r}{hint}")


def _loaded(value: Any) -> Any:
    try:
        return loads(value) if isinstance(value, str) and value.lstrip()[:1] == "{" else value
    except ValueError:
        return value


def choices(kind: Any) -> list[str]:
    """Return the words that a type allows, alone or in a list."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    inner = () if kind in leaves(kind) and get_origin(kind) is not list else get_args(kind)
    return [word for part in inner for word in choices(part)]


@cache
def _parser(kind: Any) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=kind)
    return parser


def _as_list(value: Any, kind: Any) -> Any:
    """Return `a,b` as a list, and one thing as a list of it, unless the type allows it alone."""
    text = isinstance(value, str)
    if value is None or (text and value.lstrip().startswith("[")) or value in ("null", ""):
        return value
    if any(k in (str, int, float, bool) for k in leaves(kind)):
        return value
    return [part.strip() for part in value.split(",")] if text else [value]


def _whole(kind: Any, value: Any) -> Iterator[Any]:
    """Yield `value` with 3.0 as 3 and 1e3 as 1000, where whole numbers are asked for."""
    whole = _integral(value)
    if whole != value or type(whole) is not type(value):
        yield whole


def _integral(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_integral(item) for item in value]
    value = number(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def numbers(value: Any) -> Any:
    """Return `value` with every text in it that reads as a number as that number."""
    if isinstance(value, Mapping):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [numbers(item) for item in value]
    return number(value)
