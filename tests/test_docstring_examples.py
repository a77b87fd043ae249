"""The examples in docstrings run, and give what they show.

In an example `learn`, `model`, `dls`, `xb` and `yb` stand for those of the reader. Each runs in an
empty folder, after `from minilearn.all import *`.
"""

import ast
import copy
import doctest
import importlib
import inspect
from pathlib import Path

import matplotlib
import pytest
import torch

import minilearn
import minilearn.all
from minilearn import DataLoaders, Learner, accuracy

matplotlib.use("Agg")
PACKAGE = Path(minilearn.__file__).parent
KINDS = (ast.ClassDef, ast.FunctionDef)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples():
    """Yield file and name, and the docstring, of whatever has an example."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, KINDS) else None
            if text and ">>>" in text:
                place = path.relative_to(PACKAGE).with_suffix("").as_posix()
                yield f"{place}:{node.name}", text


EXAMPLES = dict(examples())


def images(n):
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, 1, 8, 8, generator=generator), torch.arange(n) % 2


def names():
    """What the examples may name beside the package's own names."""
    everything = {name: getattr(minilearn.all, name) for name in minilearn.all.__all__}
    torch.manual_seed(0)
    model = minilearn.get_model(nfs=(1, 4, 8), n_out=2).cpu()
    xb, yb = images(8)
    dls = DataLoaders([(xb, yb)] * 4, [(xb, yb)] * 2)
    learn = Learner(model, dls, torch.nn.functional.cross_entropy, 0.1, metrics=accuracy)
    mine = {"learn": learn, "model": model, "dls": dls, "xb": xb, "yb": yb, "minilearn": minilearn}
    return everything | {"torch": torch, "copy": copy} | mine


class Checker(doctest.OutputChecker):
    """Where an example shows no output, any will do: fits print tables."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


def failures(text, module="learner"):
    """Run the examples of a module's docstring; return what went wrong, as text."""
    own = vars(importlib.import_module(f"minilearn.{module.replace('/', '.')}"))
    test = doctest.DocTestParser().get_doctest(text, own | names(), "example", None, 0)
    lines = []
    doctest.DocTestRunner(Checker(), False, FLAGS).run(test, out=lines.append)
    return "".join(lines)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_runs_and_gives_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not (found := failures(EXAMPLES[name], name.partition(":")[0])), found


def test_an_example_that_is_wrong_is_seen():
    assert "Got:\n    2" in failures(">>> 1 + 1\n3")
    assert "NameError" in failures(">>> lern.fit(1)")
    assert failures(">>> 1 + 1\n>>> 2 + 2\n4") == ""


def public():
    """The names whose docstrings are ours; exceptions and partials have none to give."""
    for name in minilearn.__all__:
        found = getattr(minilearn, name)
        is_error = isinstance(found, type) and issubclass(found, BaseException)
        if callable(found) and not is_error and not hasattr(found, "func"):
            yield name, found


WITHOUT = {"BaseSchedCB"}  # a base class


@pytest.mark.parametrize("name, found", list(public()))
def test_every_public_name_has_an_example(name, found):
    assert (">>>" in (inspect.getdoc(found) or "")) == (name not in WITHOUT)
