"""What the command line says of warnings: a line for people, and the place for those who debug."""

import subprocess
import sys
import warnings

import pytest
from image_files import sample

from minilearn.cli import parser

WARNS = """
import sys, warnings
from minilearn.cli.parser import ended

def act():
    warnings.warn("two files\\n  are damaged", stacklevel=1)

ended("minilearn", act, "--debug" in sys.argv)
warnings.warn("after it", stacklevel=1)
"""


def stderr_of(*words):
    found = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=200)
    assert found.returncode == 0, found.stderr
    return found.stderr


def test_a_warning_is_one_line_without_its_place_while_a_command_runs():
    first, *rest = stderr_of("-c", WARNS).splitlines()
    assert first == "warning: two files are damaged"
    assert len(rest) == 1 and rest[0].endswith("UserWarning: after it")  # Python's own form again


def test_debug_shows_where_a_warning_came_from():
    first, *_ = stderr_of("-c", WARNS, "--debug").splitlines()
    assert first.endswith(":6: UserWarning: two files")


def test_errors_put_the_form_of_warnings_back():
    before = warnings.formatwarning
    with pytest.raises(KeyError):
        parser.ended("minilearn", lambda: {}["no"], False)
    assert warnings.formatwarning is before


def test_a_training_with_a_corrupt_image_says_so_in_a_line(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(8):
            sample()[i].save(tmp_path / "data" / name / f"{i}.png")
    (tmp_path / "data" / "a" / "0.png").write_bytes(b"no picture")
    words = ["train", tmp_path / "data", "--epochs", "1", "--bs", "4", "--device", "cpu"]
    words += ["--model", "cnn", "--max_errors", "0.5", "--out", tmp_path / "run"]
    said = stderr_of("-m", "minilearn", *map(str, words))
    lines = [line for line in said.splitlines() if "could not be read" in line]
    assert len(lines) == 1 and lines[0].startswith("warning: 1 of ")
    assert ".py:" not in said and "report(" not in said
