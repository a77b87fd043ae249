"""ProgressCB: what it writes where, what it reads, and that it cleans up."""

import contextlib
import io
import os
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, IterableDataset
from toys import At, assert_same_weights, batches, linear, toy_dls, toy_learner

from minilearn.base import text as base_text
from minilearn.callbacks.training import SingleBatchCB, TrainCB
from minilearn.core.callback import Callback, run_cbs
from minilearn.core.events import (
    CancelEpochException,
    CancelFitException,
    CancelRoundException,
    Order,
)
from minilearn.core.state import Nesting
from minilearn.loggers.recorder import RecorderCB
from minilearn.loggers.text_log import LogCB
from minilearn.metrics import callback
from minilearn.metrics.callback import MetricsCB
from minilearn.optim.sched_callbacks import BatchSchedCB
from minilearn.progress import callback as progress
from minilearn.progress import notebook_display as notebook
from minilearn.progress import terminal as display
from minilearn.progress.callback import ProgressCB
from minilearn.progress.notebook_display import LossCurve, Notebook, thinned
from minilearn.progress.terminal import Bar, Lines, Terminal


class Screen(io.StringIO):
    """A terminal's stream that keeps what is written in pieces."""

    encoding = "utf-8"

    def __init__(self):
        super().__init__()
        self.pieces = []

    def isatty(self):
        return True

    def write(self, text):
        self.pieces.append(text)
        return super().write(text)


@pytest.fixture
def screen(monkeypatch):
    """Standard output as a terminal of 80 columns, for the display alone: pytest keeps its own."""
    stand_in = SimpleNamespace(stdout=Screen())
    for module in (display, base_text):
        monkeypatch.setattr(module, "sys", stand_in)
    return stand_in.stdout


@pytest.fixture
def always_due(monkeypatch):
    """A terminal that looks at the bar in every batch."""
    monkeypatch.setattr(Terminal, "redraw_every", 0)


def visible(screen):
    """Return the lines that a user sees: what follows a carriage return covers what was there."""
    lines = []
    for line in screen.getvalue().split("\n"):
        seen = ""
        for part in line.split("\r"):
            seen = part + seen[len(part) :]
        lines.append(seen.rstrip())
    return lines


def mae(preds, targs):
    return (preds - targs).abs().mean()


def fit_lines(capsys, learn, *args, **kwargs):
    learn.fit(*args, **kwargs)
    return capsys.readouterr().out.splitlines()


# ---- rows ----


def test_a_fit_writes_a_header_and_one_line_a_round_with_the_columns_of_the_history(capsys):
    learn = toy_learner([MetricsCB(mae=mae), ProgressCB()])
    header, *rows = fit_lines(capsys, learn, 2)
    assert header.split() == ["epoch", "train_loss", "valid_loss", "train_mae", "mae", "time"]
    for line, row in zip(rows, learn.history, strict=True):
        *values, seconds = line.split()
        shown = [row[c] for c in ("epoch", "train_loss", "valid_loss", "train_mae", "mae")]
        assert [float(v) for v in values] == pytest.approx(shown, abs=5e-5)
        assert seconds.endswith("s")


def test_without_metrics_a_row_is_epoch_and_time(capsys):
    header, row = fit_lines(capsys, toy_learner([ProgressCB()]), 1)
    assert header.split() == ["epoch", "time"]
    assert row.split()[0] == "0"


def test_the_header_comes_again_when_columns_are_new_and_a_missing_value_is_blank(capsys):
    learn = toy_learner([MetricsCB(), ProgressCB()])
    lines = fit_lines(capsys, learn, 4, valid_every=2)
    heads = [line.split() for line in lines if "epoch" in line]
    assert heads == [["epoch", "train_loss", "time"], ["epoch", "train_loss", "valid_loss", "time"]]
    assert [len(line.split()) for line in lines if "epoch" not in line] == [3, 4, 3, 4]
    assert len({len(line) for line in lines[2:]}) == 1  # columns stay aligned


def test_rounds_that_are_cut_by_updates_show_the_updates(capsys):
    learn = toy_learner([MetricsCB(), ProgressCB()], dls=toy_dls(n_train=3))
    lines = fit_lines(capsys, learn, n_steps=4, valid_every=(2, "step"))
    assert lines[0].split()[:2] == ["epoch", "steps"]
    assert [line.split()[1] for line in lines[1:]] == ["2", "4"]


@pytest.mark.parametrize("cancel", [CancelEpochException, CancelRoundException, CancelFitException])
def test_a_row_that_a_cancel_left_in_the_history_is_shown(capsys, cancel):
    learn = toy_learner([MetricsCB(), ProgressCB(), At("before_epoch", cancel, _second_round)])
    lines = fit_lines(capsys, learn, 3)
    assert [line.split()[0] for line in lines if "epoch" not in line] == [
        str(row["epoch"]) for row in learn.history
    ]


def _second_round(learn):
    return learn.epoch == 1


def test_rows_of_the_fit_that_is_resumed_are_not_shown_again(capsys):
    def resume(learn):
        learn.history.append({"epoch": 7, "steps": 8, "time": 1.0})

    at = At("before_fit", resume)
    at.order = Order.SAVE
    assert len(fit_lines(capsys, toy_learner([ProgressCB(), at]), 1)) == 2


def test_values_of_any_kind_become_short_text_in_one_line(capsys):
    class Odd(Callback):
        order = Order.METRICS

        def after_epoch(self, learn):
            learn.row |= {
                "matrix": torch.ones(5, 5),
                "scalar": torch.tensor(0.25),
                "text": "two\r\nlines",
                "nothing": None,
                "small": 1.5e-7,
            }

    header, row = fit_lines(capsys, toy_learner([Odd(), ProgressCB()]), 1)
    assert "tensor([[1., 1., 1., 1." in row
    assert {"0.2500", "1.5e-07"} <= set(row.split())
    assert "two lines" in row
    assert len(header) == len(row)


def test_standard_output_may_be_none_or_know_nothing_about_terminals(monkeypatch):
    class Bare:
        def __init__(self):
            self.text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    for stdout in (None, Bare()):
        monkeypatch.setattr(sys, "stdout", stdout)
        toy_learner([ProgressCB()]).fit(1)
    assert stdout.text.count("\n") == 2


class WriteOnly:
    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


class Broken(WriteOnly):
    def write(self, text):
        raise OSError("the disk is full")

    flush = write


class Odd(io.StringIO):
    encoding = "no such encoding"

    def isatty(self):
        raise RuntimeError("who knows")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


OUTPUTS = {"write only": WriteOnly, "broken": Broken, "closed": closed, "odd": Odd}
SPEAKERS = {
    "metrics": lambda: [MetricsCB()],
    "progress": lambda: [MetricsCB(), ProgressCB()],
    "log": lambda: [MetricsCB(), LogCB(1)],
}


def check_output(output, cbs, monkeypatch, capfd):
    """A fit goes on whatever standard output is; return what was written."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", OUTPUTS[output]())
        learn = toy_learner(cbs)
        learn.fit(2)
        written = getattr(sys.stdout, "text", "")
    assert learn.steps_done == 4
    assert capfd.readouterr().err == ""
    return written


@pytest.mark.case("F03")
@pytest.mark.parametrize("speaker", SPEAKERS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_no_standard_output_ends_a_fit(output, speaker, monkeypatch, capfd):
    text = check_output(output, SPEAKERS[speaker](), monkeypatch, capfd)
    assert output != "write only" or text.count("\n") >= 2


@pytest.mark.case("F03")
@pytest.mark.parametrize("output", ["broken", "closed"])
def test_an_output_that_ends_a_fit_would_be_seen(output, monkeypatch, capfd):
    monkeypatch.setattr(callback, "write_out", print)
    with pytest.raises((OSError, ValueError)):
        check_output(output, [MetricsCB()], monkeypatch, capfd)


class BadDisplay(Lines):
    """A display that fails at one of its methods."""

    redraw_every, has_plot = 0, True

    def __init__(self, method):
        super().__init__()
        setattr(self, method, self.fail)

    def fail(self, *args):
        raise ZeroDivisionError("no picture")


METHODS = ["show_bar", "add_loss", "add_row", "add_values", "close"]


def check_bad_display(method, monkeypatch):
    monkeypatch.setattr(progress, "open_display", lambda plot: BadDisplay(method))
    learn = toy_learner([metrics := MetricsCB(), ProgressCB()])
    with pytest.warns(UserWarning, match="no longer shown: ZeroDivisionError: no picture") as seen:
        learn.fit(2)
    assert len(seen) == 1 and learn.steps_done == 4
    assert "_log" not in vars(metrics)


@pytest.mark.case("F03")
@pytest.mark.parametrize("method", METHODS)
def test_a_display_that_fails_ends_with_one_warning_and_the_fit_goes_on(method, monkeypatch):
    check_bad_display(method, monkeypatch)


# ---- several ----


def check_two(screen_of, cbs, fit_cbs=()):
    """Of several ProgressCBs the last one shows the fit, once."""
    learn = toy_learner([metrics := MetricsCB(), *cbs])
    for _ in range(2):
        learn.fit(2, cbs=list(fit_cbs))
        assert "_log" not in vars(metrics)
        header, *rows = screen_of()
        assert "train_loss" in header and len(rows) == 2


@pytest.mark.case("F02")
@pytest.mark.parametrize(
    "make",
    [
        lambda: ([ProgressCB(), ProgressCB(plot=True)], ()),
        lambda: ([ProgressCB()], [ProgressCB(plot=True)]),
        lambda: ([ProgressCB(), ProgressCB(), ProgressCB()], ()),
        lambda: ([At("before_fit", lambda learn: learn.add_cb(ProgressCB())), ProgressCB()], ()),
        lambda: ([ProgressCB(), LogCB(None)], [ProgressCB()]),
    ],
)
def test_a_second_progress_takes_the_place_of_the_first(make, capsys):
    rows = lambda: [  # noqa: E731
        line for line in capsys.readouterr().out.splitlines() if "minilearn]" not in line
    ]
    check_two(rows, *make())


@pytest.mark.case("F02")
def test_the_check_of_two_finds_two_displays(capsys, monkeypatch):
    monkeypatch.setattr(progress, "isinstance", lambda *args: False, raising=False)
    with pytest.raises((AssertionError, ValueError)):
        check_two(lambda: capsys.readouterr().out.splitlines(), [ProgressCB(), ProgressCB()])


def test_one_that_is_added_in_a_fit_goes_on_in_the_place_of_the_first(capsys):
    add = At("after_round", lambda learn: learn.add_cb(ProgressCB()))
    learn = toy_learner([MetricsCB(), ProgressCB(), add])
    learn.fit(3)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["epoch", "0", "1", "2"]


def test_what_standard_output_cannot_encode_does_not_end_the_fit(monkeypatch, always_due):
    class Ascii(Screen):
        encoding = "ascii"

        def write(self, text):
            text.encode("ascii")
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", screen := Ascii())
    name = At("after_epoch", lambda learn: learn.row.update(name="…" * 9))
    toy_learner([ProgressCB(), name]).fit(1)
    assert "?????????" in screen.getvalue()
    assert "|#" in screen.getvalue()


# ---- a file ----


def train_into(log, n=1000):
    """Train with standard output in the file `log`, and look at the file as each round ends."""

    def look(learn):
        lines = Path(log).read_text().splitlines()
        assert len(lines) == learn.epoch + 2, f"epoch {learn.epoch} ended, the file has {lines}"

    cbs = [MetricsCB(), ProgressCB(plot=True), At("cleanup_round", look, times=3)]
    toy_learner(cbs, dls=(batches(n), batches(n // 10))).fit(3)


def train_in_a_process(log):
    command = f"from tests.progress.test_callback import train_into; train_into({str(log)!r})"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    with log.open("w") as out:
        subprocess.run([sys.executable, "-c", command], stdout=out, check=True, env=env)


def train_here(log):
    with log.open("w") as out, contextlib.redirect_stdout(out):
        train_into(log, n=20)


def check_redirected_output(log, train):
    train(log)
    text = log.read_bytes().decode()
    assert not set("\r\b\x1b") & set(text.replace(os.linesep, "\n"))
    assert 3 <= len(text.splitlines()) <= 3 + 3


@pytest.mark.case("C080")
def test_output_to_a_file_is_a_plain_line_an_epoch_that_appears_as_the_epoch_ends(tmp_path):
    check_redirected_output(tmp_path / "log.txt", train_in_a_process)


@pytest.mark.case("C080")
def test_the_check_of_a_file_fails_for_a_bar_and_for_lines_that_come_late(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "Lines", Terminal)
    with pytest.raises(AssertionError):
        check_redirected_output(tmp_path / "bar.txt", train_here)
    monkeypatch.undo()
    monkeypatch.setattr(display, "write_out", lambda text: print(text, end=""))
    with pytest.raises(AssertionError):
        check_redirected_output(tmp_path / "late.txt", train_here)


# ---- the bar ----


@given(
    width=st.integers(2, 200),
    total=st.none() | st.integers(1, 10**6),
    done=st.integers(0, 10**6),
    seconds=st.floats(0, 1e6),
    loss=st.none() | st.floats(),
    n=st.none() | st.integers(1, 10**6),
)
def test_the_line_of_a_bar_is_narrower_than_any_terminal(width, total, done, seconds, loss, n):
    line = Bar(("epoch", 3, n), "train", done, total, seconds, loss).line(width, "█")
    assert len(line) < width
    assert line.isprintable()


def test_a_bar_says_where_the_epoch_is_and_how_long_it_takes():
    line = Bar(("epoch", 0, 3), "train", 25, 100, 5.0, 0.123456).line(100)
    assert line.startswith("epoch 0/3 train  25% |#####")
    assert line.endswith("-| 25/100 loss 0.1235 5.0 it/s 00:15 left")
    assert Bar(("epoch", 0, 3), "train", 1, 4, 20.0, None).parts()["rate"] == "20.0 s/it"
    wrong_total = Bar(("epoch", 0, 3), "valid", 11, 10, 1.0, None)
    assert "%" not in wrong_total.line(100)
    assert "11 batches" in wrong_total.line(100)


def test_the_bar_shows_count_and_loss_of_the_batch_and_what_is_left_of_the_fit(screen, always_due):
    losses = []
    cbs = [ProgressCB(), At("after_batch", lambda learn: losses.append(learn.loss.item()), times=9)]
    toy_learner(cbs, dls=toy_dls(n_train=4)).fit(2)
    bars = [p for p in screen.pieces if "train" in p and "%" in p]
    shares = [bar.split("|")[0].removeprefix("\repoch 0/2 train ").strip() for bar in bars[:5]]
    assert shares == ["0%", "25%", "50%", "75%", "100%"]
    assert f"4/4 loss {losses[3]:.4f}" in bars[4]
    assert any("epoch 1/2 valid 100%" in p for p in screen.pieces)


def test_the_total_of_a_bar_follows_the_plan_of_the_fit():
    seen = []

    class See(ProgressCB):
        def _draw_bar(self, learn, done):
            seen.append((progress.fit_progress(learn), done, self._total))
            super()._draw_bar(learn, done)
            self._due = -1

    learn = toy_learner([See()], dls=(batches(3), None))
    learn.fit(n_steps=5)
    assert [s for s in seen if s[1] == 0] == [(("step", 0, 5), 0, 3), (("step", 3, 5), 0, 2)]
    seen.clear()
    learn.fit(2, valid_every=(2, "step"))
    assert [s[2] for s in seen if s[1] == 0] == [2, 2, 2]


class Endless(IterableDataset):
    """Eleven samples, and no length."""

    def __iter__(self):
        return iter(list(zip(torch.randn(11, 3), torch.randn(11, 1), strict=True)))


def check_stream_without_length(screen, valid):
    dl = DataLoader(Endless(), batch_size=3)
    learn = toy_learner([MetricsCB(), ProgressCB()], dls=(dl, dl if valid else None))
    seen = Counter()
    learn.add_cb(At("after_batch", lambda o: seen.update([(o.epoch, o.training)]), times=99))
    learn.fit(2)
    assert set(seen.values()) == {4}
    assert len(seen) == (4 if valid else 2)
    bars = [p for p in screen.pieces if p.startswith("\repoch")]
    assert any("4 batches" in bar for bar in bars)
    assert not any("%" in bar for bar in bars)


@pytest.mark.case("C079")
@pytest.mark.parametrize("valid", [True, False])
def test_a_stream_without_a_length_shows_a_count_and_no_percentage(screen, always_due, valid):
    check_stream_without_length(screen, valid)


@pytest.mark.case("C079")
def test_the_check_of_streams_fails_where_a_bar_needs_a_length(screen, always_due, monkeypatch):
    monkeypatch.setattr(progress, "n_batches_of_epoch", lambda learn: len(learn.dl))
    with pytest.raises(AssertionError), pytest.warns(UserWarning, match="has no len"):
        check_stream_without_length(screen, True)
    monkeypatch.setattr(progress, "n_batches_of_epoch", lambda learn: 4)  # a guess
    with pytest.raises(AssertionError):
        check_stream_without_length(screen, True)


def test_a_narrow_terminal_leaves_out_the_least_important_columns(screen, monkeypatch):
    monkeypatch.setattr(display, "terminal_width", lambda: 40)
    toy_learner([MetricsCB(mae=mae), ProgressCB()]).fit(1)
    left_out, header, row, _ = visible(screen)
    assert left_out == "no room for train_mae, time"
    assert header.split() == ["epoch", "train_loss", "valid_loss", "mae"]
    assert all(len(piece) <= 40 for piece in re.split("[\r\n]", screen.getvalue()))


# ---- what the bar and the table show beside the loss ----


def check_shown_bars(screen, pattern, expected):
    """Each bar of a training batch shows what is expected for it."""
    bars = [p for p in screen.pieces if " train " in p and "loss" in p]
    found = [float(re.search(pattern, bar)[1]) for bar in bars]
    assert found == pytest.approx(expected, abs=5e-5)


def test_the_bar_shows_values_that_are_logged_for_it_until_the_epoch_ends(screen, always_due):
    logged = []

    def log(learn):
        logged.append(torch.tensor(float(learn.iter), requires_grad=True) / 4)
        learn.log(acc5=logged[-1], bar=True)
        learn.log(hidden=1.0, picture=torch.ones(2), bar=False)

    at = At("after_loss", log, lambda learn: learn.training, times=9)
    toy_learner([MetricsCB(), ProgressCB(), at], dls=toy_dls(n_train=4)).fit(1, lr=0.01)
    check_shown_bars(screen, r"loss \S+ acc5 (\S+)", [0, 0.25, 0.5, 0.75])
    assert not any("acc5" in p for p in screen.pieces if " valid " in p)
    assert "train_hidden" in screen.getvalue()  # in the table
    assert " hidden" not in screen.getvalue() and "picture" not in screen.getvalue()


class Largest:
    """A metric object: the largest error so far. Its updates wait to be joined."""

    joins = True

    def reset(self):
        self.value = torch.tensor(0.0)

    __init__ = reset

    def update(self, preds, targs):
        self.value = torch.maximum(self.value, (preds - targs).abs().max())

    def compute(self):
        return self.value


def fit_and_measure(screen, **kwargs):
    """Fit, and return the learner with what each batch's metrics were."""
    errors = []
    see = At("after_batch", lambda learn: errors.append(learn.preds - learn.batch[1]), times=99)
    see.order = Order.METRICS - 1
    cbs = [MetricsCB(mae=mae, largest=Largest()), ProgressCB(**kwargs), see]
    learn = toy_learner(cbs, dls=toy_dls(n_train=4))
    learn.fit(1)
    return learn, errors[:4]


def test_the_bar_shows_the_metrics_of_the_epoch_so_far_where_asked_for(screen, always_due):
    _, errors = fit_and_measure(screen, metrics=True)
    so_far = [torch.cat(errors[: i + 1]).abs() for i in range(4)]
    check_shown_bars(screen, r"mae (\S+)", [e.mean().item() for e in so_far])
    check_shown_bars(screen, r"largest (\S+)", [e.max().item() for e in so_far])


def test_metrics_in_the_bar_change_no_value_of_the_history(screen, always_due):
    rows = [fit_and_measure(screen, metrics=m)[0].find(MetricsCB).rows for m in (True, False)]
    assert rows[0] == rows[1]


def test_a_table_may_have_a_column_for_the_learning_rate(capsys):
    sched = BatchSchedCB(partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5))
    cbs = [MetricsCB(), RecorderCB("lr", columns=True), ProgressCB(), sched]
    learn = toy_learner(cbs, dls=toy_dls(n_train=2))
    header, *rows = fit_lines(capsys, learn, 2, lr=0.08)
    assert header.split() == ["epoch", "train_loss", "valid_loss", "lr", "time"]
    assert [row.split()[3] for row in rows] == ["0.0400", "0.0100"]  # of the last update
    assert learn.history["lr"] == pytest.approx([0.04, 0.01])


def test_a_narrow_terminal_keeps_metrics_rather_than_learning_rates(screen, monkeypatch):
    monkeypatch.setattr(display, "terminal_width", lambda: 40)
    cbs = [MetricsCB(mae=mae), RecorderCB("lr", columns=True), ProgressCB()]
    toy_learner(cbs).fit(1)
    left_out, header, *_ = visible(screen)
    assert left_out == "no room for train_mae, lr, time"
    assert header.split()[-1] == "mae"


# ---- cost ----


@pytest.mark.parametrize("kind", [Lines, Terminal, lambda: Notebook(())])
def test_a_row_costs_the_same_however_many_came_before(kind, screen, monkeypatch):
    pytest.importorskip("IPython")
    monkeypatch.setattr(notebook.Notebook, "redraw_every", 0)  # each row is drawn
    monkeypatch.setattr(
        "IPython.display.display",
        lambda *args, **kwargs: SimpleNamespace(update=lambda *args, **kwargs: None),
    )
    shown = kind()

    def cost():
        """The calls of functions for a row."""
        calls = Counter()
        sys.setprofile(lambda frame, event, arg: calls.update([event]))
        try:
            shown.add_row({"epoch": 99, "train_loss": 0.25, "time": 1.0})
        finally:
            sys.setprofile(None)
        return calls["call"]

    costs = [cost() for _ in range(500)]
    assert max(costs[-100:]) <= max(costs[:200])
    assert notebook.MOST_ROWS < 200


def test_a_notebook_draws_rows_that_follow_fast_four_times_a_second(monkeypatch):
    clock, shown = [0.0], []
    monkeypatch.setattr(notebook.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Notebook, "show", lambda self: shown.append((clock[0], self.n_rows)))
    display_ = Notebook(())
    for i in range(2000):
        display_.add_row({"epoch": i})
        clock[0] += 0.01
    display_.close()
    assert shown[0] == (0.0, 1)  # the first at once
    assert len(shown) <= 20 * 4 + 2
    assert shown[-1][1] == 2000  # and all of them in the end
    shown.clear()
    clock[0] += 1
    for i in range(5):  # a slow one never waits
        display_.add_row({"epoch": i})
        clock[0] += 1
    assert len(shown) == 5


def test_a_long_table_in_a_notebook_ends_with_the_last_rows_and_says_what_it_left_out(monkeypatch):
    display_ = Notebook(())
    monkeypatch.setattr(Notebook, "show", lambda self: None)
    for i in range(250):
        display_.add_row({"epoch": i, "name": "x" * (9 if i == 3 else 1)})
        if i == 99:
            assert "rows" not in display_.html()
    page = display_.html()
    assert "the last 100 of 250 rows" in page
    assert re.findall(r"<td>(\d+)</td>", page) == [str(i) for i in range(150, 250)]
    assert display_.widths == {"epoch": 6, "name": 9}


def test_the_page_of_a_fit_closes_every_tag_that_it_opens(monkeypatch):
    display_ = Notebook(())
    monkeypatch.setattr(Notebook, "show", lambda self: None)
    display_.add_row({"epoch": 0, "train_loss": 1.0})
    page = display_.html()
    assert sorted(re.findall(r"<(\w+)", page)) == sorted(re.findall(r"</(\w+)", page))
    assert "table" in re.findall(r"<(\w+)", page)


class Reads(TorchDispatchMode):
    """Counts how often a value is read from a tensor."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


def looks_and_reads(monkeypatch, seconds_a_batch, n=100, plot=False):
    clock = [0.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: clock[0])
    looks, show = [], Terminal.show_bar
    monkeypatch.setattr(
        Terminal, "show_bar", lambda self, bar: (looks.append(bar), show(self, bar))
    )

    class Tick(Callback):
        def after_batch(self, learn):
            clock[0] += seconds_a_batch

    learn = toy_learner([ProgressCB(plot=plot), Tick()], dls=(batches(n), None))
    with Reads() as reads:
        learn.fit(1)
    return len(looks), reads.n


def test_the_bar_is_drawn_and_the_loss_is_read_five_times_a_second_at_most(screen, monkeypatch):
    assert looks_and_reads(monkeypatch, seconds_a_batch=0) == (1, 0)  # the empty bar
    looks, reads = looks_and_reads(monkeypatch, seconds_a_batch=0.01)
    assert 4 <= looks <= 6
    assert reads == looks - 1


def test_a_plot_in_a_terminal_costs_nothing(screen, monkeypatch):
    assert looks_and_reads(monkeypatch, seconds_a_batch=0, plot=True) == (1, 0)


def test_the_bar_changes_no_weight_no_loader_and_no_random_number(screen, always_due):
    with_bar, without = linear(), linear()
    learn, plain = toy_learner([ProgressCB()], model=with_bar), toy_learner(model=without)
    loaders = []
    learn.add_cb(
        At("after_batch", lambda learn: loaders.append((learn.dl, learn.plan.epochs)), times=9)
    )
    learn.fit(3)
    plain.fit(3)
    assert_same_weights(with_bar, without)
    assert all(dl is learn.dls[0] or dl is learn.dls[1] for dl, _ in loaders)
    assert all(epochs == range(3) for _, epochs in loaders)


# ---- endings ----

POINTS = ("before_fit", "before_round", "before_epoch", "before_batch", "after_loss", "after_step")
POINTS += ("after_batch", "after_epoch", "after_round", "after_fit", "cleanup_batch", "cleanup_fit")


@pytest.mark.parametrize("error", [CancelFitException, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("point", POINTS)
def test_however_a_fit_ends_the_bar_is_cleared_and_the_next_fit_works(
    screen, always_due, point, error
):
    metrics = MetricsCB()
    learn = toy_learner([metrics, ProgressCB(), at := At(point, error)])
    try:
        learn.fit(2)
    except (error, RuntimeError):
        pass
    assert at.times == 0
    assert visible(screen)[-1] == ""
    assert "_log" not in vars(metrics)
    assert learn.find(ProgressCB)._display is None
    learn.fit(1)
    assert visible(screen)[-2].split()[0] == "0"


def test_a_callback_that_ends_the_fit_at_its_first_batch_leaves_its_row(screen, always_due):
    toy_learner([ProgressCB(), SingleBatchCB()]).fit(1)
    header, row, rest = visible(screen)
    assert (header.split(), row.split()[0], rest) == (["epoch", "time"], "0", "")


def test_a_fit_inside_the_fit_shows_nothing(screen, always_due):
    bar = ProgressCB()
    seen = []

    def inner(learn):
        before, opened = len(screen.pieces), bar._display
        learn.nesting = Nesting(depth=1)
        for event in ("before_fit", "before_epoch", "after_batch", "after_round", "cleanup_fit"):
            run_cbs([bar], event, learn)
        learn.nesting = Nesting()
        seen.append((len(screen.pieces) == before, bar._display is opened is not None))

    toy_learner([bar, At("after_batch", inner)]).fit(1)
    assert seen == [(True, True)]


# ---- MetricsCB ----


def test_metrics_print_nothing_while_rows_are_shown_and_print_again_afterwards(capsys):
    metrics = MetricsCB()
    learn = toy_learner([metrics, ProgressCB()])
    assert len(fit_lines(capsys, learn, 2)) == 3
    assert "_log" not in vars(metrics)
    learn.remove_cb(ProgressCB)
    assert len(fit_lines(capsys, learn, 2)) == 4  # a line an epoch


@pytest.mark.parametrize("display", [ProgressCB, LogCB])
def test_a_log_of_the_users_own_is_called_beside_a_display(display):
    on_object, seen = MetricsCB(), []
    on_object._log = seen.append

    class Tracker(MetricsCB):
        def _log(self, row):
            rows.append(row)

    for metrics, rows in ((on_object, seen), (Tracker(), [])):
        toy_learner([metrics, display()]).fit(2)
        assert rows == metrics.rows and len(rows) == 4
    assert on_object._log == seen.append


class NotebookMetrics(Callback):
    """As people write it in a notebook: values as text, and nothing for a history."""

    order = Order.METRICS

    def _log(self, d):
        print(d)

    def before_fit(self, learn):
        learn.metrics = self

    def after_epoch(self, learn):
        phase = "train" if learn.model.training else "eval"
        self._log({"loss": f"{learn.loss:.3f}", "epoch": learn.epoch, "train": phase})


class BareLearner:
    """A learner as a notebook defines it: no history, no levels, no clean-up, no `training`."""

    def __init__(self, model, dls, cbs):
        self.model, self.dls, self.cbs = model, dls, cbs
        self.opt = torch.optim.SGD(model.parameters(), 0.1)

    def callback(self, name):
        run_cbs(self.cbs, name, self)

    def one_epoch(self, train):
        self.model.train(train)
        self.dl = self.dls[0] if train else self.dls[1]
        self.callback("before_epoch")
        for self.iter, self.batch in enumerate(self.dl):  # noqa: B020
            self.preds = self.model(self.batch[0])
            self.loss = F.mse_loss(self.preds, self.batch[1])
            if train:
                self.loss.backward()
                self.opt.step()
                self.opt.zero_grad()
            self.callback("after_batch")
        self.callback("after_epoch")

    def fit(self, n_epochs):
        self.n_epochs, self.epochs = n_epochs, range(n_epochs)
        self.callback("before_fit")
        for self.epoch in self.epochs:  # noqa: B020
            self.one_epoch(True)
            self.one_epoch(False)
        self.callback("after_fit")


@pytest.mark.parametrize("make", [NotebookMetrics, MetricsCB])
def test_a_learner_of_a_notebooks_own_shows_a_row_an_epoch(screen, always_due, make):
    BareLearner(linear(), toy_dls(), [make(), ProgressCB(plot=True)]).fit(2)
    header, *rows, rest = visible(screen)
    assert sorted(header.split()) == ["epoch", "loss", "train"]
    assert ["train" in row for row in rows] == [True, False, True, False]
    assert "epoch 1/2 valid 100%" in screen.getvalue()
    assert rest == ""


def test_metrics_of_a_notebooks_own_show_their_rows_on_our_learner_too(capsys):
    learn = toy_learner([NotebookMetrics(), ProgressCB()])
    lines = fit_lines(capsys, learn, 1)
    assert [line.split()[-1] for line in lines] == ["train", "train", "valid"]


def test_a_learner_without_metrics_and_history_has_its_bar(screen, always_due):
    BareLearner(linear(), toy_dls(), [ProgressCB()]).fit(1)
    assert "epoch 0/1 train 100%" in screen.getvalue()


# ---- the curve ----


def test_losses_of_the_curve_are_read_together_and_in_order():
    curve, losses = LossCurve(), torch.rand(50)
    shown = Notebook(("loss",))
    shown.curve = curve
    with Reads() as reads:
        for loss in losses:
            shown.add_loss(loss)
        curve.add_values({"valid_loss": 0.5})
    assert reads.n == 0
    curve.draw()
    assert list(curve.train) == losses.tolist()
    assert curve.values == {"valid_loss": [(50, 0.5)]}
    assert curve.pending == []


def test_a_long_curve_is_drawn_through_means_of_neighbours():
    x, y = thinned(range(1, 10_001), most=1000)
    assert len(x) == len(y) == 1000
    assert x[0] == y[0] == 5.5  # batches 1 to 10, whose losses are 1 to 10
    assert x[-1] == y[-1] == 9995.5
    assert thinned([3.0, 1.0]) == ([1.0, 2.0], [3.0, 1.0])
    assert thinned([]) == ([], [])


def test_a_plot_has_axes_for_each_name_with_its_logged_values_and_columns(screen, monkeypatch):
    monkeypatch.setattr(progress, "open_display", lambda plot: display_)
    monkeypatch.setattr(Notebook, "show", lambda self: None)
    names, drawn = ["loss", "mae", "norm"], {}

    def keep(self, name, axes):
        draw(self, name, axes)
        for line in axes.lines:
            drawn[name, line.get_label()] = [tuple(point) for point in line.get_xydata().tolist()]

    draw = LossCurve._draw
    monkeypatch.setattr(LossCurve, "_draw", keep)
    display_ = Notebook(tuple(names))
    bar = ProgressCB(plot=names)
    log = At("after_loss", lambda learn: learn.log(norm=learn.loss * 2), times=99)
    learn = toy_learner([MetricsCB(mae=mae), bar, log], dls=toy_dls(n_train=3))
    seen = []
    learn.on("after_step", lambda learn: seen.append(learn.loss.item()))
    learn.fit(2)
    at = [3, 6]  # batches
    assert drawn["loss", "train"] == [(i + 1, pytest.approx(x)) for i, x in enumerate(seen)]
    assert drawn["loss", "valid"] == list(zip(at, learn.history["valid_loss"], strict=True))
    assert drawn["mae", "train"] == list(zip(at, learn.history["train_mae"], strict=True))
    assert drawn["mae", "valid"] == list(zip(at, learn.history["mae"], strict=True))
    assert drawn["norm", "train"] == [(i + 1, pytest.approx(2 * x)) for i, x in enumerate(seen)]
    assert display_.curve.size == (900, 600) and display_.curve.image
    assert repr(bar) == "ProgressCB(plot=('loss', 'mae', 'norm'))"


def test_a_curve_is_drawn_once_a_second_and_less_often_where_drawing_is_slow(monkeypatch):
    clock, curve = [0.0], LossCurve()
    monkeypatch.setattr(notebook.time, "perf_counter", lambda: clock[0])
    drawn = []

    def slow_draw():
        drawn.append(clock[0])
        clock[0] += 0.1

    curve.draw, curve.due, curve.image = slow_draw, 1.0, "there was one"
    while clock[0] < 10:
        curve.draw_if_due()
        clock[0] += 0.01
    assert all(b - a > 1 for a, b in zip(drawn, drawn[1:], strict=False))
    assert 7 <= len(drawn) <= 9


def test_a_display_suits_what_standard_output_is(screen, monkeypatch):
    assert type(progress.open_display()) is Terminal
    screen.isatty = lambda: False
    assert type(progress.open_display()) is Lines
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    assert type(progress.open_display()) is Notebook


def test_it_shows_its_setting():
    assert [repr(ProgressCB()), repr(ProgressCB(plot=True))] == [
        "ProgressCB()",
        "ProgressCB(plot=True)",
    ]
    assert TrainCB.order < MetricsCB.order < ProgressCB.order == Order.REPORT
