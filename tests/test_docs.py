"""The reference site: each public name is on a page, the tables are the code's, no link is dead."""

import ast
import json
import re
import signal
from pathlib import Path

import pytest
from toys import Trace, assert_same_weights, toy_learner

import minilearn
from minilearn import cli
from minilearn.core.events import ACTIONS, EVENTS, Order
from minilearn.core.state import LoopState
from scripts.docs import events, map, names, reference, site

ROOT = Path(__file__).parent.parent
PAGE = events.filled((ROOT / "docs" / "events.md").read_text(encoding="utf-8"))


def test_every_public_name_has_a_docstring():
    assert names.undocumented(names.public_objects()) == []


class Undocumented:
    """A class with a method and a property that have no docstring."""

    def documented(self):
        """Do something."""

    def method(self): ...

    @property
    def value(self): ...


class Derived(Undocumented):
    """A class that inherits the two from another class."""


def test_missing_docstrings_are_found(monkeypatch):
    module = ast.parse("__all__ = ['act_gr']\nact_gr = 1\nb = 2")
    monkeypatch.setattr(names, "tree", lambda name: module)
    objects = {"Undocumented": Undocumented, "f": lambda: 0, "act_gr": minilearn.act_gr}
    found = names.undocumented(objects)
    assert found == ["f", "act_gr", "Undocumented.method", "Undocumented.value"]


def test_inherited_members_need_docstrings_too(monkeypatch):
    monkeypatch.setattr(Undocumented, "__module__", "minilearn.somewhere")
    assert names.undocumented({"Derived": Derived}) == ["Derived.method", "Derived.value"]


def test_every_public_name_and_every_listed_method_has_one_entry():
    text = "\n".join(reference.pages().values())
    entries = re.findall(r"^(?:::: |### )(\S+)", text, re.M)
    documented = {names.public()[n] if n in names.public() else n for n in entries}
    assert len(entries) == len(set(entries))
    assert documented == set(names.public().values())
    assert "minilearn.insight.lr_finder.lr_find" in documented  # `Learner.lr_find`
    assert {f"cli.{name}" for name in cli.__all__} <= set(names.public())


def test_every_folder_of_the_package_has_a_page():
    homes = {path.split(".")[1] for path in names.public().values()}
    assert homes == set(reference.FOLDERS)
    assert all("\n## " in page for page in reference.pages().values())


def test_the_page_of_the_learner_shows_what_its_loop_inherits():
    page = reference.page("learner")
    assert "::: minilearn.learner.Learner\n    options:\n      inherited_members: true" in page


def test_the_table_of_the_learner_has_every_attribute_that_it_declares():
    shown = set(re.findall(r"^\| `(\w+)`", reference.attributes(), re.M))
    declared = {n for n in LoopState.__annotations__ if not n.startswith("_")}
    methods = {n for n in declared if callable(getattr(minilearn.Learner, n, None))}
    properties = {n for n, member in vars(LoopState).items() if isinstance(member, property)}
    assert shown == declared - methods | properties
    assert {"model", "plan", "steps_done"} <= shown and "fit_one_cycle" not in shown


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


def test_an_event_lists_the_callbacks_that_have_a_method_for_it():
    row = re.search(r"^\| `after_step` \|.*$", PAGE, re.M)[0]
    assert "`BatchSchedCB`" in row and "`EMACB`" in row and "`ProgressCB`" not in row


MAP = map.PAGE.read_text(encoding="utf-8")


def modules_in(text):
    """The files that a map lists, as paths: headings name a folder, lines a module."""
    found, folder = set(), ""
    for heading, module in re.findall(r"^### `(.+?)/`|^- `(.+?)`:", text, re.M):
        folder = heading or folder
        found.add(f"{folder}/{module or '__init__.py'}")
    return found


def test_the_map_has_every_module_and_nothing_else():
    files = {p.relative_to(ROOT).as_posix() for p in (ROOT / "minilearn").rglob("*.py")}
    assert modules_in(MAP) == files, "run `python -m scripts.docs.map`"


def test_a_module_that_the_map_lacks_is_noticed():
    line = next(line for line in MAP.splitlines(True) if line.startswith("- `learner.py`"))
    assert modules_in(MAP) - modules_in(MAP.replace(line, "", 1)) == {"minilearn/learner.py"}


def test_the_map_says_of_a_module_what_its_docstring_says():
    assert map.filled(MAP) == MAP, "run `python -m scripts.docs.map`"


def functions_in(path):
    """The names of the functions in a file, with the class of a method."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        found |= {f"{node.name}.{n.name}" for n in inner if isinstance(n, ast.FunctionDef)}
        found |= {node.name} if isinstance(node, ast.FunctionDef) else set()
    return found


ANSWERS = re.findall(r"^\| (.+\?) \| `(\S+\.py)` \| `([\w.]+)`", MAP, re.M)


@pytest.mark.parametrize(("question", "file", "function"), ANSWERS, ids=[a[0] for a in ANSWERS])
def test_the_map_answers_a_question_with_a_function_that_is_there(question, file, function):
    assert function in functions_in(ROOT / file)


def test_five_questions_are_answered():
    assert len(ANSWERS) == 5
    assert {"Loop.fit"} <= functions_in(ROOT / "minilearn/core/learner.py")
    assert "Loop.nowhere" not in functions_in(ROOT / "minilearn/core/learner.py")


@pytest.mark.parametrize(
    ("text", "folder", "turned"),
    [
        ("[a](README.md#words)", "", "[a](index.md#words)"),
        ("[t](nbs/00_tour.ipynb)", "", "[t](lessons/00_tour.md)"),
        ("[t](00_tour.ipynb)", "nbs", "[t](00_tour.md)"),
        ("[t](../README.md)", "nbs", "[t](../index.md)"),
        ("[t](../../nbs/00_tour.ipynb)", "docs/guides", "[t](../lessons/00_tour.md)"),
        ("[t](../events.md#order)", "docs/guides", "[t](../events.md#order)"),
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


def test_the_menu_has_every_page():
    pages = re.findall(r"[\w/]+\.md", str(site.menu()))
    docs = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    assert set(docs) | set(site.PAGES.values()) <= set(pages)


def test_the_menu_has_every_notebook_by_number():
    lessons = next(item["Lessons"] for item in site.menu() if "Lessons" in item)
    paths = sorted((ROOT / "nbs").glob("*.ipynb"))
    assert lessons == [f"lessons/{path.stem}.md" for path in paths]


@pytest.mark.parametrize("path", sorted((ROOT / "nbs").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_has_its_title_in_its_first_heading(path):
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    assert first["cell_type"] == "markdown" and "".join(first["source"]).startswith("# ")


def test_files_loaded_from_elsewhere_are_noticed():
    page = '<a href="https://a.org">a</a><script src="https://b.org/x.js"></script>'
    page += '<link href="//c.org/f.css"><img src="img/d.png">'
    assert site.loaded_from_elsewhere(page) == ["https://b.org/x.js", "//c.org/f.css"]


def test_formulas_become_mathml_and_prices_stay():
    pytest.importorskip("latex2mathml", reason="needs the docs extra: make docs")
    text = site.with_math(r"It is $\frac12 w^2$ for $5 and `$x$`.")
    assert text.startswith("It is <span><math") and "<mfrac>" in text
    assert text.endswith("for $5 and `$x$`.")


def test_the_page_about_stopping_does_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "stopping.md").read_text(encoding="utf-8")
    stop, save, resume = re.findall(r"```python\n(.*?)```", text, re.S)

    def names(after):
        """A Learner and the package; SIGINT comes in a training batch after so many epochs."""

        def press(learn):
            if learn.training and learn.epoch == after:
                signal.raise_signal(signal.SIGINT)

        learn = toy_learner()
        learn.on("after_step", press)
        return {"learn": learn, "CheckpointCB": minilearn.CheckpointCB}

    exec(stop, names(2))
    assert capsys.readouterr().out == "stopped after 2 epochs\n"
    assert Path("model.safetensors").exists()
    broken, whole = names(3), names(99)
    with pytest.raises(KeyboardInterrupt):
        exec(save, broken)
    last = sorted(path.name for path in Path("runs/a").glob("*.ckpt"))[-1]
    assert last.startswith("epoch003")  # inside the epoch that was interrupted
    again = {**names(99), "save": broken["save"]}
    exec(resume, again)
    whole["learn"].fit(10)
    assert_same_weights(again["learn"].model, whole["learn"].model)


def test_the_html_of_an_output_closes_all_that_it_opens():
    pytest.importorskip("bs4", reason="needs the docs extra: make docs")
    text = site.closed("<table><tr><td>1</td></tr></table><p>\n<img src='a.png'>")
    assert text.startswith("<div class='output'><table>") and text.endswith("</p></div>")
    assert text.count("<p>") == text.count("</p>") == text.count("<img") == 1
