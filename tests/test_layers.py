"""The table of layers: imports point down, and the front doors bring nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "minilearn"
RANK = {"core": 0, "lazy": 0, "nn": 1, "data": 1, "callbacks": 2, "insight": 3}
TOP = 4  # inference, export, cli, and the package's own front doors
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


def rank(parts: tuple[str, ...]) -> int:
    return RANK.get(parts[0], TOP) if parts else TOP


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def own_imports(tree: ast.Module, module: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The modules of the package that a module imports when it runs, as paths below `minilearn`."""
    found, queue = [], list(tree.body)
    while queue:
        node = queue.pop()
        if is_type_checking(node):
            continue
        queue += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        if isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level] if node.level else ()
            name = tuple((node.module or "").split(".")) if node.module else ()
            if node.level:
                found.append(base + name if name else base + (node.names[0].name,))
            elif name[:1] == ("minilearn",):
                found.append(name[1:] or (node.names[0].name,))
        elif isinstance(node, ast.Import):
            found += [
                t[1:] for a in node.names if (t := tuple(a.name.split(".")))[0] == "minilearn"
            ]
    return found


def modules() -> list[tuple[str, ...]]:
    paths = [p.relative_to(PACKAGE).with_suffix("") for p in PACKAGE.rglob("*.py")]
    return [p.parts for p in paths]


@pytest.mark.parametrize("module", modules(), ids=".".join)
def test_imports_point_down(module):
    tree = ast.parse((PACKAGE / Path(*module)).with_suffix(".py").read_text())
    up = [m for m in own_imports(tree, module) if rank(m) > rank(module)]
    assert not up, f"{'.'.join(module)} imports {up}, which stands above it"


def foreign_imports(tree: ast.Module) -> set[str]:
    """The packages that a module imports when it runs, wherever in it."""
    found, queue = set(), [tree]
    while queue:
        node = queue.pop()
        if is_type_checking(node):
            continue
        queue += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("module", [m for m in modules() if m[0] == "core"], ids=".".join)
def test_core_imports_only_itself_and_torch(module):
    tree = ast.parse((PACKAGE / Path(*module)).with_suffix(".py").read_text())
    # IPython where a notebook brought it, pandas where a History is turned into a data frame
    allowed = {"torch", "minilearn", "IPython", "pandas"}
    assert foreign_imports(tree) <= sys.stdlib_module_names | allowed


def test_an_upward_import_would_be_seen():
    tree = ast.parse("from ..callbacks.metrics import MetricsCB")
    assert any(rank(m) > rank(("core", "learner")) for m in own_imports(tree, ("core", "learner")))


@pytest.mark.parametrize("statement", ["import minilearn", "from minilearn.all import *"])
def test_import_brings_nothing_heavy(statement):
    code = f"import sys\n{statement}\nprint([m for m in {HEAVY} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
