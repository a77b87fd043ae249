"""What each sink and instrument costs: a small CNN's training with it over the same without.

    python benchmarks/instruments.py [rounds]

MNIST-sized random pictures, 100 updates a fit, in memory, one thread. `LogCB(every=50)` is held to
2%. What a library takes to start and end (a database, a server's process) is in the figures of
MLflow and W&B.
"""

import io
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import compare

from minilearn import (
    Callback,
    CSVLoggerCB,
    JSONLLoggerCB,
    Learner,
    LogCB,
    LoggerCB,
    MemoryCB,
    MetricsCB,
    MLflowCB,
    RunCB,
    TensorBoardCB,
    TimerCB,
    TrainCB,
    WandbCB,
    get_model,
)

UPDATES, BS, LOG_LIMIT = 100, 64, 0.02


def instruments(folder: Path) -> dict[str, Callable[[], Callback]]:
    """Makers of what is measured, by name; those whose library is missing are left out."""
    makers = {
        "LoggerCB(50)": lambda: LoggerCB(50),
        "LogCB(50)": lambda: LogCB(50, folder),
        "CSVLoggerCB": lambda: CSVLoggerCB(folder / "rows.csv", every=50),
        "JSONLLoggerCB": lambda: JSONLLoggerCB(folder / "rows.jsonl", every=50),
        "TensorBoardCB": lambda: TensorBoardCB(folder / "tensorboard"),
        "MLflowCB": lambda: MLflowCB(f"sqlite:///{folder}/mlflow.db"),
        "WandbCB": lambda: WandbCB(mode="offline", dir=str(folder), settings={"silent": True}),
        "MemoryCB": MemoryCB,
        "RunCB": lambda: RunCB(folder),
        "TimerCB": lambda: TimerCB(hint=1),
    }
    needs = {"TensorBoardCB": "tensorboard", "MLflowCB": "mlflow", "WandbCB": "wandb"}
    return {name: f for name, f in makers.items() if find_spec(needs.get(name, "torch"))}


def fit(data: list, *cbs: Callback) -> None:
    torch.manual_seed(0)
    learn = Learner(get_model(), (data,), F.cross_entropy, cbs=[TrainCB(), MetricsCB(), *cbs])
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn.fit(1)


def main() -> None:
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    torch.manual_seed(0)
    data = [(torch.randn(BS, 1, 28, 28), torch.randint(0, 10, (BS,))) for _ in range(UPDATES)]
    with tempfile.TemporaryDirectory() as folder:
        ratios = {
            name: compare(name, lambda make=make: fit(data, make()), lambda: fit(data), rounds)
            for name, make in instruments(Path(folder)).items()
        }
    if (cost := ratios["LogCB(50)"] - 1) > LOG_LIMIT:
        sys.exit(f"LogCB(every=50) costs {cost:.1%} of a step; at most {LOG_LIMIT:.0%} is allowed")


if __name__ == "__main__":
    main()
