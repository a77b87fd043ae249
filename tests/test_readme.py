"""What README shows, runs: every block of Python, in a folder of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


def test_there_is_something_to_run():
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
