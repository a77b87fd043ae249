"""The state of a fit: captured between two updates, and restored so that it goes on to the bit.

A place is "round" (a round is complete), "pass" (inside a training epoch), "validation" (the
training epoch is complete, its validation is not), or "epoch" (no epoch has begun).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from minilearn.base.batch import n_batches
from minilearn.base.seed import random_states, restore_random_states
from minilearn.base.state_dict import (
    clean_state,
    fit_modules,
    full_state,
    load_full,
    load_rest,
    load_state,
    rest_of,
)
from minilearn.base.text import differences
from minilearn.core.callback import Callback, order_of
from minilearn.core.events import Order
from minilearn.core.history import History
from minilearn.core.learner import name_of
from minilearn.core.nested import takes_part
from minilearn.core.plan import Plan
from minilearn.core.stream import Stream, load_loader_state, loader_state, pick_loader, set_epoch

from ..base.files import CorruptFileError
from ..base.rank import rank
from ..callbacks.limits import Shortened
from ..distributed.ddp import is_sharded
from .files import serialisable
from .optimizer_state import load_optimizer, optimizer_state
from .process_state import (
    begun_anew,
    match,
    named_cbs,
    of_processes,
    packed,
    settings_of,
    unpacked,
)
from .sharded import load_shards

if TYPE_CHECKING:
    from minilearn.core.learner import Loop


def capture(learn: Loop) -> dict[str, Any]:
    """Return everything that a fit needs to go on from here, serialisable and on the CPU."""
    plan, place = learn.plan, find_place(learn)
    sharded, modules = is_sharded(learn.model), fit_modules(learn)
    has_weights = "model" in modules and not sharded
    failed = place == "pass" and "epoch" not in learn.levels
    redo = failed and plan.steps_done == plan.steps_before  # the current batch made no update
    stream = None if plan.stream is None else plan.stream.state_dict()
    if redo and stream and stream["taken"]:
        stream["taken"] -= 1
    state = {
        "minilearn": version("minilearn"),
        "torch": torch.__version__,
        "place": place,
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
        "optimizer": None if sharded else optimizer_state(learn.opt, modules, plan.options),
        "history": list(learn.history),
        "row": learn.row,
        "callbacks": {
            name: state for name, cb in named_cbs(learn.cbs) if (state := _state_of(cb)) is not None
        },
        "settings": {name: settings_of(cb) for name, cb in named_cbs(learn.cbs)},
        "program": describe_program(learn),
        "loaders": {name: loader_state(dl) for name, dl in _loaders(learn)},
        "stream": stream,
        "random": packed(random_states()),
        "processes": of_processes(learn),
    }
    if stream and "random" in stream:
        stream["random"] = packed(stream["random"])
    return serialisable(state, "checkpoint")


def completed(state: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's state with something for each part that is missing; warn of each.

    Raises:
        CorruptFileError: it lacks what no fit can go on without.
    """
    if missing := [part for part in ("place", "epoch", "steps", "model") if part not in state]:
        raise CorruptFileError(f"the checkpoint has no {', '.join(missing)}")
    empty = "optimizer callbacks loaders random row data settings program plan"
    parts: dict[str, Any] = {part: {} for part in empty.split()} | {
        **dict.fromkeys(("stream", "loss", "rest")),
        "history": [],
        "batches": 0,
        "steps_before": state["steps"],
        "exact": True,
    }
    missing = [part for part in parts if part not in state]
    if state["place"] == "pass" and "stream" in state and state["stream"] is None:
        missing.append("stream")
    now = packed(random_states())
    random = now | state.get("random", {})
    if "random" in state:
        missing += [f"random.{part}" for part in now if part not in state["random"]]
    for part in missing:
        text = f"the checkpoint has no {part}: the fit goes on, but is not exact"
        warnings.warn(text, stacklevel=2)
    return parts | state | {"random": random}


def find_place(learn: Loop) -> str:
    """Return the place of the Learner in its fit."""
    last = learn.history[-1] if learn.history else None
    if last is not None and (last is learn.row or _is_of(last, learn)):
        return "round"
    if learn.plan.stream is None or "fit" not in learn.levels:
        return "epoch"
    if not learn.training:
        return "validation"
    return "pass" if learn.plan.stream.begun else "epoch"


def _is_of(row: dict[str, Any], learn: Loop) -> bool:
    over = "fit" not in learn.levels
    return over and (row["steps"], row["epoch"]) == (learn.steps_done, learn.epoch)


class Resume(Callback):
    """Restores a checkpoint's state in the fit that begins.

    It runs after all other callbacks have prepared the fit. Inside an epoch it loads their states a
    second time, when they have prepared the epoch.

    Events: before_fit, before_epoch
    Order:  STOP + 1000
    Reads:  model, loss_func, opt, plan, cbs, dls, dl, epoch, row
    Writes: history, row
    """

    order = Order.STOP + 1000  # after any other callback
    in_probe = False

    def __init__(self, state: dict[str, Any], exact: bool = False) -> None:
        # a validation is made again from its start
        self.saved = begun_anew(state) if state["place"] == "validation" else state
        self.exact, self._waits, self._lines = exact, True, []

    def before_fit(self, learn: Loop) -> None:
        """Restore what lasts for a fit, and set the epoch with which it goes on."""
        state, plan = self.saved, learn.plan
        first = (state["epoch"] or 0) + (state["place"] == "round")
        self._check_total(plan, first)
        self._say_if_done(plan, first)
        self._lines = load_lasting(learn, state, keep_lr=plan.lr is not None)
        if not state["exact"]:
            warnings.warn(
                "the checkpoint was saved when an error ended an epoch: the fit goes on with that "
                "batch, but not to the bit, and the metrics of that epoch begin there",
                stacklevel=2,
            )
        for name, dl in _loaders(learn):
            if name in state["loaders"]:
                load_loader_state(dl, state["loaders"][name])
        plan.start_at(
            first,
            state["steps"],
            trained=state["place"] == "validation",
            resumed=state["steps_before"] if state["place"] == "pass" else None,
        )
        if plan.cuts and state["place"] == "round":  # the fit looks ahead in it
            self._restore_stream(learn, plan.train_dl)
        # before a validation, too: after it the loop restores these
        restore_random_states(unpacked(state["random"]))

    def before_epoch(self, learn: Loop) -> None:
        """Go to the batch within the epoch, and say what has changed since the checkpoint."""
        if not self._waits:
            return
        self._waits, state = False, self.saved
        if state["place"] in ("pass", "validation"):
            self._go_to_batch(learn)
        self._warn_of_changes(learn)

    def _go_to_batch(self, learn: Loop) -> None:
        state, plan = self.saved, learn.plan
        load_frozen(learn, state)
        load_callbacks(learn, state)
        learn.row = dict(state["row"])
        if state["place"] == "pass":
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

    def _say_if_done(self, plan: Plan, first: int) -> None:
        """Say how to go on, where nothing is left to train."""
        state = self.saved
        total, done = (plan.n_steps, state["steps"]) if plan.n_steps else (plan.n_epochs, first)
        if (
            state["place"] == "round"
            and total is not None
            and total == done
            and not plan.cuts
            and not rank()
        ):
            unit, how = ("updates", "n_steps=") if plan.n_steps else ("epochs", "")
            print(
                f"resume: all {total} {unit} are done, nothing is left to train; to go on give a "
                f"larger total, fit({how}{2 * total}, resume=True) say"
            )

    def _check_total(self, plan: Any, first: int) -> None:
        state, inside = self.saved, self.saved["place"] in ("pass", "validation")
        epochs = first + inside
        if plan.cuts and state["stream"]:
            epochs = state["stream"]["passes"] + ("loader" in state["stream"])
        totals = (("epochs", plan.n_epochs, epochs), ("updates", plan.n_steps, state["steps"]))
        for unit, total, done in totals:
            if total is not None and total < done:
                raise ValueError(
                    f"a resume takes the total: {done} {unit} are done or begun, and this fit is "
                    f"to end after {total}. Give it {done} or more, or a fit without resume."
                )

    def _warn_of_changes(self, learn: Loop) -> None:
        """Compare the checkpoint with what the program says now, and say what differs."""
        saved = self.saved
        lines = [
            *self._lines,
            *(line for cb in learn.cbs for line in getattr(cb, "differences", ())),
        ]
        lines += differences(saved["program"], describe_program(learn))
        for name, described in describe_loaders(learn).items():
            lines += differences(saved["data"].get(name, {}), described, f"{name} loader, {{}}")
        if lines:
            changes = "\n  ".join(dict.fromkeys(lines))
            warnings.warn(
                f"this is not the fit that was saved:\n  {changes}\nIt goes on with the saved "
                "options of optimizer, schedules and scaler (fit(lr=...) sets another rate), and "
                "with the data, callbacks and metrics that are here.",
                stacklevel=2,
            )


def load_lasting(learn: Loop, state: dict[str, Any], keep_lr: bool = False) -> list[str]:
    """Restore what outlives a fit: weights, optimizer, history, counters, callbacks' states.

    Returns:
        A line for each option of the optimizer that differs from what it had.
    """
    modules, source = fit_modules(learn), "the checkpoint"
    load_frozen(learn, state)
    if state["model"] is not None:
        load_state(modules["model"], state["model"], source=source, resize=True)
    if state["loss"] is not None and "loss" in modules:
        load_full(modules["loss"], state["loss"], f"the loss in {source}")
    lines: list[str] = []
    if "shards" in state:
        load_shards(learn, state["shards"])
    else:
        found = load_optimizer(learn.opt, modules, state["optimizer"], keep_lr)
        lines, learn.plan.options = found
    learn.plan.epoch, learn.plan.steps_done = state["epoch"], state["steps"]
    learn.history = History(dict(row) for row in state["history"])
    load_callbacks(learn, state, warn=True)
    return lines


def load_frozen(learn: Loop, state: dict[str, Any]) -> None:
    """Restore what is frozen, and buffers that are in no state dict."""
    for name, module in fit_modules(learn).items():
        saved = state["rest"] if name == "model" else (state["loss"] or {}).get("rest")
        if saved is not None:
            load_rest(module, saved)


def load_callbacks(learn: Loop, state: dict[str, Any], warn: bool = False) -> None:
    """Load the state of each callback, which `match` has found."""
    saved, here = state["callbacks"], dict(named_cbs(learn.cbs))
    found, lines = match({name: {} for name in saved} | state["settings"], here)
    for name, cb in here.items():
        if (
            found.get(name) in saved
        ):  # a copy: it is loaded twice within an epoch, and some modify it
            cb.load_state_dict(copy.deepcopy(saved[found[name]]))
    if warn:
        lost = [name for name in saved if name not in found.values()]
        new = [name for name, cb in here.items() if found.get(name) not in saved and _state_of(cb)]
        for names, what in ((lost, "is in the checkpoint only"), (new, "is not in the checkpoint")):
            if names:
                lines.append(f"the state of {', '.join(names)} {what}")
        for line in lines:
            warnings.warn(line, stacklevel=2)


def describe_program(learn: Loop) -> dict[str, Any]:
    """Return what else decides about the training: the callbacks that change it, and the loss."""
    schedules = range(Order.SCHEDULE, Order.DEFAULT)
    cbs = [cb for cb in learn.cbs if takes_part(cb) or order_of(cb) in schedules]
    return {
        "callbacks": ", ".join(type(cb).__name__ for cb in sorted(cbs, key=order_of)),
        "batches for an update": learn.plan.batches_in(0),
        "loss": name_of(learn.loss_func),
    }


def describe_loaders(learn: Loop) -> dict[str, dict[str, Any]]:
    """Return what is known of the data that each loader serves."""
    return {
        name: {
            "batches": n_batches(dl),
            "batch_size": getattr(dl, "batch_size", None),
            "samples": n_batches(getattr(dl, "dataset", None)),
            "sampler": type(getattr(dl, "sampler", None)).__name__,
        }
        for name, dl in _loaders(learn)
    }


def _state_of(cb: Any) -> dict[str, Any] | None:
    return cb.state_dict() or None


def _loaders(learn: Loop) -> Iterator[tuple[str, Any]]:
    for name, training in (("train", True), ("valid", False)):
        if (dl := pick_loader(learn.dls, training)) is not None:
            yield name, dl
    for name in getattr(learn.dls, "named", ()):
        yield f"valid {name}", learn.dls[name]
