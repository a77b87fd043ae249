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

from minilearn.base.seed import random_states, restore_random_states
from minilearn.base.state_dict import clean_state, load_state
from minilearn.core.callback import Callback
from minilearn.core.events import Order
from minilearn.core.history import History
from minilearn.core.stream import Stream, load_loader_state, loader_state, pick_loader, set_epoch

from ..callbacks.limits import Shortened
from ..distributed.ddp import is_sharded
from .files import serialisable
from .optimizer_state import load_optimizer, optimizer_state
from .process_state import begun_anew, named_cbs, of_processes, packed, unpacked
from .sharded import load_shards

if TYPE_CHECKING:
    from minilearn.core.learner import Loop


def capture(learn: Loop) -> dict[str, Any]:
    """Return everything that a fit needs to go on from here, serialisable and on the CPU."""
    plan, place = learn.plan, find_place(learn)
    sharded = is_sharded(learn.model)
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
        "epoch": learn.epoch,
        "steps": learn.steps_done,
        "batches": 0 if learn.iter is None else learn.iter + (not redo),
        "steps_before": plan.steps_before,
        "plan": plan.settings,
        "n_batches": learn.n_batches,
        "model": None if sharded else _model_state(learn),
        "optimizer": None if sharded else optimizer_state(learn.opt, learn.model),
        "history": list(learn.history),
        "row": learn.row,
        "callbacks": {
            name: state for name, cb in named_cbs(learn.cbs) if (state := _state_of(cb)) is not None
        },
        "loaders": {name: loader_state(dl) for name, dl in _loaders(learn)},
        "stream": stream,
        "random": packed(random_states()),
        "processes": of_processes(learn),
    }
    if stream and "random" in stream:
        stream["random"] = packed(stream["random"])
    return serialisable(state, "checkpoint")


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
    Reads:  model, opt, plan, cbs, dls, dl, n_batches, epoch, row
    Writes: history, row
    """

    order = Order.STOP + 1000  # after any other callback
    in_probe = False

    def __init__(self, state: dict[str, Any], exact: bool = False) -> None:
        # a validation is made again from its start
        self.state = begun_anew(state) if state["place"] == "validation" else state
        self.exact, self._waits = exact, False

    def before_fit(self, learn: Loop) -> None:
        """Restore what lasts for a fit, and set the epoch with which it goes on."""
        state, plan = self.state, learn.plan
        first = (state["epoch"] or 0) + (state["place"] == "round")
        self._check_total(plan, first)
        load_lasting(learn, state)
        self._compare(learn)
        for name, dl in _loaders(learn):
            if name in state["loaders"]:
                load_loader_state(dl, state["loaders"][name])
        plan.start_at(
            first,
            state["steps"],
            trained=state["place"] == "validation",
            resumed=state["steps_before"] if state["place"] == "pass" else None,
        )
        self._waits = state["place"] in ("pass", "validation")
        if plan.cuts and state["place"] == "round":  # the fit looks ahead in it
            self._restore_stream(learn, plan.train_dl)
        # before a validation, too: after it the loop restores these
        restore_random_states(unpacked(state["random"]))

    def before_epoch(self, learn: Loop) -> None:
        """Go to the batch within the epoch."""
        if not self._waits:
            return
        self._waits, state, plan = False, self.state, learn.plan
        load_callbacks(learn, state)
        learn.row = dict(state["row"])
        if state["place"] == "pass":
            plan.first_batch = state["batches"]
            self._restore_stream(learn, learn.dl)
        elif plan.cuts:
            self._restore_stream(learn, plan.train_dl)
        restore_random_states(unpacked(state["random"]))

    def _restore_stream(self, learn: Loop, dl: Any) -> None:
        saved = self.state["stream"]
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

    def _check_total(self, plan: Any, first: int) -> None:
        state, inside = self.state, self.state["place"] in ("pass", "validation")
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

    def _compare(self, learn: Loop) -> None:
        saved, now = self.state["n_batches"], learn.n_batches
        if saved != now and None not in (saved, now):
            warnings.warn(
                f"the training loader had {saved} batches, and now has {now}: the resumed fit is "
                "another one from here on. Use the same data and batch size.",
                stacklevel=2,
            )
        if not self.state["exact"]:
            warnings.warn(
                "the checkpoint was saved when an error ended an epoch: the fit goes on with that "
                "batch, but not to the bit, and the metrics of that epoch begin there",
                stacklevel=2,
            )


def load_lasting(learn: Loop, state: dict[str, Any]) -> None:
    """Restore what outlives a fit: weights, optimizer, history, counters, callbacks' states."""
    if state["model"] is not None:
        load_state(learn.model, state["model"], source="the checkpoint")
    if "shards" in state:
        load_shards(learn, state["shards"])
    else:
        load_optimizer(learn.opt, learn.model, state["optimizer"])
    learn.plan.epoch, learn.plan.steps_done = state["epoch"], state["steps"]
    learn.history = History(dict(row) for row in state["history"])
    load_callbacks(learn, state, warn=True)


def load_callbacks(learn: Loop, state: dict[str, Any], warn: bool = False) -> None:
    """Load each callback's state; of one class the first gets the first state, and so on."""
    saved, here = state["callbacks"], dict(named_cbs(learn.cbs))
    for name, cb in here.items():
        if name in saved:  # a copy, since it is loaded twice within an epoch, and some modify it
            cb.load_state_dict(copy.deepcopy(saved[name]))
    if warn:
        lost = [name for name in saved if name not in here]
        new = [name for name, cb in here.items() if name not in saved and _state_of(cb)]
        for names, what in ((lost, "is in the checkpoint only"), (new, "is not in the checkpoint")):
            if names:
                warnings.warn(f"the state of {', '.join(names)} {what}", stacklevel=2)


def _state_of(cb: Any) -> dict[str, Any] | None:
    return cb.state_dict() or None


def _model_state(learn: Loop) -> dict[str, Any] | None:
    if not hasattr(learn.model, "state_dict"):
        return None
    return clean_state(learn.live_state())


def _loaders(learn: Loop) -> Iterator[tuple[str, Any]]:
    for name, training in (("train", True), ("valid", False)):
        if (dl := pick_loader(learn.dls, training)) is not None:
            yield name, dl
    for name in getattr(learn.dls, "named", ()):
        yield f"valid {name}", learn.dls[name]
