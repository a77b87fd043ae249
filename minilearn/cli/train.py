"""`minilearn train` and `minilearn lr-find`: build the parts, fit, and write the results."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..base.rank import rank
from ..nn.registry import named_object
from ..optim.sched_names import SCHEDULES, schedule
from .build import build_learner, build_model, check_learner, check_model, timm_options
from .parser import INTERRUPTED, Options, about
from .run_folder import (
    CHECKPOINTS,
    CONFIG,
    LoggerName,
    check_folder,
    checkpoints_of,
    is_over,
    run_callbacks,
    run_folder,
    write_config,
    write_results,
)
from .values import (
    BadInput,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    arguments_for,
    blamed,
    read_config,
)

if TYPE_CHECKING:
    from minilearn import Learner

BUILDERS = {"build_dls": "data", "build_model": "network", "build_learner": "learner"}
OURS = "minilearn.cli:"
GO_ON = "For more, give the new total and the rate for it: --epochs N --lr 1e-4"


@dataclass(frozen=True)
class Functions:
    """Which functions build the parts.

    Attributes:
        build_dls: returns the loaders; package.module:function to use yours
        build_model: takes the loaders, returns the network
        build_learner: takes the loaders and the network, returns the Learner
        seed: of weights, order and chance; the same seed gives the same history
    """

    build_dls: str = f"{OURS}build_dls"
    build_model: str = f"{OURS}build_model"
    build_learner: str = f"{OURS}build_learner"
    seed: NonNegativeInt = 42


@dataclass(frozen=True)
class Run:
    """Where a run is written to, and where it resumes.

    Attributes:
        out: the folder, by default runs/ and the time
        resume: resume a run: its folder, a checkpoint, or true for --out, else the newest in runs/.
            Options that are not given are those of that run
        log: also log to tensorboard, csv, jsonl, mlflow or wandb; several with commas
        log_every: updates between two of those records
        keep: how many checkpoints to keep; one is written every epoch
    """

    out: Path | None = None
    resume: bool | str | None = None
    log: list[LoggerName] = field(default_factory=list)
    log_every: PositiveInt = 50
    keep: PositiveInt = 2


def fit(
    learn: Learner,
    cbs: list[Any],
    resume: Path | None,
    /,
    epochs: PositiveInt = 5,
    steps: PositiveInt | None = None,
    valid_every: PositiveInt | None = None,
    lr: PositiveFloat | Literal["auto"] = 0.01,
    sched: str = "one_cycle",
    sched_args: dict[str, Any] | None = None,
    warmup: NonNegativeInt = 0,
    patience: PositiveInt | None = None,
) -> None:
    """Train.

    Args:
        learn: the Learner.
        cbs: those that record the run.
        resume: a checkpoint, or a folder of them.
        epochs: epochs over the training images, in all
        steps: updates in all, instead of epochs
        valid_every: updates between two validations; by default there is one an epoch
        lr: the highest learning rate; auto searches for one first
        sched: its schedule: one_cycle, flat_cos, cosine, linear, none, timm/NAME of timm where
            that is installed, or package.module:factory
        sched_args: further arguments of the schedule: --sched_args.pct_start 0.3
        warmup: updates in which the rate rises to the schedule's
        patience: end after so many validations in a row without a lower loss
    """
    from minilearn import BatchSchedCB, EarlyStopCB
    from minilearn import warmup as warmed

    rate: Any = lr  # auto was replaced before
    if sched != "none" or warmup:
        factory = _schedule(sched, sched_args)
        cbs = [*cbs, BatchSchedCB(warmed(factory, warmup) if warmup else factory)]
    cbs = [*cbs, EarlyStopCB(patience=patience)] if patience else cbs
    total: Any = {"n_steps": steps} if steps else {"n_epochs": epochs}
    every = (valid_every, "step") if valid_every else None
    learn.fit(**total, lr=rate, cbs=cbs, valid_every=every, resume=resume, on_interrupt="stop")


def _schedule(sched: str, sched_args: Any) -> Any:
    """Return the factory of a schedule with its arguments."""
    from torch.optim.lr_scheduler import OneCycleLR

    inner = OneCycleLR if sched == "one_cycle" else None
    factory, skip = schedule(sched), ("opt", "optimizer")
    arguments = arguments_for(factory, sched_args, "sched_args", sched, skip, inner)
    return schedule(sched, **arguments)


def search(
    learn: Learner,
    /,
    plot: Path | None = None,
    start_lr: PositiveFloat = 1e-5,
    gamma: PositiveFloat = 1.3,
) -> None:
    """Print the suggestions of a search for the learning rate, a line each.

    Args:
        learn: the Learner.
        plot: an image file for the curve
        start_lr: the first rate
        gamma: the factor between two updates
    """
    found = learn.lr_find(gamma, start_lr=start_lr, plot=False)
    for name, lr in found.suggestions.items():
        print(name, f"{lr:.3g}", sep="\t")
    if plot is not None:
        figure: Any = found.plot().figure
        figure.savefig(plot, dpi=120)


# ---- checks, before any data are read ----


def check_fit(values: Mapping[str, Any]) -> None:
    """Raise BadInput for a schedule that is not known, or does not take its arguments."""
    with blamed("--sched"):
        _schedule(values["sched"], values["sched_args"])


CHECKS: dict[Any, Callable[[Mapping[str, Any]], None]] = {
    build_model: check_model,
    build_learner: check_learner,
    fit: check_fit,
    Run: check_folder,
}


# ---- the commands ----


class Training:
    """The options of `minilearn train` or `minilearn lr-find`, and the Learner that they describe.

    Args:
        words: those of the command line.
        config: a configuration; files that words name win over it.
        searches: whether this is `minilearn lr-find`.
    """

    def __init__(
        self, words: Sequence[str], config: Mapping[str, Any] | None = None, searches: bool = False
    ) -> None:
        self.given = config or {}
        configs, early = [self.given], _early(words)
        files = [path for path in early.pop("config") or () if path]
        said = {k: v for c in (*configs, *map(read_config, files), early) for k, v in c.items()}
        self.resumed: Mapping[str, Any] = {}  # the configuration of the run that goes on
        if not searches and said.get("resume") not in (None, False, "false", "null"):
            self.resumed = _resumed(said, files)
            configs, said = [self.resumed, *configs], {**self.resumed, **said}
        self.builders = [_builder(name, said.get(name)) for name in BUILDERS]
        name, command = ("lr-find", search_command) if searches else ("train", train_command)
        self.options = Options(f"minilearn {name}", about(command), ("data",))
        if searches:
            self.options.add(search, "search", 1)
        for supplied, (fn, title) in enumerate(zip(self.builders, BUILDERS.values(), strict=True)):
            self.options.add(fn, title, supplied)
        self.options.add(fit, "training", 3)
        self.options.add(Run, "the run")
        self.options.add(Functions, "the program")
        self.values: Any = self.options.parse(words, configs)

    def check(self) -> None:
        """Raise BadInput for options that cannot be used, or not together."""
        for fn in self.options.arguments:
            if fn in CHECKS:
                CHECKS[fn](self.values)
        if self.resumed:
            self._check_schedule()

    def _check_schedule(self) -> None:
        """Raise BadInput where the run that goes on would leave its schedule.

        Where that is over, a new total and a rate that is typed make a constant rate of it.
        """
        old, new, typed = self.resumed, self.values, {*self.given, *self.options.typed}
        if new["lr"] == "auto" and "lr" in old:  # it was searched for when the run began
            new["lr"] = self.options.config["lr"] = old["lr"]
            typed -= {"lr"}
        names = ("epochs", "steps", "sched", "sched_args", "warmup")  # its length depends on these
        changed = [name for name in names if new[name] != old.get(name, new[name])]
        if not changed or old.get("sched") not in SCHEDULES or old["sched"] == "none":
            return
        length = f"{old['steps']} updates" if old.get("steps") else f"{old['epochs']} epochs"
        saved = checkpoints_of(run_folder(new["out"], new["resume"]), new["resume"])
        if "sched" not in changed and is_over(saved, old):
            new["sched"], why = "none", f"the schedule {old['sched']} is over after {length}"
        else:
            why = f"the run has the schedule {old['sched']} for {length}, and goes on with it"
        if new["sched"] != "none":
            raise BadInput(
                f"--{changed[0]} {new[changed[0]]}: {why}; --sched none --lr 1e-4 ends it"
            )
        if "lr" not in typed:
            raise BadInput(f"--{changed[0]}: {why}. Give the rate with which it goes on: --lr 1e-4")
        new["warmup"], new["sched_args"] = 0, None
        self.options.config |= {name: new[name] for name in ("sched", "sched_args", "warmup")}

    def build_dls(self, **over: Any) -> Any:
        """Return the loaders, with some values replaced."""
        return self.options.call(self.builders[0], values={**self.values, **over})

    def build(self) -> Learner:
        """Return the Learner."""
        from minilearn import set_seed

        set_seed(self.values["seed"])
        dls = self.build_dls(**timm_options(self.values.get("model"), self.values))
        net = self.options.call(self.builders[1], dls, values=self.values)
        return self.options.call(self.builders[2], dls, net, values=self.values)

    def run(self) -> Learner:
        """Train, and write the run."""
        values = self.values
        config = {k: v for k, v in self.options.config.items() if k not in ("out", "resume")}
        run = self.options.call(Run, values=values)
        learn = self.build()
        if values.get("lr") == "auto":
            config["lr"] = values["lr"] = learn.lr_find(plot=False).valley
            print(f"lr: {values['lr']:.3g} (auto)")
        folder = run_folder(run.out, run.resume)
        resume = checkpoints_of(folder, run.resume) if run.resume else None
        if resume is None:
            write_config(folder, config)
        else:  # when the checkpoint was found to fit
            learn.on("before_epoch", lambda learn: write_config(folder, config), once=True)
            if is_over(resume, values):
                print(f"nothing is left to train. {GO_ON}")
        cbs = run_callbacks(folder, run.log, run.log_every, run.keep, config)
        self.options.call(fit, learn, cbs, resume, values=values)
        if rank() == 0:
            write_results(learn, folder)
            print(f"{'stopped early; ' if learn.interrupted else ''}results are in {folder}")
        return learn


def train(config: Mapping[str, Any]) -> Learner:
    """Train as `minilearn train` does, with the options in a dict.

    >>> learn = train({"model": "resnet", "epochs": 2, "aug": {"flip": 0.5}})  # doctest: +SKIP

    Args:
        config: the options, with groups as mappings; what is not given has its default.

    Returns:
        The trained Learner.

    Raises:
        BadInput: an option is not known, or has a value that it does not take.
    """
    training = Training([], config)
    training.check()
    return training.run()


def train_command(words: Sequence[str]) -> int:
    """Train on images; write history, plot, checkpoints and the model to a folder.

    Without DATA this is Fashion-MNIST. -c runs/x/config.yaml starts a run equal to runs/x.
    """
    training = Training(words)
    if training.values is None:
        return 0
    training.check()
    return INTERRUPTED if training.run().interrupted else 0


def search_command(words: Sequence[str]) -> int:
    """Search for a learning rate, for the options of a training; nothing is written."""
    training = Training(words, searches=True)
    if training.values is not None:
        training.check()
        training.options.call(search, training.build(), values=training.values)
    return 0


def _early(words: Sequence[str]) -> dict[str, Any]:
    """Return what words say about the options that decide which others there are."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in (*BUILDERS, "out"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", nargs="?")
    parser.add_argument("--resume", nargs="?", const="true")
    parser.add_argument("-c", "--config", nargs="?", action="append")
    known, _ = parser.parse_known_args(words)
    return {k: v for k, v in vars(known).items() if v is not None or k == "config"}


def _resumed(said: Mapping[str, Any], files: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of the run to resume, with its folder as `out`."""
    out = said.get("out")
    if out is None and files and (Path(files[-1]).parent / CHECKPOINTS).is_dir():
        out = Path(files[-1]).parent
    folder = run_folder(out, said["resume"])
    path = folder / CONFIG
    return {**(read_config(path) if path.exists() else {}), "out": str(folder)}


def _builder(name: str, spec: Any) -> Callable[..., Any]:
    """Return the function that an option such as `--build_dls` names."""
    with blamed(f"--{name}"):
        fn = named_object(str(spec or f"{OURS}{name}"))
    if not callable(fn):
        raise BadInput(f"--{name}: {spec} is no function")
    return fn
