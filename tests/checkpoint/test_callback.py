"""Checkpoint files: whole or not there, safe to open, kept as asked, and never another run's."""

import errno
import hashlib
import math
import os
import pickle
import random
import signal
import sys
import threading
import time
import warnings
import zipfile
from collections import Counter, OrderedDict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from toys import At, linear, toy_dls, toy_learner

from minilearn import EMACB, Callback, CheckpointCB, Learner, MetricsCB, TrainCB, load_model
from minilearn.checkpoint import callback as checkpoint_callback
from minilearn.checkpoint.files import (
    Background,
    CorruptFileError,
    newest_first,
    newest_usable,
    read,
    serialisable,
    write,
)
from minilearn.checkpoint.optimizer_state import load_optimizer, optimizer_state


@pytest.fixture
def state():
    """Something that a checkpoint may hold."""
    return {"minilearn": "0", "x": torch.arange(20000.0), "rows": [{"loss": 0.5}]}


def names(folder):
    return sorted(f.name for f in folder.glob("*.ckpt"))


def hashes(folder):
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.glob("*.ckpt")}


def fit_with_values(values, folder, n=None, **kwargs):
    """Fit one epoch for each of `values`, which is the round's value of `value`."""
    values = list(values)
    learn = toy_learner()
    first = kwargs.pop("first", 0)
    learn.on("after_epoch", lambda learn: learn.row.update(value=values[learn.epoch - first]))
    saver = CheckpointCB(folder, monitor="value", **kwargs)
    learn.fit(n or len(values), valid=False, cbs=saver, resume=True if first else None)
    return saver


# ---- serialisable states ----


def test_serialisable_turns_everything_into_tensors_and_simple_types(tmp_path):
    given = {
        "numpy": np.float64(0.5),
        "array": np.arange(3, dtype=np.uint32),
        "path": Path("a") / "b",
        "ordered": OrderedDict(a=1),
        "counted": Counter("aab"),
        "deque": deque([1, 2]),
        "tuple": (1, (2.5, None)),
        "size": torch.zeros(2, 3).shape,
        "flag": np.bool_(True),
        "python": random.getstate(),
        "names": np.array(["x"])[0],
    }
    with (tmp_path / "f").open("wb") as file:
        torch.save(serialisable(given), file)
    got = torch.load(tmp_path / "f", weights_only=True)
    assert got["numpy"] == 0.5 and type(got["numpy"]) is float
    assert got["array"].tolist() == [0, 1, 2]
    assert (got["path"], got["tuple"], got["size"]) == (str(Path("a/b")), (1, (2.5, None)), (2, 3))
    assert got["counted"]["a"] == 2 and got["flag"] is True and got["deque"] == [1, 2]
    assert got["python"] == random.getstate() and got["names"] == "x"


def test_what_is_not_serialisable_is_named_by_its_path():
    with pytest.raises(TypeError, match=r"state\.cbs\[1\]\.f is a function"):
        serialisable({"cbs": [1, {"f": serialisable}]})


@pytest.mark.parametrize(
    "value",
    [
        np.datetime64("2020-01-01"),
        np.longdouble(1.5),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.array([1, len], dtype=object),
    ],
)
def test_what_numpy_holds_and_no_checkpoint_could_is_named_before_it_is_written(value):
    with pytest.raises(TypeError, match=r"state\.v.* is a "):
        serialisable({"v": value})


def test_arrays_of_strings_and_objects_become_lists():
    names = np.array([["a", "b"]])
    assert serialisable([names, np.array([1.5, None, "c"]), np.array("d"), np.array(2.0)]) == [
        [["a", "b"]],
        [1.5, None, "c"],
        "d",
        2.0,
    ]


def test_a_copy_shares_what_was_shared_and_nothing_with_the_original():
    weight = torch.ones(3, requires_grad=True)
    copy = serialisable({"a": weight.detach(), "b": weight.detach(), "c": torch.ones(3)})
    assert copy["a"] is copy["b"] and copy["a"] is not copy["c"]
    weight.data.zero_()
    assert copy["a"].tolist() == [1, 1, 1]


class Rich(Callback):
    """Keeps what people keep in states."""

    def __init__(self):
        self.seen = {"best": np.float64(1.5), "where": Path("x"), "last": np.arange(2.0)}

    def state_dict(self):
        return self.seen

    def load_state_dict(self, state):
        self.loaded = state


def check_opens(path):
    """C008: the file opens without running code."""
    torch.load(path, weights_only=True)


@pytest.mark.case("C008")
def test_a_checkpoint_opens_with_weights_only(tmp_path):
    rich, again = Rich(), Rich()
    learn = toy_learner([MetricsCB(), CheckpointCB(tmp_path), rich])
    learn.on("after_round", lambda learn: learn.history[-1].update(mine=np.float64(0.25)))
    learn.fit(1)
    (path,) = tmp_path.glob("*.ckpt")
    check_opens(path)
    toy_learner([MetricsCB(), CheckpointCB(tmp_path), again]).fit(1, resume=True)
    assert again.loaded["best"] == 1.5 and again.loaded["last"].tolist() == [0, 1]
    assert read(path)["history"][0]["mine"] == 0.25


@pytest.mark.case("C008")
def test_the_check_notices_a_numpy_scalar(tmp_path, monkeypatch):
    monkeypatch.setattr("minilearn.checkpoint.fit_state.serialisable", lambda state, path: state)
    toy_learner([CheckpointCB(tmp_path, background=False), Rich()]).fit(1)
    with pytest.raises(pickle.UnpicklingError):
        check_opens(next(tmp_path.glob("*.ckpt")))


def long_history(n):
    row = {
        "loss": 0.1,
        "nan": math.nan,
        "name": "a",
        "none": None,
        "n": 2**70,
        "on": True,
        "l": [1],
    }
    return [row | {"epoch": i, "inf": -math.inf, "third": i / 3} for i in range(n)]


@pytest.mark.parametrize("n", [1, 49, 50, 500])
def test_rows_come_back_from_a_file_as_they_were_however_many(tmp_path, n):
    rows, floats = long_history(n), [i / 7 for i in range(n)]
    given = {"minilearn": "0", "history": rows, "cbs": {"a": [{"recs": floats}, rows]}}
    write(serialisable(given), tmp_path / "a.ckpt")
    rows[0]["epoch"] = "changed since"
    found = read(tmp_path / "a.ckpt")
    rows[0]["epoch"] = 0
    assert repr(found) == repr(given)  # nan is not equal to itself


def test_rows_with_tensors_stay_a_list(tmp_path):
    rows = [{"epoch": i, "v": torch.tensor(float(i))} for i in range(60)]
    write(serialisable({"minilearn": "0", "rows": rows}), tmp_path / "a.ckpt")
    assert read(tmp_path / "a.ckpt")["rows"] == rows


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, b"x", 1 + 2j])
def test_rows_that_json_would_change_stay_a_list(tmp_path, value):
    rows = [{"epoch": i, "v": value} for i in range(60)]
    given = serialisable({"minilearn": "0", "rows": rows})
    write(given, tmp_path / "a.ckpt")
    assert read(tmp_path / "a.ckpt")["rows"] == serialisable(rows)


def test_rows_that_were_saved_before_cost_next_to_nothing_again(tmp_path):
    def calls(n):
        """The calls of functions, Python's and C's, for a checkpoint after `n` rounds."""
        rows, seen = long_history(n), Counter()
        sys.setprofile(lambda frame, event, arg: seen.update([event]))
        try:
            write(serialisable({"history": rows}), tmp_path / "a.ckpt")
        finally:
            sys.setprofile(None)
        return seen.total()

    calls(100)  # the first imports
    assert calls(2000) < 1.1 * calls(100)


# ---- writing ----


def faults(f, error, counts):
    """Let the nth call of `f` fail; `counts` holds what is left of n."""

    def call(*args, **kwargs):
        counts[0] -= 1
        if counts[0] == 0:
            raise OSError(error, os.strerror(error))
        return f(*args, **kwargs)

    return call


class FaultyFile:
    """A file whose writes and flushes may fail."""

    def __init__(self, file, error, counts):
        self.file = file
        self.write = faults(file.write, error, counts)
        self.flush = faults(file.flush, error, counts)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.file.close()

    def fileno(self):
        return self.file.fileno()


def with_faults(monkeypatch, error, nth):
    counts, real = [nth], Path.open
    may_open = faults(real, error, counts)

    def opened(self, mode="r", *args, **kwargs):
        if mode != "wb":
            return real(self, mode, *args, **kwargs)
        return FaultyFile(may_open(self, mode, *args, **kwargs), error, counts)

    monkeypatch.setattr(Path, "open", opened)
    for name in ("fsync", "replace", "open"):
        monkeypatch.setattr(os, name, faults(getattr(os, name), error, counts))
    return counts


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_an_error_at_any_call_leaves_a_usable_file(error, state, tmp_path, monkeypatch):
    path, failed, last = tmp_path / "a.ckpt", 0, 0
    write(state | {"n": 0}, path)
    for nth in range(1, 200):
        with monkeypatch.context() as patched:
            counts = with_faults(patched, error, nth)
            try:
                write(state | {"n": nth}, path)
            except OSError as e:
                assert e.errno == error
                failed += 1
        assert read(path)["n"] in (last, nth)  # the new one, where only the folder was not synced
        assert not list(tmp_path.glob(".*.part"))
        last = read(path)["n"]
        if counts[0] > 0:  # it makes fewer calls than that
            break
    assert failed == nth - 1 > 8 and last == nth


def test_short_writes_are_gone_on_with(state, tmp_path, monkeypatch):
    """A disk may take less than it is given; Python's buffered files go on with the rest."""
    import io

    class Short(io.FileIO):
        def write(self, data):
            return super().write(memoryview(data)[: max(1, len(data) // 2)])

    def open_short(self, mode="r", *args, **kwargs):
        return io.BufferedWriter(Short(str(self), mode)) if mode == "wb" else open(self, mode)

    monkeypatch.setattr(Path, "open", open_short)
    write(state, tmp_path / "a.ckpt")
    monkeypatch.undo()
    assert torch.equal(read(tmp_path / "a.ckpt")["x"], state["x"])


def test_a_failed_write_comes_out_at_the_next_step(tmp_path, monkeypatch):
    def full(state, path, overwrite):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("minilearn.checkpoint.callback.write", full)
    learn = toy_learner([CheckpointCB(tmp_path, every=(1, "step"))], dls=toy_dls(n_train=9))
    learn.on("after_batch", lambda learn: time.sleep(0.05))
    with pytest.raises(OSError, match="no space left"):
        learn.fit(2)
    assert learn.steps_done in (1, 2)


def test_a_read_only_folder_is_an_error_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    learn = toy_learner([CheckpointCB(tmp_path / "file" / "runs")])
    with pytest.raises(OSError):
        learn.fit(1)
    assert learn.steps_done == 0


def save_for_ever(path, started):
    """Save to one path until somebody ends it."""
    n = 0
    while True:
        n += 1
        write({"minilearn": "0", "x": torch.full((50_000,), float(n)), "n": n}, path)
        Path(started).touch()


def kill_while_saving(path, times, save=save_for_ever):
    """C006: kill a process that saves in a loop; the path is whole each time."""
    rng, started = random.Random(0), path.with_suffix(".started")
    for _ in range(times):
        started.unlink(missing_ok=True)
        pid = os.fork()
        if not pid:
            save(path, started)
        while not started.exists():
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        state = read(path)
        assert (state["x"] == state["n"]).all()


@pytest.mark.case("C006")
def test_a_kill_in_a_save_leaves_a_whole_file(tmp_path):
    kill_while_saving(tmp_path / "a.ckpt", 20)
    assert newest_usable(tmp_path)[0] == tmp_path / "a.ckpt"  # what is left over is not looked at


@pytest.mark.case("C006")
def test_the_check_notices_a_file_that_is_written_in_its_place(tmp_path):
    def save_in_place(path, started):
        while True:
            with path.open("wb") as file:
                torch.save({"minilearn": "0", "x": torch.ones(2_000_000), "n": 1}, file)
            Path(started).touch()

    with pytest.raises((CorruptFileError, AssertionError)):
        kill_while_saving(tmp_path / "a.ckpt", 20, save_in_place)


def test_only_one_file_is_written_at_a_time():
    running, most, writer = [], [0], Background()

    def task():
        running.append(1)
        most[0] = max(most[0], len(running))
        time.sleep(0.01)
        running.pop()

    for _ in range(5):
        writer.run(task)
    writer.join()
    assert most[0] == 1 and not running


def test_the_fit_goes_on_while_a_file_is_written_and_waits_at_its_end(tmp_path, monkeypatch):
    may_write, steps = threading.Event(), []

    def slow(state, path, overwrite):
        may_write.wait(10)
        write(state, path, overwrite)

    monkeypatch.setattr("minilearn.checkpoint.callback.write", slow)
    learn = toy_learner([CheckpointCB(tmp_path, every=(3, "step"))], dls=toy_dls(n_train=5))
    learn.on("after_step", lambda learn: steps.append(names(tmp_path)))
    learn.on("after_epoch", lambda learn: may_write.set(), when=lambda learn: learn.training)
    learn.fit(1)
    assert steps == [[]] * 5 and names(tmp_path)


# ---- reading ----


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(bytes(data))


def test_no_byte_of_the_weights_can_change_unnoticed(state, tmp_path):
    path = tmp_path / "a.ckpt"
    write(state, path)
    data = path.read_bytes()
    first = data.find(state["x"].numpy().tobytes())
    rng = random.Random(0)
    for at in [first, first + 79_999, *(rng.randrange(len(data)) for _ in range(60))]:
        path.write_bytes(data)
        flip(path, at)
        try:
            assert torch.equal(read(path)["x"], state["x"])  # a byte between the parts
        except CorruptFileError:
            continue
    path.write_bytes(data)
    flip(path, first)
    with pytest.raises(CorruptFileError, match="is not what was written"):
        read(path)


@pytest.mark.parametrize("share", [0, 0.3, 0.99])
def test_a_corrupt_newest_file_is_named_and_the_one_before_is_used(share, tmp_path, capsys):
    toy_learner([CheckpointCB(tmp_path)]).fit(3)
    newest = newest_first(tmp_path)[0]
    newest.write_bytes(newest.read_bytes()[: int(newest.stat().st_size * share)])
    learn = toy_learner([CheckpointCB(tmp_path)])
    with pytest.warns(UserWarning, match=f"{newest.name}.*the one before is used"):
        learn.fit(4, resume=True)
    assert "4 updates" in capsys.readouterr().out and learn.steps_done == 8


def test_nothing_but_corrupt_files_is_an_error_and_they_stay(tmp_path):
    toy_learner([CheckpointCB(tmp_path)]).fit(2)
    for file in newest_first(tmp_path):
        file.write_bytes(b"junk")
    with pytest.raises(CorruptFileError, match="none of the 2"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        toy_learner([CheckpointCB(tmp_path)]).fit(3, resume=True)
    assert len(names(tmp_path)) == 2


class Evil:
    """Its pickle makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


@pytest.mark.case("C127")
def test_a_checkpoint_with_code_in_it_is_refused_and_nothing_is_run(tmp_path):
    marker = tmp_path / "ran"
    torch.save({"minilearn": "0", "x": Evil(marker)}, tmp_path / "a.ckpt")
    with pytest.raises(CorruptFileError):
        read(tmp_path / "a.ckpt")
    assert not marker.exists()


@pytest.mark.case("C127")
def test_the_marker_would_be_seen(tmp_path):
    marker = tmp_path / "ran"
    torch.save({"minilearn": "0", "x": Evil(marker)}, tmp_path / "a.ckpt")
    torch.load(tmp_path / "a.ckpt", weights_only=False)
    assert marker.exists()


def test_the_archive_is_a_plain_zip_that_others_can_check(state, tmp_path):
    write(state, tmp_path / "a.ckpt")
    assert zipfile.ZipFile(tmp_path / "a.ckpt").testzip() is None


# ---- which files ----


def test_the_newest_are_kept(tmp_path):
    toy_learner([CheckpointCB(tmp_path, keep=2)]).fit(5)
    assert names(tmp_path) == ["epoch003-step0000008.ckpt", "epoch004-step0000010.ckpt"]


@pytest.mark.parametrize(
    ("every", "steps"), [(2, [4, 8, 10]), ((3, "step"), [3, 6, 9, 10]), ((7, "step"), [7, 10])]
)
def test_every_counts_epochs_or_updates_and_the_end_is_saved(every, steps, tmp_path):
    toy_learner([CheckpointCB(tmp_path, every=every, keep=None)]).fit(5)
    assert [
        int(name[12:22].split(".")[0].lstrip("step-") or 0) for name in names(tmp_path)
    ] == steps


def test_minutes_are_counted_from_the_last_file(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("minilearn.checkpoint.callback.time.monotonic", lambda: clock[0])
    learn = toy_learner([CheckpointCB(tmp_path, every=(1, "minutes"), keep=None)])
    learn.on("before_step", lambda learn: clock.__setitem__(0, clock[0] + 25))
    learn.fit(5, valid=False)
    assert [name[-12:-5] for name in names(tmp_path)] == [
        "0000003",
        "0000006",
        "0000009",
        "0000010",
    ]


@pytest.mark.case("C003")
def test_numbers_go_on_after_a_resume(tmp_path):
    toy_learner([CheckpointCB(tmp_path, keep=None)]).fit(5)
    before = hashes(tmp_path)
    toy_learner([CheckpointCB(tmp_path, keep=None)]).fit(10, resume=True)
    assert [int(name[5:8]) for name in names(tmp_path)] == list(range(10))
    assert before.items() <= hashes(tmp_path).items()


@pytest.mark.case("C003")
def test_the_check_notices_numbers_that_begin_again(tmp_path, monkeypatch):
    toy_learner([CheckpointCB(tmp_path, keep=None)]).fit(5)
    before = hashes(tmp_path)
    monkeypatch.setattr(
        CheckpointCB, "_name", lambda self, learn, v: f"epoch{learn.epoch % 5:03}-step0000000.ckpt"
    )
    toy_learner([CheckpointCB(tmp_path, keep=None)]).fit(10, resume=True)
    with pytest.raises(AssertionError):
        assert [int(name[5:8]) for name in names(tmp_path)] == list(range(10))
        assert before.items() <= hashes(tmp_path).items()


def test_pruning_leaves_the_files_of_others_alone(tmp_path):
    toy_learner([CheckpointCB(tmp_path)]).fit(3)
    others = hashes(tmp_path)
    (tmp_path / "mine.ckpt").write_bytes(b"precious")
    with pytest.warns(UserWarning, match="holds 4 checkpoints of another fit"):
        toy_learner([CheckpointCB(tmp_path, keep=1)]).fit(3)
    assert others.items() <= hashes(tmp_path).items() and (tmp_path / "mine.ckpt").exists()
    assert len(names(tmp_path)) == 5


@pytest.mark.parametrize("background", [True, False])
def test_two_callbacks_in_one_folder_keep_files_of_their_own(background, tmp_path):
    savers = [CheckpointCB(tmp_path, keep=k, background=background) for k in (1, 2)]
    toy_learner(savers).fit(3)
    files = [[name for name, _ in saver.files] for saver in savers]
    assert [len(names) for names in files] == [1, 2]
    assert sorted(p.name for p in tmp_path.glob("*.ckpt")) == sorted(files[0] + files[1])
    again = toy_learner([CheckpointCB(tmp_path, keep=k) for k in (1, 2)])
    again.fit(4, resume=True)
    assert again.steps_done == 8 and len(list(tmp_path.glob("*.ckpt"))) == 3


class Fills(TrainCB):
    """Its updates set all weights to a value."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def step(self, learn):
        with torch.no_grad():
            learn.model.weight.fill_(self.value)


def fill(value, folder, n, resume=None, **kwargs):
    """Fit with weights that say who made a file."""
    cb = CheckpointCB(folder, keep=None, **kwargs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*checkpoints of another fit")
        Learner(linear(), (toy_dls()[0], None), cbs=[Fills(value), cb]).fit(n, resume=resume)
    return cb


def check_nobody_is_overwritten(folder, **kwargs):
    """F35: a run that is resumed in a folder of two leaves the other's files alone."""
    first = fill(1.0, folder, 2, **kwargs)
    second = fill(2.0, folder, 4, **kwargs)
    resumed = fill(1.0, folder, 4, resume=folder / first.files[-1][0], **kwargs)
    for value, cb in ((1.0, first), (2.0, second), (1.0, resumed)):
        for name, _ in cb.files:
            assert (read(folder / name)["model"]["weight"] == value).all(), name
    assert len(first.files) == 2 and len(second.files) == len(resumed.files) == 4


@pytest.mark.case("F35")
@pytest.mark.parametrize("background", [True, False])
def test_a_resume_in_a_shared_folder_overwrites_nothing_of_another_run(background, tmp_path):
    check_nobody_is_overwritten(tmp_path, background=background)


@pytest.mark.case("F35")
def test_the_check_notices_files_that_are_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr(CheckpointCB, "_is_taken", lambda *_: False)
    monkeypatch.setattr("minilearn.checkpoint.callback.write", lambda s, p, _: write(s, p))
    with pytest.raises(AssertionError):
        check_nobody_is_overwritten(tmp_path)


@pytest.mark.case("F35")
@pytest.mark.parametrize("links", [True, False])
def test_of_two_runs_that_save_at_once_one_takes_another_name(links, tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(errno.ENOTSUP, "no hard links here")

    def late(state, path, overwrite):  # another run writes between the choice of a name and this
        if path.name == "epoch000-step0000002.ckpt":
            write(state | {"model": None}, path)
        write(state, path, overwrite)

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr("minilearn.checkpoint.callback.write", late)
    cb = fill(1.0, tmp_path, 2)
    first = cb.files[0][0]
    assert first.startswith("epoch000-step0000002-") and len(names(tmp_path)) == 3
    assert read(tmp_path / "epoch000-step0000002.ckpt")["model"] is None
    state = read(tmp_path / first)
    assert state["model"]["weight"][0, 0] == 1
    assert state["callbacks"]["CheckpointCB"]["files"] == [[first, None]]  # which a resume reads
    assert not list(tmp_path.glob(".*.part"))


def weights_of(folder):
    return {p.name: load_model(p, linear()).weight[0, 0].item() for p in folder.glob("*.safet*")}


def check_weights_of_others_stay(folder):
    """Two runs save weights alone into one folder; the first is resumed and prunes its own."""
    learn = Learner(linear(), (toy_dls()[0], None), cbs=[Fills(1.0), CheckpointCB(folder / "a")])
    learn.fit(2, cbs=CheckpointCB(folder / "w", weights_only=True, keep=None))
    for file in (folder / "w").iterdir():
        file.unlink()
    fill(2.0, folder / "w", 3, weights_only=True)
    theirs = weights_of(folder / "w")
    learn.fit(4, cbs=CheckpointCB(folder / "w", weights_only=True, keep=1), resume=True)
    after = weights_of(folder / "w")
    assert theirs.items() <= after.items() and set(theirs.values()) == {2.0}
    assert [value for name, value in after.items() if name not in theirs] == [1.0]


@pytest.mark.case("F35")
def test_weights_alone_of_another_run_are_neither_overwritten_nor_pruned(tmp_path):
    check_weights_of_others_stay(tmp_path)


@pytest.mark.case("F35")
def test_the_check_notices_weights_that_are_known_by_their_name(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_callback, "holds_run", lambda path, run: path.is_file())
    with pytest.raises(AssertionError):
        check_weights_of_others_stay(tmp_path)


def check_what_took_our_place_stays(folder, put, **kwargs):
    """In mid-run somebody puts something under the name of a file that is to be pruned."""

    def replace(learn):
        name = folder / saver.files[0][0]
        name.unlink()
        put(name)

    saver = CheckpointCB(folder, keep=1, background=False, **kwargs)
    toy_learner([saver, At("before_round", replace, lambda learn: learn.epoch == 1)]).fit(3)
    assert len([*folder.iterdir()]) == 2  # theirs, and the newest of ours


def put_run(path):
    learn = toy_learner()
    learn.fit(1)
    learn.save_checkpoint(path)


TAKERS = {
    "a text": lambda path: path.write_text("precious"),
    "a folder": lambda path: path.mkdir(),
    "a link": lambda path: path.symlink_to("nowhere"),
    "another run": put_run,
}


@pytest.mark.case("F35")
@pytest.mark.parametrize("put", TAKERS.values(), ids=TAKERS)
@pytest.mark.parametrize("weights_only", [False, True])
def test_what_took_the_place_of_a_file_is_not_pruned(put, weights_only, tmp_path):
    check_what_took_our_place_stays(tmp_path, put, weights_only=weights_only)


@pytest.mark.case("F35")
def test_the_check_notices_a_file_that_is_pruned_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_callback, "_written", lambda path: 1)
    with pytest.raises(AssertionError):
        check_what_took_our_place_stays(tmp_path, TAKERS["a text"])


@pytest.mark.case("F35")
@pytest.mark.parametrize("weights_only", [False, True])
def test_links_folders_and_files_that_have_the_usual_names_stay(weights_only, tmp_path):
    suffix = ".safetensors" if weights_only else ".ckpt"
    names = [f"epoch{n:03}-step{2 * n + 2:07}{suffix}" for n in range(3)]
    (tmp_path / names[0]).symlink_to("nowhere")
    (tmp_path / names[1]).mkdir()
    (tmp_path / names[2]).write_text("precious")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*checkpoints of another fit")
        saver = CheckpointCB(tmp_path, keep=None, weights_only=weights_only)
        toy_learner([saver]).fit(3)
    assert not {*names} & {name for name, _ in saver.files} and len(saver.files) == 3
    assert (tmp_path / names[0]).is_symlink() and (tmp_path / names[1]).is_dir()
    assert (tmp_path / names[2]).read_text() == "precious"


def test_a_dry_run_writes_to_its_own_folder(tmp_path):
    learn = toy_learner([MetricsCB(), CheckpointCB(tmp_path / "runs")])
    learn.dry_run()
    assert not (tmp_path / "runs").exists()


# ---- the best ----


@pytest.mark.case("C061")
def test_values_that_are_not_finite_are_not_saved(tmp_path):
    saver = fit_with_values([np.nan, 0.8, np.nan, 0.7], tmp_path, mode="min")
    assert saver.monitor.best == 0.7
    assert [name.split("-")[2] for name in names(tmp_path)] == ["value=0.8.ckpt", "value=0.7.ckpt"]


def test_an_end_that_is_not_finite_is_not_saved(tmp_path):
    fit_with_values([0.8, 0.7, np.nan], tmp_path, mode="min", every=2)
    assert [name.split("-")[2] for name in names(tmp_path)] == ["value=0.8.ckpt", "value=0.7.ckpt"]


@pytest.mark.case("C061")
def test_the_check_notices_a_value_that_is_not_finite(tmp_path, monkeypatch):
    save_all = lambda self, learn, value: self._save(learn, value)  # noqa: E731
    monkeypatch.setattr(CheckpointCB, "_end_round", save_all)
    fit_with_values([np.nan, 0.8], tmp_path, mode="min")
    with pytest.raises(AssertionError):
        assert [name.split("-")[2] for name in names(tmp_path)] == ["value=0.8.ckpt"]


@pytest.mark.case("C063")
def test_the_best_two_are_kept(tmp_path):
    fit_with_values([0.5, 0.6, 0.4, 0.7, 0.65], tmp_path, mode="max", keep=2)
    assert [int(name[5:8]) for name in names(tmp_path)] == [3, 4]
    with pytest.raises(ValueError, match="say what is better"):
        CheckpointCB(tmp_path, monitor="accuracy")


@pytest.mark.case("C063")
def test_the_check_notices_the_wrong_direction(tmp_path):
    fit_with_values([0.5, 0.6, 0.4, 0.7, 0.65], tmp_path, mode="min", keep=2)
    with pytest.raises(AssertionError):
        assert [int(name[5:8]) for name in names(tmp_path)] == [3, 4]


def test_the_newest_stays_beside_the_best_by_default(tmp_path):
    for save_last, epochs in ((True, [0, 3]), (False, [0])):
        folder = tmp_path / str(save_last)
        fit_with_values([4, 3, 2, 1], folder, mode="max", keep=1, save_last=save_last)
        assert [int(name[5:8]) for name in names(folder)] == epochs


def test_what_an_error_saves_stays_beside_the_best(tmp_path):
    learn = toy_learner()
    learn.on("after_epoch", lambda learn: learn.row.update(value=5.0))
    cb = CheckpointCB(tmp_path, monitor="value", mode="max", keep=1, save_last=False)
    error = At("after_step", ZeroDivisionError(), when=lambda learn: learn.steps_done == 3)
    with pytest.raises(ZeroDivisionError):
        learn.fit(2, valid=False, cbs=[cb, error])
    best, newest = names(tmp_path)
    assert (read(tmp_path / best)["steps"], cb.best.name) == (2, best)
    assert newest == cb.files[-1][0] and read(tmp_path / newest)["steps"] == 3


def test_between_two_due_rounds_only_the_best_are_saved(tmp_path, monkeypatch):
    saved, save = [], CheckpointCB._save

    def note(self, learn, value=None):
        saved.append(value)
        save(self, learn, value)

    monkeypatch.setattr(CheckpointCB, "_save", note)
    fit_with_values([4, 3, 2, 5, 4, 1], tmp_path, mode="max", keep=1, every=3)
    assert saved == [4, 2, 5, 1]  # the first, each third, and what is better than all before


@pytest.mark.case("C010")
def test_a_worse_epoch_after_a_resume_leaves_the_best_alone(tmp_path):
    fit_with_values([0.5, 0.3], tmp_path, mode="min", keep=1)
    before = hashes(tmp_path)
    saver = fit_with_values([0.4], tmp_path, n=3, first=2, mode="min", keep=1)
    assert saver.monitor.best == 0.3 and saver.best.name.endswith("value=0.3.ckpt")
    assert hashes(tmp_path)[saver.best.name] == before[saver.best.name]


@pytest.mark.case("C010")
def test_the_check_notices_a_best_that_was_forgotten(tmp_path, monkeypatch):
    fit_with_values([0.5, 0.3], tmp_path, mode="min", keep=1)
    monkeypatch.setattr(CheckpointCB, "load_state_dict", lambda self, state: None)
    saver = fit_with_values([0.4], tmp_path, n=3, first=2, mode="min", keep=1)
    with pytest.raises(AssertionError):
        assert saver.monitor.best == 0.3


@pytest.mark.case("C064")
def test_a_name_with_a_slash_makes_one_flat_file(tmp_path):
    learn = toy_learner()
    learn.on("after_epoch", lambda learn: learn.row.update({"valid/loss": 1.0 - learn.epoch}))
    saver = CheckpointCB(tmp_path, monitor="valid/loss", keep=1)
    learn.fit(2, cbs=saver)
    assert [f.name for f in tmp_path.iterdir()] == ["epoch001-step0000004-valid_loss=0.ckpt"]
    toy_learner().load_checkpoint(saver.best)


@pytest.mark.case("C064")
def test_the_check_notices_a_folder(tmp_path):
    (tmp_path / "valid").mkdir()
    (tmp_path / "valid" / "loss=1.ckpt").touch()
    with pytest.raises(AssertionError):
        assert all(f.is_file() for f in tmp_path.iterdir())


def test_a_second_fit_begins_without_a_best(tmp_path):
    saver = CheckpointCB(tmp_path, monitor="value", mode="max")
    for value in (0.9, 0.1):
        learn = toy_learner()
        learn.on("after_epoch", lambda learn, v=value: learn.row.update(value=v))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            learn.fit(1, cbs=saver)
        assert saver.monitor.best == value
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize(
    "wrong", [{"keep": 0}, {"every": 0}, {"every": (1, "batch")}, {"monitor": "accuracy"}]
)
def test_arguments_that_make_no_sense_are_refused(wrong, tmp_path):
    with pytest.raises(ValueError):
        CheckpointCB(tmp_path, **wrong)


# ---- optimizers ----


class Pair(nn.Module):
    """Two layers of one shape, whose order can be changed."""

    def __init__(self, order):
        super().__init__()
        for name in order:
            setattr(self, name, nn.Linear(2, 2, bias=False))

    def forward(self, x):
        return self.a(x) - 2 * self.b(x)


def check_by_name(save, load):
    """C011: a moment comes back to the parameter that it was saved of."""
    saved = Pair("ab")
    opt = torch.optim.Adam(saved.parameters(), 0.1)
    saved(torch.randn(4, 2)).square().mean().backward()
    opt.step()
    other = Pair("ba")
    new = torch.optim.Adam(other.parameters(), 0.1)
    load(new, {"model": other}, save(opt, {"model": saved}))
    for name in "ab":
        moment = new.state[getattr(other, name).weight]["exp_avg"]
        assert torch.equal(moment, opt.state[getattr(saved, name).weight]["exp_avg"])


@pytest.mark.case("C011")
def test_moments_are_found_by_name():
    check_by_name(optimizer_state, load_optimizer)


@pytest.mark.case("C011")
def test_the_check_notices_moments_that_are_found_by_position():
    with pytest.raises(AssertionError):
        check_by_name(lambda opt, _: opt.state_dict(), lambda opt, _, s: opt.load_state_dict(s))


def test_other_groups_are_an_error_that_names_a_parameter():
    saved, other = Pair("ab"), Pair("ab")
    state = optimizer_state(torch.optim.SGD(saved.parameters(), 0.1), {"model": saved})
    groups = [{"params": [other.a.weight]}, {"params": [other.b.weight]}]
    with pytest.raises(ValueError, match="'a.weight' is in a group with b.weight there"):
        load_optimizer(torch.optim.SGD(groups, 0.1), {"model": other}, state)


def test_another_optimizer_is_an_error(tmp_path):
    toy_learner([CheckpointCB(tmp_path)]).fit(1)
    with pytest.raises(ValueError, match="made with SGD, and this fit has AdamW"):
        toy_learner([CheckpointCB(tmp_path)], opt_func=torch.optim.AdamW).fit(2, resume=True)


def test_moments_in_another_precision_keep_it():
    model = linear().to(torch.bfloat16)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    moment = torch.randn(1, 3)
    state = optimizer_state(opt, {"model": model})
    state["moments"]["weight"] = {"momentum_buffer": moment}
    load_optimizer(opt, {"model": model}, state)
    assert torch.equal(opt.state[model.weight]["momentum_buffer"], moment)


@pytest.mark.gpu
@pytest.mark.case("C009")
@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cpu", "cuda")])
def test_moments_follow_their_parameters_to_another_device(devices, tmp_path):
    check_devices(devices, tmp_path)


@pytest.mark.case("C009")
def test_moments_are_on_the_device_of_their_parameters(tmp_path):
    check_devices(("cpu", "cpu"), tmp_path)


@pytest.mark.case("C009")
def test_the_check_notices_moments_that_stay_elsewhere(tmp_path, monkeypatch):
    def load_and_stay(opt, *args):
        found = load_optimizer(opt, *args)
        for moments in opt.state.values():
            moments["exp_avg"] = moments["exp_avg"].to("meta")
        return found

    monkeypatch.setattr("minilearn.checkpoint.fit_state.load_optimizer", load_and_stay)
    with pytest.raises((AssertionError, RuntimeError)):  # the update fails, as it did for them
        check_devices(("cpu", "cpu"), tmp_path)


def check_devices(devices, folder):
    def learner(device):
        dls = [[tuple(t.to(device) for t in batch) for batch in dl] for dl in toy_dls()]
        cbs = [TrainCB(), CheckpointCB(folder)]
        return Learner(linear().to(device), dls, cbs=cbs, opt_func=torch.optim.AdamW, lr=0.1)

    learner(devices[0]).fit(1)
    learn, seen = learner(devices[1]), []
    look = At(
        "before_step",
        lambda learn: seen.extend(
            s["exp_avg"].device == p.device for p, s in learn.opt.state.items()
        ),
    )
    learn.fit(2, cbs=look, resume=True)
    assert seen == [True, True] and learn.steps_done == 4


# ---- scores, names, weights alone ----


def test_a_score_of_the_users_own_decides_what_is_kept(tmp_path):
    scores = [0.1, 0.7, float("nan"), 0.3, 0.9, 0.2]
    saver = CheckpointCB(tmp_path, score=lambda learn: scores[learn.epoch], keep=2, save_last=False)
    toy_learner().fit(6, cbs=saver)
    assert [value for _, value in saver.files] == [0.7, 0.9]
    assert saver.best.name == "epoch004-step0000010-score=0.9.ckpt"
    assert len(names(tmp_path)) == 2
    lowest = CheckpointCB(
        tmp_path / "min", score=lambda learn: scores[learn.epoch], mode="min", keep=1
    )
    toy_learner().fit(6, cbs=lowest)
    assert lowest.best.name.endswith("score=0.1.ckpt")
    with pytest.raises(ValueError, match="not both"):
        CheckpointCB(tmp_path, monitor="valid_loss", score=len)


def test_a_score_goes_on_after_a_resume(tmp_path):
    scores = [0.5, 0.9, 0.8, 0.7]

    def fit(folder, n, **kwargs):
        saver = CheckpointCB(folder, score=lambda learn: scores[learn.epoch], keep=1)
        toy_learner().fit(n, cbs=saver, **kwargs)
        return saver

    fit(tmp_path, 2)
    resumed = fit(tmp_path, 4, resume=True)
    assert resumed.monitor.best == 0.9 and "score=0.9" in resumed.best.name


def test_names_follow_a_pattern(tmp_path):
    learn = toy_learner([MetricsCB(quiet=True)])
    pattern = "{epoch:02}-{steps}-{valid_loss:.3f}"
    learn.fit(3, cbs=CheckpointCB(tmp_path / "a", name=pattern))
    rows = [{**row, "epoch": row["epoch"]} for row in learn.history]
    assert names(tmp_path / "a") == [pattern.format(**row) + ".ckpt" for row in rows]
    one = CheckpointCB(tmp_path / "b", name="newest.ckpt", every=(1, "step"))
    learn.fit(2, cbs=one)
    assert names(tmp_path / "b") == ["newest.ckpt"] and len(one.files) == 1
    learn.fit(1, cbs=CheckpointCB(tmp_path / "b", name="newest"))
    assert names(tmp_path / "b") == ["newest-2.ckpt", "newest.ckpt"]  # that of the other fit stays


def test_within_an_epoch_a_column_that_is_not_known_yet_gives_the_usual_name(tmp_path):
    learn = toy_learner([MetricsCB(quiet=True)])
    learn.fit(1, cbs=CheckpointCB(tmp_path, (1, "step"), None, name="{steps}-{valid_loss:.1f}"))
    last = f"2-{learn.history['valid_loss'][0]:.1f}.ckpt"
    assert names(tmp_path) == [last, "epoch000-step0000001.ckpt", "epoch000-step0000002.ckpt"]


def test_a_pattern_with_an_unknown_column_or_a_folder_is_an_error(tmp_path):
    learn = toy_learner([MetricsCB(quiet=True)])
    with pytest.raises(KeyError, match="there is no 'acuracy'; there are .*valid_loss"):
        learn.fit(1, cbs=CheckpointCB(tmp_path, name="{acuracy}"))
    for bad in ("a/b", "a\\b"):
        with pytest.raises(ValueError, match="pattern for a file's name"):
            CheckpointCB(tmp_path, name=bad)


def test_weights_alone_are_those_of_each_round_and_are_kept_as_asked(tmp_path):
    weights = []
    learn = toy_learner()
    learn.on("after_round", lambda learn: weights.append(learn.model.weight.detach().clone()))
    saver = CheckpointCB(tmp_path, keep=2, weights_only=True)
    learn.fit(4, cbs=saver)
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == [name for name, _ in saver.files]
    for file, weight in zip(files, weights[-2:], strict=True):
        assert file.suffix == ".safetensors" and file.stat().st_size < 1000
        assert torch.equal(load_model(file, linear(9)).weight, weight)


def test_weights_alone_are_the_averages_where_there_are_some(tmp_path):
    ema = EMACB(0.5)
    toy_learner([ema]).fit(1, cbs=CheckpointCB(tmp_path, weights_only=True))
    (file,) = tmp_path.iterdir()
    assert torch.equal(load_model(file, linear(9)).weight, ema.averaged_state_dict()["weight"])


def test_weights_alone_beside_whole_checkpoints_go_on_with_them(tmp_path):
    def fit(n, **kwargs):
        best = CheckpointCB(tmp_path / "best", monitor="valid_loss", keep=1, weights_only=True)
        cbs = [best, CheckpointCB(tmp_path / "all"), MetricsCB(quiet=True)]
        learn = toy_learner(cbs)
        learn.fit(n, **kwargs)
        return learn, best

    fit(2)
    learn, best = fit(5, resume=True)
    whole, _ = fit(5)
    assert best.monitor.best == min(learn.history["valid_loss"])
    assert learn.history["valid_loss"] == whole.history["valid_loss"]
    assert len(learn.history) == 5 and len(best.files) <= 2
    with pytest.raises(ValueError, match="add one"):
        toy_learner([CheckpointCB(tmp_path / "best", weights_only=True)]).fit(3, resume=True)


# ---- names of files from what a metric returns ----


class Says:
    """A metric with a given value in each epoch and validation."""

    def __init__(self, *values):
        self.values, self.n = values, -1

    def update(self, preds, targs):
        pass

    def reset(self):
        self.n += 1

    def compute(self):
        return self.values[self.n % len(self.values)]


@pytest.mark.case("F03")
@pytest.mark.filterwarnings("ignore:metric 'q' has no state_dict")
@pytest.mark.parametrize(
    ("value", "pattern", "name"),
    [
        (None, "{epoch}-{q:.3f}", "epoch000-step0000002"),
        ([1.0, 2.0], "{epoch}-{q:.3f}", "epoch000-step0000002"),
        ("cat", "{epoch}-{q:.3f}", "epoch000-step0000002"),
        ("a/b\\c", "{epoch}-{q}", "0-a_b_c"),
        (float("nan"), "{epoch}-{q:.3f}", "0-nan"),
        (0.25, "{epoch}-{q:.3f}", "0-0.250"),
    ],
)
def test_a_value_that_no_pattern_takes_gives_the_usual_name(value, pattern, name, tmp_path):
    cb = CheckpointCB(tmp_path, name=pattern)
    learn = toy_learner([MetricsCB(q=Says(value), quiet=True), cb])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        learn.fit(1)
    assert [file for file, _ in cb.files] == [f"{name}.ckpt"]
    assert any("the usual name is used" in str(w.message) for w in said) is name.startswith("epoch")
    assert (tmp_path / f"{name}.ckpt").exists()
