"""The page "Coming from": both sides of every section run, and end with the same weights.

Its tables call the parts of five systems by what they are called here, and that runs, too.
"""

import contextlib
import functools
import importlib.util
import io
import itertools
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn, optim

from minilearn import DataLoaders, Learner, accuracy, cli
from minilearn.core.events import EVENTS
from scripts.docs import foreign

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
BLOCK = re.compile(r'```python title="([\w ]+)"\n(.*?)```', re.S)
BEFORE, *SECTIONS = re.split(r"^## ", PAGE, flags=re.M)
SETUP = dict(BLOCK.findall(BEFORE))["before each"]
# the name on the left side and its code; the code on the right side
PAIRS = {}
for text in filter(BLOCK.findall, SECTIONS):
    ((name, theirs), (_, ours)) = BLOCK.findall(text)
    PAIRS[name] = theirs, ours
OWN_LAYERS = {"keras"}  # other layers and first weights, so other numbers


def weights_after(code, setup=SETUP):
    """Run the beginning and one side; return the weights of `model`."""
    names = {"__name__": "page"}
    exec(compile(setup + code, "docs/coming_from.md", "exec"), names)
    return [p.detach().clone() for p in names["model"].parameters()]


@pytest.fixture(scope="module")
def ours():
    """The weights that minilearn's sides end with, each computed once."""
    return {name: weights_after(code) for name, (_, code) in PAIRS.items()}


@pytest.fixture(autouse=True)
def on_the_cpu_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "torch")


def test_every_framework_has_its_section():
    assert list(PAIRS) == ["by hand", "fastai", "lightning", "ignite", "keras", "accelerate"]


@pytest.mark.parametrize("name", PAIRS)
def test_minilearns_side_trains(name, ours):
    assert all(p.isfinite().all() for p in ours[name])
    assert not any(map(torch.equal, ours[name], weights_after("")))


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_both_sides_end_with_the_same_weights(name, ours):
    if name != "by hand" and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    theirs = weights_after(PAIRS[name][0])
    if name not in OWN_LAYERS:
        for a, b in zip(ours[name], theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_the_comparison_notices_a_line_that_is_missing(ours):
    code = PAIRS["by hand"][0]
    line = next(s for s in code.splitlines(keepends=True) if "clip_grad_norm_" in s)
    theirs = weights_after(code.replace(line, ""))
    assert not all(map(torch.equal, ours["by hand"], theirs))


def test_the_names_from_elsewhere_are_those_that_errors_quote():
    assert foreign.filled(PAGE) == PAGE, "run python -m scripts.docs.foreign"
    assert '| `to_fp16` | `MixedPrecision("fp16")` among `cbs` |' in PAGE
    less = PAGE.replace("| `to_fp16`", "| `to_fp17`")
    assert foreign.filled(less) != less


# ---- five systems, name by name ----

FIVE = PAGE.partition("## Five systems, name by name\n")[2].partition("\n## ")[0]
ROW = re.compile(r"^\| (.+) \| (.+) \|$", re.M)
ROWS = {  # the rows of each table without its head
    text.partition("\n")[0]: ROW.findall(text)[1:] for text in FIVE.split("\n### ")[1:]
}
SPAN = re.compile(r"`([^`]+)`")


@pytest.fixture(scope="module")
def options():
    """The options that `minilearn train --help` lists."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setenv("COLUMNS", "200")
        assert cli.main(["train", "--help"]) == 0
    return set(re.findall(r"(?<![\w-])--?[a-z][\w.-]*", out.getvalue()))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of class folders: two classes, for training and validation."""
    folder = tmp_path_factory.mktemp("images")
    for split, label, i in itertools.product(("train", "valid"), "ab", range(8)):
        path = folder / split / label / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * i, 99, 99)).save(path)
    return folder


@pytest.fixture(scope="module")
def public():
    """What `from minilearn.all import *` brings, and the package itself."""
    names = {}
    exec("import minilearn\nfrom minilearn import cli\nfrom minilearn.all import *", names)
    return names


@pytest.fixture
def look_up(public, options, images):
    """A function that runs a name or an expression, and raises where it does not exist."""

    @functools.cache
    def names(code):
        torch.manual_seed(0)
        x = torch.randn(24, 4)
        dls = DataLoaders.from_arrays(x, (x[:, 0] > 0).long(), bs=4)
        learn = Learner(nn.Linear(4, 2), dls, F.cross_entropy, metrics=accuracy)
        learn.fit(1)
        batch = xb, _ = next(iter(dls.valid))
        sched = functools.partial(optim.lr_scheduler.StepLR, step_size=2)
        own = {"learn": learn, "dls": dls, "model": learn.model, "batch": batch, "xb": xb}
        return public | own | {"images": images, "sched": sched, "f": lambda learn: None}

    def run(code):
        if code.startswith(("--", "minilearn ")):
            unknown = set(re.findall(r"(?<!\S)--?[a-z][\w.-]*", code)) - options
            if unknown:
                raise LookupError(f"minilearn train has no {unknown}")
        elif code.endswith(".py"):
            (ROOT / code).read_text(encoding="utf-8")
        elif code not in EVENTS:  # what is called gets a Learner of its own
            return eval(code, names(code if "(" in code else ""))  # any error is the answer

    return run


def named_here(there, here):
    """What a row says of this package: the right side, and the left where that is the same."""
    return SPAN.findall(here) + (SPAN.findall(there) if here.startswith("the same") else [])


def test_each_of_five_systems_has_a_table():
    systems = ["miniai", "core-pytorch-utils", "timm's training", "detectron2's hooks", "ignite"]
    assert list(ROWS) == systems and all(len(rows) > 30 for rows in ROWS.values())
    assert all(SPAN.findall(there) for rows in ROWS.values() for there, _ in rows)


@pytest.mark.parametrize("system", ROWS)
def test_what_a_table_calls_a_name_here_runs(system, look_up):
    failed = []
    for code in dict.fromkeys(c for row in ROWS[system] for c in named_here(*row)):
        try:
            look_up(code)
        except Exception as e:
            if "is not installed" not in str(e):  # it is known, and belongs to an extra
                failed.append(f"{code}: {e!r}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(
    "made_up",
    [
        "before_nothing",
        "--nothing",
        "minilearn train --aug.nothing 1",
        "NothingCB",
        "learn.nothing",
        "NothingCB()",
        "CheckpointCB('run', nothing=3)",
        "learn.on('after_nothing', f)",
        "learn.fit(1, nothing=2)",
        "learn.history['nothing']",
        "optimizer('nothing')",
        "examples/callbacks/nothing.py",
    ],
)
def test_a_name_that_is_made_up_is_noticed(made_up, look_up):
    with pytest.raises(Exception, match="nothing|Nothing"):
        look_up(made_up)
