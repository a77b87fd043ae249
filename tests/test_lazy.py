"""Modules that are imported when a name is first used: nobody notices but the clock."""

import inspect
import multiprocessing
import pydoc
import rlcompleter
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest import mock

import pytest
import torch

import minilearn
from minilearn import Learner
from minilearn.base import lazy
from minilearn.base.lazy import LazyMethod, LazyMethods

PACKAGE = Path(minilearn.__file__).parent


def run(code, *options, **kwargs):
    """Run a program in a fresh process, and return what it printed."""
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


# ---- names of the package ----


def test_a_name_that_is_not_there_is_an_error_with_the_next_best():
    with pytest.raises(AttributeError, match="no attribute 'Leaner'; did you mean 'Learner'"):
        minilearn.Leaner  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Nope' from 'minilearn'"):
        from minilearn import Nope  # noqa: F401
    assert not any(hasattr(minilearn, name) for name in ("x", "__main__", "Learner.save", ""))


def test_folders_are_attributes_of_the_package_before_they_are_imported():
    code = (
        "import minilearn, minilearn.optim.sched_callbacks as s\n"
        "print([hasattr(minilearn, n) for n in ('optim', 'data', 'inference', 'all')], s.__name__)"
    )
    assert run(code) == "[True, True, True, True] minilearn.optim.sched_callbacks"


@pytest.mark.parametrize("options", [(), ("-O",), ("-OO",)])
def test_all_names_at_once_are_there_eagerly_too(options):
    code = "from minilearn import *\nprint(fit.__module__, lsuv_init.__module__)"
    eager = {"EAGER_IMPORT": "1", "PATH": ""}
    homes = "minilearn.learner minilearn.nn.init"
    assert run(code, *options, env=eager, cwd=PACKAGE.parent) == homes


def zipped(folder, without=()):
    path = folder / "packages.zip"
    with zipfile.ZipFile(path, "w") as file:
        for each in PACKAGE.rglob("*.*"):
            if each.suffix in (".py", ".pyi", ".json") and each.name not in without:
                file.write(each, Path("minilearn") / each.relative_to(PACKAGE))
    return path


IN_ZIP = (
    "import sys\n"
    "sys.path.insert(0, sys.argv[1])\n"
    "import minilearn, torch\n"
    "assert '.zip' in minilearn.__file__\n"
    "minilearn.Learner(torch.nn.Linear(1, 1)).freeze()\n"
    "print(minilearn.optim.freeze.__file__)"
)


def in_zip(path, folder):
    command = [sys.executable, "-c", IN_ZIP, str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_the_package_runs_from_a_zip(tmp_path):
    done = in_zip(zipped(tmp_path), tmp_path)
    assert "packages.zip" in done.stdout, done.stderr


def test_that_check_sees_a_zip_without_the_stub(tmp_path):
    assert in_zip(zipped(tmp_path, without=["__init__.pyi"]), tmp_path).returncode


def test_files_of_a_user_by_the_names_of_modules_are_left_alone(tmp_path):
    for name in ("optim", "weights", "freezing", "core", "lazy", "inference"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')")
    code = "import minilearn\nprint(minilearn.Learner.save.__module__)"
    assert run(code, cwd=tmp_path) == "minilearn.checkpoint.weights"


# ---- methods of the Learner ----


def test_help_completion_and_sources_see_the_methods():
    assert "save(self" in pydoc.plain(pydoc.render_doc(Learner))
    assert inspect.getdoc(Learner.save) in inspect.getdoc(Learner(None).save)
    assert "averaged" in inspect.signature(Learner.save).parameters
    assert "def save" in inspect.getsource(Learner.save)
    assert not [n for n, x in inspect.getmembers(Learner) if isinstance(x, LazyMethod)]
    found = rlcompleter.Completer({"learn": Learner(None)}).attr_matches("learn.save")
    assert "learn.save(" in found


PATCHED = (
    "from unittest import mock\n"
    "from minilearn import Learner\n"
    "{first}\n"
    "with mock.patch.object(Learner, 'save'): pass\n"
    "with mock.patch.object(Learner, 'load', autospec=True): pass\n"
    "print(Learner.save.__module__, Learner.load.__module__)"
)


@pytest.mark.parametrize("first", ["", "import minilearn.checkpoint.weights"])
def test_what_a_mock_replaced_is_ours_again(first):
    assert (
        run(PATCHED.format(first=first))
        == "minilearn.checkpoint.weights minilearn.checkpoint.weights"
    )


def test_a_method_that_fastcore_patches_can_go_on_with_ours():
    code = (
        "from fastcore.basics import patch\n"
        "from minilearn import Learner\n"
        "@patch\n"
        "def freeze(self: Learner, *patterns):\n"
        "    return self._orig_freeze(*patterns)\n"
        "import torch, minilearn.optim.freeze\n"
        "learn = Learner(torch.nn.Linear(1, 1))\n"
        "learn.freeze('bias')\n"
        "print(learn.model.bias.requires_grad)"
    )
    assert run(code) == "False"


def test_threads_that_ask_for_a_method_at_once_all_get_it():
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from minilearn import Learner\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    got = list(pool.map(lambda i: Learner.lr_find, range(8)))\n"
        "print(len(set(got)), got[0].__name__)"
    )
    assert run(code) == "1 lr_find"


MODULE = """
def method(self):
    return helper()

import owners
if owners.breaks:
    owners.breaks = False
    raise KeyboardInterrupt

def helper():
    return "whole"
"""


def broken_off(folder, monkeypatch):
    """Ask for a method whose module's import is broken off, and return its owner."""
    (folder / "minilearn_module.py").write_text(MODULE)
    module = type(sys)("owners")
    module.breaks = True
    module.Owner = type("Owner", (), {"method": LazyMethods("module").method})
    monkeypatch.setitem(sys.modules, "owners", module)
    monkeypatch.syspath_prepend(folder)
    real = lazy.importlib.import_module
    rename = lambda name: real(name.replace("minilearn.", "minilearn_"))  # noqa: E731
    monkeypatch.setattr(lazy.importlib, "import_module", rename)
    with pytest.raises(KeyboardInterrupt):
        module.Owner().method  # noqa: B018
    assert "minilearn_module" not in sys.modules
    return module.Owner


def test_a_module_whose_import_was_broken_off_is_imported_again(tmp_path, monkeypatch):
    owner = broken_off(tmp_path, monkeypatch)
    assert owner().method() == "whole"
    del sys.modules["minilearn_module"]


def test_a_method_that_its_module_lacks_is_an_attribute_error():
    class Owner:
        split = LazyMethods("optim.optimizer").nowhere

    with pytest.raises(AttributeError, match="minilearn.optim.optimizer.*nowhere"):
        Owner().split  # noqa: B018


def test_mocks_of_the_class_know_its_methods():
    spec = mock.create_autospec(Learner)
    with pytest.raises(TypeError):
        spec.save(1, 2, 3, 4, 5)


def freezes(learn):
    learn.freeze("bias")
    return [p.requires_grad for p in learn.model.parameters()]


def test_a_learner_goes_to_a_process_that_starts_from_nothing():
    learn = Learner(torch.nn.Linear(1, 1), cbs=[minilearn.TrainCB()])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(freezes, (learn,)) == [True, False]


# ---- what is imported, and whose method counts ----


def test_a_method_of_a_users_own_stays_when_our_module_is_imported_later():
    code = (
        "from minilearn import Learner\n"
        "Learner.save = lambda self: 'mine'\n"
        "import minilearn.checkpoint.weights\n"
        "print(Learner(None).save())"
    )
    assert run(code) == "mine"


def test_a_subclass_may_go_on_with_our_method_that_was_not_imported_yet():
    code = (
        "import sys\n"
        "from minilearn import Learner\n"
        "class Mine(Learner):\n"
        "    def freeze(self, *patterns):\n"
        "        assert 'minilearn.optim.freeze' not in sys.modules\n"
        "        return super().freeze(*patterns)\n"
        "import torch\n"
        "learn = Mine(torch.nn.Linear(1, 1))\n"
        "learn.freeze('bias')\n"
        "print([n for n, p in learn.model.named_parameters() if not p.requires_grad])"
    )
    assert run(code) == "['bias']"


def test_a_name_brings_its_module_and_little_else():
    code = "import sys\nfrom minilearn import Learner, TrainCB\nprint(*sys.modules)"
    ours = {name for name in run(code).split() if name.startswith("minilearn.")}
    below = {
        f"minilearn.{d}.{p.stem}" for d in ("base", "core") for p in (PACKAGE / d).glob("*.py")
    }
    rest = {"base", "core", "learner", "callbacks", "callbacks.training"}
    assert ours <= below | {f"minilearn.{name}" for name in rest}


def test_the_usual_callbacks_bring_no_modules_of_data():
    code = (
        "import sys\nfrom minilearn import Learner, TrainCB, MetricsCB, ProgressCB\n"
        "print([m for m in sys.modules if m.startswith(('minilearn.data', 'minilearn.nn'))])"
    )
    assert run(code) == "[]"
