"""`learn.explain()`: what runs when, in words and as a table."""

import sys
from types import SimpleNamespace

from story import Story
from toys import LEVELS, Trace, linear, toy_dls, toy_learner

from minilearn.callbacks.training import SingleBatchCB, TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import Order, register_level
from minilearn.insight.explain import SCRIPT, explain_rows, explain_text
from minilearn.learner import Learner, MomentumLearner


class First(Callback):
    order = Order.PLACE

    def before_batch(self, learn): ...

    def cleanup_batch(self, learn): ...


class Later(First):
    order = Order.SAVE


def explained(cbs, kind=Learner):
    learn = kind(linear(), toy_dls(), torch_loss, cbs=cbs)
    return {name: who for _, name, who in explain_rows(learn)}


def torch_loss(preds, targets):
    return (preds - targets).pow(2).mean()


def test_the_script_lists_the_events_and_actions_of_a_real_fit_in_their_order():
    names = [name.removesuffix("*") for _, name in SCRIPT]
    assert names == Story(epochs=1, n_train=1, n_valid=0).trace


def test_a_level_begins_and_ends_at_one_indent_and_what_runs_within_is_not_left_of_it():
    names = [name for _, name in SCRIPT]
    for level in LEVELS:
        first, last = names.index(f"before_{level}"), names.index(f"cleanup_{level}")
        after = names.index(f"after_{level}")
        own = SCRIPT[first][0]
        assert SCRIPT[last][0] == SCRIPT[after][0] == own
        assert all(indent >= own for indent, _ in SCRIPT[first:last])
    indents = dict((name, indent) for indent, name in SCRIPT)
    assert [indents[f"before_{level}"] for level in LEVELS[:4]] == [0, 1, 2, 3]


def test_every_handled_event_names_its_handlers_in_order_and_clean_up_in_reverse():
    rows = explained([Later(), TrainCB(), First()])
    assert rows["before_batch"] == "First[0], Later[80]"
    assert rows["cleanup_batch"] == "Later[80], First[0]"
    assert "after_batch" not in rows


def test_every_action_shows_its_owner():
    assert explained([TrainCB(n_inp=2)])["predict*"] == "TrainCB(n_inp=2)"
    rows = explained(None, MomentumLearner)
    assert rows["zero_grad*"] == "MomentumLearner"
    assert "add TrainCB()" in explained([])["predict*"]


def test_the_usual_callbacks_are_shown_where_a_fit_would_add_them_and_only_there():
    learn = Learner(linear(), toy_dls(), torch_loss)
    rows, text = {name: who for _, name, who in explain_rows(learn)}, str(explain_text(learn))
    assert rows["predict*"] == "TrainCB" and "ProgressCB[70]" in rows["before_fit"]
    assert "with the usual callbacks, since none are listed" in text
    assert learn.cbs == []  # to look changes nothing
    for cbs in ([], [TrainCB()]):
        assert "usual" not in str(explain_text(Learner(linear(), toy_dls(), torch_loss, cbs=cbs)))


def test_levels_of_one_s_own_are_shown_too():
    register_level("verse")
    hears = Callback()
    hears.before_verse = lambda learn: None
    assert explained([TrainCB(), hears])["before_verse"] == "Callback[60]"
    rows = explain_rows(toy_learner([hears]))
    assert (0, "before_verse", "Callback[60]") in rows


def test_what_runs_in_a_batch_has_one_indent_and_what_makes_an_update_the_next():
    indents = {name: indent for indent, name in SCRIPT}
    names = list(indents)
    forward = names[names.index("predict*") : names.index("before_backward")]
    update = names[names.index("before_backward") : names.index("after_batch")]
    assert {indents[name] for name in forward} == {indents["before_batch"] + 1}
    assert {indents[name] for name in update} == {indents["before_batch"] + 2}


def test_the_text_indents_by_level_and_is_printed(capsys):
    learn = toy_learner([Trace()])
    learn.explain()
    out = capsys.readouterr().out
    assert str(explain_text(learn)) + "\n" == out
    lines = out.splitlines()
    assert lines[1].startswith("before_fit ")
    assert any(line.startswith("      before_batch ") for line in lines)
    assert any(line.startswith("          backward* ") for line in lines)


def test_explaining_changes_nothing():
    learn = toy_learner([SingleBatchCB()])
    before = dict(vars(learn))
    explain_text(learn)
    assert vars(learn) == before


def test_the_html_is_escaped():
    odd = type("Odd<b>", (First,), {})
    html = explain_text(toy_learner([odd()]))._repr_html_()
    assert "Odd&lt;b&gt;" in html and "<b>" not in html


def test_a_notebook_gets_it_displayed(monkeypatch):
    shown = []
    shell = SimpleNamespace(kernel=1)
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))
    toy_learner().explain()
    assert len(shown) == 1 and hasattr(shown[0], "_repr_html_")
