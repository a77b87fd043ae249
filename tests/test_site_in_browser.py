"""The site as a reader sees it: a browser opens every page from the disk, at three widths.

Screenshots lie in build/screenshots/. Needs the `docs` and `ui` extras and a Chromium: `make ui`.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import CHROMIUM, IN_A_BROWSER

for module in ("mkdocs", "mkdocstrings", "nbconvert"):
    pytest.importorskip(module, reason="needs the docs extra: make ui")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs the ui extra: make ui")
pytestmark = IN_A_BROWSER

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "build" / "screenshots"
LESSONS = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))
WIDTHS = (390, 1400, 1920)

READ = """() => {
    const article = document.querySelector('article')
    const text = node => {
        const copy = node.cloneNode(true)
        copy.querySelectorAll('.headerlink').forEach(link => link.remove())
        return copy.textContent.trim()
    }
    return {
        headings: [...article.querySelectorAll('h1, h2, h3')].map(text),
        images: [...article.querySelectorAll('img')].map(image => image.naturalWidth),
        tables: article.querySelectorAll('table').length,
        code: [...article.querySelectorAll('.language-python pre')].map(text),
    }
}"""

# Code wider than its block, the page wider than the window, names of events on two lines.
FAULTS = """() => {
    const faults = []
    document.querySelectorAll('details').forEach(details => details.open = true)
    const wide = node => node.scrollWidth > node.clientWidth + 1
    for (const node of document.querySelectorAll('pre, pre > code'))
        if (wide(node)) faults.push('clipped: ' + node.textContent.trim().slice(0, 80))
    if (wide(document.documentElement)) faults.push('the page is wider than the window')
    const walker = document.createTreeWalker(document.querySelector('article'), 4)
    for (let node; (node = walker.nextNode()); )
        for (const name of node.data.matchAll(/\\b(before|after|cleanup)_[a-z]+/g)) {
            const range = document.createRange()
            range.setStart(node, name.index)
            range.setEnd(node, name.index + name[0].length)
            const lines = new Set([...range.getClientRects()].map(r => Math.round(r.top)))
            if (lines.size > 1) faults.push('broken: ' + name[0])
        }
    return faults
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(build, cwd=ROOT, env=env, check=True)
    return folder


@pytest.fixture(scope="module")
def page():
    """A page of a browser that reaches no network."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_context(offline=True).new_page()
        browser.close()


def written(notebook):
    """Headings, numbers of images and tables, and code, as they are in a notebook."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    headings = re.findall(r"^#{1,3} (.+)$", text, re.M)
    data = [o["data"] for c in cells for o in c.get("outputs", ()) if "data" in o]
    html = "".join("".join(d.get("text/html", "")) for d in data)
    tables = re.findall(r"^\|[ :|-]+\|$", text, re.M)
    return {
        "headings": [heading.replace("`", "").strip() for heading in headings],
        "images": sum("image/png" in d for d in data) + html.count("<img"),
        "tables": html.count("<table") + len(tables),
        "code": ["".join(c["source"]).strip() for c in cells if c["cell_type"] == "code"],
    }


@pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_all_that_its_notebook_has(site, page, notebook):
    page.goto((site / "lessons" / f"{notebook.stem}.html").as_uri())
    seen = page.evaluate(READ)
    assert all(width > 100 for width in seen["images"])
    assert {**seen, "images": len(seen["images"])} == written(notebook)


def test_a_tag_that_is_not_closed_would_be_noticed(page):
    page.set_content("<article><h1>A</h1><pre>&lt;img></pre></article>")
    seen = page.evaluate(READ)
    assert seen["headings"] == ["A"] and seen["images"] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_no_code_is_clipped_and_no_name_of_an_event_broken(site, page, width):
    page.set_viewport_size({"width": width, "height": 1000})
    faults = {}
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        if path.name != "404.html" and (found := page.evaluate(FAULTS)):
            faults[path.relative_to(site).as_posix()] = found
    assert faults == {}


def test_clipped_code_and_broken_names_would_be_noticed(page):
    page.set_viewport_size({"width": 390, "height": 1000})
    page.set_content(
        "<article style='width: 3em; word-break: break-all'>before_backward"
        "<pre style='overflow: auto; width: 9em; word-break: normal'>learn.fit_one_cycle(1)</pre>"
    )
    assert page.evaluate(FAULTS) == ["clipped: learn.fit_one_cycle(1)", "broken: before_backward"]


@pytest.mark.parametrize("name", ["index", "lessons/00_tour", "events"])
def test_screenshots_are_kept(site, page, name):
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.goto((site / f"{name}.html").as_uri())
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 1000})
        file = PICTURES / f"site_{Path(name).name}_{width}.png"
        page.screenshot(path=file, full_page=True)
        assert file.stat().st_size > 20_000


def test_the_search_finds_a_name_on_a_page_from_the_disk(site, page):
    page.set_viewport_size({"width": 1400, "height": 1000})
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially("EarlyStopCB")
    page.locator(".md-search-result__item a").first.wait_for(timeout=60_000)
    links = page.locator(".md-search-result__item a").evaluate_all(
        "links => links.map(l => l.href)"
    )
    assert any("callbacks" in link for link in links) and links[0].startswith("file:")
