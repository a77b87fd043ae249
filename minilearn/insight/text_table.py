"""Tables as text, which a notebook shows as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Self

from ..base.text import in_columns

LEFT = " style='text-align:left;white-space:pre'"


class Table(str):
    """The text of a table; a notebook shows its HTML."""

    title: str
    lines: Sequence[Sequence[str]]
    n_left: int

    @classmethod
    def of(
        cls, title: str, lines: Sequence[Sequence[str]], n_left: int, framed: bool = False
    ) -> Self:
        """Make a table.

        Args:
            title: a line above it.
            lines: the cells of each line.
            n_left: how many of the first columns are aligned to the left.
            framed: whether the first line is a head and the last one has totals.
        """
        texts = in_columns(lines, [str.ljust] * n_left)
        if framed:
            rule = "-" * max(map(len, texts))
            texts = [texts[0], rule, *texts[1:-1], rule, texts[-1]]
        table = cls("\n".join([title, *texts]))
        table.title, table.lines, table.n_left = title, lines, n_left
        return table

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr>{self._cells(line)}</tr>" for line in self.lines)
        return f"<table><caption>{html.escape(self.title)}</caption>{rows}</table>"

    def _cells(self, line: Sequence[str]) -> str:
        styles = [LEFT] * self.n_left + [""] * (len(line) - self.n_left)
        cells = zip(styles, map(html.escape, line), strict=True)
        return "".join(f"<td{style}>{cell}</td>" for style, cell in cells)
