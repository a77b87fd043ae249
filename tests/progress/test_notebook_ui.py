"""What a person sees in JupyterLab while a fit runs: a real browser looks, and keeps images.

The images lie in build/screenshots/. Needs the `ui` extra and a Chromium: `make ui`.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
from browser import CHROMIUM, IN_A_BROWSER

pytest.importorskip("jupyterlab", reason="needs the ui extra: make ui")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs the ui extra: make ui")
pytestmark = IN_A_BROWSER

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "build" / "screenshots"
SETUP = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from minilearn.all import *

class Slow(Callback):
    def after_batch(self, learn): time.sleep(0.1)

set_seed(0)
x = torch.randn(800, 3)
dls = DataLoaders.from_arrays(x, x @ torch.tensor([[1.0], [-2.0], [0.5]]), bs=16)
cbs = [TrainCB(), MetricsCB(mae=mae), ProgressCB(plot=True), Slow()]
learn = Learner(nn.Linear(3, 1), dls, lr=0.01, cbs=cbs)
"""
CELLS = {"setup": SETUP, "fit": "learn.fit(3)", "endless": "learn.fit(999)", "next": "learn.fit(1)"}
# What is below a cell: the bars' percentages, the rows of each table, images, errors, the number.
LOOK = """cell => ({
    bars: [...cell.querySelectorAll('progress')].map(b => b.checkVisibility() && b.position),
    rows: [...cell.querySelectorAll('table')].map(t => t.querySelectorAll('tbody tr').length),
    pictures: [...cell.querySelectorAll('.jp-OutputArea img')].map(i => [i.naturalWidth, i.src]),
    errors: [...cell.querySelectorAll('[data-mime-type*=stderr], [data-mime-type*=error]')]
        .map(e => e.innerText),
    number: cell.querySelector('.jp-InputPrompt').innerText,
})"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a notebook in a JupyterLab of its own, with nothing of the user's settings."""
    home = tmp_path_factory.mktemp("lab")
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in CELLS.values()]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), home / "look.ipynb")
    news = home / "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false"}')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
        + ["--ip=127.0.0.1", "--IdentityProvider.token=", f"--ServerApp.root_dir={home}"],
        env=os.environ
        | {"JUPYTER_CONFIG_DIR": str(home / "config"), "JUPYTER_DATA_DIR": str(home / "data")}
        | {"JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/api"))
        yield f"http://127.0.0.1:{port}/lab/tree/look.ipynb"
    finally:
        server.terminate()
        server.wait(60)


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def answers(address):
    try:
        return urllib.request.urlopen(address, timeout=5).status == 200
    except (urllib.error.URLError, OSError):
        return False


class Lab:
    """The page of the notebook, as a person uses it."""

    def __init__(self, page):
        self.page = page
        self.cells = page.locator(".jp-Notebook .jp-CodeCell")

    def run(self, name):
        self.cells.nth([*CELLS].index(name)).locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def see(self, name):
        return self.cells.nth([*CELLS].index(name)).evaluate(LOOK)

    def has_ended(self, name):
        return self.see(name)["number"] not in ("[ ]:", "[*]:")

    def watch(self, name, until):
        """Look at a cell ten times a second until what is seen is enough; return all looks."""
        looks = []
        wait_for(lambda: looks.append(self.see(name)) or until(looks))
        return looks

    def interrupt(self):
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("i")
        self.page.keyboard.press("i")

    def picture(self, name):
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.wait_for_timeout(300)
        self.page.screenshot(path=PICTURES / f"{name}.png")


@pytest.fixture(scope="module")
def seen(address):
    """All that was seen, by name: a fit from beginning to end, one interrupted, and the next."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 1150})
        page.set_default_timeout(300_000)
        page.goto(address)
        lab = Lab(page)
        # before the kernel is connected, JupyterLab loses the key that runs a cell
        page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()
        lab.run("setup")
        wait_for(lambda: lab.has_ended("setup"))
        lab.run("fit")
        seen = {
            "begun": lab.watch("fit", lambda looks: looks[-1]["pictures"] and looks[-1]["rows"])
        }
        lab.picture("1_running")
        seen["running"] = lab.watch("fit", lambda _: lab.has_ended("fit"))
        lab.picture("2_done")
        lab.run("endless")
        lab.watch("endless", lambda looks: looks[-1]["rows"] == [1] and looks[-1]["bars"])
        lab.interrupt()
        seen["interrupted"] = lab.watch("endless", lambda _: lab.has_ended("endless"))
        lab.picture("3_interrupted")
        lab.run("next")
        seen["next"] = lab.watch("next", lambda _: lab.has_ended("next"))
        lab.picture("4_next")
        browser.close()
    return seen


def shares(looks):
    """The fraction of the epoch that is done, in each look that had a bar of the running epoch."""
    return [look["bars"][-1] for look in looks if look["bars"]]


def moves(looks):
    """Whether a bar is there, and is longer from look to look, several times."""
    known = shares(looks)
    return sum(b > a for a, b in zip(known, known[1:], strict=False)) >= 3


def test_the_bars_move_while_the_fit_runs(seen):
    looks = seen["begun"] + seen["running"]
    assert moves(looks)
    assert any(len(look["bars"]) == 2 for look in looks)  # one of the fit, one of the epoch


def test_a_bar_that_does_not_move_is_noticed(seen):
    (stuck,) = [look for look in seen["begun"] if look["bars"]][:1]
    assert not moves([stuck] * 9)


def test_the_table_grows_by_a_row_a_round_and_is_one(seen):
    looks = seen["begun"] + seen["running"]
    assert max(len(look["rows"]) for look in looks) == 1
    counts = [look["rows"][0] for look in looks if look["rows"]]
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] == 3


def test_the_plot_is_there_before_the_fit_ends_and_is_drawn_anew(seen):
    looks = seen["begun"] + seen["running"]
    sources = {src for look in looks for _, src in look["pictures"]}
    assert seen["begun"][-1]["bars"] and len(sources) >= 3
    assert seen["running"][-1]["pictures"][0][0] > 300


def test_a_fit_leaves_its_table_and_plot_alone(seen):
    last = seen["running"][-1]
    assert last["bars"] == [] and last["errors"] == []
    assert last["rows"] == [3] and len(last["pictures"]) == 1


@pytest.mark.case("C082")
def test_an_interrupt_ends_the_fit_with_one_error_and_no_bar(seen):
    last = seen["interrupted"][-1]
    (error,) = last["errors"]
    assert error.strip().splitlines()[-1].startswith("KeyboardInterrupt")
    assert "During handling" not in error
    assert last["bars"] == [] and len(last["rows"]) == 1


@pytest.mark.case("C083")
def test_the_next_cell_works_and_has_its_own_output(seen):
    last = seen["next"][-1]
    assert last["rows"] == [1] and last["errors"] == [] and last["bars"] == []
