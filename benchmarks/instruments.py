"""What each logger and instrument costs: the training of a small CNN with it and without.

    python benchmarks/instruments.py [rounds [names…]]

MNIST-sized random images in memory, one thread; 100 updates of 64, for hooks 8 of 1024, the
course's batches. The aims are 2% for `LogCB(every=50)`, 8% for `ActivationStats` on every
convolution. The figures of MLflow and W&B include what the library needs to start and end (a
database, a server's process).
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
from torch import nn

from minilearn import (
    ActivationStats,
    Callback,
    CSVLoggerCB,
    GradientStats,
    JSONLLoggerCB,
    Learner,
    LogCB,
    LoggerCB,
    MetricsCB,
    MLflowCB,
    ProgressCB,
    RecorderCB,
    RunCB,
    TensorBoardCB,
    TimerCB,
    TrainCB,
    WandbCB,
    get_model,
)

SMALL, LARGE = (100, 64), (8, 1024)  # updates, batch size
HOOKS = ("ActivationStats", "ActivationStats, exact", "GradientStats")
LIMITS = {"LogCB(50)": 0.02, "ActivationStats": 0.08}


def is_conv(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d)


def instruments(folder: Path) -> dict[str, Callable[[], Callback]]:
    """Makers of what is measured, by name; those whose library is missing are left out."""
    makers = {
        "ActivationStats": lambda: ActivationStats(is_conv),
        "ActivationStats, exact": lambda: ActivationStats(is_conv, exact=True),
        "GradientStats": GradientStats,
        "ProgressCB": ProgressCB,
        "RecorderCB": lambda: RecorderCB("lr", "momentum"),
        "LoggerCB(50)": lambda: LoggerCB(50),
        "LogCB(50)": lambda: LogCB(50, folder),
        "CSVLoggerCB": lambda: CSVLoggerCB(folder / "rows.csv", every=50),
        "JSONLLoggerCB": lambda: JSONLLoggerCB(folder / "rows.jsonl", every=50),
        "TensorBoardCB": lambda: TensorBoardCB(folder / "tensorboard"),
        "MLflowCB": lambda: MLflowCB(f"sqlite:///{folder}/mlflow.db"),
        "WandbCB": lambda: WandbCB(mode="offline", dir=str(folder), settings={"silent": True}),
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


def images(updates: int, bs: int) -> list:
    torch.manual_seed(0)
    return [(torch.randn(bs, 1, 28, 28), torch.randint(0, 10, (bs,))) for _ in range(updates)]


def price(name: str, make: Callable[[], Callback], data: list, rounds: int) -> float:
    return compare(name, lambda: fit(data, make()), lambda: fit(data), rounds)


def main() -> None:
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    small, large = images(*SMALL), images(*LARGE)
    with tempfile.TemporaryDirectory() as folder:
        ratios = {
            name: price(name, make, large if name in HOOKS else small, rounds)
            for name, make in instruments(Path(folder)).items()
            if name in sys.argv[2:] or not sys.argv[2:]
        }
    over = [name for name, limit in LIMITS.items() if ratios.get(name, 0) - 1 > limit]
    if over:
        sys.exit(f"dearer than it may be ({LIMITS}): {', '.join(over)}")


if __name__ == "__main__":
    main()
