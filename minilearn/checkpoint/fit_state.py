"""The state of a fit: captured between two updates, and restored so that it goes on to the bit.

Its position is "round" (a round is complete), "training" (inside a training epoch), "validation"
(the training epoch is complete, its validation is not), or "epoch" (no epoch has begun).
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch

from ..base.files import FORMATS, CorruptFileError, version_of
from ..base.modes import set_mode
from ..base.rank import rank
from ..base.seed import random_states, restore_random_states
from ..base.state_dict import (
    clean_state,
    fit_modules,
    full_state,
    load_full,
    load_rest,
    load_state,
    rest_of,
)
from ..base.text import differences
from ..callbacks.limits import Shortened
from ..core.callback import Callback
from ..core.events import Order
from ..core.history import History
from ..core.learner import Loop
from ..core.nested import changes_training
from ..core.plan import Plan
from ..core.stream import Stream, load_loader_state, loader_state, set_epoch
from ..distributed.ddp import is_sharded
from .files import serialisable
from .optimizer_state import load_optimizer, optimizer_state
from .process_state import begun_anew, match, named_cbs, of_processes, settings_of, unpacked
from .program import (
    describe_loaders,
    describe_modules,
    describe_program,
    has_constant_rate,
    loaders_of,
    warn_of,
)
from .sharded import load_shards


def capture(learn: Loop) -> dict[str, Any]:
    """Return everything that a fit needs to go on from here, serialisable and on the CPU."""
    plan, position = learn.plan, find_position(learn)
    sharded, modules = is_sharded(learn.model), fit_modules(learn)
    has_weights = "model" in modules and not sharded
    failed = position == "training" and "epoch" not in learn.levels
    redo = failed and plan.steps_done == plan.steps_before  # the current batch made no update
    stream = None if plan.stream is None else plan.stream.state_dict()
    if redo and stream and stream["taken"]:
        stream["taken"] -= 1
    state = {
        "format": FORMATS["checkpoint"],
        "minilearn": version_of("minilearn"),
        "torch": torch.__version__,
        "position": position,
        "exact": not failed,
        "stage": learn.stage,
        "epoch": learn.epoch,
        "steps": learn.steps_done,
        "batches": 0 if learn.iter is None else learn.iter + (not redo),
        "steps_before": plan.steps_before,
        "plan": plan.settings,
        "data": describe_loaders(learn),
        "model": clean_state(learn.live_state(), learn.model) if has_weights else None,
        "loss": full_state(modules["loss"]) if "loss" in modules else None,
        "rest": rest_of(modules["model"]) if "model" in modules else None,
        "train_mode": getattr(learn.model, "training", False),
        "optimizer": None if sharded else optimizer_state(learn.opt, modules, plan.options),
        "history": list(learn.history),
        "row": learn.row,
        "callbacks": {
            name: state for name, cb in named_cbs(learn.cbs) if (state := _state_of(cb)) is not None
        },
        "settings": {name: settings_of(cb) for name, cb in named_cbs(learn.cbs)}
        | (plan.described or describe_modules(learn)),
        "program": describe_program(learn),
        "loaders": {name: loader_state(dl) for name, dl in loaders_of(learn)},
        "stream": stream,
        "random": random_states()._asdict(),
        "processes": of_processes(learn),
    }
    if stream and "random" in stream:
        stream["random"] = stream["random"]._asdict()
    return serialisable(state, "checkpoint")


def completed(state: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's state with something for each part that is missing; warn of each.

    Raises:
        CorruptFileError: it lacks what no fit can go on without.
    """
    if missing := [part for part in ("position", "epoch", "steps", "model") if part not in state]:
        raise CorruptFileError(f"the checkpoint has no {', '.join(missing)}")
    empty = "optimizer callbacks loaders random row data settings program plan"
    parts: dict[str, Any] = {part: {} for part in empty.split()} | {
        **dict.fromkeys(("stream", "loss", "rest")),
        "history": [],
        "batches": 0,
        "steps_before": state["steps"],
        "exact": True,
        "train_mode": False,
    }
    missing = [part for part in parts if part not in state]
    if state["position"] == "training" and "stream" in state and state["stream"] is None:
        missing.append("stream")
    now = random_states()._asdict()
    random = now | state.get("random", {})
    if "random" in state:
        missing += [f"random.{part}" for part in now if part not in state["random"]]
    for part in missing:
        text = f"the checkpoint has no {part}: the fit goes on, but is not exact"
        warnings.warn(text, stacklevel=2)
    return parts | state | {"random": random}


def find_position(learn: Loop) -> str:
    """Return the position of the Learner in its fit."""
    is_over = "fit" not in learn.levels
    if learn.history:
        last = learn.history[-1]
        at_end = (last["steps"], last["epoch"]) == (learn.steps_done, learn.epoch)
        if last is learn.row or (is_over and at_end):
            return "round"
    if learn.plan.stream is None or is_over:
        return "epoch"
    if not learn.training:
        return "validation"
    return "training" if learn.plan.stream.begun else "epoch"


class Resume(Callback):
    """Restores a checkpoint's state in the fit that begins.

    It runs after all other callbacks have prepared the fit. Inside an epoch it loads the states, of
    the optimizer too, a second time, when they have prepared the epoch.

    Events: before_fit, before_epoch, cleanup_fit
    Order:  STOP + 1000
    Reads:  model, loss_func, opt, plan, cbs, dls, dl, epoch, row, error
    Writes: history, row
    """

    order = Order.STOP + 1000  # after any other callback
    in_probe = False

    def __init__(self, state: dict[str, Any], exact: bool = False) -> None:
        # a validation is made again from its start
        self.saved = begun_anew(state) if state["position"] == "validation" else state
        self.exact, self._waits, self._lines = exact, True, []

    def before_fit(self, learn: Loop) -> None:
        """Restore what lasts for a fit, and set the epoch with which it goes on."""
        state, plan = self.saved, learn.plan
        first = (state["epoch"] or 0) + (state["position"] == "round")
        self._check_total(plan, first)
        for name, described in describe_loaders(learn).items():  # before their seeds are restored
            self._lines += differences(
                state["data"].get(name, {}), described, f"{name} loader, {{}}"
            )
        self._lines += load_lasting(learn, state, keep_lr=plan.lr is not None)
        if not state["exact"]:
            warnings.warn(
                "the checkpoint was saved when an error ended an epoch: the fit goes on with that "
                "batch, but not to the bit, and the metrics of that epoch begin there",
                stacklevel=2,
            )
        for name, dl in loaders_of(learn):
            if name in state["loaders"]:
                load_loader_state(dl, state["loaders"][name])
        plan.start_at(
            first,
            state["steps"],
            trained=state["position"] == "validation",
            resumed=state["steps_before"] if state["position"] == "training" else None,
        )
        if plan.cuts and state["position"] == "round":  # the fit looks ahead in it
            self._restore_stream(learn, plan.train_dl)
        # before a validation, too: after it the loop restores these
        restore_random_states(unpacked(state["random"]))

    def before_epoch(self, learn: Loop) -> None:
        """Go to the batch within the epoch, and say what has changed since the checkpoint."""
        if not self._waits:
            return
        self._waits, state = False, self.saved
        if state["position"] in ("training", "validation"):
            self._go_to_batch(learn)
        self._warn_of_changes(learn)

    def cleanup_fit(self, learn: Loop) -> None:
        """Leave the model in the mode of the last epoch, also where none was left to run."""
        if self._waits and learn.error is None:
            set_mode(learn.model, self.saved["train_mode"], learn.plan.frozen)

    def _go_to_batch(self, learn: Loop) -> None:
        state, plan = self.saved, learn.plan
        trains = state["position"] == "training"
        load_trained(learn, state, plan.lr is not None, weights=trains)
        load_callbacks(learn, state)
        learn.row = dict(state["row"])
        if trains:
            plan.first_batch = state["batches"]
            self._restore_stream(learn, learn.dl)
        elif plan.cuts:
            self._restore_stream(learn, plan.train_dl)
        restore_random_states(unpacked(state["random"]))

    def _restore_stream(self, learn: Loop, dl: Any) -> None:
        saved = self.saved["stream"]
        if saved is None:
            return
        saved = dict(saved)
        if saved.get("length") is not None and not isinstance(dl, Shortened):
            dl = Shortened(dl, saved["length"])
        if "random" in saved:
            saved["random"] = unpacked(saved["random"])
            set_epoch(dl, saved["passes"] if learn.plan.cuts else learn.epoch)
        learn.plan.stream = Stream(dl, "training", learn.plan.warned)
        learn.plan.stream.load_state_dict(saved, self.exact)

    def _check_total(self, plan: Plan, first: int) -> None:
        """Refuse a total that is passed; where nothing is left to train, say how to go on."""
        state = self.saved
        done = first + (state["position"] in ("training", "validation"))
        if plan.cuts and state["stream"]:
            done = state["stream"]["passes"] + ("loader" in state["stream"])
        total, unit, how = plan.n_epochs, "epochs", ""
        if plan.n_steps is not None:
            total, unit, how, done = plan.n_steps, "updates", "n_steps=", state["steps"]
        if total is not None and total < done:
            raise ValueError(
                f"a resume takes the total: {done} {unit} are done or begun, and this fit is "
                f"to end after {total}. Give it {done} or more, or a fit without resume."
            )
        if total == done and state["position"] == "round" and not plan.cuts and not rank():
            print(
                f"resume: all {total} {unit} are done, nothing is left to train; to go on give a "
                f"larger total, fit({how}{2 * done}, resume=True) say"
            )

    def _warn_of_changes(self, learn: Loop) -> None:
        """Compare the checkpoint with what the program says now, and say what differs."""
        saved = self.saved
        program = describe_program(learn)
        if has_constant_rate(learn):
            del program["schedules"]
        lines = self._lines + differences(saved["program"], program)
        lines += [line for cb in learn.cbs for line in getattr(cb, "differences", ())]
        warn_of(lines)


def load_lasting(learn: Loop, state: dict[str, Any], keep_lr: bool = False) -> list[str]:
    """Restore what outlives a fit: weights, optimizer, history, counters, callbacks' states.

    Returns:
        A line for each option of the optimizer, and each callback, that is not what was saved.
    """
    changed: list[str] = []  # before buffers, as weights of classes are, are what was saved
    for name, described in describe_modules(learn).items():
        changed += differences(state["settings"].get(name, {}), described, f"{name}, {{}}")
    lines = load_trained(learn, state, keep_lr)
    learn.plan.epoch, learn.plan.steps_done = state["epoch"], state["steps"]
    learn.history = History(dict(row) for row in state["history"])
    return changed + lines + load_callbacks(learn, state)


def load_trained(
    learn: Loop, state: dict[str, Any], keep_lr: bool = False, *, weights: bool = True
) -> list[str]:
    """Restore model, loss and optimizer, what is frozen, and buffers that are in no state dict.

    Args:
        learn: in a fit.
        state: of a checkpoint.
        keep_lr: scale the learning rates to those that the program asks for.
        weights: False where averages stand in for them.

    Returns:
        A line for each option of the optimizer that is not what was saved.
    """
    modules, source = fit_modules(learn), "the checkpoint"
    for name, module in modules.items():
        rest = state["rest"] if name == "model" else (state["loss"] or {}).get("rest")
        if rest is not None:
            load_rest(module, rest)
    if weights and state["model"] is not None:
        load_state(modules["model"], state["model"], source=source, resize=True)
    if weights and state["loss"] is not None and "loss" in modules:
        load_full(modules["loss"], state["loss"], f"the loss in {source}")
    if "shards" not in state:
        groups = getattr(learn.opt, "param_groups", ())
        for group, asked in zip(groups, learn.plan.options or (), strict=False):
            group.update(asked)  # whatever before_epoch has made of it
        found = load_optimizer(learn.opt, modules, state["optimizer"], keep_lr)
        lines, learn.plan.options = found
        return lines
    if weights:
        load_shards(learn, state["shards"])
    return []


def load_callbacks(learn: Loop, state: dict[str, Any]) -> list[str]:
    """Load the state of each callback, which `match` has found; return what differs."""
    saved, settings, here = state["callbacks"], state["settings"], dict(named_cbs(learn.cbs))
    found, lines = match({name: {} for name in saved} | settings, here)
    for name, cb in here.items():
        theirs = found.get(name, "")
        if theirs in saved:  # a copy: it is loaded twice within an epoch, and some modify it
            cb.load_state_dict(copy.deepcopy(saved[theirs]))
        elif _state_of(cb):
            lines.append(f"the state of {name} is not in the checkpoint")
        if changes_training(cb):
            made, ours = settings.get(theirs, {}), settings_of(cb)
            shown = {"repr": ours.pop("repr")}
            del ours["class"]  # a script may be moved
            lines += differences(made, ours, f"{name} {{}}") or differences(made, shown, name)
    lost = saved.keys() - found.values()
    if has_constant_rate(learn):
        lost -= {name for name in lost if "schedule" in saved[name]}
    return lines + [f"the state of {name} is in the checkpoint only" for name in sorted(lost)]


def _state_of(cb: Any) -> dict[str, Any] | None:
    return cb.state_dict() or None
