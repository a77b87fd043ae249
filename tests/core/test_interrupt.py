"""Ctrl-C: all is cleaned up, the interrupt leaves the fit, and the Learner stays usable."""

import _thread
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from interrupted import interrupts
from torch import nn
from toys import At, Trace, batches, toy_learner

from minilearn.callbacks.averaging import EMACB
from minilearn.callbacks.precision import ClosureCB
from minilearn.callbacks.training import TrainCB
from minilearn.core.interrupt import Interrupts
from minilearn.learner import Learner


def test_a_stopped_fit_returns_normally_and_says_that_it_was_interrupted():
    at = At("after_batch", KeyboardInterrupt, when=lambda learn: learn.epoch == 1)
    learn = toy_learner([trace := Trace(), at])
    learn.fit(3, on_interrupt="stop")
    assert learn.interrupted
    assert trace.events[-1] == "cleanup_fit"
    assert [row["epoch"] for row in learn.history] == [0]
    assert learn.opt is not None and learn.steps_done == 3
    learn.fit(1, on_interrupt="stop")
    assert not learn.interrupted


def test_an_unknown_way_to_treat_interrupts_is_an_error():
    with pytest.raises(ValueError, match="'raise' or 'stop'"):
        toy_learner().fit(1, on_interrupt="ignore")


SCRIPT = """
    import time
    import torch
    from minilearn.callbacks.training import TrainCB
    from minilearn.core.callback import Callback
    from minilearn.learner import Learner

    class Waits(Callback):
        seconds = 60
        def after_loss(self, learn):
            print("ready", flush=True)
            for _ in range(100 * self.seconds):
                time.sleep(0.01)
        def cleanup_batch(self, learn): print("clean batch", type(learn.error).__name__)
        def cleanup_fit(self, learn): print("clean fit", type(learn.error).__name__)

    data = [(torch.ones(2, 3), torch.ones(2, 1))]
    learn = Learner(torch.nn.Linear(3, 1), (data,), cbs=[TrainCB(), Waits()])
    try:
        learn.fit(1, **{keywords})
    except KeyboardInterrupt:
        Waits.seconds = 0
        learn.fit(1)
        print("a new fit works", learn.steps_done)
        raise
    print("finished")
"""


def run_and_interrupt(keywords):
    """Run the script in a process of its own, and send it SIGINT once it is in its first batch."""
    code = textwrap.dedent(SCRIPT).replace("{keywords}", keywords)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    return process.returncode, out.splitlines(), err


def check_interrupt(keywords):
    code, lines, errors = run_and_interrupt(keywords)
    assert lines[:2] == ["clean batch KeyboardInterrupt", "clean fit KeyboardInterrupt"]
    assert "finished" not in lines
    assert "a new fit works 1" in lines
    assert code != 0
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.case("C074")
def test_ctrl_c_cleans_up_and_ends_the_script():
    check_interrupt("{}")


@pytest.mark.case("C074")
def test_the_check_of_ctrl_c_notices_an_interrupt_that_is_swallowed():
    with pytest.raises(AssertionError):
        check_interrupt("{'on_interrupt': 'stop'}")


class Interrupted(torch.optim.SGD):
    """Adds 1 to each weight in turn; Ctrl-C is pressed before those of given numbers."""

    presses = ()

    def step(self, closure=None):
        with torch.no_grad():
            for number, p in enumerate(self.param_groups[0]["params"]):
                if number in self.presses:
                    os.kill(os.getpid(), signal.SIGINT)
                p.add_(1)


def fit_with_presses(presses, event=None):
    """Press Ctrl-C within the first step, or at an event; return the Learner and its weights."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    for p in model.parameters():
        nn.init.zeros_(p)
    opt = Interrupted(model.parameters(), 0.1)
    opt.presses = presses
    press = At(event, lambda learn: os.kill(os.getpid(), signal.SIGINT)) if event else None
    learn = Learner(model, (batches(3, n_in=2, n_out=2), None), opt=opt, cbs=[TrainCB(), press])
    with pytest.raises(KeyboardInterrupt):
        learn.fit(1)
    return learn, {float(x) for p in model.parameters() for x in p.flatten()}


def check_whole_update(presses, event=None):
    learn, values = fit_with_presses(presses, event)
    assert values == {1.0} and learn.steps_done == 1


@pytest.mark.case("F14")
@given(st.integers(0, 7))
def test_ctrl_c_within_a_step_waits_until_the_update_is_made_and_counted(number):
    check_whole_update({number})


@pytest.mark.case("F14")
@pytest.mark.parametrize("event", ["before_step", "after_step", "cleanup_step"])
def test_ctrl_c_waits_for_the_counters_and_callbacks_of_the_update_too(event):
    check_whole_update((), event)


@pytest.mark.case("F14")
def test_the_check_of_updates_notices_an_interrupt_that_is_not_held_back(monkeypatch):
    monkeypatch.setattr(Interrupts, "__enter__", lambda self: None)
    monkeypatch.setattr(Interrupts, "__exit__", lambda self, *_: None)
    with pytest.raises(AssertionError):
        check_whole_update({3})


@pytest.mark.case("F14")
def test_interrupts_from_outside_at_random_moments_leave_no_half_update():
    assert not interrupts(3, seed=1)


@pytest.mark.case("F14")
def test_the_check_from_outside_notices_half_updates():
    assert any(interrupts(1, seed, held=False) for seed in range(20))


def test_a_second_ctrl_c_within_a_step_breaks_through_and_says_so(capsys):
    learn, values = fit_with_presses({2, 5})
    assert values == {0.0, 1.0} and learn.steps_done == 0
    assert "half a step" in capsys.readouterr().err


def test_the_users_own_handler_is_called_and_put_back():
    called = []

    def mine(number, frame):
        called.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, mine)
    try:
        check_whole_update({4})
        assert called == [signal.SIGINT] and signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_fit_in_another_thread_and_one_that_ignores_ctrl_c_leave_the_handler_alone():
    thread = threading.Thread(target=lambda: toy_learner().fit(1))
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        seen = At("after_batch", lambda learn: found.append(signal.getsignal(signal.SIGINT)))
        found = []
        toy_learner([seen]).fit(1)
        assert found[0] is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_nested_run_within_an_update_holds_ctrl_c_back_as_well():
    def inside(learn):
        learn.get_preds([batches(1)[0]])
        os.kill(os.getpid(), signal.SIGINT)
        learn.get_preds([batches(1)[0]])
        seen.append(learn.steps_done)

    seen = []
    learn = toy_learner([At("after_step", inside)])
    with pytest.raises(KeyboardInterrupt):
        learn.fit(1)
    assert seen == [1]


def test_what_runs_after_an_interrupted_fit_does_not_change_that_it_was_interrupted():
    learn = toy_learner([At("after_batch", KeyboardInterrupt)])
    learn.fit(1, on_interrupt="stop")
    learn.validate()
    assert learn.interrupted


# ---- who else may interrupt an update ----


class Handled(Exception):
    """What a user's own handler of Ctrl-C raises."""


def raises_its_own(number, frame):
    raise Handled


def in_a_closure():
    calls = []

    def loss(preds, targs):
        calls.append(1)
        if len(calls) == 3:  # the third evaluation of the first update
            os.kill(os.getpid(), signal.SIGINT)
        return F.mse_loss(preds, targs)

    return Learner(nn.Linear(3, 1), (batches(3), None), loss, 1, ClosureCB(), torch.optim.LBFGS)


def in_zero_grad():
    class Clears(TrainCB):
        def zero_grad(self, learn):
            os.kill(os.getpid(), signal.SIGINT)
            super().zero_grad(learn)

    return toy_learner([Clears()])


def in_an_average():
    class Average(EMACB):
        def after_step(self, learn):
            os.kill(os.getpid(), signal.SIGINT)
            super().after_step(learn)

    return toy_learner([Average()])


def by_another_thread():
    class Interrupts(torch.optim.SGD):
        def step(self, closure=None):
            _thread.interrupt_main()
            super().step()

    return toy_learner([], opt_func=Interrupts)


@pytest.mark.case("F14")
@pytest.mark.parametrize("error", [KeyboardInterrupt, Handled])
@pytest.mark.parametrize("make", [in_a_closure, in_zero_grad, in_an_average, by_another_thread])
def test_wherever_an_interrupt_comes_from_the_update_is_whole(make, error):
    counted, own = [], signal.getsignal(signal.SIGINT)
    if error is Handled:
        signal.signal(signal.SIGINT, raises_its_own)
    try:
        learn = make()
        learn.on("cleanup_step", lambda learn: counted.append(learn.steps_done))
        with pytest.raises(error):
            learn.fit(1)
        kept = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, own)
    assert counted == [1] and learn.steps_done == 1
    assert kept is (raises_its_own if error is Handled else own)
