"""Write the table of cases in tests/README.md: which tests decide a case, and which break it.

Run it with `python scripts/case_table.py`. Sections, numbers and faults are in the table itself;
the tests are found by their marks, `@pytest.mark.case("C034")`.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
TABLE = TESTS / "README.md"
ROW = re.compile(r"^\| ([CF]\d{2,3}) \| (.*?) \|.*$", re.M)
# Names of broken variants: a check is given the fault, and has to see it.
VARIANT = re.compile(
    r"check_(of_\w+_)?(notices|finds|sees|fails)|would_(be|differ)|is_needed|^test_kept_|_fails$"
)


def marked(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield (case, name of the test, whether it expects a check to fail) of a file."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for mark in getattr(node, "decorator_list", ()):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.case":
                text = ast.unparse(node)
                broken = VARIANT.search(node.name) or "pytest.raises(AssertionError" in text
                yield mark.args[0].value, node.name, bool(broken)


def found() -> dict[str, dict[bool, dict[str, list[str]]]]:
    """Return the tests of each case: by case, by whether they are broken variants, by file."""
    tests = defaultdict(lambda: {False: defaultdict(list), True: defaultdict(list)})
    for path in sorted(TESTS.rglob("test_*.py")):
        for case, name, broken in marked(path):
            tests[case][broken][path.relative_to(TESTS).as_posix()].append(name)
    return tests


def cell(tests: dict[str, list[str]]) -> str:
    return "; ".join(f"`{path}::{name}`" for path, names in tests.items() for name in names)


def filled(table: str) -> str:
    """Return the text with every row filled in.

    Raises:
        ValueError: a case has no test, or a mark names none of the cases.
    """
    tests = found()
    cases = [case for case, _ in ROW.findall(table)]
    untested = [case for case in cases if not any(tests[case].values())]
    if unknown := sorted(set(tests) - set(cases)):
        raise ValueError(f"marked cases that are not in the table: {', '.join(unknown)}")
    if untested:
        raise ValueError(f"cases without a test: {', '.join(untested)}")

    def row(match: re.Match) -> str:
        case, fault = match.groups()
        checks, variants = (cell(tests[case][broken]) for broken in (False, True))
        return f"| {case} | {fault} | {checks or 'in the same test'} | {variants or 'none'} |"

    return ROW.sub(row, table)


if __name__ == "__main__":
    TABLE.write_text(filled(TABLE.read_text(encoding="utf-8")), encoding="utf-8")
