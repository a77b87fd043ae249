"""Make one small change to the package at a time, and see whether a test notices.

`make mutants` draws SAMPLE mutants of each module by SEED, 0 for all; MODULES="base/batch" names
some. The changes are cosmic-ray's and the deletion of a statement; they are made in a copy,
build/mutants/tree. For each mutant, the passing tests that reach its line (by coverage.py) run, the
fastest first, in a fork of this process, which has imported torch. A failure or a hang kills it.
"""

import ast
import gc
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import coverage
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names
from coverage.parser import PythonParser
from parso.python.tree import Keyword
from parso.tree import NodeOrLeaf

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "mutants"
TREE = OUT / "tree"
CORE = sorted(p.stem for p in (ROOT / "minilearn/core").glob("[a-z]*.py"))
CALLBACKS = (
    "callbacks/training",
    "metrics/callback",
    "callbacks/gradients",
    "checkpoint/callback",
    "optim/sched_callbacks",
)
TESTS = {
    "core": "core/*",
    "base/files": "checkpoint/test_corrupt_files checkpoint/test_callback",
    "base": "base/*",
    "base/lazy": "test_lazy test_public_api",
    "core/learner": "core/* checkpoint/test_resume",
    "core/position": "core/test_position checkpoint/test_resume_streams",
    "distributed/sync": "distributed/test_cases distributed/test_resumed",
    "base/state_dict": "checkpoint/test_weights",
    "callbacks/training": "core/* callbacks/test_training",
    "metrics/callback": "metrics/test_callback metrics/test_functions",
    "callbacks/gradients": "callbacks/test_gradients callbacks/test_precision",
    "checkpoint/callback": "checkpoint/test_callback checkpoint/test_resume",
    "optim/sched_callbacks": "optim/test_sched_callbacks optim/test_warmup optim/test_plateau",
}
SLOW = ("test_interrupt.py", "test_any_disturbance.py")
# Imported before the forks: slow to import, and none of them imports the package.
HEAVY = ("torch._dynamo", "matplotlib.pyplot", "pandas", "hypothesis.strategies", "fastcore.all")
PYTEST = ["-q", "-p", "no:cacheprovider", "-m", "not slow", "-p", "pytest_timeout"]
LONGEST = 60  # seconds of tests for one mutant


@dataclass
class Mutant:
    """One change of one file, and the test that noticed it: empty for a survivor."""

    file: str
    line: int
    operator: str
    before: str
    after: str
    code: str
    killer: str = ""


class DeleteStatement(Operator):
    """Replace a statement in a function by `pass`."""

    spared = ("string", "strings", "import_name", "import_from", "keyword", "global_stmt")

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[tuple]:
        if node.type == "simple_stmt" and node.children[0].type not in self.spared:
            if node.search_ancestor("funcdef"):
                yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
        old = node.children[0]
        node.children[0] = Keyword("pass", old.start_pos, prefix=old.get_first_leaf().prefix)
        return node

    def examples() -> tuple:
        return ()


def operators() -> Iterator[tuple[str, Operator]]:
    """Yield the operators, without `is` for `==` and back, which is a matter of style."""
    for name in operator_names():
        style = re.search("_(Not)?Eq_Is|_Is(Not)?_(Not)?Eq", name)
        if not style and not get_operator(name).arguments():
            yield name.removeprefix("core/"), get_operator(name)()
    yield "DeleteStatement", DeleteStatement()


def spared(tree: ast.Module) -> Iterator[tuple]:
    """Yield the spans where a change is none of behaviour: annotations, texts of messages."""
    for node in ast.walk(tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts = [node]
        warns = isinstance(node, ast.Call) and re.search("warn|add_note", ast.unparse(node.func))
        if warns or isinstance(node, ast.Raise):
            parts = [part for part in ast.walk(node) if isinstance(part, ast.JoinedStr)]
        for part in filter(None, parts):
            yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def mutants(file: str, sample: int, seed: str) -> Iterator[Mutant]:
    """Yield the mutants of a file in the order of the draw, one a position; all, for sample 0."""
    source = (TREE / file).read_text(encoding="utf-8")
    nodes, spans = list(ast_nodes(get_ast(source))), list(spared(ast.parse(source)))
    positions = defaultdict(list)
    for name, operator in operators():
        starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(starts):
            if not any(first <= start < last for first, last in spans):
                positions[start].append((start[0], name, operator, occurrence))
    draw = random.Random(f"{seed} {file}")
    drawn = [[draw.choice(some)] if sample else some for _, some in sorted(positions.items())]
    chosen = sum(drawn, [])
    draw.shuffle(chosen)
    for line, name, operator, occurrence in chosen:
        code = mutate_code(source, operator, occurrence)
        with suppress(SyntaxError):  # a mutant must be valid Python
            compile(code, file, "exec")
            before, after = (text.splitlines()[line - 1].strip() for text in (source, code))
            yield Mutant(file, line, name, before, after, code)


def run(args: list[str], seconds: float) -> tuple[int | None, str]:
    """Run pytest in a fork; return its exit code, None for a hang, and what it printed."""

    def child() -> None:
        os.setsid()
        log = os.open(OUT / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1), os.dup2(log, 2)
        code = pytest.main([*PYTEST, *args])
        package = sys.modules.get("minilearn")
        os._exit(code if package and Path(package.__file__).is_relative_to(TREE) else 99)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(seconds)
    code = process.exitcode
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with whatever it left running
    process.join()
    return code, (OUT / "log.txt").read_text(encoding="utf-8", errors="replace")


def reach(test_file: str) -> dict[str, dict]:
    """Return for each passing test its seconds, and by file the lines that it reaches.

    Measured once for a state of the package and of the test file.
    """
    parts = [*sorted(Path("minilearn").rglob("*.py")), *sorted(Path("tests").glob("*.py"))]
    texts = b"".join(part.read_bytes() for part in [*parts, Path(test_file)])
    kept = OUT / "reach" / f"{hashlib.sha256(texts).hexdigest()[:20]}.json"
    if not kept.exists():
        print(f"measuring {test_file}", flush=True)
        args = [
            "-p",
            "pytest_cov",
            "--cov=minilearn",
            "--cov-context=test",
            "--cov-report=",
            "--durations=0",
            "-rA",
        ]
        _, log = run([test_file, *args], 1800)
        tests = {test: {"seconds": 0.01} for test in re.findall(r"^PASSED (.*)$", log, re.M)}
        for seconds, test in re.findall(r"^([\d.]+)s (?:call|setup) +(.*)$", log, re.M):
            if test in tests:
                tests[test]["seconds"] += float(seconds)
        data = coverage.CoverageData(os.environ["COVERAGE_FILE"])
        data.read()
        for path in data.measured_files():
            for line, contexts in data.contexts_by_lineno(path).items():
                for test in {context.rpartition("|")[0] for context in contexts} & set(tests):
                    tests[test].setdefault(os.path.relpath(path), []).append(line)
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(tests))
    return json.loads(kept.read_text())


def file_of(test: str) -> str:
    return test.partition("::")[0]


def tests_for(mutant: Mutant, tests: dict[str, dict]) -> tuple[list[str], float]:
    """Return the tests that reach a mutant (or its file), the fastest first, and their seconds."""
    parser = PythonParser(text=Path(mutant.file).read_text(encoding="utf-8"))
    parser.parse_source()
    lines = {test: parser.first_lines(tests[test].get(mutant.file, ())) for test in tests}
    near = [test for test in tests if parser.first_line(mutant.line) in lines[test]]
    if not near:  # it runs at import, or in processes of its own
        files = {file_of(test) for test in tests if lines[test]}
        near = [test for test in tests if file_of(test) in files] or list(tests)
    chosen, total = [], 0.0
    for test in sorted(near, key=lambda test: tests[test]["seconds"]):
        if total < LONGEST:
            chosen.append(test)
            total += tests[test]["seconds"]
    return chosen, total


def test(mutant: Mutant, number: int, tests: dict[str, dict]) -> None:
    """Run the tests of a mutant, and note what killed it."""
    path, (chosen, seconds) = TREE / mutant.file, tests_for(mutant, tests)
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.code, encoding="utf-8")
    os.utime(path, (number, number))  # a unique time, so that no older bytecode fits
    code, log = run(["-x", *chosen], 60 + 5 * seconds) if chosen else (0, "")
    path.write_text(original, encoding="utf-8")
    os.utime(path, (0, 0))
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", log, re.M)
    if code != 0:
        mutant.killer = "a hang" if code is None else failed[1] if failed else f"exit code {code}"


def prepare() -> None:
    """Copy the tree; this process and those that it starts import the package from there."""
    shutil.rmtree(TREE, ignore_errors=True)
    for name in ("minilearn", "tests"):
        shutil.copytree(ROOT / name, TREE / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "settings.ini"):
        shutil.copy2(ROOT / name, TREE)
    os.chdir(TREE)
    sys.path.insert(0, str(TREE))
    os.environ |= {"PYTHONPATH": str(TREE), "COVERAGE_FILE": str(OUT / "coverage")}
    os.environ |= {"OMP_NUM_THREADS": "1", "CI": "1"}  # CI: hypothesis draws the same each time
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": ""}
    sys.dont_write_bytecode = False
    for name in HEAVY:
        importlib.import_module(name)
    assert "minilearn" not in sys.modules, "forks would not see the mutants"
    gc.freeze()  # forks need not look through all of torch for garbage


def main() -> None:
    sample, seed = int(os.environ.get("SAMPLE") or 10), os.environ.get("SEED") or "0"
    modules = [*(f"core/{name}" for name in CORE), *CALLBACKS]
    modules = (os.environ.get("MODULES") or "").split() or modules
    prepare()
    done = []
    for module in modules:
        patterns = (TESTS.get(module) or TESTS[module.split("/")[0]]).split()
        files = sorted(str(f) for p in patterns for f in Path("tests").glob(f"{p}.py"))
        tests = {}
        for file in files:
            tests |= {} if file.endswith(SLOW) else reach(file)
        for mutant in islice(mutants(f"minilearn/{module}.py", sample, seed), sample or None):
            done.append(mutant)
            test(mutant, len(done), tests)
            print(f"{mutant.file}:{mutant.line}: {mutant.killer or 'SURVIVED'}", flush=True)
        (OUT / "report.json").write_text(json.dumps([asdict(m) for m in done], indent=1))
    print("\nmodule                  mutants  killed     %")
    for module in modules:
        killers = [mutant.killer for mutant in done if mutant.file == f"minilearn/{module}.py"]
        killed, of = sum(map(bool, killers)), len(killers)
        print(f"{module:<24}{of:7} {killed:7} {100 * killed / max(1, of):5.0f}")
    for m in done:
        if not m.killer:
            print(f"\n{m.file}:{m.line} {m.operator}\n  - {m.before}\n  + {m.after}")


if __name__ == "__main__":
    main()
