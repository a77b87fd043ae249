"""ProgressCB in a real kernel: a notebook is executed, and its outputs are what a reader sees."""

import base64
import io
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = {
    "setup": """
import os, signal, sys
sys.path[:0] = FOLDERS
import torch
from toys import At, batches, linear, toy_dls, toy_learner
from minilearn.metrics.callback import MetricsCB
from minilearn.progress.notebook_display import LossCurve, Notebook
from minilearn.progress.callback import ProgressCB
from minilearn.callbacks.training import SingleBatchCB

torch.set_num_threads(1)
def interrupt(learn): os.kill(os.getpid(), signal.SIGINT)
def learner(*cbs, plot=False):
    return toy_learner([MetricsCB(), ProgressCB(plot=plot), *cbs], dls=toy_dls(6, 2))
learn = learner()
Notebook.redraw_every = 0  # many updates, though the fits are short
""",
    "fit": "learn.fit(3)",
    "interrupt": """
at = At("after_batch", interrupt, lambda learn: learn.epoch == 1 and learn.iter == 3)
learn.fit(3, cbs=at)
""",
    "next": "learn.fit(1)",
    "second error": """
def fail(learn): raise NameError("name 'exit' is not defined")
at = At("after_batch", interrupt), At("cleanup_fit", fail)
learn.fit(3, cbs=at)
""",
    "no bar": "learn.fit(1, cbs=SingleBatchCB())",
    "error": "learn.fit(1, cbs=At('after_step', ValueError('mine')))",
    "plot": "learner(plot=True).fit(3)",
    "live plot": """
def due(learn): learn.find(ProgressCB)._display.curve.due = 0
learner(At('before_batch', due, times=99), plot=True).fit(1)
""",
    "unsafe": """
def name(learn): learn.row["<b>bold</b>"] = "<script>alert(1)</script>"
learner(At("after_epoch", name)).fit(1)
""",
    "twice": """
def interrupt_twice(learn):
    def again(self): raise KeyboardInterrupt
    LossCurve.draw = again
    interrupt(learn)
draw = LossCurve.draw
at = At("after_batch", interrupt_twice, lambda learn: learn.epoch == 1 and learn.iter == 3)
learner(at, plot=True).fit(3)
""",
    "after twice": "LossCurve.draw = draw",
    "stream": """
class Stream(list):
    def __len__(self): raise TypeError
bars = []
show = Notebook.show
def keep(self): bars.append(self.html()); show(self)
Notebook.show = keep
toy_learner([ProgressCB()], dls=(Stream(batches(3)), None)).fit(1)
Notebook.show = show
bars[3]
""",
    "anew": """
def show_anew(self): self.handle = None; show(self)
Notebook.show = show_anew
learn.fit(3)
Notebook.show = show
""",
}


@pytest.fixture(scope="module")
def outputs():
    """The outputs of each cell, by name, of one executed notebook."""
    here = Path(__file__).parents[1]
    folders = [str(here), str(here.parent), *sys.path]
    sources = [source.replace("FOLDERS", repr(folders)) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    NotebookClient(notebook, timeout=240, allow_errors=True, kernel_name="python3").execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def html_of(outputs):
    return [o.data["text/html"] for o in outputs if "text/html" in o.get("data", {})]


def errors_of(outputs):
    return [o.ename for o in outputs if o.output_type == "error"]


def rows_of(page):
    body = page.split("<tbody>")[1] if "<tbody>" in page else ""
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)]


def check_one_table(outputs, rows, errors=()):
    """One output with `rows` rows, no bar in it, and nothing beside it but the errors."""
    assert errors_of(outputs) == list(errors)
    pages = html_of(outputs)
    assert len(pages) == 1
    assert [row[0] for row in rows_of(pages[0])] == [str(i) for i in range(rows)]
    assert "<progress" not in pages[0]
    others = {o.output_type for o in outputs} - {"display_data", "error", "execute_result"}
    assert not others, f"there is also {others}"


def test_the_notebook_begins_without_an_output(outputs):
    assert outputs["setup"] == []


@pytest.mark.case("C083")
def test_a_fit_leaves_one_table_and_after_an_interrupt_the_next_begins_its_own(outputs):
    check_one_table(outputs["fit"], rows=3)
    check_one_table(outputs["interrupt"], rows=1, errors=["KeyboardInterrupt"])
    check_one_table(outputs["next"], rows=1)


@pytest.mark.case("C083")
def test_the_check_of_one_table_fails_where_each_update_is_a_new_output(outputs):
    with pytest.raises(AssertionError):
        check_one_table(outputs["anew"], rows=3)


def check_interrupted(outputs):
    """Keyboard interrupt is all that the cell says: no other error before, after or beside it."""
    assert errors_of(outputs) == ["KeyboardInterrupt"]
    traceback = next(o for o in outputs if o.output_type == "error").traceback
    plain = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(traceback)).strip()
    assert plain.splitlines()[-1].strip() == "KeyboardInterrupt:"
    assert "During handling" not in plain
    assert "direct cause" not in plain


@pytest.mark.case("C082")
def test_an_interrupted_cell_ends_with_keyboard_interrupt_only_and_the_kernel_lives(outputs):
    check_interrupted(outputs["interrupt"])
    check_one_table(outputs["next"], rows=1)


@pytest.mark.case("C082")
def test_the_check_of_an_interrupt_fails_where_the_clean_up_fails(outputs):
    with pytest.raises(AssertionError):
        check_interrupted(outputs["second error"])


def test_cancels_and_errors_leave_no_bar(outputs):
    check_one_table(outputs["no bar"], rows=1)
    check_one_table(outputs["error"], rows=0, errors=["ValueError"])


def test_a_second_interrupt_while_the_image_is_drawn_leaves_no_bar(outputs):
    check_one_table(outputs["twice"], rows=1, errors=["KeyboardInterrupt"])


def test_the_columns_are_those_of_the_history(outputs):
    (page,) = html_of(outputs["fit"])
    assert re.findall(r"<th>(.*?)</th>", page) == ["epoch", "train_loss", "valid_loss", "time"]
    text = next(o for o in outputs["fit"] if "text/html" in o.data).data["text/plain"]
    assert [line.split()[0] for line in text.splitlines()] == ["epoch", "0", "1", "2"]


def test_without_a_plot_there_is_no_image(outputs):
    assert "<img" not in html_of(outputs["fit"])[0]


@pytest.mark.parametrize("cell", ["plot", "live plot"])
def test_a_plot_is_an_image_in_the_same_output(outputs, cell):
    from PIL import Image

    check_one_table(outputs[cell], rows=3 if cell == "plot" else 1)
    (page,) = html_of(outputs[cell])
    (data,) = re.findall(r'src="data:image/png;base64,(.*?)"', page)
    picture = Image.open(io.BytesIO(base64.b64decode(data)))
    assert picture.size == (900, 450)
    assert len(picture.convert("RGB").getcolors(10**6)) > 20  # it is not empty


def test_names_and_values_are_escaped(outputs):
    (page,) = html_of(outputs["unsafe"])
    assert "<script" not in page
    assert "&lt;b&gt;bold" in page


def test_a_stream_without_a_length_has_a_bar_without_an_end(outputs):
    page = outputs["stream"][-1].data["text/plain"]
    assert "3 batches" in page
    assert "%" not in page
