"""The public names: sorted, documented, annotated, there with `from minilearn import Learner`."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torcheval.metrics

import minilearn
import minilearn.all
from minilearn import Learner
from minilearn.core.patched import Patched

NAMES = minilearn.__all__
OWN = [name for name in NAMES if getattr(minilearn, name).__class__.__name__ != "partial"]


def test_names_are_sorted_and_once():
    assert sorted(set(NAMES)) == NAMES


def test_every_name_is_there():
    assert [name for name in NAMES if not hasattr(minilearn, name)] == []
    assert [name for name in minilearn.all.__all__ if not hasattr(minilearn.all, name)] == []


@pytest.mark.parametrize("name", OWN)
def test_every_name_is_documented(name):
    doc = inspect.getdoc(getattr(minilearn, name))
    assert doc and doc.split("\n")[0].endswith(".")


@pytest.mark.parametrize("name", [n for n in OWN if inspect.isfunction(getattr(minilearn, n))])
def test_every_function_is_annotated(name):
    signature = inspect.signature(getattr(minilearn, name))
    bare = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
    assert not bare and signature.return_annotation is not signature.empty


PACKAGE = Path(minilearn.__file__).parent
FILES = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]


def functions(body, prefix=""):
    """Yield the public functions of a module and of its public classes, by name."""
    for node in body:
        public = not getattr(node, "name", "_").startswith("_")
        if isinstance(node, ast.ClassDef) and public:
            yield from functions(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and (public or node.name == "__init__"):
            yield prefix + node.name, node


def bare(node):
    """The parameters of a function that have no annotation, and "return" where that has none."""
    args = node.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    missing = [a.arg for a in named if a is not None and a.annotation is None]
    return [*(a for a in missing if a not in ("self", "cls")), *["return"] * (node.returns is None)]


@pytest.mark.parametrize("file", FILES)
def test_every_public_function_and_method_is_annotated(file):
    body = ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body
    assert {name: missing for name, node in functions(body) if (missing := bare(node))} == {}


def test_an_annotation_that_is_missing_is_seen():
    source = "class A:\n    def __init__(self, x) -> None: ...\n    def f(self, *y: int): ..."
    found = {name: bare(node) for name, node in functions(ast.parse(source).body)}
    assert found == {"A.__init__": ["x"], "A.f": ["return"]}


def test_torch_keeps_its_names():
    import torch

    assert minilearn.all.nn is torch.nn
    assert minilearn.all.init is torch.nn.init
    assert minilearn.all.optim is torch.optim


def test_all_of_torcheval_is_offered():
    theirs = {n for n in torcheval.metrics.__all__ if n != "functional"}
    assert theirs == set(minilearn.all.TORCHEVAL)


def test_a_metric_by_its_lazy_name_is_torchevals_own():
    metric = minilearn.all.MulticlassAccuracy()
    assert type(metric) is torcheval.metrics.MulticlassAccuracy
    assert isinstance(metric, minilearn.all.MulticlassAccuracy)

    class Mine(minilearn.all.MulticlassAccuracy):
        pass

    assert issubclass(Mine, torcheval.metrics.MulticlassAccuracy)


def test_learner_has_its_patched_methods_without_another_import():
    code = (
        "from minilearn import Learner\n"
        "print([m for m in ('on', 'validate', 'get_preds', 'capture_preds', 'dry_run', "
        "'fit_one_cycle', 'show_image_batch') if not hasattr(Learner, m)])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_learner_declares_what_it_holds():
    """Every attribute that a fit sets stands in the class body (DESIGN: declare before use)."""
    from minilearn import TrainCB
    from minilearn.core.dispatch import Dispatch
    from tests.toys import linear, toy_dls

    learn = Learner(linear(), toy_dls(), cbs=[TrainCB()])
    learn.fit(1)
    declared = {n for c in (Learner, Dispatch) for n in (*c.__annotations__, *vars(c))}
    private_to_dispatch = {"_table", "_owners", "_opt_given"}
    assert set(vars(learn)) - declared - private_to_dispatch == set()


def patched():
    own = ("minilearn.core.learner", "minilearn.core.dispatch", "minilearn.core.fit")
    found = {name: getattr(Learner, name) for name in dir(Learner)}
    methods = {name: getattr(f, "fget", f) for name, f in found.items()}
    return {n: f for n, f in methods.items() if inspect.isfunction(f) and f.__module__ not in own}


def declared():
    nodes = ast.walk(ast.parse(Path(inspect.getfile(Patched)).read_text()))
    return {n.name: n for n in nodes if isinstance(n, ast.FunctionDef)}


def rooms():
    """The room of each method that is written elsewhere, as the class says it."""
    nodes = ast.walk(ast.parse(Path(inspect.getfile(Patched)).read_text()))
    lazy = [n for n in nodes if isinstance(n, ast.Assign) and "LazyMethod" in ast.unparse(n.value)]
    return {n.targets[0].id: f"minilearn.{n.value.args[0].value}" for n in lazy}


def written(name):
    """The signature of a patched method as it stands in its own file, without self's type."""
    tree = ast.parse(Path(inspect.getfile(patched()[name])).read_text())
    named = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    (node,) = [n for n in named if "Learner" in ast.unparse(n.args.args[0])]
    node.args.args[0].annotation = None
    return node


def test_what_is_patched_is_declared_and_nothing_else():
    assert set(declared()) == set(patched())
    homes = {name: method.__module__ for name, method in patched().items()}
    assert rooms() == homes


def test_a_method_is_the_function_of_its_room():
    import minilearn.checkpoint.weights

    assert minilearn.checkpoint.weights.save is Learner.save


def test_the_stub_says_what_there_is():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    (names,) = [n.value for n in stub.body if isinstance(n, ast.Assign)]
    assert ast.literal_eval(names) == minilearn.__all__


@pytest.mark.parametrize("name", sorted(patched()))
def test_a_declaration_agrees_with_the_method(name):
    ours, theirs = declared()[name], written(name)
    assert ast.unparse(ours.args) == ast.unparse(theirs.args)
    assert ast.unparse(ours.returns) == ast.unparse(theirs.returns)
