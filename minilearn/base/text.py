"""What messages and tables are made of: near names, whole numbers, columns."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any


def write_out(text: str) -> None:
    """Write to the present standard output, at once; an output that fails must not end a fit.

    What it cannot encode becomes a question mark.
    """
    out = sys.stdout
    with suppress(Exception):  # it may be closed, or an object with a `write` alone
        encoding = getattr(out, "encoding", None) or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding), end="", file=out)
        out.flush()


def is_terminal() -> bool:
    """Return whether the present standard output is a terminal."""
    try:
        return sys.stdout.isatty()
    except Exception:  # it knows nothing about terminals, or is closed
        return False


def did_you_mean(name: str, known: Iterable[str], n: int = 3, cutoff: float = 0.6) -> str:
    """Return "; did you mean 'resnet'?" with up to `n` names that are near, or nothing.

    Upper and lower case are the same here; `cutoff` is that of `difflib.get_close_matches`.
    """
    simple = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), simple, n, cutoff)
    return f"; did you mean {' or '.join(repr(simple[each]) for each in near)}?" if near else ""


def few(names: Sequence[Any], n: int = 4) -> str:
    """Return the first `n` names, and how many more there are."""
    shown = ", ".join(map(str, names[:n]))
    return shown if len(names) <= n else f"{shown} and {len(names) - n:,} more"


def whole(name: str, value: Any, least: int = 1, of: str = "") -> int:
    """Return `value` as an int; numpy's integers are whole numbers, True is none.

    Raises:
        ValueError: it is not whole, or below `least`; names `name`, and what it is a number `of`.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        kind = f"a number of {of}" if of else "a whole number"
        raise ValueError(f"{name} is {kind}, {least} or more; got {value!r}")
    return int(value)


def in_columns(
    rows: Sequence[Sequence[str]], justs: Sequence[Callable[[str, int], str]] = ()
) -> list[str]:
    """Return one line for each row, its cells under each other.

    Args:
        rows: the cells, as many in each row.
        justs: `str.ljust` or `str.rjust` for each column; the rest, by default all, to the right.
    """
    justs = [*justs, *[str.rjust] * (len(rows[0]) - len(justs))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f(c, w) for f, c, w in zip(justs, row, widths, strict=True)).rstrip()
        for row in rows
    ]


def differences(saved: Any, here: Any, what: str = "{}") -> list[str]:
    """Return a line for each name whose value in `here` is not the one that was saved.

    >>> differences({"lr": 0.1, "betas": [0.9]}, {"lr": 0.2, "betas": (0.9,)})
    ['lr: 0.1 saved, 0.2 here']
    """

    def plain(x: Any) -> Any:
        return list(x) if isinstance(x, (tuple, list)) else x

    return [
        f"{what.format(name)}: {saved[name]} saved, {here[name]} here"
        for name in here
        if name in saved and plain(saved[name]) != plain(here[name])
    ]


def without_address(x: Any) -> str:
    """Return the `repr` of an object as it is in any process; its class where that fails."""
    try:
        return re.sub(r" at 0x\w+", "", repr(x))
    except Exception:  # a user's `__repr__` may need what a fit sets first
        return f"<{type(x).__name__}>"
