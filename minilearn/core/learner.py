"""The loop of the Learner: everything else is a callback.

Read `_fit`, `_one_round`, `_one_epoch` and `_one_batch` first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack, overload

import torch
from torch import nn, optim

from ..base.arguments import DEFAULT_LOSS, check_arguments, check_epochs, check_lr
from ..base.batch import as_count, batch_size, detach
from ..base.foreign_names import known_keywords
from ..base.modes import (
    begin_in_train_mode,
    eval_modules,
    frozen_modules,
    preserved_modes,
    set_mode,
)
from ..base.seed import preserved_random_states
from ..base.state_dict import fit_modules
from .callback import as_callbacks
from .events import CancelFitException, with_cbs
from .fit import FitOptions, Fitting, accepts_miniais_order, group_options
from .history import History
from .interrupt import Interrupts
from .plan import Plan
from .stream import pick_loader

DEFAULT_LR = 0.1  # this very object: the same number, given by the user, is another one


class Loop(Fitting):
    """The loop alone; `Learner` is this with all its methods, and explains the arguments."""

    @known_keywords()
    def __init__(
        self,
        model: nn.Module,
        dls: Any = (0,),
        loss_func: Callable[..., Any] | None = DEFAULT_LOSS,
        lr: float | None = DEFAULT_LR,
        cbs: Any = None,
        opt_func: Callable[..., Any] | str | None = optim.SGD,
        *,
        opt: Any = None,
        metrics: Any = None,
        count: Callable[[Any], Any] | None = None,
        train_loss: bool = True,
    ) -> None:
        check_arguments(model, dls, loss_func, lr, opt_func, opt)
        if cbs is None and metrics is None:
            self._none_listed = True
        super().__init__(cbs if metrics is None else self._usual_cbs(metrics, cbs))
        self.model, self.dls, self.loss_func = model, dls, loss_func
        # a ready optimizer keeps its rate, unless one was given
        self.lr = None if opt is not None and lr is DEFAULT_LR else lr
        self.opt, self.opt_func = opt, opt_func if opt is None else None
        self.count, self.train_loss, self.plan = count, train_loss, Plan(0)
        self.interrupts = Interrupts()
        self.history, self.row = History(), {}

    # ---- the loop ----

    @with_cbs("fit")
    def _fit(self, train: bool, valid: bool) -> None:
        loss = fit_modules(self).get("loss")
        self.plan.frozen = frozen_modules(self.model) + eval_modules(loss)
        if self.plan.options is None:  # a resume goes on with those that were saved
            self.plan.options = group_options(self.opt)
        for self.plan.epoch in self.plan.epochs:  # noqa: B020
            self._one_round(train, valid)

    @with_cbs("round", after=False)
    def _one_round(self, train: bool, valid: bool) -> None:
        with self._history_row():
            if train and not self.plan.trained:
                self.one_epoch(True)
            self.plan.trained = False
            if valid and self.plan.validates(self.epoch):
                with torch.no_grad(), preserved_random_states():
                    for name in (None, *getattr(self.dls, "named", ())):
                        self.one_epoch(False, name)
        self.callback("after_round")
        self._end_if_stopped()

    def one_epoch(self, training: bool, name: str | None = None) -> None:
        """Run over the training or the validation loader once, or over a further one by name."""
        self.training, self.plan.valid_name = training, name
        self._end_if_stopped()
        valid_dl = pick_loader(self.dls, False) if name is None else self.dls[name]
        self.dl = self.plan.train_dl if training else valid_dl
        for module in (fit_modules(self).get("loss"), self.model):
            set_mode(module, training, self.plan.frozen)
        self._one_epoch()

    @with_cbs("epoch")
    def _one_epoch(self) -> None:
        with self._batches() as batches:
            for self.iter, self.batch in batches:
                self._one_batch()
                self._end_if_stopped()

    @with_cbs("batch")
    def _one_batch(self) -> None:
        try:
            self.predict()
            if "after_predict" not in self.unheard:
                self.callback("after_predict")
            self.get_loss()
            if "after_loss" not in self.unheard:
                self.callback("after_loss")
            if self.training:
                self.backward_and_step()
        finally:  # the graph must not outlive the batch
            self.preds, self.loss = detach(self.preds), detach(self.loss)
            if self.loss_parts:
                self.loss_parts = detach(self.loss_parts)

    def backward_and_step(self) -> None:
        """Compute the gradients and make an update; what is left of the gradients is cleared."""
        plan = self.plan
        plan.has_grads = False
        try:
            self._one_backward()
            if plan.has_grads:
                self.close_group()
                plan.has_grads = False  # spent, or CancelStepException asked to keep them
        finally:
            if plan.has_grads and not plan.in_group:
                self.clear_grads()

    @with_cbs("backward")
    def _one_backward(self) -> None:
        try:
            self.backward()
        except BaseException:
            if not self.plan.in_group:  # a backward pass that broke off left them
                self.clear_grads()
            raise
        self.plan.has_grads = True

    def close_group(self) -> None:
        """Make an update with the gradients that there are: of a batch, or of a group of them.

        The loop calls it for each batch, GradAccumCB for a group that the end of an epoch leaves
        open. Ctrl-C waits in it until the update is complete.
        """
        if self._can_step():
            with self.interrupts:
                self._one_step()

    @with_cbs("step", after=False)
    def _one_step(self) -> None:
        if "before_step" not in self.unheard and not self._can_step():  # it took them away
            return
        self.step()
        self.plan.steps_done += 1
        try:
            if "after_step" not in self.unheard:
                self.callback("after_step")
        finally:  # whatever follows a step, its gradients are spent
            self.zero_grad()

    # ---- fit ----

    @overload
    def fit(
        self,
        n_epochs: int | None = None,
        lr: float | slice | None = None,
        cbs: Any = None,
        **options: Unpack[FitOptions],
    ) -> None: ...
    @overload
    def fit(
        self,
        n_epochs: int | None,
        train: bool,
        valid: bool = True,
        cbs: Any = None,
        lr: float | slice | None = None,
        *,
        n_steps: int | None = None,
        valid_every: Any = None,
        resume: Any = None,
        reset_opt: bool = True,
        on_interrupt: str = "raise",
    ) -> None: ...
    @accepts_miniais_order
    def fit(
        self,
        n_epochs: int | None = None,
        lr: float | slice | None = None,
        cbs: Any = None,
        *,
        train: bool = True,
        valid: bool = True,
        n_steps: int | None = None,
        valid_every: Any = None,
        resume: Any = None,
        reset_opt: bool = True,
        on_interrupt: str = "raise",
    ) -> None:
        """Train for some epochs or updates, and validate after each epoch.

        A bool in the second place means miniai's order: `fit(n_epochs, train, valid, cbs, lr)`.
        Afterwards the model is in the mode of the last epoch: eval after a validation.

        >>> learn.fit(3)
        >>> learn.fit(n_steps=100, valid_every=(50, "step"))

        Args:
            n_epochs: full passes over the training data; 1 where neither this nor `n_steps` is
                given.
            lr: learning rate for this fit only; `slice(1e-5, 1e-3)` for rates that rise from the
                first layers to the last.
            cbs: callbacks for this fit only.
            train: False to only validate.
            valid: False to only train.
            n_steps: updates in all, over as many epochs as it takes.
            valid_every: validate after every k epochs, or after every k updates with `(k, "step")`.
            resume: a checkpoint to go on from, or a folder of them; True for the newest usable one
                of the `CheckpointCB`. `n_epochs` and `n_steps` are the totals then.
            reset_opt: False to go on with the optimizer of the fit before.
            on_interrupt: "raise" to raise KeyboardInterrupt after all clean-up, "stop" to return
                normally with `learn.interrupted` set.

        Raises:
            MissingActionError: an action has no owner.
            ActionConflictError: it has several, which are not all TrainCBs with equal settings.
            TypeError: an argument is of a wrong type, or unknown; names the one that was meant.
            ValueError: a loader is missing or empty, or an argument does not make sense.
        """
        if "fit" in self.levels:
            raise RuntimeError("a fit of this Learner is running; use learn.validate() inside it")
        if on_interrupt not in ("raise", "stop"):
            raise ValueError(f"on_interrupt is 'raise' or 'stop', got {on_interrupt!r}")
        check_epochs(n_epochs)
        check_lr(lr)
        plan = Plan(n_epochs, n_steps, valid_every)
        cbs = as_callbacks(cbs)
        if resume is not None and resume is not False:
            cbs += self._resume_cbs(resume, cbs)
        with self._with_callbacks(cbs, train), self.interrupts.listening():
            try:
                # a nested run leaves no trace, and neither does a fit of no epoch
                kept = self.model if self.depth or n_epochs == 0 else None
                with preserved_modes(kept, fit_modules(self).get("loss")):
                    valid = self._begin(plan, train, valid, lr, reset_opt)
                    if not self.depth:
                        begin_in_train_mode(self.model)
                    self._fit(train, valid)
            except BaseException as e:
                self.interrupts.stopped = isinstance(e, KeyboardInterrupt)
                if not self.interrupts.stopped or on_interrupt == "raise":
                    self.batch = self.preds = self.loss = self.loss_parts = None
                    raise
            finally:
                self._end()

    def stop(self, why: str = "learn.stop() ended the fit") -> None:
        """End the running fit after the current batch, with all clean-up.

        Call it from a handler, from another thread, or from a button where `fit` runs in a thread.

        Args:
            why: one line, which is shown below the table, and is `learn.stopped`.
        """
        self.interrupts.reason = why

    def _end_if_stopped(self) -> None:
        """End the fit where `stop` was called, unless several processes agree on that elsewhere."""
        asked = self.interrupts
        if asked.reason is not None and not (self.depth or asked.agreed):
            raise CancelFitException

    # ---- what the Learner replaces by more ----

    def _usual_cbs(self, metrics: Any = (), cbs: Any = None) -> list[Any]:
        """Return the usual callbacks, with `cbs` in the place of theirs and beside them."""
        return as_callbacks(cbs)

    def _new_opt(self, lr: Any) -> Any:
        """Make the optimizer of a fit."""
        func: Any = self.opt_func
        return self._with_loss(func(self.model.parameters(), lr))

    def _set_lr(self, lr: Any) -> None:
        """Give the optimizer that is kept another learning rate."""
        for group in self.opt.param_groups:
            group["lr"] = lr

    def _check_opt(self) -> None:
        """See, before each training epoch, that the optimizer fits the model."""

    def live_state(self) -> dict[str, Any]:
        """Return the state of the model that is trained, also while averages stand in for it."""
        return self.model.state_dict()

    def _resume_cbs(self, resume: Any, cbs: list[Any]) -> list[Any]:
        """Return the callbacks that let a fit with `cbs` go on from a checkpoint."""
        raise NotImplementedError("a Learner can resume, its loop alone cannot")

    # ---- what is known ----

    @property
    def n_items(self) -> Any:
        """The number of items in the batch: what `count` says, or what is known, else None."""
        if self.count is not None:
            return as_count(self.count(self.batch))
        return batch_size(self.batch, getattr(self.owner("get_loss"), "split", None))

    def free(self) -> None:
        """Drop what stays readable after a fit: `batch`, `preds`, `loss` and `opt`."""
        self.batch = self.preds = self.loss = self.loss_parts = None
        self.opt = self.opt if self.opt_func is None else None

    def __repr__(self) -> str:
        """Show the parts and, in order, the callbacks that will run."""
        cbs = ", ".join(repr(cb) for cb in self.cbs_of_fit()) or "none"
        cbs += " (the usual ones, since none are listed)" if self.adds_usual() else ""
        opt = self.opt if self.opt is not None else self.opt_func
        return (
            f"{type(self).__name__}({type(self.model).__name__}, lr={self.lr})\n"
            f"  loss: {name_of(self.loss_func)}\n  opt:  {name_of(opt)}\n"
            f"  data: {self.dls!r}\n  cbs:  {cbs}"
        )


def name_of(x: Any) -> str:
    """Return the name of a function, a partial of one, of a class, or a name itself."""
    if isinstance(x, partial):
        keywords = ", ".join(f"{k}={v!r}" for k, v in x.keywords.items())
        return f"{name_of(x.func)}({keywords})" if keywords else name_of(x.func)
    return str(x) if x is None or type(x) is str else getattr(x, "__name__", type(x).__name__)
