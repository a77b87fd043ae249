"""What the loggers write, read back by other tools, equals the history and a loop by hand."""

import io
import json
import logging
import math
import os
import pickle
import signal
import stat
import statistics
import struct
import time
import warnings

import numpy
import pandas
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minilearn.loggers.base as base
import minilearn.loggers.files as files
import minilearn.loggers.text_log as textlog
import minilearn.metrics.callback as metrics_callback
from minilearn import (
    BatchSchedCB,
    Callback,
    CancelRoundException,
    CheckpointCB,
    CSVLoggerCB,
    JSONLLoggerCB,
    LogCB,
    LoggerCB,
    MetricsCB,
    MLflowCB,
    ProgressCB,
    RunCB,
    TensorBoardCB,
    TrainCB,
    WandbCB,
    log_values,
    mae,
    setup_logger,
)
from minilearn.learner import Learner
from tests.test_no_sync import reads_in_batches
from tests.toys import At, assert_same_weights, batches, linear, toy_learner

EPOCHS, N = 3, 5


def dls():
    return batches(N, seed=1), batches(2, seed=2)


def learner(*cbs, **kwargs):
    return toy_learner([MetricsCB(mae=mae), *cbs], dls=dls(), **kwargs)


def losses_by_hand(epochs=EPOCHS, lr=0.1):
    model, losses = linear(), []
    opt = torch.optim.SGD(model.parameters(), lr)
    for _ in range(epochs):
        for xb, yb in dls()[0]:
            loss = F.mse_loss(model(xb), yb)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
    return losses


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_csv(path):
    rows = pandas.read_csv(path, engine="python").to_dict("records")
    return [{k: v for k, v in row.items() if v == v} for row in rows]  # nan: not in the row


def read_tensorboard(folder):
    """Rows of each step of the events, by the reader of TensorBoard's server."""
    module = "tensorboard.backend.event_processing.plugin_event_accumulator"
    accumulator = pytest.importorskip(module)
    from tensorboard.util.tensor_util import make_ndarray

    events = accumulator.EventAccumulator(str(folder), tensor_size_guidance={"scalars": 0})
    events.Reload()
    return {  # sorted: files of one second are read in the order of their processes' numbers
        tag: sorted((e.step, float(make_ndarray(e.tensor_proto))) for e in events.Tensors(tag))
        for tag in events.Tags()["tensors"]
    }


def columns_of(rows):
    """The same form, from rows."""
    found = {}
    for row in rows:
        for name, value in row.items():
            if name != "steps":
                found.setdefault(name, []).append((row["steps"], value))
    return found


# ---- files ----


def test_csv_read_by_pandas_equals_the_history(tmp_path):
    learn = learner(CSVLoggerCB(tmp_path / "a" / "rows.csv"))
    learn.fit(EPOCHS)
    assert read_csv(tmp_path / "a" / "rows.csv") == list(learn.history)
    assert list(pandas.read_csv(tmp_path / "a" / "rows.csv")) == learn.history.columns


def test_json_lines_equal_the_history_and_a_loop_by_hand(tmp_path):
    learn = learner(JSONLLoggerCB(tmp_path / "rows.jsonl", every=1))
    learn.fit(EPOCHS)
    rows = lines(tmp_path / "rows.jsonl")
    assert [row for row in rows if "time" in row] == list(learn.history)
    updates = [row for row in rows if "loss" in row]
    assert [row["loss"] for row in updates] == losses_by_hand()
    assert [row["steps"] for row in updates] == list(range(1, EPOCHS * N + 1))


def test_an_update_record_has_the_mean_since_the_record_before():
    logger = LoggerCB(every=4)
    learner(logger).fit(EPOCHS)
    by_hand = torch.tensor(losses_by_hand(), dtype=torch.float64)[:12].view(3, 4).mean(1)
    rows = [row for row in logger.records if "loss" in row]
    assert [row["steps"] for row in rows] == [4, 8, 12]
    torch.testing.assert_close(torch.tensor([r["loss"] for r in rows]).double(), by_hand)


def test_lr_is_what_the_update_used_and_groups_have_their_own():
    def halving(opt):
        return torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)

    model, logger = linear(), LoggerCB(every=1)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.01}]
    learn = toy_learner(
        [BatchSchedCB(halving), logger], dls=dls(), model=model, opt=torch.optim.SGD(groups, 0.1)
    )
    learn.fit(1, valid=False)
    updates = [row for row in logger.records if "loss" in row]
    assert [row["lr_0"] for row in updates] == [0.1 * 0.5**k for k in range(N)]
    assert [row["lr_1"] for row in updates] == [0.01 * 0.5**k for k in range(N)]


def test_parts_of_a_loss_are_columns():
    def parts(preds, y):
        return {"mse": F.mse_loss(preds, y), "size": 0.1 * preds.abs().mean()}

    logger = LoggerCB(every=1)
    learn = Learner(linear(), (dls()[0],), parts, cbs=[TrainCB(), logger])
    learn.fit(1)
    for row in logger.records[:-1]:
        assert row["loss"] == pytest.approx(row["mse"] + row["size"])


def test_a_new_column_extends_the_header(tmp_path):
    late = At("after_epoch", lambda learn: learn.log(late=1.5), lambda learn: learn.epoch == 1)
    learn = learner(late, CSVLoggerCB(tmp_path / "rows.csv"))
    learn.fit(EPOCHS)
    rows = read_csv(tmp_path / "rows.csv")
    assert rows[1]["train_late"] == 1.5
    assert rows == list(learn.history)


def test_another_fit_keeps_the_file_of_the_one_before(tmp_path):
    learn = learner(CSVLoggerCB(tmp_path / "rows.csv"))
    first = learn.fit(1) or list(learn.history)
    second = learn.fit(2) or list(learn.history)
    learn.fit(1)
    assert read_csv(tmp_path / "rows_1.csv") == first
    assert read_csv(tmp_path / "rows_2.csv") == second
    assert read_csv(tmp_path / "rows.csv") == list(learn.history)


def test_cancelled_rounds_and_fits_have_their_rows(tmp_path):
    cancel = At("after_loss", CancelRoundException, lambda learn: learn.epoch == 1)
    learn = learner(cancel, CSVLoggerCB(tmp_path / "rows.csv"))
    learn.fit(2)
    assert len(learn.history) == 2
    assert read_csv(tmp_path / "rows.csv") == list(learn.history)


# ---- trackers ----


@pytest.mark.parametrize("every", [None, 1])
def test_tensorboard_reads_the_history_to_the_last_digit(tmp_path, every):
    learn = learner(TensorBoardCB(tmp_path, every))
    learn.fit(EPOCHS)
    read = read_tensorboard(tmp_path)
    if every:
        steps, losses = zip(*read.pop("loss"), strict=True)
        assert list(losses) == losses_by_hand()
        assert list(steps) == list(range(1, EPOCHS * N + 1))
        assert read.pop("lr") == [(step, 0.1) for step in steps]
        read.pop("epoch")
        assert read == {k: v for k, v in columns_of(learn.history).items() if k != "epoch"}
    else:
        assert read == columns_of(learn.history)


def test_tensorboard_gets_figures_and_histograms(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1))
    shows = At("after_batch", lambda learn: learn.log(picture=figure, weights=torch.arange(9.0)))
    plain = CSVLoggerCB(tmp_path / "rows.csv")  # leaves them out
    learn = learner(shows, TensorBoardCB(tmp_path), plain)
    learn.fit(1)
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert events.Images("picture")[0].step == 1
    assert events.Histograms("weights")[0].histogram_value.num == 9
    assert read_csv(tmp_path / "rows.csv") == list(learn.history)


def wandb_rows(folder):
    """The rows in a run's file: a log of records in blocks of 32 KiB (LevelDB's), of protobufs."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run*/*.wandb")
    data, place, parts, rows = path.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            record, parts = Record.FromString(parts), b""
            if record.WhichOneof("record_type") == "history":
                items = {(i.key or i.nested_key[0]): i.value_json for i in record.history.item}
                rows.append({k: json.loads(v) for k, v in items.items()})
    return rows


def test_wandb_offline_holds_the_history(tmp_path):
    pytest.importorskip("wandb")
    logger = WandbCB(every=2, mode="offline", dir=str(tmp_path), settings={"silent": True})
    learn = learner(logger)
    learn.fit(2)
    deadline = time.monotonic() + 60
    rows = wandb_rows(tmp_path)
    while len(rows) < 6 and time.monotonic() < deadline:  # its own process writes, in its own time
        time.sleep(0.2)
        rows = wandb_rows(tmp_path)
    ours = [{k: v for k, v in row.items() if k[0] != "_"} for row in rows if "time" in row]
    for row in ours:
        for name in ("loss", "lr"):  # W&B joins rows of one step
            row.pop(name, None)
    assert ours == list(learn.history)
    means = [(a + b) / 2 for a, b in zip(*[iter(losses_by_hand(2))] * 2, strict=True)]
    assert [row["loss"] for row in rows if "loss" in row] == pytest.approx(means)


def test_a_resumed_fit_goes_on_with_its_wandb_run(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    asked = []

    class Run:
        id, log, finish = "abc", lambda *args, **kwargs: None, lambda self, exit_code: None

    monkeypatch.setattr(wandb, "init", lambda **kwargs: asked.append(kwargs) or Run())
    for resume in (None, True):
        learn = learner(WandbCB(project="p"), CheckpointCB(tmp_path, background=False))
        learn.fit(2 if resume else 1, resume=resume)
    assert asked == [{"project": "p"}, {"project": "p", "id": "abc", "resume": "allow"}]


@pytest.mark.slow
def test_mlflow_holds_the_history_after_a_resume_too(tmp_path):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    broken = [
        MLflowCB(uri, every=1),
        CheckpointCB(tmp_path / "c", every=(3, "step"), on_exception=False),
    ]
    stop = At("after_batch", ValueError("gone"), lambda learn: learn.steps_done == 8)
    with pytest.raises(ValueError, match="gone"):
        learner(*broken, stop).fit(EPOCHS)
    client = MlflowClient(uri)
    assert client.get_run(broken[0].run_id).info.status == "FAILED"
    logger = MLflowCB(uri, every=1)
    learn = learner(logger, CheckpointCB(tmp_path / "c"))
    learn.fit(EPOCHS, resume=True)
    assert logger.run_id == broken[0].run_id
    assert client.get_run(logger.run_id).info.status == "FINISHED"
    for name, values in columns_of(learn.history).items():
        if name != "epoch":
            history = client.get_metric_history(logger.run_id, name)
            assert [(m.step, m.value) for m in history] == values or name == "time"
    losses = client.get_metric_history(logger.run_id, "loss")
    assert [m.value for m in losses] == losses_by_hand()


@pytest.mark.parametrize("cls", [TensorBoardCB, WandbCB, MLflowCB])
def test_a_missing_library_is_an_error_at_once(cls, monkeypatch):
    monkeypatch.setattr("minilearn.loggers.base.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install"):
        cls() if cls is not TensorBoardCB else cls("runs")


# ---- kill and resume ----

LOGGERS = {
    "csv": lambda folder: CSVLoggerCB(folder / "rows.csv", every=2),
    "jsonl": lambda folder: JSONLLoggerCB(folder / "rows.jsonl", every=2),
    "tensorboard": lambda folder: TensorBoardCB(folder / "tb", every=2),
}
READ = {
    "csv": lambda folder: read_csv(folder / "rows.csv"),
    "jsonl": lambda folder: lines(folder / "rows.jsonl"),
    "tensorboard": lambda folder: read_tensorboard(folder / "tb"),
}


def untimed(rows):
    if isinstance(rows, dict):
        return {k: v for k, v in rows.items() if k != "time"} | {"times": len(rows["time"])}
    return [{k: v for k, v in row.items() if k != "time"} for row in rows]


def run(kind, folder, *cbs, **kwargs):
    noted = At("after_loss", lambda learn: learn.log(twice=2 * learn.loss), times=math.inf)
    logger = LOGGERS[kind](folder)
    saver = CheckpointCB(folder / "c", (3, "step"), background=False, on_exception=False)
    learn = learner(noted, logger, saver, *cbs)
    learn.fit(EPOCHS, **kwargs)
    return learn


def kill_at(event, step):
    def die(learn):
        os.kill(os.getpid(), signal.SIGKILL)

    return At(event, die, lambda learn: learn.steps_done == step)


def in_child(f):
    """Run `f` in a copy of this process, and return the signal that ended it."""
    if (child := os.fork()) == 0:
        try:
            f()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", LOGGERS)
@pytest.mark.parametrize(
    ("event", "step"), [("before_step", 4), ("cleanup_batch", 8), ("after_epoch", 10)]
)
def test_a_killed_and_resumed_run_has_the_rows_of_an_unbroken_one(tmp_path, kind, event, step):
    if kind == "tensorboard":
        pytest.importorskip("tensorboard")
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    run(kind, whole)
    assert in_child(lambda: run(kind, broken, kill_at(event, step))) == -signal.SIGKILL
    check_resumed(kind, broken, whole)


def check_resumed(kind, broken, whole):
    if kind == "tensorboard":  # it reads files in the order of the seconds in their names
        time.sleep(1.01)
    run(kind, broken, resume=True)
    assert untimed(READ[kind](broken)) == untimed(READ[kind](whole))


def test_a_logger_that_forgets_its_place_is_seen(tmp_path, monkeypatch):
    run("csv", tmp_path / "whole")
    dies = At("cleanup_batch", ValueError("gone"), lambda learn: learn.steps_done == 8)
    with pytest.raises(ValueError, match="gone"):
        run("csv", tmp_path / "broken", dies)

    def forgetful(self, state):
        LoggerCB.load_state_dict(self, state)
        self.written = 100

    monkeypatch.setattr(CSVLoggerCB, "load_state_dict", forgetful)
    with pytest.raises(AssertionError):
        check_resumed("csv", tmp_path / "broken", tmp_path / "whole")


# ---- what goes wrong ----


class Full(CSVLoggerCB):
    """A disk that is full from the second row of history to the end of the third."""

    def _append(self, text):
        if self.written == 1 and self.refused < 2:
            self.refused += 1
            raise OSError(28, "No space left on device")
        super()._append(text)

    refused = 0


def test_a_logger_that_fails_warns_once_and_catches_up(tmp_path):
    learn, plain = learner(Full(tmp_path / "rows.csv")), learner()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        learn.fit(4)
    plain.fit(4)
    assert [str(w.message)[:22] for w in seen if "cannot write" in str(w.message)] == [
        "Full cannot write: OSE"
    ]
    assert_same_weights(learn.model, plain.model)
    assert read_csv(tmp_path / "rows.csv") == list(learn.history)


def test_half_a_line_is_taken_back(tmp_path, monkeypatch):
    class Short(io.FileIO):
        def write(self, data):
            return super().write(data[: len(data) // 2])

    logger = JSONLLoggerCB(tmp_path / "rows.jsonl")
    logger.file = logger.path
    logger._append("whole\n")
    with monkeypatch.context() as patch:
        patch.setattr(type(logger.path), "open", lambda self, mode, buffering: Short(self, mode))
        with pytest.raises(OSError, match="no space"):
            logger._append("half a line\n")
    assert logger.path.read_text() == "whole\n"


def test_an_image_that_cannot_be_drawn_holds_nothing_up(tmp_path):
    pytest.importorskip("tensorboard")
    learn = learner(TensorBoardCB(tmp_path), At("after_batch", lambda learn: learn.log(x="text")))
    with pytest.warns(UserWarning, match="TensorBoardCB cannot write"):
        learn.fit(2)
    assert read_tensorboard(tmp_path)["valid_loss"] == columns_of(learn.history)["valid_loss"]


def test_a_logger_that_cannot_even_open_ends_nothing(tmp_path):
    (tmp_path / "file").touch()
    learn = learner(CSVLoggerCB(tmp_path / "file" / "rows.csv"))
    with pytest.warns(UserWarning, match="CSVLoggerCB cannot write"):
        learn.fit(2)
    assert len(learn.history) == 2


def test_a_dry_run_writes_nothing(tmp_path):
    pytest.importorskip("tensorboard")
    cbs = [kind(tmp_path) for kind in LOGGERS.values()]
    learner(*cbs, LogCB(1, tmp_path), RunCB(tmp_path)).dry_run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cls", [WandbCB, MLflowCB])
def test_a_dry_run_leaves_servers_alone(cls, monkeypatch):
    monkeypatch.setattr("minilearn.loggers.base.find_spec", lambda name: True)
    opened = []
    monkeypatch.setattr(cls, "_open", lambda self: opened.append(self))
    learner(cls()).dry_run()
    assert opened == []


def test_only_the_first_process_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    learn = learner(CSVLoggerCB(tmp_path / "rows.csv"), LogCB(1, tmp_path), RunCB(tmp_path))
    learn.fit(1)
    assert [path.name for path in tmp_path.iterdir()] == ["log_rank1.txt"]
    assert "lr 0.1" not in capsys.readouterr().out


def test_validations_inside_a_fit_add_no_records():
    plain, busy, text = LoggerCB(1), LoggerCB(1), LogCB(N)
    learner(plain).fit(2)
    learner(At("after_batch", lambda learn: learn.validate(), times=3), busy, text).fit(2)
    assert untimed(busy.records) == untimed(plain.records)
    assert text._validations == 2


# ---- values of the user's own ----


class Talkative(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, x):
        y = self.layer(x)
        log_values(size=y.abs().mean())
        return y


def test_a_model_may_log_from_inside():
    logger = LoggerCB(1)
    learner(logger, model=Talkative()).fit(1)
    sizes = []

    def note(module, args, out):
        sizes.append(out.abs().mean().item())

    again = linear()
    again.register_forward_hook(note)
    learner(model=again).fit(1)
    assert [row["size"] for row in logger.records[:-1]] == sizes[:N]
    assert logger.records[-1]["train_size"] == pytest.approx(sum(sizes[:N]) / N)
    assert logger.records[-1]["size"] == pytest.approx(sum(sizes[N:]) / 2)
    Talkative()(torch.randn(2, 3))  # outside of a fit nobody listens


def test_values_are_smoothed_by_default():
    class Counts(Callback):
        def after_batch(self, learn):
            learn.log(mean=learn.iter)
            learn.log(smooth=False, last=numpy.float32(learn.iter))

    logger = LoggerCB(N)
    learner(Counts(), logger).fit(1)
    assert (logger.records[0]["mean"], logger.records[0]["last"]) == (2.0, 4)


def test_of_two_nested_fits_the_inner_gets_what_its_model_logs():
    inner_logger, outer_logger = LoggerCB(1), LoggerCB(1)
    inner = learner(inner_logger, model=Talkative())
    outer = learner(At("after_batch", lambda learn: inner.fit(1)), outer_logger)
    outer.fit(1)
    assert all("size" in row for row in inner_logger.records[:-1])
    assert not any("size" in row for row in outer_logger.records)


# ---- text ----


def test_a_line_has_all_values(tmp_path, capsys):
    learner(LogCB(2, tmp_path)).fit(2)
    text = (tmp_path / "log.txt").read_text()
    assert text.count("\n") == N + 2  # every second of the updates, and a row a round
    first = text.splitlines()[0]
    for word in ("epoch 0 batch 2/5", "steps 2", "loss ", "lr 0.1", "data_s", "batch_s", "left 0:"):
        assert word in first
    assert all(word in first for word in ("items_per_s", "memory_mb"))
    assert "train_loss" in text and "mae" in text
    assert first in capsys.readouterr().out
    assert not any(
        isinstance(h, logging.FileHandler) for h in logging.getLogger("minilearn").handlers
    )


def test_the_log_prints_the_rows_and_the_metrics_do_not(capsys):
    for cbs in ([LogCB(N)], [ProgressCB(), LogCB(N)], [LogCB(N), ProgressCB()]):
        learn = learner(*cbs)
        learn.fit(1)
        assert "epoch 0  train" not in capsys.readouterr().out
        assert "_log" not in vars(learn.metrics)
    learner().fit(1)
    assert "epoch 0  train" in capsys.readouterr().out


def test_a_resumed_log_goes_on_and_says_so(tmp_path):
    def fit(epochs, **kwargs):
        saver = CheckpointCB(tmp_path / "saved", every=1)
        learner(saver, LogCB(N, tmp_path)).fit(epochs, **kwargs)
        return (tmp_path / "log.txt").read_text().splitlines()

    first = fit(1)
    lines = fit(2, resume=True)
    assert lines[: len(first)] == first
    assert f"going on after update {N}" in lines[len(first)]
    assert len(lines) == 2 * len(first) + 1


def test_the_mean_of_a_line_is_that_of_the_window():
    lines, logger = [], LogCB(every=10, window=3)
    logger._write = lines.append
    learner(logger).fit(2)
    assert lines[1]["loss"] == pytest.approx(sum(losses_by_hand()[7:10]) / 3)


def test_a_line_shows_the_median_of_the_losses_if_asked():
    lines, logger = [], LogCB(every=10, window=5, median=True)
    logger._write = lines.append
    learner(logger).fit(2)
    assert lines[1]["loss"] == pytest.approx(statistics.median(losses_by_hand()[5:10]))


def test_time_left_counts_validations(monkeypatch):
    """A batch takes one second, a validation ten; validations to come are seen in the past ones."""
    clock = [0.0]
    monkeypatch.setattr(textlog, "perf_counter", lambda: clock[0])

    class Slow(Callback):
        def after_loss(self, learn):
            clock[0] += 1.0 if learn.training else 5.0

    rows, logger = [], LogCB(every=N)
    logger._write = rows.append
    learner(Slow(), logger).fit(4)
    left = [row["left"] for row in rows if "left" in row]
    guess = 3 * N + 4 * 2 / 3  # a forward pass is about a third of a step
    assert left == [f"0:00:{round(guess)}", "0:00:40", "0:00:25", "0:00:10"]


def test_a_line_comes_with_a_read_and_nothing_else_does(monkeypatch):
    assert reads_in_batches(monkeypatch, LogCB(every=50), LoggerCB(every=50)) == []
    assert reads_in_batches(monkeypatch, LogCB(every=3))


def test_loggers_are_set_up_once(tmp_path, capsys):
    name = "test_loggers_are_set_up_once"
    logger = setup_logger(name, output=tmp_path / "deep")
    assert setup_logger(name, output=str(tmp_path / "deep")) is logger
    logger.info("plain")
    logger.warning("careful")
    logger.debug("hidden")
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition("]: ")[2] for line in shown] == ["plain", "WARNING: careful"]
    assert (tmp_path / "deep" / "log.txt").read_text().splitlines() == shown
    setup_logger(name, tmp_path / "own.log", rank=2)
    logger.info("third")
    assert (tmp_path / "own_rank2.log").read_text().count("third") == 1
    for handler in list(logger.handlers):
        handler.close()


def test_colours_are_for_terminals(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    logger = setup_logger("test_colours_are_for_terminals")
    logger.warning("careful")
    assert "\033[33mWARNING" in terminal.getvalue()


# ---- run folder ----


def test_a_run_folder_says_what_the_run_was(tmp_path):
    torch.manual_seed(7)
    learner(RunCB(tmp_path, bs=2)).fit(2)
    with pytest.raises(ValueError, match="gone"):
        learner(RunCB(tmp_path), At("after_batch", ValueError("gone"))).fit(1)
    first, second = json.loads((tmp_path / "run.json").read_text())
    assert (first["seed"], first["settings"], first["steps"], first["error"]) == (
        7,
        {"bs": 2},
        2 * N,
        None,
    )
    assert first["environment"]["packages"]["torch"] == torch.__version__
    assert first["plan"]["n_epochs"] == 2 and first["opt"]["lr"] == 0.1
    assert second["error"] == "ValueError('gone')"


# ---- a checkpoint before the row is written ----


def check_row_of_a_checkpoint(folder, save_at, event="after_round"):
    """What was logged in a round is in its row, whatever saved in that round before the loggers."""

    def saver(folder):
        def save(learn):
            learn.save_checkpoint(folder / "hand.ckpt")

        return At(event, save, lambda learn: learn.epoch == save_at)

    def noted():
        return At("after_loss", lambda learn: learn.log(n=learn.steps_done), times=math.inf)

    whole, first, second = (folder / f"{name}.jsonl" for name in ("whole", "first", "second"))
    learner(noted(), JSONLLoggerCB(whole)).fit(EPOCHS)
    # listed before the logger, and in a lower slot
    learner(noted(), saver(folder), JSONLLoggerCB(first)).fit(save_at + 1)
    logger = JSONLLoggerCB(second)
    learner(noted(), logger).fit(EPOCHS, resume=folder / "hand.ckpt")
    rows = lines(whole)
    assert untimed(lines(first)) == untimed(rows[: save_at + 1])
    assert untimed(lines(second)) == untimed(rows[len(rows) - len(lines(second)) :])
    assert len(lines(second)) == EPOCHS - save_at


@pytest.mark.case("F49")
@pytest.mark.parametrize("save_at", [0, 1, 2])
def test_a_checkpoint_before_the_row_is_written_leaves_logged_values_in_their_row(
    tmp_path, save_at
):
    check_row_of_a_checkpoint(tmp_path, save_at)


@pytest.mark.case("F49")
def test_the_check_of_rows_finds_rows_that_are_written_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(LoggerCB, "load_state_dict", lambda self, state: None)
    with pytest.raises(AssertionError):
        check_row_of_a_checkpoint(tmp_path, 1)


# ---- what is no plain file ----

FILES = {"csv": CSVLoggerCB, "jsonl": JSONLLoggerCB}


def kind_of(path):
    return stat.S_IFMT(os.lstat(path).st_mode)


def check_pipe(make, folder, linked):
    """A pipe stays one, and its reader gets all records."""
    os.mkfifo(pipe := folder / "pipe")
    path = folder / "link" if linked else pipe
    if linked:
        path.symlink_to(pipe)
    kinds, got = [kind_of(p) for p in sorted(folder.iterdir())], []
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    learner(make(path, every=2)).fit(2)
    while data := os.read(reader, 4096):
        got.append(data)
    os.close(reader)
    assert [kind_of(p) for p in sorted(folder.iterdir())] == kinds
    return b"".join(got).decode().splitlines()


needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


@needs_pipes
@pytest.mark.case("F36")
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("kind", FILES)
def test_a_pipe_is_written_to_and_stays(tmp_path, kind, linked):
    text = check_pipe(FILES[kind], tmp_path, linked)
    if kind == "jsonl":
        assert [json.loads(line)["steps"] for line in text] == [2, 4, 5, 6, 8, 10, 10]
    else:
        headers = [line for line in text if line.startswith("epoch")]
        assert len(headers) == 2  # of updates, then of epochs, too
        assert len(text) - len(headers) == 7


@needs_pipes
@pytest.mark.case("F36")
@pytest.mark.parametrize("kind", FILES)
def test_a_pipe_that_is_replaced_would_be_seen(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(files.os.path, "lexists", lambda path: False)
    with pytest.raises((AssertionError, json.JSONDecodeError)):
        check_pipe(FILES[kind], tmp_path, False)


@needs_pipes
@pytest.mark.case("F36")
@pytest.mark.parametrize("kind", FILES)
def test_a_pipe_without_a_reader_holds_nothing_up(tmp_path, kind):
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.warns(UserWarning, match="cannot write"):
        learner(FILES[kind](pipe)).fit(2)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.case("F36")
@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="needs devices")
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("device", ["/dev/null", "link", "folder"])
def test_devices_folders_and_links_to_them_stay(tmp_path, kind, device):
    path = tmp_path / device  # an absolute path stays what it is
    if device == "link":
        path.symlink_to("/dev/null")
    elif device == "folder":
        path.mkdir()
    before = kind_of(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if device == "folder" else "error")
        learner(FILES[kind](path, every=2)).fit(2)
    assert kind_of(path) == before
    assert len(list(tmp_path.iterdir())) == (device != "/dev/null")


@pytest.mark.case("F36")
@pytest.mark.parametrize("kind", FILES)
def test_a_link_to_a_file_is_appended_to(tmp_path, kind):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for _ in range(2):
        learner(logger := FILES[kind](tmp_path / "link")).fit(1)
        pickle.dumps(logger)  # nothing stays open
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link"]
    assert (tmp_path / "file").read_text().count("\n") == (4 if kind == "csv" else 2)


# ---- files of other runs, and a folder that changes ----


def check_no_row_of_another_run_is_lost(folder, kind, content=None):
    """Run A stops; B, or another program, writes to its file; A goes on."""
    path, saver = folder / f"log.{kind}", CheckpointCB(folder / "a")
    learner(FILES[kind](path), saver).fit(2)
    if content is None:
        learner(FILES[kind](path)).fit(3)
    else:
        path.write_text(content)
    theirs = path.read_text()
    with pytest.warns(UserWarning, match="has not the 2 records from before the resume"):
        learner(FILES[kind](path), CheckpointCB(folder / "a")).fit(4, resume=True)
    assert theirs in [p.read_text() for p in folder.glob("log_*")]
    rows = lines(path) if kind == "jsonl" else read_csv(path)
    assert [row["epoch"] for row in rows] == [2, 3]
    learner(FILES[kind](path), CheckpointCB(folder / "a")).fit(5, resume=True)  # now it is ours
    rows = lines(path) if kind == "jsonl" else read_csv(path)
    assert [row["epoch"] for row in rows] == [2, 3, 4]


FOREIGN = [None, "", "no records\n", "name;value\nx;1\ny;2\nz;3\n", '{"epoch": 0}\n{"epoch": 1}\n']


@pytest.mark.case("F35")
@pytest.mark.parametrize("content", FOREIGN)
@pytest.mark.parametrize("kind", FILES)
def test_a_resumed_log_overwrites_no_row_of_another_run(tmp_path, kind, content):
    check_no_row_of_another_run_is_lost(tmp_path, kind, content)


@pytest.mark.case("F35")
def test_the_check_notices_a_log_that_takes_any_file_for_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_checksum", lambda *_: 0)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_no_row_of_another_run_is_lost(tmp_path, "jsonl")


@pytest.mark.case("F35")
def test_a_resumed_tensorboard_moves_the_events_of_another_run_aside(tmp_path):
    pytest.importorskip("tensorboard")
    for folder in "ab":
        learner(TensorBoardCB(tmp_path / "t"), CheckpointCB(tmp_path / folder)).fit(2)
    theirs = next((tmp_path / "t").glob(files.EVENTS)).name
    learner(TensorBoardCB(tmp_path / "t"), CheckpointCB(tmp_path / "a")).fit(4, resume=True)
    assert theirs in [p.name for p in (tmp_path / "t").glob("earlier_*/*")]
    assert {step for step, _ in read_tensorboard(tmp_path / "t")["train_loss"]} == {15, 20}


def check_files_stay_where_the_fit_began(folder, monkeypatch, event):
    (folder / "begin").mkdir()
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "begin")
    move = At(event, lambda learn: os.chdir(folder / "other"))
    loggers = [CSVLoggerCB("r.csv"), JSONLLoggerCB("r.jsonl"), RunCB("run"), LogCB(path="l.txt")]
    learner(move, *loggers, TensorBoardCB("t"), CheckpointCB("c", keep=None)).fit(3)
    assert not list((folder / "other").iterdir())
    assert len(read_csv(folder / "begin" / "r.csv")) == 3
    assert len(list((folder / "begin" / "c").iterdir())) == 3


@pytest.mark.case("F34")
@pytest.mark.parametrize("event", ["before_epoch", "after_batch", "after_round"])
def test_files_stay_where_the_fit_began_when_the_current_folder_changes(
    tmp_path, monkeypatch, event
):
    check_files_stay_where_the_fit_began(tmp_path, monkeypatch, event)


@pytest.mark.case("F34")
def test_the_check_notices_files_in_a_folder_of_later(tmp_path, monkeypatch):
    monkeypatch.setattr(files.Path, "absolute", lambda self: self)
    with pytest.raises(AssertionError):
        check_files_stay_where_the_fit_began(tmp_path, monkeypatch, "before_epoch")


def test_a_csv_that_is_moved_away_in_mid_run_begins_anew_with_its_header(tmp_path):
    path = tmp_path / "r.csv"
    rotate = At(
        "before_round", lambda learn: path.rename(tmp_path / "old"), lambda learn: learn.epoch == 2
    )
    learner(rotate, CSVLoggerCB(path)).fit(4)
    assert [row["epoch"] for row in read_csv(path)] == [2, 3]


@pytest.mark.parametrize("content", ['{"a": 1}', "no json", "", "[1, 2]"])
def test_a_run_json_of_another_program_gets_a_number(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    learner(RunCB(tmp_path)).fit(1)
    assert (tmp_path / "run_1.json").read_text() == content
    assert len(json.loads((tmp_path / "run.json").read_text())) == 1


def test_two_runs_in_one_folder_keep_the_entries_of_each_other(tmp_path):
    inner = At("after_round", lambda learn: learner(RunCB(tmp_path, run=2)).fit(1))
    learner(RunCB(tmp_path, run=1), inner).fit(1)
    runs = json.loads((tmp_path / "run.json").read_text())
    assert sorted(run["settings"]["run"] for run in runs) == [1, 2]
    assert all("ended" in run for run in runs)


@needs_pipes
@pytest.mark.case("F36")
@pytest.mark.parametrize("name", ["run.json", "l.txt"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_ends_no_fit_and_stays(tmp_path, name, make):
    make(tmp_path / name)
    before = kind_of(tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn = learner(RunCB(tmp_path), LogCB(1, path=tmp_path / "l.txt"))
        learn.fit(1)
    assert learn.steps_done == N and kind_of(tmp_path / name) == before


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="needs devices")
def test_lines_of_text_may_go_to_a_device(recwarn):
    learner(LogCB(1, path="/dev/null")).fit(1)
    assert not recwarn.list


# ---- values and places that a record cannot have ----


def fit_once(*cbs, loss=F.mse_loss):
    learn = Learner(linear(), dls(), loss, 0.1, [TrainCB(), MetricsCB(quiet=True), *cbs])
    learn.fit(1)
    return learn


ODD = {
    "complex": torch.tensor(1j),
    "sparse": torch.ones(1).to_sparse(),
    "meta": torch.ones((), device="meta"),
    "no element": torch.tensor([]),
    "nested": torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "text": "a",
    "nothing": None,
    "list": [1, 2],
    "complex number": 1j,
    "array": numpy.ones(3),
    "object": object(),
}


def check_logged(value, folder):
    """What is no number is ignored; the number beside it is in the history and in each record."""
    cbs = [ProgressCB(plot="odd"), LogCB(1), kept := LoggerCB(1)]
    cbs += [CSVLoggerCB(folder / "a.csv", every=1), JSONLLoggerCB(folder / "a.jsonl", every=1)]
    log = At("after_loss", lambda learn: learn.log(odd=value, two=2, bar=True), times=9)
    learn = fit_once(*cbs, log)
    assert learn.history[0]["train_two"] == 2 and "train_odd" not in learn.history[0]
    assert kept.records[0]["two"] == 2 and "odd" not in kept.records[0]


@pytest.mark.case("F06")
@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_what_is_no_number_is_logged_by_nobody_and_ends_no_fit(value, tmp_path):
    check_logged(value, tmp_path)


@pytest.mark.case("F06")
@pytest.mark.parametrize("name", ["complex", "sparse", "text"])
def test_the_check_of_values_notices_numbers_that_are_none(name, tmp_path, monkeypatch):
    for module in (base, metrics_callback):
        monkeypatch.setattr(module, "is_number", lambda x: True)
    with pytest.raises((AssertionError, TypeError, RuntimeError, ValueError)):
        check_logged(ODD[name], tmp_path)


PARTS = {"none": None, "text": "a", "many": torch.ones(3), "complex": torch.tensor(1j), "n": 3}


@pytest.mark.case("F06")
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_loss_that_are_no_numbers_are_left_out_and_counts_are_not_added(name):
    def loss(preds, targs):
        return {"mse": F.mse_loss(preds, targs), name: PARTS[name]}

    learn = fit_once(LogCB(1), LoggerCB(1), ProgressCB(), loss=loss)
    row = learn.history[0]
    assert row["train_loss"] == row["train_mse"]
    assert (f"train_{name}" in row) is (name == "n")


WRITERS = {
    "log": lambda path: LogCB(1, path / "log.txt"),
    "table": lambda path: CSVLoggerCB(path / "a.csv"),
    "lines": lambda path: JSONLLoggerCB(path / "a.jsonl"),
    "curves": TensorBoardCB,
    "run": RunCB,
}


def check_unwritable(make, where, monkeypatch):
    """Where nothing can be written, there is a warning, and the fit goes on."""
    path = where / "file"
    path.touch()
    monkeypatch.chdir(where)
    if make is WRITERS["log"]:
        monkeypatch.setattr(logging, "raiseExceptions", True)
    with pytest.warns(UserWarning, match="cannot write.*The fit goes on"):
        learn = fit_once(make(path))
    assert learn.epoch == 0 and learn.steps_done > 0 and path.read_text() == ""


@pytest.mark.case("F03")
@pytest.mark.parametrize("make", WRITERS.values(), ids=WRITERS)
def test_a_folder_that_is_a_file_ends_no_fit(make, tmp_path, monkeypatch):
    check_unwritable(make, tmp_path, monkeypatch)


@pytest.mark.case("F03")
@pytest.mark.parametrize("name", ["log", "table"])
def test_the_check_notices_a_logger_that_raises(name, tmp_path, monkeypatch):
    monkeypatch.setattr(LoggerCB, "_guard", lambda self, f, *args: f(*args))
    with pytest.raises((OSError, pytest.fail.Exception)):  # `warns` may say first that none came
        check_unwritable(WRITERS[name], tmp_path, monkeypatch)
