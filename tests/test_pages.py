"""README and the guides: the code of a page runs in order, and prints what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import minilearn
from minilearn.core.state import LoopState

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# two have tests of their own, and the lines of the third belong to a script of the reader's
PAGES = [page for page in PAGES if page.stem not in ("coming_from", "stopping", "events")]
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.M | re.S)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
MARK = "\x1e"  # printed between two blocks
NUMBER = re.compile(r"\d+(?:\.\d+)?")
TIME = re.compile(r"\d\d:\d\d|\d+\.\ds")


def blocks(page):
    """Return the Python of a page with the output shown right below it, None where none is."""
    text = page.read_text(encoding="utf-8")
    return [(m[1], m[2]) for m in BLOCK.finditer(text)]


def with_code(pages):
    return [pytest.param(page, id=page.stem) for page in pages if blocks(page)]


def alike(shown, printed):
    """Return whether two outputs differ by rounding on another machine only, and by times."""
    a, b = (TIME.sub("0:0", text).strip() for text in (shown, printed))
    near = zip(NUMBER.findall(a), NUMBER.findall(b), strict=False)
    same_text = re.sub(r"\s+", " ", NUMBER.sub("#", a)) == re.sub(r"\s+", " ", NUMBER.sub("#", b))
    return same_text and all(abs(float(x) - float(y)) <= 0.15 for x, y in near)


@pytest.mark.slow
@pytest.mark.parametrize("page", with_code(PAGES))
def test_the_code_of_a_page_runs_in_order_and_prints_what_it_shows(page, tmp_path):
    code = f"\nprint({MARK!r})\n".join(code for code, _ in blocks(page))
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:minilearn", "-c", code],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for printed, (_, shown) in zip(done.stdout.split(MARK), blocks(page), strict=True):
        assert shown is None or alike(shown, printed), printed
    if page.name == "README.md":
        check_that_pictures_are_learned(page, done.stdout.split(MARK), tmp_path)


def check_that_pictures_are_learned(page, printed, folder):
    """The example in Python learned, and so does the command, on the folder that it wrote."""
    (output,) = (
        out for out, (code, _) in zip(printed, blocks(page), strict=True) if "image_dls" in code
    )
    assert float(output.split()[-1]) > 0.7
    command = re.search(r"`minilearn (train images/ .*?)`", page.read_text(encoding="utf-8"))[1]
    words = [sys.executable, "-m", "minilearn", *command.split(), "--out", "run"]
    subprocess.run(words, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    header, *rows = (folder / "run/history.csv").read_text(encoding="utf-8").splitlines()
    assert float(rows[-1].split(",")[header.split(",").index("accuracy")]) > 0.7


def test_outputs_of_another_kind_are_noticed():
    assert alike("epoch 0: 0.8335  1.9s\n", "epoch 0:  0.8401  01:20")
    assert not alike("epoch 0: 0.8335", "epoch 0: 1.1")
    assert not alike("epoch 0: 0.8335", "epochs 0: 0.8335")
    assert not alike("0.5 0.5", "0.5")


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_every_file_that_a_page_links_to_exists(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


NAMES = re.compile(r"`(?:learn\.(\w+)|(\w+CB)\b)")


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_callbacks_and_methods_that_a_page_names_exist(page):
    named = NAMES.findall(page.read_text(encoding="utf-8"))
    methods, callbacks = (
        {name for name in names if name} for names in zip(*named, ("", ""), strict=True)
    )
    declared = {*dir(minilearn.Learner), *LoopState.__annotations__}
    assert methods - declared == set() and callbacks - set(dir(minilearn)) == set()


def test_the_images_of_readme_are_small():
    images = {path.name: path.stat().st_size for path in (ROOT / "docs/img").glob("*.png")}
    assert images and max(images.values()) < 100 * 1024


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
