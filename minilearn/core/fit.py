"""What surrounds the loop: how a fit begins and ends, opens its passes, keeps its rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..base.batch import n_batches
from .dispatch import Dispatch, check_owners
from .events import CancelException
from .history import History, in_order
from .plan import Plan
from .stream import Stream, check_loader, pick_loader


class Running(Dispatch):
    """The half of the Learner that prepares a fit and clears up behind it."""

    def _begin(
        self, plan: Plan, train: bool, valid: bool, lr: float | slice | None, reset_opt: bool
    ) -> bool:
        """Check and set all that the fit needs; return whether it validates."""
        valid = valid and (not train or pick_loader(self.dls, False) is not None)
        for phase, wanted in ((True, train), (False, valid)):
            if wanted:
                check_loader(pick_loader(self.dls, phase), phase)
        if plan.n_steps is not None and not train:
            raise ValueError("n_steps counts updates, and train=False makes none; give n_epochs")
        self.plan, self.n_epochs, self.epochs = plan, plan.n_epochs, plan.epochs(self)
        self._find_processes()
        self.n_batches = n_batches(self._loader(True)) if train else None
        self.batches_per_step, self.steps_done = 1, 0
        self.epoch = self.iter = self.batch = self.preds = None
        self.loss = self.loss_parts = self.stream = None
        self._told = set()
        self.skipped, self.trained = 0, False
        self.history, self.row, self.interrupted, self.grads_held = History(), {}, False, False
        self._resolve()
        check_owners(self, self._owners, train)
        if train:
            self._make_opt(lr, reset_opt)
            if self.opt is None and self._owners["step"].is_default:
                raise ValueError("training needs an optimizer: give the Learner opt_func= or opt=")
            self._clear_grads()
        return valid

    def _find_processes(self) -> None:
        """Find out whether a callback has this fit made by several processes."""
        found = (getattr(cb, "processes", None) for cb in self.cbs)
        self.processes = next((p for p in found if p is not None), None)
        if getattr(pick_loader(self.dls, False), "unshared", False):
            self.processes = None  # each process runs over it for itself
        if self.processes is not None:
            self.processes.begin(self)

    def _loader(self, training: bool) -> Any:
        """Return the training or validation loader, or this process's part of it."""
        return self._share(pick_loader(self.dls, training), training)

    def _share(self, dl: Any, training: bool) -> Any:
        return dl if self.processes is None or dl is None else self.processes.share(dl, training)

    def _make_opt(self, lr: float | slice | None, reset_opt: bool) -> None:
        keeps = self._opt_given or self.opt_func is None or not reset_opt
        if self.opt is not None and keeps:
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

    def _end(self, added: list[Any]) -> None:
        """Leave nothing of the fit behind but its results."""
        if self.stream is not None:
            self.stream.close()
        self._clear_grads()
        self._unbind()
        self.processes = None
        self.training, self.valid_name = False, None
        self.cbs[:] = [cb for cb in self.cbs if not any(cb is temporary for temporary in added)]

    def _clear_grads(self) -> None:
        params = [p for group in getattr(self.opt, "param_groups", ()) for p in group["params"]]
        if isinstance(self.model, nn.Module):
            params += self.model.parameters()
        for p in params:
            p.grad = None

    @contextmanager
    def _batches(self) -> Iterator[Iterable[tuple[int, Any]]]:
        """Number the batches of one pass; the loader's workers are let go however the pass ends."""
        self.pass_length = n_batches(self.dl)
        if not self.training:
            stream = batches = Stream(self.dl, "validation", self._told)
        else:
            self._check_opt()  # here, since callbacks unfreeze in before_epoch
            if self.stream is None or (self.stream.fresh and not self.plan.cuts):
                self.stream = Stream(self.dl, "training", self._told)
            stream, batches = self.stream, self.plan.batches(self)
        try:
            yield enumerate(batches, self.skipped)
        finally:
            self.skipped = 0
            if not (self.training and self.plan.cuts):
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
        if self.processes is not None:  # the slowest process is what one waits for
            seconds = max(self.processes.gather(seconds))
        counters = {"epoch": self.epoch, "steps": self.steps_done, "time": seconds}
        self.row = in_order(counters | self.row)
        self.history.append(self.row)
