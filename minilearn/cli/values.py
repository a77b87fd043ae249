"""From what a user gave to the values of options; all that is wrong is told together.

Stands on options and converting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .converting import BadInput, convert
from .files import loads, plain
from .near import near_option
from .options import REQUIRED, Option


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
    known = {option.key: option for option in options}

    def walk(mapping: Mapping[str, Any], prefix: str) -> Iterator[Given]:
        for name, value in mapping.items():
            key = f"{prefix}{name}"
            is_open = key in known and known[key].is_open
            if isinstance(value, Mapping) and value and not is_open:
                yield from walk(value, f"{key}.")
            elif value not in (None, {}) or not _group(key, known):  # an empty section says nothing
                yield Given(key, value, file)

    yield from walk(config, "")


def _group(key: str, known: Iterable[str]) -> list[str]:
    return [other for other in known if other.startswith(f"{key}.")]


def settle(given: Iterable[Given], options: Iterable[Option]) -> tuple[dict[str, Any], list[str]]:
    """Return the value of each option by key (the last one given, else its default), and problems.

    Those are unknown keys, values of the wrong type, and what is required and missing. What is
    given for a dict goes into the one that was given before, or is its default.
    """
    known, given = {option.key: option for option in options}, list(given)
    values: dict[str, Any] = {}
    dicts: dict[str, Given] = {}
    problems: list[str] = []
    for each in given:
        try:
            option = _option_of(each, known)
            if option.is_open:
                dicts[option.key] = _put_into(option, dicts.get(option.key), each)
            elif each.value is not None or option.default is not REQUIRED or option.takes_null:
                values[option.key] = convert(option.kind, each.value, each.where)
        except BadInput as e:
            problems += e.problems
    for key, each in dicts.items():
        try:
            values[key] = convert(known[key].kind, each.value, each.where)
        except BadInput as e:
            problems += e.problems
    named = {each.key for each in given if each.value is not None} | values.keys()
    required = [key for key, option in known.items() if option.default is REQUIRED]
    if missing := [key for key in required if key not in named]:
        needed = ", ".join(missing)
        problems.append(f"missing: {needed}; give it as an option, or in a file with -c")
    return {key: values.get(key, option.default) for key, option in known.items()}, problems


def _option_of(each: Given, known: Mapping[str, Option]) -> Option:
    """Return the option that a key belongs to, be it inside of a dict."""
    if each.key in known:
        return known[each.key]
    for key, option in known.items():
        if option.is_open and each.key.startswith(f"{key}."):
            return option
    raise BadInput(unknown(each, known))


def _put_into(option: Option, before: Given | None, each: Given) -> Given:
    """Return what is given for a dict together with what was there before."""
    value = each.value
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        value = loads(value)
    there = plain(option.default) if before is None else before.value
    there = there if isinstance(there, Mapping) else {}
    if path := each.key.removeprefix(option.key).lstrip("."):
        value = _put(there, path.split("."), value)
    elif isinstance(value, Mapping):
        value = {**there, **value}
    return Given(option.key, value, each.file)


def _put(mapping: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    first, *rest = path
    inner = mapping.get(first)
    if rest:
        value = _put(inner if isinstance(inner, Mapping) else {}, rest, value)
    return {**mapping, first: value}


def unknown(each: Given, known: Iterable[str]) -> str:
    """Return the message for a key that is no option, with the one that was meant."""
    if inside := _group(each.key, known):
        return f"{each.where} is a group ({', '.join(inside)}), got {each.value!r}"
    hint = near_option(each.key, known, "" if each.file else "--")
    return f"{each.where} is no option{hint}"
