"""Which option was meant by a key that is none: `near_option`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def near_option(name: str, known: Iterable[str], dashes: str = "") -> str:
    """Return "; did you mean 'lr'?", or nothing where no name is near.

    A key in the wrong group is near to the one with its last name; `batch_size` is near to `bs`,
    `optimizer` to `opt`.
    """
    known = list(known)
    last = name.rpartition(".")[2]
    simple = {_bare(key): key for key in reversed(known)}
    same = [key for key in known if key.rpartition(".")[2] == last]
    within = [key for key in known if name.startswith(f"{key}.")]
    words = re.split(r"[-_ ]|(?<=[a-z])(?=[A-Z])", last)
    first_letters = "".join(word[:1] for word in words).lower()
    short = [k for k in known if k == first_letters or (len(k) > 2 and last.startswith(k))]
    near, rather = (
        [
            simple[found]
            for each in (name, last)
            for found in difflib.get_close_matches(_bare(each), simple, n=1, cutoff=cutoff)
        ]
        for cutoff in (0.8, 0.6)
    )
    best = [*same, *within, *near, *short, *rather][:1]
    return f"; did you mean {dashes}{best[0]}?" if best else ""


def _bare(key: str) -> str:
    return re.sub(r"[-_ ]", "", key).lower()
