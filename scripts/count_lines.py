"""Count the lines of each folder: code, docstrings with comments, blank ones.

Run it with `make lines`, or `python scripts/count_lines.py FOLDER...`.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("minilearn", "tests", "examples", "benchmarks", "scripts")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
LAYOUT = (*LAYOUT, tokenize.COMMENT, tokenize.ENDMARKER)


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the line numbers of docstrings."""
    first = [
        n.body[0] for n in ast.walk(tree) if isinstance(n, DOCUMENTED) and ast.get_docstring(n)
    ]
    return {line for node in first for line in range(node.lineno, node.end_lineno + 1)}


def count(source: str) -> Counter:
    """Count the lines of a file; one with code and a comment is code."""
    docs = docstring_lines(ast.parse(source))
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1)) - docs
    kinds = Counter()
    for number, line in enumerate(source.splitlines(), 1):
        blank = not line.strip() and number not in code | docs
        kinds["code" if number in code else "blank" if blank else "text"] += 1
    return kinds


def table(folders: list[str], root: Path = ROOT) -> str:
    """Return the counts as text: a line for each folder that has Python files, and the totals."""
    rows: dict[str, Counter] = {}
    for top in folders:
        total = Counter()
        for path in sorted((root / top).rglob("*.py")):
            kinds = count(path.read_text(encoding="utf-8")) + Counter(files=1)
            folder = path.parent.relative_to(root).as_posix()
            rows.setdefault(folder, Counter()).update(kinds)
            total.update(kinds)
        rows[f"{top}, all"] = total
    columns = ("files", "code", "text", "blank")
    lines = ["".join(f"{name:>8}" for name in columns) + "  folder"]
    lines += ["".join(f"{c[n]:8,}" for n in columns) + f"  {name}" for name, c in rows.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(sys.argv[1:] or [name for name in FOLDERS if (ROOT / name).is_dir()]))
