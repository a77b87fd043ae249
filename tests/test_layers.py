"""The layers of the package: imports point down, nothing runs in a circle, folders stay small."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "minilearn"
# A module imports from its own folder and from those before it in this list.
LAYERS = (
    "base",
    "core",
    "nn",
    "data",
    "callbacks",
    "distributed",
    "metrics",
    "optim",
    "progress",
    "checkpoint",
    "inference",
    "insight",
    "loggers",
    "learner",
    "__init__",  # offers the names of all those before it
    "cli",
)
TOP = ("__main__", "all")
# Names in several folders, each of which makes plain what is meant. A command of cli is named after
# what it does.
SHARED_NAMES = {"__init__", "callback", "files", "learner"}
MOST_MODULES, MOST_LINES = 12, 300
HEAVY = (
    "matplotlib",
    "datasets",
    "torcheval",
    "torchvision",
    "pandas",
    "fastprogress",
    "PIL",
    "IPython",
)
FILES = {p.relative_to(PACKAGE).with_suffix("").parts: p for p in sorted(PACKAGE.rglob("*.py"))}


def layer(module: tuple[str, ...]) -> int:
    return len(LAYERS) if module[0] in TOP else LAYERS.index(module[0])


def resolve(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """The module of a path below `minilearn`, None where it is a name in a module."""
    return next((m for m in (path, (*path, "__init__")) if m in FILES), None)


def own_imports(tree: ast.Module, module: tuple[str, ...]) -> set[tuple[str, ...]]:
    """The modules of the package that a module imports, wherever in it; annotations count, too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            name = tuple((node.module or "").split(".")) if node.module else ()
            if not node.level and name[:1] != ("minilearn",):
                continue
            base = (*module[: len(module) - node.level], *name) if node.level else name[1:]
            found |= {resolve((*base, a.name)) or resolve(base) for a in node.names}
        elif isinstance(node, ast.Import):
            paths = (tuple(a.name.split(".")) for a in node.names)
            found |= {resolve(path[1:]) for path in paths if path[0] == "minilearn"}
    return found - {None, module}


IMPORTS = {m: own_imports(ast.parse(p.read_text(encoding="utf-8")), m) for m, p in FILES.items()}


@pytest.mark.parametrize("module", FILES, ids=".".join)
def test_imports_point_down(module):
    up = [".".join(m) for m in IMPORTS[module] if layer(m) > layer(module)]
    assert not up, f"{'.'.join(module)} imports {up}, which are above it"


def circle(imports: dict) -> list | None:
    """A path of imports that comes back to where it began, None where there is none."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        path.append(module)
        found = next((c for m in sorted(imports[module]) if (c := visit(m))), None)
        path.pop()
        done.add(module)
        return found

    return next((c for module in imports if (c := visit(module))), None)


def test_no_module_imports_itself_by_way_of_others():
    assert circle(IMPORTS) is None


def test_a_circle_and_an_upward_import_would_be_seen():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    tree = ast.parse("if TYPE_CHECKING:\n    from ..metrics.callback import MetricsCB")
    (found,) = own_imports(tree, ("core", "learner"))
    assert found == ("metrics", "callback") and layer(found) > layer(("core", "learner"))


def test_folders_are_small():
    sizes = Counter(m[:-1] for m in FILES if m[-1] != "__init__")
    assert {folder: n for folder, n in sizes.items() if n > MOST_MODULES} == {}


def code_lines(path: Path) -> int:
    """Lines with code on them; docstrings and comments are none."""
    sys.path.insert(0, str(PACKAGE.parent))
    from scripts.count_lines import count

    return count(path.read_text(encoding="utf-8"))["code"]


@pytest.mark.parametrize("module", FILES, ids=".".join)
def test_modules_are_short(module):
    assert code_lines(FILES[module]) <= MOST_LINES


def test_a_name_is_used_twice_only_where_the_folder_makes_the_difference():
    names = Counter(m[-1] for m in FILES if m[0] != "cli")
    assert {name for name, n in names.items() if n > 1} <= SHARED_NAMES


def foreign_imports(tree: ast.Module) -> set[str]:
    """The packages that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("module", [m for m in FILES if m[0] == "core"], ids=".".join)
def test_core_needs_torch_alone(module):
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    # numpy and pandas where a History is drawn or turned into a data frame
    assert foreign_imports(tree) <= sys.stdlib_module_names | {
        "torch",
        "minilearn",
        "numpy",
        "pandas",
    }


@pytest.mark.parametrize("statement", ["import minilearn", "from minilearn.all import *"])
def test_import_brings_nothing_heavy(statement):
    code = f"import sys\n{statement}\nprint([m for m in {HEAVY} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
