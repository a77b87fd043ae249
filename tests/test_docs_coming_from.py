"""The page "Coming from": both sides of every section run, and end with the same weights."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from scripts.docs import foreign

PAGE = (Path(__file__).parent.parent / "docs" / "coming_from.md").read_text(encoding="utf-8")
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
