"""Ctrl-C: all is cleaned up, the interrupt leaves the fit, and the Learner stays usable."""

import signal
import subprocess
import sys
import textwrap

import pytest
from toys import At, Trace, toy_learner


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
