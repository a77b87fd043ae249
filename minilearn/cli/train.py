"""`minilearn train` and `minilearn lr-find`: build, fit, and write down what came of it.

Stands on building, folder and command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from minilearn.nn.registry import named_object
from minilearn.optim.sched_names import schedule

from .build import build, build_dls, build_model
from .command import INTERRUPTED, Command
from .converting import BadInput, arguments_for
from .files import nested, read_config
from .kinds import NonNegativeInt, PositiveFloat, PositiveInt
from .learner import build_learner
from .options import Stage, checked_by
from .run_folder import (
    CHECKPOINTS,
    CONFIG,
    Sink,
    begin,
    folder_problems,
    is_first,
    run_folder,
    sinks,
    write_results,
)

if TYPE_CHECKING:
    from minilearn.learner import Learner

REPLACEABLE = {"build_dls": 0, "build_model": 1, "build_learner": 2}  # name -> arguments we give
TITLES = {"build_dls": "data", "build_model": "network", "build_learner": "learner"}
HOME = "minilearn.cli:"


@dataclass(frozen=True)
class Functions:
    """Which functions build the parts.

    Attributes:
        build_dls: returns the loaders; package.module:function to use yours
        build_model: is given the loaders, returns the network
        build_learner: is given the loaders and the network, returns the Learner
        seed: of weights, order and chance; the same seed gives the same history
    """

    build_dls: str = f"{HOME}build_dls"
    build_model: str = f"{HOME}build_model"
    build_learner: str = f"{HOME}build_learner"
    seed: NonNegativeInt = 42


def _check_run(*, out: Path | None = None, resume: Any = None, **_: Any) -> Iterator[str]:
    if not resume:
        yield from folder_problems(out)


@checked_by(_check_run)
@dataclass(frozen=True)
class Run:
    """Where a run is written to, and from where it goes on.

    Attributes:
        out: the folder, by default runs/ and the time
        resume: go on with a run that was broken off: its folder, a checkpoint, or true for --out,
            else the newest in runs/. Values that are not given are those of that run
        log: also write rows to tensorboard, csv, jsonl, mlflow or wandb; several with commas
        log_every: updates from one of those rows to the next
        keep: how many checkpoints to keep, of which one is written every epoch
    """

    out: Path | None = None
    resume: bool | str | None = None
    log: list[Sink] = field(default_factory=list)
    log_every: PositiveInt = 50
    keep: PositiveInt = 2


def _check_fit(*, sched: str = "none", sched_args: Any = None, **_: Any) -> Iterator[str]:
    try:
        yield from _scheduled(sched, sched_args)[1]
    except (ValueError, ImportError) as e:
        yield f"--sched: {e}"


def _scheduled(sched: str, sched_args: Any) -> tuple[Any, list[str]]:
    """Return the factory of a schedule with its arguments, and what is wrong with those."""
    from torch.optim.lr_scheduler import OneCycleLR

    inner = OneCycleLR if sched == "one_cycle" else None
    arguments, problems = arguments_for(
        schedule(sched), sched_args, "sched_args", sched, ("opt", "optimizer"), inner
    )
    return schedule(sched, **arguments), problems


@checked_by(_check_fit)
def fit(
    learn: Learner,
    cbs: list[Any],
    resume: Path | None,
    /,
    epochs: PositiveInt = 5,
    lr: PositiveFloat | Literal["auto"] = 0.01,
    sched: str = "one_cycle",
    sched_args: dict[str, Any] | None = None,
    warmup: NonNegativeInt = 0,
) -> None:
    """Train.

    Args:
        learn: the Learner.
        cbs: those that write the run down.
        resume: a checkpoint, or a folder of them.
        epochs: passes over the training pictures, in all
        lr: the highest learning rate; auto looks for one first
        sched: how it changes: one_cycle, flat_cos, cosine, linear, none, timm/NAME of timm where
            that is installed, or package.module:factory
        sched_args: further arguments of the schedule: --sched_args.pct_start 0.3
        warmup: updates in which the rate rises to the schedule's
    """
    from minilearn import BatchSchedCB
    from minilearn import warmup as warmed

    factory, _ = _scheduled(sched, sched_args)
    factory = warmed(factory, warmup) if warmup else factory
    cbs = [*cbs, BatchSchedCB(factory)]
    rate: Any = lr  # auto was looked for before
    learn.fit(epochs, lr=rate, cbs=cbs, resume=resume, on_interrupt="stop")


def search(
    learn: Learner,
    /,
    plot: Path | None = None,
    start_lr: PositiveFloat = 1e-5,
    gamma: PositiveFloat = 1.3,
) -> int:
    """Print the suggestions of a search for the learning rate, a line each.

    Args:
        learn: the Learner.
        plot: a picture file for the curve
        start_lr: the first rate
        gamma: the factor between two updates
    """
    found = learn.lr_find(gamma, start_lr=start_lr, plot=False)
    for name, lr in found.suggestions.items():
        print(name, f"{lr:.3g}", sep="\t")
    if plot is not None:
        figure: Any = found.plot().figure
        figure.savefig(plot, dpi=120)
    return 0


def builders(chosen: Mapping[str, Any]) -> dict[str, Stage]:
    """Return the three functions that build a Learner, ours where the user names no other."""
    ours = {"build_dls": build_dls, "build_model": build_model, "build_learner": build_learner}
    stages = {}
    for name, supplied in REPLACEABLE.items():
        spec = str(chosen.get(name) or f"{HOME}{name}")
        fn = ours[name] if spec == f"{HOME}{name}" else named_object(spec)
        if not callable(fn):
            raise BadInput(f"--{name}: {spec} is no function")
        stages[name] = Stage(fn, TITLES[name], supplied)
    return stages


def train_stages(chosen: Mapping[str, Any]) -> list[Stage]:
    """Return the functions whose arguments are the options of `minilearn train`."""
    own = [Stage(fit, "training", 3), Stage(Run, "the run"), Stage(Functions, "the program")]
    return [*builders(chosen).values(), *own]


def search_stages(chosen: Mapping[str, Any]) -> list[Stage]:
    """Return those of `minilearn lr-find`."""
    # those of a training, too, so that its files serve here
    return [Stage(search, "search", 1), *train_stages(chosen)]


def train(config: Mapping[str, Any]) -> Learner:
    """Train as `minilearn train` does.

    >>> learn = train({"model": "resnet", "epochs": 2, "aug": {"flip": 0.5}})

    Args:
        config: the options, with groups as mappings; what is not given has its default.

    Returns:
        The trained Learner.

    Raises:
        BadInput: something is wrong with the options; names everything.
    """
    return train_with(TRAIN.settle(config))


def train_with(values: dict[str, Any]) -> Learner:
    """Train with the values of all options, by key."""
    from minilearn import set_seed

    run = Stage(Run).call(values=values)
    set_seed(values["seed"])
    learn = build(builders(values), values)
    if values.get("lr") == "auto":
        values |= {"lr": learn.lr_find(plot=False).valley}
        print(f"lr: {values['lr']:.3g} (auto)")
    folder = begin(run.out, run.resume)
    kept = {key: value for key, value in values.items() if key not in ("out", "resume")}
    resume = None
    if run.resume:
        is_file = isinstance(run.resume, str) and Path(run.resume).is_file()
        resume = Path(run.resume) if is_file else folder / CHECKPOINTS
    cbs = sinks(folder, run.log, run.log_every, run.keep, nested(kept))
    Stage(fit, supplied=3).call(learn, cbs, resume, values=values)
    if is_first():
        write_results(learn, folder, str(values.get("model", "")))
        print(f"{'stopped early; ' if learn.interrupted else ''}results are in {folder}")
    return learn


def _train(values: dict[str, Any]) -> int:
    return INTERRUPTED if train_with(values).interrupted else 0


def _search(values: dict[str, Any]) -> int:
    from minilearn import set_seed

    set_seed(values["seed"])
    return Stage(search, supplied=1).call(build(builders(values), values), values=values)


def run_config(said: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the configuration of the run that is to go on, if one is, and its folder as `out`."""
    resume = said.get("resume")
    if resume in (None, False, "false", "null"):
        return []
    out, config = said.get("out"), said.get("config")
    if out is None and config is not None and (Path(config).parent / CHECKPOINTS).is_dir():
        out = Path(config).parent
    folder = run_folder(out, resume)
    path = folder / CONFIG
    return [(str(path), (read_config(path) if path.exists() else {}) | {"out": str(folder)})]


def _checks(stages: Any) -> Any:
    def check(values: Mapping[str, Any]) -> Iterator[str]:
        for stage in stages(values):
            yield from stage.problems(values)

    return check


TRAIN = Command(
    "Train on pictures; write history, plot, checkpoints and the model to a folder.\n\n"
    "Without DATA this is Fashion-MNIST. -c runs/x/config.yaml starts a run equal to runs/x.",
    train_stages,
    _train,
    positional=("data",),
    looked_at=(*REPLACEABLE, "out", "resume", "config"),
    check=_checks(train_stages),
    base=run_config,
)
SEARCH = Command(
    "Search for a learning rate, for the options of a training; leave no trace.",
    search_stages,
    _search,
    positional=("data",),
    looked_at=tuple(REPLACEABLE),
    check=_checks(search_stages),
)
