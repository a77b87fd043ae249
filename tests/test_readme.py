"""Every block of Python in README runs, in a folder of its own."""

import builtins
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import minilearn.all

README = (Path(__file__).parent.parent / "README.md").read_text()
NAME = re.compile(r"\b([A-Z]\w*CB|[A-Z][a-z]\w+|[a-z]\w+(?=\(|$))")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


def test_readme_has_code_to_run():
    assert len(BLOCKS) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_in_readme_runs(number, tmp_path):
    out = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:minilearn", "-c", BLOCKS[number]],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout
    if "image_dls" in BLOCKS[number]:
        check_the_folder_trains(float(out.stdout.split()[-1]), tmp_path)


def check_the_folder_trains(accuracy, folder):
    """The example learned, and so does the command on its folder."""
    assert accuracy > 0.7
    command = re.search(r"^minilearn (train images/ [^#\n]*)", README, re.M)[1].split()
    words = [sys.executable, "-m", "minilearn", *command, "--out", "run"]
    subprocess.run(words, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    header, *rows = (folder / "run/history.csv").read_text().splitlines()
    assert float(rows[-1].split(",")[header.split(",").index("accuracy")]) > 0.7


def test_the_names_in_the_table_exist():
    table = README.split("## What is there")[1].split("\n## ")[0]
    names = {word for code in re.findall(r"`([^`]+)`", table) for word in NAME.findall(code)}
    homes = (minilearn.all, minilearn.Learner, minilearn.DataLoaders, minilearn.History, builtins)
    missing = [n for n in names if not any(hasattr(home, n) for home in homes)]
    assert "CheckpointCB" in names and missing == []


ROOT = Path(__file__).parent.parent
LINKS = re.findall(r"\]\(([^)#:]+)[^):]*\)", README)


def test_every_file_that_readme_links_to_exists():
    assert len(LINKS) >= 6 and [file for file in LINKS if not (ROOT / file).is_file()] == []


def test_the_images_are_small_and_each_is_made_by_the_script():
    images = {path.stem: path.stat().st_size for path in (ROOT / "docs/img").glob("*.png")}
    script = (ROOT / "scripts/images.py").read_text()
    assert set(images) == set(re.findall(r'save\(folder, "(\w+)"\)', script))
    assert max(images.values()) < 50 * 1024
    assert {f"docs/img/{name}.png" for name in images} <= set(LINKS)
