"""What surrounds the loop: how a fit begins and ends, opens its epochs, keeps its rows."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypedDict

from torch import nn, optim

from ..base.batch import n_batches
from ..base.foreign_names import check_keywords
from ..base.rank import rank
from ..base.state_dict import fit_modules, loss_parameters
from ..base.text import few, write_out
from .callback import companions_of, warn_of_silent
from .dispatch import Dispatch, check_owners, find_owners
from .events import ACTIONS, ActionConflictError, CancelException
from .history import History, in_order
from .plan import Plan
from .stream import Stream, begin_fit, check_loader, pick_loader


class FitOptions(TypedDict, total=False):
    """The keywords of `fit`, which other methods pass on to it."""

    train: bool
    valid: bool
    n_steps: int | None
    valid_every: Any
    resume: Any
    reset_opt: bool
    on_interrupt: str


def accepts_miniais_order(fit: Callable[..., None]) -> Callable[..., None]:
    """Let a bool after the number of epochs mean `n_epochs, train, valid, cbs, lr`."""
    names = inspect.signature(fit).parameters.keys()

    @wraps(fit)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 1 and type(args[1]).__name__ in ("bool", "bool_"):  # numpy's too
            rest = dict(zip(("train", "valid", "cbs", "lr"), args[1:], strict=False))
            if len(args) > 5 or kwargs.keys() & rest.keys():
                raise TypeError(
                    f"fit({', '.join(map(repr, args))}, …) gives an argument twice, or too many: "
                    "write fit(n_epochs, lr, cbs, train=…, valid=…)"
                )
            args, kwargs = args[:1], rest | kwargs
        check_keywords(fit, kwargs, names)
        return fit(self, *args, **kwargs)

    return call


class Fitting(Dispatch):
    """The half of the loop that prepares a fit and clears up after it."""

    def _begin(
        self, plan: Plan, train: bool, valid: bool, lr: float | slice | None, reset_opt: bool
    ) -> bool:
        """Check and set all that the fit needs; return whether it validates."""
        if not self.depth:  # a nested run does not change what is known of the last fit
            self.interrupts.begin()
        valid = valid and (not train or pick_loader(self.dls, False) is not None)
        for phase, wanted in ((True, train), (False, valid)):
            if wanted:
                check_loader(pick_loader(self.dls, phase), phase, self.dls)
        if not self.depth and plan.n_epochs != 0:  # neither leaves a trace
            begin_fit(self.dls)
        if plan.n_steps is not None and not train:
            raise ValueError("n_steps counts updates, and train=False makes none; give n_epochs")
        plan.train_dl = pick_loader(self.dls, True)
        plan.n_batches = n_batches(plan.train_dl) if train else None
        plan.frozen, plan.lr_seen = self.plan.frozen, self.plan.lr_seen
        self.plan, plan.lr, plan.valid = plan, lr, valid
        self.iter = self.batch = self.preds = self.loss = self.loss_parts = None
        self.history, self.row = History(), {}
        if not hasattr(metrics := vars(self).get("metrics"), "all_metrics") and metrics is not None:
            raise TypeError("learn.metrics is set by the MetricsCB: write Learner(…, metrics=…)")
        self._resolve()
        check_owners(self, self._owners, train)
        if not self.depth:
            warn_of_silent(self.cbs)
        if train:
            self._make_opt(lr, reset_opt)
            if self.opt is None and self.answers_by_default("step"):
                raise ValueError("training needs an optimizer: give the Learner opt_func= or opt=")
            self.clear_grads()
            has_params = hasattr(self.opt, "param_groups") or isinstance(self.model, nn.Module)
            by_us = self._owners["step"].definer.__module__.startswith("minilearn.")
            plan.needs_grads = has_params and by_us  # a `step` of the user's own decides itself
        return valid

    def _make_opt(self, lr: float | slice | None, reset_opt: bool) -> None:
        changed, self.plan.lr_seen = self.lr != self.plan.lr_seen, self.lr
        if self.opt is not None and (self.opt_func is None or not reset_opt):
            if lr is None and changed:  # `learn.lr` was set since it had its last effect
                lr = self.lr
            if lr is not None:
                self._set_lr(lr)
            return
        if self.opt_func is None:
            return
        lr = self.lr if lr is None else lr
        if lr is None:
            raise ValueError(
                "training needs a learning rate: Learner(..., lr=0.01) or fit(..., lr=0.01)"
            )
        self.opt = self._new_opt(lr)

    def _with_loss(self, opt: Any) -> Any:
        """Add the parameters of a loss module to an optimizer, as a group of their own."""
        params = loss_parameters(self)
        if params and hasattr(opt, "add_param_group"):
            if isinstance(opt, optim.LBFGS):
                raise ValueError(
                    f"the loss has parameters ({few([*params])}), and LBFGS takes one group only: "
                    "use another optimizer, or Learner(..., train_loss=False)"
                )
            opt.add_param_group({"params": [*params.values()]})
            if self.opt is None and not self.depth and not rank():
                count = sum(p.numel() for p in params.values())
                print(f"the loss is trained, too: {few([*params])} ({count:,} parameters)")
        return opt

    def adds_usual(self, train: bool = True) -> bool:
        """Return whether a fit adds the usual callbacks: none are listed, and an action is open."""
        if not self._none_listed:
            return False
        try:
            return not find_owners(self).keys() >= {*(ACTIONS if train else ACTIONS[:2])}
        except ActionConflictError:  # the fit will say so
            return False

    def cbs_of_fit(self, train: bool = True) -> list[Any]:
        """Return the callbacks of a fit that begins now."""
        return self._usual_cbs((), self.cbs) if self.adds_usual(train) else list(self.cbs)

    @contextmanager
    def _with_callbacks(self, cbs: list[Any], train: bool) -> Iterator[None]:
        """Have callbacks for one fit, with the companions of all; they go when it is over.

        The usual callbacks stay.
        """
        added, usual = [cb for cb in cbs if not any(cb is mine for mine in self.cbs)], False
        self.cbs.extend(added)
        try:
            companions = companions_of(self.cbs, self)
            added += companions
            self.cbs.extend(companions)
            if usual := not self.depth and self.adds_usual(train):
                self.cbs[:], self._none_listed = self.cbs_of_fit(train), False
            yield
        finally:
            self.cbs[:] = [cb for cb in self.cbs if not any(cb is other for other in added)]
            if usual:  # also those in whose place one of this fit was
                self.cbs[:] = self._usual_cbs((), self.cbs)

    def _end(self) -> None:
        """Drop all of the fit but its results."""
        if self.plan.stream is not None:
            self.plan.stream.close()
        self.clear_grads()
        logged = any(getattr(cb, "logs_stop", False) for cb in self.cbs)
        if self.stopped is not None and not (self.depth or rank() or logged):
            write_out(f"{self.stopped}\n")
        self._unbind()
        self.training, self.plan.valid_name = False, None

    def _can_step(self) -> bool:
        """Return whether there is a gradient for an update, or it needs none."""
        if not self.plan.needs_grads:
            return True
        groups = getattr(self.opt, "param_groups", None) or [{"params": self.model.parameters()}]
        for group in groups:
            for p in group["params"]:
                if p.grad is not None:
                    return True
        return False

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the model, of a loss module and of the optimizer, each once."""
        found = [p for group in getattr(self.opt, "param_groups", ()) for p in group["params"]]
        for module in fit_modules(self).values():
            found += module.parameters()
        return list({id(p): p for p in found}.values())

    def clear_grads(self) -> None:
        """Set the gradients of all parameters to None."""
        for p in self.parameters():
            p.grad = None

    @contextmanager
    def _batches(self) -> Iterator[Iterable[tuple[int, Any]]]:
        """Number the batches of one epoch; its loader's workers end however the epoch ends."""
        plan, goes_on = self.plan, self.training and self.plan.cuts
        plan.length = n_batches(self.dl)
        if self.training:
            self._check_opt()  # here, since callbacks unfreeze in before_epoch
            stream, batches = plan.open_stream(self.dl), plan.batches()
        else:
            stream = batches = Stream(self.dl, "validation", plan.warned)
        try:
            yield enumerate(batches, plan.first_batch)
        finally:
            plan.first_batch = 0
            if not goes_on:
                stream.close()

    @contextmanager
    def _history_row(self) -> Iterator[None]:
        """Collect a row of history; errors and interrupts leave no half row."""
        self.row, start = {}, time.perf_counter()
        try:
            yield
        except CancelException:
            self._keep_row(start)
            raise
        self._keep_row(start)

    def _keep_row(self, start: float) -> None:
        seconds = time.perf_counter() - start
        counters = {"epoch": self.epoch, "steps": self.steps_done, "time": seconds}
        self.row = in_order(counters | self.row)
        self.history.append(self.row)


def group_options(opt: Any) -> list[dict[str, Any]]:
    """Return the options of each parameter group, but for those that schedules keep in it."""
    return [
        {k: getattr(v, "tolist", lambda v=v: v)() for k, v in group.items() if _is_option(k)}
        for group in getattr(opt, "param_groups", ())
    ]


def _is_option(name: str) -> bool:
    return name not in ("params", "param_names") and not name.startswith("initial_")
