"""One of two processes is killed, fails or receives a signal; what was saved goes on to the bit."""

import pytest
import torch

from .launch import as_json, told, torchrun
from .programs.resumed import make


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("resumed")


@pytest.fixture(scope="module")
def broken(folder):
    """What became of the fits that were disturbed."""
    return {w: torchrun("resumed", folder, w, check=False) for w in ("killed", "ended", "failed")}


@pytest.fixture(scope="module")
def both(broken, folder):
    torchrun("resumed", folder, "resumed")
    return told(folder)


def test_what_ends_one_process_ends_the_other_and_says_why(broken):
    assert all(run.returncode for run in broken.values())
    failed = broken["failed"].stderr
    assert "ZeroDivisionError: one process fails" in failed
    assert "in At.after_batch, epoch 1, batch 1 (training)" in failed
    assert "process 1 failed" in failed  # so says the other one


@pytest.mark.parametrize("name", ["killed", "ended"])
def test_a_resume_on_as_many_processes_is_exact(both, name):
    for one in both:
        whole, resumed = one["whole"], one[name]
        for key, weight in whole["weights"].items():
            assert torch.equal(weight, resumed["weights"][key]), key
        assert all(
            torch.equal(a, b) for a, b in zip(whole["moments"], resumed["moments"], strict=True)
        )
        assert as_json(whole["history"]) == as_json(resumed["history"])
        assert whole["orders"][2] == resumed["orders"][2]
    assert torch.equal(
        both[0]["killed"]["weights"]["0.weight"], both[1]["killed"]["weights"]["0.weight"]
    )


def test_a_signal_that_one_process_receives_saves_in_the_first(broken, folder):
    state = torch.load(folder / "ended" / "epoch001-step0000008.ckpt", weights_only=True)
    assert state["position"] == "training" and len(state["processes"]["states"]) == 2
    assert not any(name.startswith("module.") for name in state["model"])


@pytest.mark.case("C134")
def test_a_resume_has_the_order_of_its_epoch(both):
    for one in both:
        assert one["killed"]["orders"][2] == one["whole"]["orders"][2]
        assert one["killed"]["orders"][2] != one["whole"]["orders"][1]


def test_a_resume_on_another_number_of_processes_warns_and_goes_on(both, folder, monkeypatch):
    monkeypatch.setenv("MINILEARN_DEVICE", "cpu")
    newest = max((folder / "killed").glob("*step0000006*.ckpt"))
    learn, orders = make(folder / "one")
    with pytest.warns(UserWarning, match="2 processes made the checkpoint, and here are 1"):
        learn.fit(3, resume=newest)
    assert [row["epoch"] for row in learn.history] == [0, 1, 2]
    # six updates of eight samples: an epoch of five, and eight samples, so two batches of four
    assert [len(batches) for batches in orders.passes.values()] == [8, 10]


@pytest.mark.case("C132")
def test_the_first_process_decides_whether_there_is_a_checkpoint(both, broken):
    assert both  # all made the fit "nothing yet" without waiting for each other


def test_another_process_that_only_saves_its_own_would_be_seen(both):
    first, second = (one["whole"]["orders"] for one in both)
    assert first != second  # so one process's state could not serve for both
