"""The public names: sorted, documented, annotated, there with `from minilearn import Learner`."""

import ast
import importlib.util
import inspect
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torcheval.metrics

import minilearn
import minilearn.all
from minilearn import Learner

NAMES = minilearn.__all__
OWN = [name for name in NAMES if getattr(minilearn, name).__class__.__name__ != "partial"]


def test_names_are_sorted_and_once():
    assert sorted(set(NAMES)) == NAMES


def test_every_name_is_there():
    assert [name for name in NAMES if not hasattr(minilearn, name)] == []
    assert [name for name in minilearn.all.__all__ if not hasattr(minilearn.all, name)] == []


# torchvision's, which is not always installed
VISION = """
    ImageReadMode decode_gif decode_image decode_jpeg decode_png decode_webp encode_jpeg encode_png
    read_file read_image read_video read_video_timestamps write_file write_jpeg write_png
    write_video InterpolationMode adjust_brightness adjust_contrast adjust_gamma adjust_hue
    adjust_saturation adjust_sharpness affine autocontrast center_crop convert_image_dtype crop
    elastic_transform equalize erase five_crop gaussian_blur get_dimensions
    get_image_num_channels get_image_size hflip invert normalize pad perspective pil_to_tensor
    posterize resize resized_crop rgb_to_grayscale rotate solarize ten_crop to_grayscale
    to_pil_image to_tensor vflip
""".split()
KNOWN = ["torch", "torch.nn", "torch.nn.functional", "torch.optim", "fastcore.all"]


@pytest.mark.parametrize("module", [*KNOWN, "torchvision.io", "torchvision.transforms.functional"])
def test_the_star_import_gives_no_well_known_name_another_meaning(module):
    if module in KNOWN:
        theirs = vars(importlib.import_module(module))
    else:
        theirs = dict.fromkeys(VISION)
        if importlib.util.find_spec("torchvision"):
            theirs |= vars(importlib.import_module(module))
    ours = {name: getattr(minilearn.all, name) for name in minilearn.all.__all__}
    assert [name for name in ours.keys() & theirs.keys() if ours[name] is not theirs[name]] == []


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


def test_learner_has_its_methods_without_another_import():
    code = (
        "from minilearn import Learner\n"
        "print([m for m in ('on', 'validate', 'get_preds', 'capture_preds', 'dry_run', "
        "'fit_one_cycle', 'show_image_batch') if not hasattr(Learner, m)])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_learner_declares_what_it_holds():
    """Every attribute that a fit sets is declared in the class body."""
    from minilearn import TrainCB
    from minilearn.core.dispatch import Dispatch
    from minilearn.core.state import LoopState
    from tests.toys import linear, toy_dls

    learn = Learner(linear(), toy_dls(), cbs=[TrainCB()])
    learn.fit(1)
    declared = {n for c in (LoopState, Dispatch, Learner) for n in (*c.__annotations__, *vars(c))}
    private_to_dispatch = {"_table", "_owners", "_opt_given"}
    assert set(vars(learn)) - declared - private_to_dispatch == set()


def modules_of_methods():
    """For each `_name` in learner.py: the module for type checkers, and the one at run time."""
    tree = ast.parse((PACKAGE / "learner.py").read_text(encoding="utf-8"))
    (branch,) = [n for n in tree.body if isinstance(n, ast.If)]
    read = {
        a.asname: f"{n.module}.{a.name}"
        for n in branch.body
        if isinstance(n, ast.ImportFrom)
        for a in n.names
        if a.asname
    }
    run = {n.targets[0].id: n.value.args[0].value for n in branch.orelse}
    return read, run


def test_type_checkers_read_the_modules_that_are_run():
    read, run = modules_of_methods()
    assert read == run and len(run) > 15


def test_each_method_is_the_function_of_its_module():
    _, run = modules_of_methods()
    tree = ast.parse((PACKAGE / "learner.py").read_text(encoding="utf-8"))
    (learner,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Learner"]
    listed = [n for n in learner.body if isinstance(n, ast.Assign)]
    assert len(listed) > 30
    for n in listed:
        module = importlib.import_module(f"minilearn.{run[n.value.value.id]}")
        assert getattr(Learner, n.targets[0].id) is getattr(module, n.value.attr)


def test_no_declaration_hides_the_signature_of_a_method_from_type_checkers():
    """Pyright takes what a base class declares for the type of what a subclass assigns."""
    declared = {n for c in Learner.__mro__[1:] for n in getattr(c, "__annotations__", {})}
    assert [n for n in vars(Learner) if n in declared and not n.startswith("_")] == []


def check_pickles(owner):
    for name in ("show_batch", "lr_find", "save", "on"):
        method = getattr(owner, name)
        assert pickle.loads(pickle.dumps(method)) is method


@pytest.mark.case("F48")
def test_bound_and_unbound_methods_can_be_pickled():
    check_pickles(Learner)


@pytest.mark.case("F48")
def test_the_check_of_pickles_notices_methods_with_the_name_of_another():
    class Copied:
        """A class of methods that say they come from where another of that name is."""

    for name in ("show_batch", "lr_find", "save", "on"):
        copied = types.FunctionType(getattr(Learner, name).__code__, {})
        copied.__module__ = "minilearn.learner"
        setattr(Copied, name, copied)
    with pytest.raises((AssertionError, pickle.PicklingError, AttributeError)):
        check_pickles(Copied)


def documented(folder):
    """Yield (place, docstring) of all modules, classes and functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield f"{path.name}: {getattr(node, 'name', 'module')}", text


def codes(text):
    return re.findall(r"\b[RFK]\d{1,3}\b|\bC\d{3}\b", text)


@pytest.mark.case("F46")
def test_no_docstring_has_a_code_that_only_its_authors_know():
    assert [place for place, text in documented(PACKAGE) if codes(text)] == []


@pytest.mark.case("F46")
def test_a_code_in_a_docstring_would_be_seen():
    assert codes("Return whether updates are skipped (R19), see C034.") == ["R19", "C034"]


@pytest.mark.case("F46")
def test_the_signature_of_a_callback_names_its_arguments():
    """None of them takes `*args, **kwargs` without a word about what they are."""
    classes = [getattr(minilearn, name) for name in NAMES]
    for cls in (c for c in classes if isinstance(c, type) and issubclass(c, minilearn.Callback)):
        assert not {"args", "kwargs"} <= set(inspect.signature(cls).parameters), cls
    shown = "(dtype: 'str' = 'bf16', device: 'str | None' = None, **settings: 'Any') -> 'None'"
    assert str(inspect.signature(minilearn.MixedPrecision)) == shown


def test_the_stub_says_what_there_is():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    (names,) = [n.value for n in stub.body if isinstance(n, ast.Assign)]
    assert ast.literal_eval(names) == minilearn.__all__
