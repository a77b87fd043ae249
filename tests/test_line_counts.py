"""The line counts of `make lines`, against files counted by hand."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "count_lines.py"
FILE = '''"""A module.

Of four lines, one blank within."""

import os  # code with a comment

# a comment
TEXT = """not
a docstring

at all"""


def f():
    """One line."""
    return os
'''


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def test_lines_are_code_text_or_blank(script):
    assert script["count"](FILE) == {"code": 7, "text": 5, "blank": 4}


def test_no_line_is_lost(script):
    for path in SCRIPT.parent.glob("*.py"):
        source = path.read_text()
        assert script["count"](source).total() == len(source.splitlines())


def test_folders_are_summed_up(script, tmp_path):
    for name in ("a.py", "sub/b.py", "sub/c.py"):
        path = tmp_path / "top" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(FILE)
    rows = [line.split() for line in script["table"](["top"], tmp_path).splitlines()]
    assert rows == [
        ["files", "code", "text", "blank", "folder"],
        ["1", "7", "5", "4", "top"],
        ["2", "14", "10", "8", "top/sub"],
        ["3", "21", "15", "12", "top,", "all"],
    ]
