"""The Ray example, with real workers where Ray is installed."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("ray.train")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_train.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_workers_train_and_bring_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("MINILEARN_DEVICE", "cpu")
    main = runpy.run_path(str(EXAMPLE))["main"]
    result = main(workers=2, epochs=1, bs=256, storage=str(tmp_path))
    assert result.metrics["accuracy"] > 0.3 and result.metrics["epoch"] == 0
    assert result.metrics["steps"] == 10_000 // 512 + 1
    assert list(Path(result.checkpoint.path).glob("last.ckpt"))
