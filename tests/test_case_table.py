"""The table of cases in tests/README.md says what is there."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "case_table.py"))


def test_the_table_is_current(script):
    assert script["filled"](TABLE) == TABLE, "run `python scripts/case_table.py`"


def test_every_case_is_in_the_table_once(script):
    cases = [case for case, _ in script["ROW"].findall(TABLE)]
    assert len(cases) == len(set(cases)) == 87


def test_every_case_has_a_broken_variant():
    assert [row[2:6] for row in TABLE.splitlines() if row.endswith("| none |")] == []


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda table: table.replace("| C034 |", "| C035 |"), "not in the table: C034"),
        (lambda table: table + "| C151 | a fault |  |  |\n", "without a test: C151"),
    ],
)
def test_a_case_that_misses_its_tests_or_its_row_is_named(script, change, message):
    with pytest.raises(ValueError, match=message):
        script["filled"](change(TABLE))
