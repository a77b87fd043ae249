"""The folder of a run: where it is, what writes into it, and what is left there.

`config.yaml`, `run.json`, `checkpoints/`, `history.csv`, `losses.png`, and the model as
`minilearn predict` takes it: `metadata.json`, `model.safetensors`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..base.files import replaced
from ..base.rank import rank
from .values import BadInput, yaml_text

if TYPE_CHECKING:
    from minilearn import Learner

    from ..core.history import History

RUNS, CONFIG, CHECKPOINTS = Path("runs"), "config.yaml", "checkpoints"
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")
LoggerName = Literal["tensorboard", "csv", "jsonl", "mlflow", "wandb"]


def check_folder(values: Mapping[str, Any]) -> None:
    """Raise BadInput if a new run cannot be written to its folder."""
    out = values["out"]
    if values["resume"]:
        return
    if out is None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise BadInput("several processes write one run: give all the same --out FOLDER")
    elif rank() == 0 and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise BadInput(f"{out} is there already; give another --out, or continue it with --resume")


def run_folder(out: Any, resume: Any) -> Path:
    """Return the folder of a run, made where it is a new one.

    Raises:
        ValueError: there is no run to resume.
    """
    if isinstance(resume, str) and resume != "true":
        path = Path(resume)
        if not path.exists():
            raise ValueError(f"nothing to resume: there is no {path}")
        folder = path.parent if path.is_file() else path
        return folder.parent if folder.name == CHECKPOINTS else folder
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        return Path(out)
    if not resume:
        return new_folder()
    runs = [path.parent for path in RUNS.glob(f"*/{CONFIG}")]
    if not runs:
        raise ValueError(f"nothing to resume: no run in {RUNS} has a {CONFIG}; name its folder")
    return max(runs, key=lambda run: (run / CONFIG).stat().st_mtime)


def checkpoints_of(folder: Path, resume: bool | str) -> Path:
    """Return the checkpoint from which a run goes on, or the folder of its checkpoints."""
    is_file = isinstance(resume, str) and Path(resume).is_file()
    return Path(str(resume)) if is_file else folder / CHECKPOINTS


def is_over(checkpoints: Path, config: Mapping[str, Any]) -> bool:
    """Return whether a run has come to the end that its configuration names."""
    from ..checkpoint.files import find

    if (found := find(checkpoints)) is None:
        return False
    state, steps = found[1], config.get("steps")
    if steps or config.get("valid_every"):  # which may cut an epoch
        return bool(steps) and state["steps"] >= steps
    return state["position"] == "round" and state["epoch"] + 1 >= config["epochs"]


def new_folder() -> Path:
    """Make a folder in `runs` that is named after the time."""
    stem, number = RUNS / time.strftime("%Y-%m-%d_%H-%M-%S"), 1
    folder = stem
    while folder.exists():  # two runs in one second
        number += 1
        folder = stem.with_name(f"{stem.name}_{number}")
    folder.mkdir(parents=True)
    return folder


def run_callbacks(
    folder: Path, log: Sequence[str], every: int, keep: int, config: Mapping[str, Any]
) -> list[Any]:
    """Return the callbacks that record the run."""
    import minilearn as ml

    makers = {
        "tensorboard": lambda: ml.TensorBoardCB(folder / "tensorboard", every),
        "csv": lambda: ml.CSVLoggerCB(folder / "log.csv", every),
        "jsonl": lambda: ml.JSONLLoggerCB(folder / "log.jsonl", every),
        "mlflow": lambda: ml.MLflowCB(_mlflow_store(folder), every=every),
        "wandb": lambda: ml.WandbCB(every, project="minilearn", dir=str(folder), config=config),
    }
    loggers = [makers[name]() for name in dict.fromkeys(log)]
    checkpoints = ml.CheckpointCB(folder / CHECKPOINTS, keep=keep, signals=SIGNALS)
    return [ml.RunCB(folder, config=config), checkpoints, *loggers]


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the configuration of a run into its folder."""
    if rank() == 0:
        with replaced(folder / CONFIG) as file:
            file.write(yaml_text(dict(config)).encode())


def _mlflow_store(folder: Path) -> str | None:
    if "MLFLOW_TRACKING_URI" in os.environ:
        return None  # which MLflow reads itself
    return f"sqlite:///{(folder / 'mlflow.db').absolute().as_posix()}"


def write_results(learn: Learner, folder: Path) -> None:
    """Write `history.csv`, `losses.png`, and the model as `minilearn predict` takes it."""
    write_model(learn, folder)
    learn.history.to_csv(folder / "history.csv")
    plot_losses(learn.history, folder / "losses.png")


def write_model(learn: Learner, folder: Path) -> None:
    """Export the model into the folder of its run, with its graph where no other process knows it.

    A model that cannot be exported leaves its weights, and a line that says why.
    """
    part = folder / "model.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        learn.export(part, pt2=not _is_known(learn.model))
    except ValueError as e:
        learn.save(folder / "model.safetensors")
        print(f"only the weights are saved, not the model: {' '.join(str(e).split())}")
        return
    for path in part.iterdir():
        os.replace(path, folder / path.name)
    part.rmdir()


def _is_known(model: Any) -> bool:
    """Return whether every installation of the package can make the model again by its name."""
    from ..nn.registry import MODELS
    from ..nn.timm_models import TIMM

    name = getattr(model, "_built_by", ("",))[0]
    ours = getattr(MODELS.get(name), "__module__", "").startswith("minilearn.")
    return ours or name.startswith(TIMM)


def plot_losses(history: History, path: Path) -> None:
    """Draw the training and the validation loss to an image file, where there are any."""
    if history:
        figure: Any = history.plot("loss", figsize=(7, 4.5)).flat[0].figure
        figure.savefig(path, dpi=120)

        from matplotlib import pyplot

        pyplot.close(figure)
