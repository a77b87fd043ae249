"""A run that is stopped and resumed equals the run that was not: weights, optimizer, history."""

import os
import random
import shutil
import signal
import warnings
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from resumable import (
    EXTRAS,
    LENGTHS,
    LOADERS,
    SCHEDULES,
    KillAt,
    Options,
    differences,
    fit,
    in_child,
    make,
    outcome,
    run,
    run_with_kills,
    status_of,
    torture,
    warm,
    without_time,
)
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader
from toys import At, toy_dls, toy_learner

from minilearn import (
    ArrayLoader,
    BatchSchedCB,
    Callback,
    CheckpointCB,
    EarlyStopCB,
    EpochSchedCB,
    Learner,
    MetricsCB,
    SeededLoader,
    TrainCB,
    set_seed,
)
from minilearn.checkpoint.files import newest_first, read

FORKED = [name for name in LOADERS if "spawned" not in name]


def resumed_from_each(options, folder):
    """Yield the differences between a run and those that go on from each of its checkpoints."""
    learn = make(options, folder / "run")
    learn.find(CheckpointCB).keep = None
    fit(learn, options)
    whole = outcome(learn)
    for file in newest_first(folder / "run"):
        again = make(options, folder / file.stem)
        torch.manual_seed(99)
        fit(again, options, resume=file)
        got = outcome(again)
        callbacks = {k: v for k, v in whole["callbacks"].items() if k in got["callbacks"]}
        yield file.stem, differences(got, whole | {"callbacks": callbacks})


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("loader", ["array", "plain"])
def test_every_checkpoint_of_a_run_leads_to_its_end(loader, length, tmp_path):
    for name, differ in resumed_from_each(Options(loader, length, (3, "step")), tmp_path):
        assert not differ, name


@pytest.mark.parametrize("loader", [name for name in FORKED if name not in ("array", "plain")])
def test_every_kind_of_loader_comes_back_to_its_position(loader, tmp_path):
    for name, differ in resumed_from_each(Options(loader, "epochs", (7, "step")), tmp_path):
        assert not differ, name


@pytest.mark.slow
def test_spawned_workers_come_back_to_their_place(tmp_path):
    options = Options("seeded, spawned", "steps", (16, "step"))
    for name, differ in resumed_from_each(options, tmp_path):
        assert not differ, name


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_option_goes_on_where_it_was(extra, tmp_path):
    options = Options("plain", "epochs", (5, "step"), (extra,))
    for name, differ in resumed_from_each(options, tmp_path):
        assert not differ, name


def test_options_go_on_together(tmp_path):
    extras = ("one-cycle", "ema", "accumulation", "clip", "bf16", "mixup", "recorder")
    for length in ("steps", "epochs in cuts"):
        options = Options("plain", length, (3, "step"), extras)
        for name, differ in resumed_from_each(options, tmp_path / length[-4:]):
            assert not differ, name


def test_the_comparison_notices_states_that_are_not_restored(tmp_path, monkeypatch):
    monkeypatch.setattr("minilearn.checkpoint.fit_state.restore_random_states", lambda states: None)
    options = Options("array", "epochs", (5, "step"))
    assert any(differ for _, differ in resumed_from_each(options, tmp_path))


# ---- kills and signals ----


def test_killed_runs_end_as_if_nothing_had_happened():
    kills, wrong = torture(25, seed=3, loaders=("array", "plain", "own generator", "list"))
    assert kills >= 25
    assert not wrong


@pytest.mark.parametrize("event", ["after_predict", "after_step", "after_epoch", "after_round"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_sigterm_saves_and_ends_with_its_status(event, nth, tmp_path):
    warm()
    options = Options("plain", "epochs", 1, ("ema", "plateau"))
    pid = in_child(run, options, tmp_path / "run", tmp_path / "result", f"term {event}", nth, 0)
    assert status_of(pid) == 128 + signal.SIGTERM
    assert newest_first(tmp_path / "run")
    killed, differ, _ = run_with_kills(options, [], tmp_path)
    assert not differ


def test_a_signal_in_a_validation_is_kept_as_such(tmp_path):
    learn = make(Options(), tmp_path)
    in_validation = KillAt("after_loss", 11, 0, signal.SIGUSR1)  # nine training batches go before
    with pytest.raises(SystemExit) as ended:
        learn.fit(3, cbs=in_validation)
    assert ended.value.code == 128 + signal.SIGUSR1
    state = read(newest_first(tmp_path)[0])
    assert (state["position"], state["steps"], len(state["history"])) == ("validation", 9, 0)


@pytest.mark.parametrize("nth", [3, 4])
def test_a_signal_inside_a_group_of_batches_waits_for_its_update(nth, tmp_path):
    learn = make(Options("plain", "epochs", 1, ("accumulation",)), tmp_path)
    with pytest.raises(SystemExit):
        learn.fit(3, cbs=KillAt("after_batch", nth, 0, signal.SIGUSR1))
    state = read(newest_first(tmp_path)[0])
    assert (state["position"], state["steps"], state["stream"]["taken"]) == ("training", 2, 4)


def test_handlers_of_signals_are_those_before(tmp_path):
    mine = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        before = signal.getsignal(signal.SIGUSR1)
        seen = []
        look = At("after_batch", lambda learn: seen.append(signal.getsignal(signal.SIGUSR1)))
        toy_learner([MetricsCB(), CheckpointCB(tmp_path), look]).fit(1)
        assert seen[0] is not before and signal.getsignal(signal.SIGUSR1) is before
        learn = toy_learner([CheckpointCB(tmp_path), At("after_batch", ValueError("no"))])
        with pytest.raises(ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            learn.fit(1)
        assert signal.getsignal(signal.SIGUSR1) is before
    finally:
        signal.signal(signal.SIGUSR1, mine)


def test_ctrl_c_saves_where_it_was_asked_to(tmp_path):
    def interrupt(learn):
        os.kill(os.getpid(), signal.SIGINT)

    saver = CheckpointCB(tmp_path, signals=("SIGINT",))
    learn = toy_learner([saver, At("after_loss", interrupt)])
    with pytest.raises(KeyboardInterrupt):
        learn.fit(2)
    assert read(newest_first(tmp_path)[0])["steps"] == 1


# ---- the cases ----


def count_epochs(learn, seen):
    note = lambda learn: seen.append(learn.epoch)  # noqa: E731
    learn.on("before_epoch", note, when=lambda learn: learn.training)


def check_continues(folder, resume):
    """C001: six epochs in two parts; the second trains the epochs 3, 4, 5."""
    seen = []
    make_one = lambda: toy_learner([CheckpointCB(folder)], dls=toy_dls(n_train=8))  # noqa: E731
    make_one().fit(3)
    learn = make_one()
    count_epochs(learn, seen)
    resume(learn)
    assert (seen, learn.steps_done) == ([3, 4, 5], 48)


@pytest.mark.case("C001")
def test_finished_epochs_are_not_trained_again(tmp_path):
    check_continues(tmp_path, lambda learn: learn.fit(6, resume=True))


@pytest.mark.case("C001")
def test_the_check_notices_an_epoch_that_is_trained_twice(tmp_path, monkeypatch):
    monkeypatch.setattr("minilearn.checkpoint.fit_state.find_position", lambda learn: "epoch")
    with pytest.raises(AssertionError):
        check_continues(tmp_path, lambda learn: learn.fit(6, resume=True))


def test_a_total_that_is_done_trains_nothing_and_less_is_an_error(tmp_path):
    learn = toy_learner([CheckpointCB(tmp_path)])
    learn.fit(3)
    weights = learn.model.weight.clone()
    again = toy_learner([CheckpointCB(tmp_path)])
    again.fit(3, resume=True)
    assert torch.equal(again.model.weight, weights) and len(again.history) == 3
    with pytest.raises(ValueError, match="3 epochs are done or begun.*after 2"):
        toy_learner([CheckpointCB(tmp_path)]).fit(2, resume=True)
    with pytest.raises(ValueError, match="6 updates are done"):
        toy_learner([CheckpointCB(tmp_path)]).fit(n_steps=5, resume=True)


def used_rates(folder, stop_at, valid_every):
    """Return the rate of each epoch of a run in two parts: milestone 4, factor 0.1."""
    rates = []
    factory = lambda opt: lr_scheduler.MultiStepLR(opt, [4], 0.1)  # noqa: E731

    def learner():
        learn = toy_learner([EpochSchedCB(factory), CheckpointCB(folder)], lr=1.0)
        learn.model.weight.data.mul_(0)
        learn.on("after_step", lambda learn: rates.append(learn.opt.param_groups[0]["lr"]))
        return learn

    learner().fit(stop_at, valid_every=valid_every)
    learner().fit(6, valid_every=valid_every, resume=True)
    return rates[::2]


@pytest.mark.case("C002")
@pytest.mark.parametrize("valid_every", [1, 2])
def test_the_epoch_schedule_goes_on_in_step(valid_every, tmp_path):
    assert used_rates(tmp_path, 3, valid_every) == [1.0] * 4 + [0.1] * 2


@pytest.mark.case("C002")
def test_the_check_notices_a_schedule_that_lags(tmp_path, monkeypatch):
    def lagging(self, state):
        self._state = state and state | {"steps": state["steps"] - 1, "schedule": {}}

    monkeypatch.setattr(EpochSchedCB, "load_state_dict", lagging)
    with pytest.raises(AssertionError):
        assert used_rates(tmp_path, 3, 1) == [1.0] * 4 + [0.1] * 2


class Ids:
    """64 samples: an item is its index."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.tensor([float(i)]), torch.tensor([0.0])


def seen_ids(folder, loader, resume=None, stop=None):
    """Return the ids that are trained on, in order; `stop` ends the process's fit after a batch."""
    ids = []
    set_seed(5 if resume is None else 77)
    saver = CheckpointCB(folder, every=(1, "step"), keep=None)
    learn = Learner(nn.Linear(1, 1), (loader(),), F.mse_loss, cbs=[TrainCB(), saver], lr=1e-6)
    learn.on("after_step", lambda learn: ids.extend(learn.batch[0].flatten().int().tolist()))
    learn.fit(3, resume=resume)
    return ids


@pytest.mark.case("C004")
@pytest.mark.parametrize("kind", ["plain", "plain, two workers", "seeded", "array"])
def test_a_resume_within_an_epoch_takes_each_sample_once(kind, tmp_path):
    loader = {
        "plain": lambda: DataLoader(Ids(), 4, shuffle=True),
        "plain, two workers": lambda: DataLoader(Ids(), 4, shuffle=True, num_workers=2),
        "seeded": lambda: SeededLoader(Ids(), 4, shuffle=True),
        "array": lambda: ArrayLoader(
            {"x": torch.arange(64.0)[:, None], "y": torch.zeros(64, 1)}, 4, shuffle=True
        ),
    }[kind]
    whole = seen_ids(tmp_path / "a", loader)
    file = next((tmp_path / "a").glob("*step0000021.ckpt"))  # batch 5 of the second epoch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rest = seen_ids(tmp_path / "b", loader, resume=file)
    assert rest == whole[84:]
    assert sorted(whole[64:84] + rest[:44]) == list(range(64))


@pytest.mark.case("C004")
def test_the_check_notices_batches_of_another_shuffle(tmp_path, monkeypatch):
    loader = lambda: DataLoader(Ids(), 4, shuffle=True)  # noqa: E731
    whole = seen_ids(tmp_path / "a", loader)
    monkeypatch.setattr("minilearn.core.stream.restore_random_states", lambda states: None)
    rest = seen_ids(tmp_path / "b", loader, next((tmp_path / "a").glob("*step0000021.ckpt")))
    with pytest.raises(AssertionError):
        assert rest == whole[84:]


def two_parts(tmp_path, options=None):
    """Return the outcomes of four epochs in one go and of two and two in two processes."""
    warm()
    options = options or Options("plain", "validated every second epoch")
    killed, differ, _ = run_with_kills(options, [("before_round", 3, 0)], tmp_path)
    assert killed == 1
    return differ


@pytest.mark.case("C005")
def test_random_streams_go_on_in_another_process(tmp_path):
    assert two_parts(tmp_path) == []


@pytest.mark.case("C005")
@pytest.mark.parametrize("name", ["python", "numpy", "torch"])
def test_the_check_notices_each_random_stream_that_is_lost(name, tmp_path, monkeypatch):
    from minilearn.checkpoint import fit_state as resume

    real = resume.unpacked

    def lossy(packed):
        states = real(packed)
        now = resume.random_states()
        return states._replace(**{name: getattr(now, name)})

    monkeypatch.setattr(resume, "unpacked", lossy)
    with pytest.raises(AssertionError):
        assert two_parts(tmp_path) == []


# ---- what is asked of a user ----


def test_resume_true_begins_afresh_in_an_empty_folder_and_says_so(tmp_path, capsys):
    learn = toy_learner([CheckpointCB(tmp_path / "new")])
    learn.fit(1, resume=True)
    assert "begins afresh" in capsys.readouterr().out and learn.steps_done == 2


def test_resume_true_needs_a_folder():
    with pytest.raises(ValueError, match="CheckpointCB"):
        toy_learner().fit(1, resume=True)


def test_a_folder_may_be_named(tmp_path):
    toy_learner([CheckpointCB(tmp_path)]).fit(1)
    learn = toy_learner()
    with pytest.warns(UserWarning, match="the state of CheckpointCB is in the checkpoint only"):
        learn.fit(2, resume=str(tmp_path))
    assert learn.steps_done == 4


def test_a_checkpoint_of_another_model_names_the_tensors(tmp_path):
    toy_learner([CheckpointCB(tmp_path)]).fit(1)
    other = toy_learner([CheckpointCB(tmp_path)], model=nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"weight  \[2, 3\]  \[1, 3\]"):
        other.fit(2, resume=True)


def test_saved_settings_win_over_new_ones_with_a_warning(tmp_path):
    toy_learner([CheckpointCB(tmp_path)], lr=0.1).fit(1)
    learn = toy_learner([CheckpointCB(tmp_path)], lr=0.5)
    with pytest.warns(UserWarning, match=r"lr: 0\.1 saved, 0\.5 here"):
        learn.fit(2, resume=True)
    assert learn.opt.param_groups[0]["lr"] == 0.1


def test_another_batch_size_is_said(tmp_path):
    toy_learner([CheckpointCB(tmp_path)]).fit(1)
    learn = toy_learner([CheckpointCB(tmp_path)], dls=toy_dls(n_train=5))
    with pytest.warns(UserWarning, match="batches: 2 saved, 5 here"):
        learn.fit(2, resume=True)


def test_torchs_workers_are_warned_of_in_mid_epoch_only(tmp_path):
    options = Options("plain, forked", "epochs", (4, "step"))
    fit(make(options, tmp_path / "a"), options)
    files = newest_first(tmp_path / "a")
    again = make(options, tmp_path / "b")
    inside = next(f for f in files if read(f)["position"] == "training")
    with pytest.warns(UserWarning, match="not repeated in this epoch"):
        again.fit(3, resume=inside)


class Counting(Callback):
    """Keeps a number, to be distinguished from another one."""

    def __init__(self, by):
        self.by, self.count = by, 0

    def after_batch(self, learn):
        self.count += self.by

    def state_dict(self):
        return {"count": np.int64(self.count)}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_two_callbacks_of_one_class_keep_apart(tmp_path):
    first = [Counting(1), Counting(10)]
    toy_learner([*first, CheckpointCB(tmp_path)]).fit(1)
    second = [Counting(1), Counting(10)]
    toy_learner([*second, CheckpointCB(tmp_path)]).fit(2, resume=True)
    assert [cb.count for cb in second] == [6, 60]


class TakesApart(Callback):
    """Takes what it loads out of the state that it is given, as torch's CyclicLR does."""

    count = 0

    def after_batch(self, learn):
        self.count += 1

    def state_dict(self):
        return {"of": {"count": self.count}}

    def load_state_dict(self, state):
        self.count = state.pop("of").pop("count")


def test_a_state_that_is_taken_apart_when_it_is_loaded_serves_inside_an_epoch_too(tmp_path):
    """There it is loaded twice: before the fit, and when the epoch has begun."""
    data = toy_dls(n_train=4)
    cyclic = partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3)

    def outcome_of(**resume):
        cbs = [TakesApart(), BatchSchedCB(partial(cyclic, cycle_momentum=False))]
        learn = toy_learner([*cbs, CheckpointCB(tmp_path, (3, "step"), keep=None)], dls=data)
        learn.fit(2, **resume)
        return learn.model.state_dict(), cbs[0].count, cbs[1].schedo.get_last_lr()

    whole = outcome_of()
    (inside,) = tmp_path.glob("*step0000003*")
    assert not differences(outcome_of(resume=inside), whole)


def test_an_error_saves_what_there_was_and_leaves(tmp_path):
    learn = toy_learner([CheckpointCB(tmp_path)], dls=toy_dls(n_train=6))
    fail = At("after_predict", OSError("disk gone"), when=lambda learn: learn.iter == 4)
    with pytest.raises(OSError, match="disk gone"):
        learn.fit(2, cbs=fail)
    state = read(newest_first(tmp_path)[0])
    assert (state["steps"], state["batches"], state["exact"]) == (4, 4, False)
    again = toy_learner([CheckpointCB(tmp_path)], dls=toy_dls(n_train=6))
    with pytest.warns(UserWarning, match="saved when an error ended an epoch"):
        again.fit(2, resume=True)
    assert again.steps_done == 12


def test_neither_weights_that_are_not_finite_nor_what_nobody_wants_is_saved_at_an_error(tmp_path):
    for error, wanted in ((FloatingPointError("nan"), True), (OSError("gone"), False)):
        saver = CheckpointCB(tmp_path, on_exception=wanted)
        with pytest.raises(type(error)):
            toy_learner([saver, At("after_step", error)]).fit(1)
        assert newest_first(tmp_path) == []


def test_patience_goes_on(tmp_path):
    def learner():
        stop = EarlyStopCB("value", "min", patience=3)
        put = At("after_epoch", lambda learn: learn.row.update(value=1.0), times=99)
        return toy_learner([put, stop, CheckpointCB(tmp_path)]), stop

    learner()[0].fit(3)
    learn, stop = learner()
    learn.fit(9, resume=True)
    assert (len(learn.history), stop.count) == (4, 3)


def test_load_checkpoint_brings_weights_optimizer_and_history_and_no_random_numbers(tmp_path):
    learn = toy_learner([CheckpointCB(tmp_path)], opt_func=torch.optim.AdamW)
    learn.fit(2)
    other = toy_learner(opt_func=torch.optim.AdamW)
    states = random.getstate(), torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.load_checkpoint(tmp_path)
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
    assert differences(other.opt.state_dict()["state"], learn.opt.state_dict()["state"]) == []
    assert without_time(other.history) == without_time(learn.history)
    other.fit(1, reset_opt=False)


def test_save_checkpoint_by_hand_goes_on_too(tmp_path):
    whole, learn = toy_learner(), toy_learner()
    whole.fit(3)
    learn.on("after_round", lambda learn: learn.save_checkpoint(tmp_path / "mine"), once=True)
    learn.fit(1)
    again = toy_learner()
    shutil.move(tmp_path / "mine", tmp_path / "mine.ckpt")
    again.fit(3, resume=tmp_path / "mine.ckpt")
    assert torch.equal(again.model.weight, whole.model.weight)


def test_schedules_are_drawn_at_most_once():
    assert all(len(SCHEDULES & set(Options.draw(random.Random(i)).extras)) < 2 for i in range(99))


def check_validation(folder):
    """A validation that is broken off is made again from where it began, whatever it moves."""
    options = Options("array", "epochs", 1, ("own loss",))
    killed, differ, _ = run_with_kills(options, [("term after_loss", 12, -100)], folder)
    assert killed == 1 and not differ


@pytest.mark.case("F23")
@pytest.mark.skipif(os.name != "posix", reason="the ends are signals")
def test_buffers_that_a_validation_moves_go_on_where_it_began(tmp_path):
    check_validation(tmp_path)


@pytest.mark.case("F23")
@pytest.mark.skipif(os.name != "posix", reason="the ends are signals")
def test_the_check_notices_buffers_that_a_broken_validation_moved(tmp_path, monkeypatch):
    monkeypatch.setattr("minilearn.checkpoint.callback.keep", lambda *_, **__: lambda: None)
    with pytest.raises(AssertionError):
        check_validation(tmp_path)


def test_checkpoints_do_not_grow_with_the_number_of_resumes(tmp_path):
    sizes = []
    for n_epochs in range(1, 8):
        toy_learner([MetricsCB(quiet=True), CheckpointCB(tmp_path)]).fit(n_epochs, resume=True)
        sizes.append(newest_first(tmp_path)[0].stat().st_size)
    assert sizes[-1] - sizes[1] < 500 * 5  # rows of the history


def test_a_folder_to_resume_from_that_does_not_exist_is_an_error_unless_this_fit_makes_it(tmp_path):
    learn = toy_learner([CheckpointCB(tmp_path / "runs")])
    with pytest.raises(FileNotFoundError, match="no such folder or file; did you mean .*runs"):
        learn.fit(1, resume=tmp_path / "rnus")
    assert learn.steps_done == 0
    learn.fit(1, resume=str(tmp_path / "runs"))
    assert learn.history
