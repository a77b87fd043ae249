"""Committed notebooks are lessons that ran from top to bottom; CI runs them again."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "nbs").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


def cells_of(path, kind):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def texts_of(path, kind):
    return ["".join(cell["source"]) for cell in cells_of(path, kind)]


# Figures have 100 dots an inch, so that their text can be read: a lesson has up to half a megabyte.
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_numbered_and_clean(path):
    assert path.stat().st_size <= 500 * 1024 and path.stem[:2].isdigit()
    cells = cells_of(path, "code")
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [o for o in outputs if o["output_type"] in ("error", "stream")]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_says_what_it_teaches_and_ends_with_two_exercises(path):
    texts = texts_of(path, "markdown")
    assert "You will be able to" in texts[0]
    assert texts[-1].count("\n1. ") == texts[-1].count("\n2. ") == 1
    assert "## Exercises" in texts[-1] and "\n3. " not in texts[-1]


PRIVATE = re.compile(r"\._[a-z]\w*|def _[a-z]\w*")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_needs_no_private_name(path):
    assert PRIVATE.findall("\n".join(texts_of(path, "code"))) == []


def test_a_private_name_would_be_noticed():
    code = "quiet._log = print\nlearn._fit()\ndef _log(self, row): self._rows.append(row)"
    assert PRIVATE.findall(code) == ["._log", "._fit", "def _log", "._rows"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_figures_have_a_legible_size(path):
    code = "\n".join(texts_of(path, "code"))
    assert all(int(dpi) >= 100 for dpi in re.findall(r"dpi\W+(\d+)", code))
