"""The reference site: each public name is on a page, the tables are the code's, no link is dead."""

import ast
import json
import re
from pathlib import Path

import pytest
from toys import Trace, toy_learner

import minilearn
from minilearn.core.events import ACTIONS, EVENTS, Order
from scripts.docs import events, names, reference, site

ROOT = Path(__file__).parent.parent
PUBLIC = {name: getattr(minilearn, name) for name in minilearn.__all__}
PAGE = events.filled((ROOT / "docs" / "events.md").read_text(encoding="utf-8"))


def test_no_public_name_is_without_a_docstring():
    assert names.undocumented(PUBLIC) == []


class Bare:
    """A class with a method and a property that say nothing."""

    def said(self):
        """Say."""

    def silent(self): ...

    @property
    def mute(self): ...


def test_what_has_no_docstring_is_found(monkeypatch):
    bare = ast.parse("__all__ = ['act_gr']\nact_gr = 1\nb = 2")
    monkeypatch.setattr(names, "tree", lambda module: bare)
    objects = {"Bare": Bare, "f": lambda: 0, "act_gr": minilearn.act_gr}
    assert names.undocumented(objects) == ["f", "act_gr", "Bare.silent", "Bare.mute"]


def test_every_public_name_and_every_added_method_has_one_entry():
    text = "\n".join(reference.pages().values())
    entries = re.findall(r"^(?:::: |### )(\S+)", text, re.M)
    documented = {names.public()[n] if n in names.public() else n for n in entries}
    assert len(entries) == len(set(entries))
    assert documented == set(names.public().values())
    assert "minilearn.insight.lr_finder.lr_find" in documented  # `Learner.lr_find`


def test_the_table_of_the_learner_has_every_attribute_that_it_declares():
    table = reference.attributes(minilearn.Learner)
    declared = {n for n in minilearn.Learner.__annotations__ if not n.startswith("_")}
    assert set(re.findall(r"^\| `(\w+)`", table, re.M)) == declared


def first_column(page):
    return re.findall(r"^\| `(\w+)` \|", page, re.M)


LEVELS = ("fit", "round", "epoch", "batch", "backward", "step")  # other tests register more


def test_the_tables_hold_every_event_action_and_slot_in_order():
    ours = [e for e in EVENTS if e.endswith(LEVELS) or e in ("after_predict", "after_loss")]
    assert first_column(PAGE) == [*ours, *ACTIONS, *(o.name for o in Order)]


def test_the_list_of_events_is_what_a_fit_fires():
    trace = Trace()
    toy_learner([trace]).fit(1)
    fired = [name for name in dict.fromkeys(trace.events) if name in EVENTS]
    listed = [line.strip() for line in events.script().splitlines()]
    assert [name for name in listed if name in EVENTS] == [n for n in EVENTS if n in fired]


def test_who_hears_an_event_is_who_has_a_method_for_it():
    row = re.search(r"^\| `after_step` \|.*$", PAGE, re.M)[0]
    assert "`BatchSchedCB`" in row and "`EMACB`" in row and "`ProgressCB`" not in row


@pytest.mark.parametrize(
    ("text", "folder", "turned"),
    [
        ("[a](README.md#words)", "", "[a](index.md#words)"),
        ("[t](nbs/00_tour.ipynb)", "", "[t](lessons/00_tour.md)"),
        ("[t](00_tour.ipynb)", "nbs", "[t](../lessons/00_tour.md)"),
        ("[l](minilearn/core/learner.py)", "", "l"),
        ("![c](docs/style.css)", "", "![c](style.css)"),
        ("[gone](nowhere.md)", "", "[gone](nowhere.md)"),
        ("[w](https://example.org/README.md) [h](#words)", "", None),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(text, folder, turned):
    assert site.site_links(text, folder) == (text if turned is None else turned)


def test_public_names_become_links_and_nothing_else():
    assert names.linked("`TrainCB(2)`") == "[`TrainCB(2)`][minilearn.callbacks.training.TrainCB]"
    assert names.linked("`learn.lr_find()`").endswith("][minilearn.insight.lr_finder.lr_find]")
    for text in ("`x`", "TrainCB", "``TrainCB``", "[`TrainCB`](a.md)", "[`TrainCB`][b]"):
        assert names.linked(text) == text


def test_the_menu_has_every_notebook_by_number():
    lessons = next(item["Lessons"] for item in site.menu() if "Lessons" in item)
    paths = sorted((ROOT / "nbs").glob("*.ipynb"))
    assert lessons == [f"lessons/{path.stem}.md" for path in paths]


@pytest.mark.parametrize("path", sorted((ROOT / "nbs").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_has_its_title_in_its_first_heading(path):
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    assert first["cell_type"] == "markdown" and "".join(first["source"]).startswith("# ")


def test_what_is_loaded_from_elsewhere_is_noticed():
    page = '<a href="https://a.org">a</a><script src="https://b.org/x.js"></script>'
    page += '<link href="//c.org/f.css"><img src="img/d.png">'
    assert site.loaded_from_elsewhere(page) == ["https://b.org/x.js", "//c.org/f.css"]


def test_formulas_become_mathml_and_prices_stay():
    pytest.importorskip("latex2mathml", reason="needs the docs extra: make docs")
    text = site.with_math(r"It is $\frac12 w^2$ for $5 and `$x$`.")
    assert text.startswith("It is <span><math") and "<mfrac>" in text
    assert text.endswith("for $5 and `$x$`.")
