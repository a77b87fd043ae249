"""The MemoryCB of examples/callbacks/memory.py."""

import importlib.util
from pathlib import Path

import pytest
from toys import toy_learner

from minilearn import MetricsCB

PATH = Path(__file__).parents[2] / "examples" / "callbacks" / "memory.py"
pytest.importorskip("resource")  # there is none on Windows


def example():
    spec = importlib.util.spec_from_file_location("memory", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_memory_is_a_column_of_the_history():
    learn = toy_learner([MetricsCB(), example().MemoryCB()])
    learn.fit(2)
    assert all(1 < mb < 1e6 for mb in learn.history["memory_mb"])


def test_the_script_runs(capsys):
    learn = example().main(epochs=1, batches=2)
    assert learn.history[0]["memory_mb"] > 1
    assert "memory_mb" in capsys.readouterr().out
