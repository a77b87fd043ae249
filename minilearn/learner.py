"""What a Learner can do, a line for each method, and where it is written.

The loop is in `core/learner.py`. The modules named here are imported when a method is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, optim

from .base.arguments import DEFAULT_LOSS, check_default_loss
from .base.batch import compare
from .base.lazy import LazyMethods
from .core.callback import as_callbacks
from .core.dispatch import action, default_actions
from .core.learner import Loop

if TYPE_CHECKING:
    from .callbacks import averaging as _averaging
    from .callbacks import handlers as _handlers
    from .checkpoint import methods as _checkpoint
    from .checkpoint import weights as _weights
    from .core.history import History
    from .inference import export as _export
    from .inference import items as _items
    from .inference import predict as _predict
    from .insight import diagnosis as _diagnosis
    from .insight import explain as _explain
    from .insight import lr_finder as _lr_finder
    from .insight import preflight as _preflight
    from .insight import show_batches as _show_batches
    from .insight import summary as _summary
    from .insight import timing as _timing
    from .loggers import base as _loggers
    from .optim import freeze as _freeze
    from .optim import optimizer as _optimizer
    from .optim import recipes as _recipes
else:
    _averaging = LazyMethods("callbacks.averaging")
    _handlers = LazyMethods("callbacks.handlers")
    _checkpoint = LazyMethods("checkpoint.methods")
    _weights = LazyMethods("checkpoint.weights")
    _export = LazyMethods("inference.export")
    _items = LazyMethods("inference.items")
    _predict = LazyMethods("inference.predict")
    _diagnosis = LazyMethods("insight.diagnosis")
    _explain = LazyMethods("insight.explain")
    _lr_finder = LazyMethods("insight.lr_finder")
    _preflight = LazyMethods("insight.preflight")
    _show_batches = LazyMethods("insight.show_batches")
    _summary = LazyMethods("insight.summary")
    _timing = LazyMethods("insight.timing")
    _loggers = LazyMethods("loggers.base")
    _freeze = LazyMethods("optim.freeze")
    _optimizer = LazyMethods("optim.optimizer")
    _recipes = LazyMethods("optim.recipes")

__all__ = ["Learner", "MomentumLearner", "TrainLearner", "fit", "load_learner"]


class Learner(Loop):
    """A model, data, a loss and an optimizer factory, and the loop that trains them.

    >>> learn = Learner(model, dls, F.cross_entropy, 1e-2, opt_func="adamw", metrics=accuracy)
    >>> learn.fit(2)

    Args:
        model: an `nn.Module`, or any callable.
        dls: a `DataLoaders`, or a tuple or dict of a training and a validation loader; a loader is
            any iterable of batches.
        loss_func: takes predictions and targets, returns a scalar tensor.
        lr: learning rate; None is fine until a fit needs it.
        cbs: a callback, a class of one, or a collection of them. The list is copied.
        opt_func: called as `opt_func(parameters, lr)` for each fit; or a name, "adamw" say; or what
            `optimizer(...)` returns. None keeps `opt`.
        opt: a ready optimizer, kept for all fits. It keeps its rate until `lr` is given or set.
        metrics: one metric, several, or a dict by name, with the usual callbacks: `TrainCB()`,
            `DeviceCB()`, `MetricsCB(metrics)`, `ProgressCB()`. Those of `cbs` come in the place of
            these (`TrainCB(targets=…)`, say), and beside them. Without metrics, too, where `cbs` is
            not given either and nobody answers an action when a fit starts; `cbs=[]` means none.
        count: takes a batch, returns its number of items where that is not the batch size (tokens,
            say).
        train_loss: False to leave the parameters of a loss module as they are. They are trained in
            a group of their own otherwise.

    Raises:
        TypeError: an argument is of a wrong type, or unknown; says what to write.
        ValueError: there are metrics in `metrics` and in a MetricsCB.
    """

    # training
    fit_one_cycle = _recipes.fit_one_cycle
    fit_flat_cos = _recipes.fit_flat_cos
    fine_tune = _freeze.fine_tune
    freeze = _freeze.freeze
    freeze_to = _freeze.freeze_to
    unfreeze = _freeze.unfreeze
    on = _handlers.on
    log = _loggers.log
    live_state = _averaging.live_state
    _new_opt = _optimizer.make_optimizer
    _set_lr = _optimizer.set_optimizer_lr
    _check_opt = _optimizer.check_optimizer

    # before a long run
    lr_find = _lr_finder.lr_find
    find_batch_size = _preflight.find_batch_size
    dry_run = _preflight.dry_run

    # looking inside
    explain = _explain.explain
    summary = _summary.summary
    diagnose = _diagnosis.diagnose
    show_batch = _show_batches.show_batch
    show_image_batch = _show_batches.show_image_batch
    show_results = _show_batches.show_results

    # evaluation and prediction
    validate = _predict.validate
    get_preds = _predict.get_preds
    iter_preds = _predict.iter_preds
    capture_preds = _predict.capture_preds
    infer = _items.infer
    tta = _predict.tta

    # files
    save = _weights.save
    load = _weights.load
    save_checkpoint = _checkpoint.save_checkpoint
    load_checkpoint = _checkpoint.load_checkpoint
    _resume_cbs = _checkpoint.resume_callbacks
    export = _export.export

    @property
    def timings(self) -> History:
        """Where the last fit with a `TimerCB` spent its time: a table, one row an event."""
        from .insight.timing import timings_of

        return timings_of(self)

    def _usual_cbs(self, metrics: Any = (), cbs: Any = None) -> list[Any]:
        from .callbacks.device import DeviceCB
        from .callbacks.training import TrainCB
        from .metrics.callback import MetricsCB
        from .progress.callback import ProgressCB

        if isinstance(metrics, Mapping):
            measured = MetricsCB(**metrics)
        elif isinstance(metrics, Iterable) and not (
            isinstance(metrics, str) or hasattr(metrics, "update")
        ):
            measured = MetricsCB(*metrics)
        else:
            measured = MetricsCB(metrics)
        cbs, usual = as_callbacks(cbs), [TrainCB(), DeviceCB(), measured, ProgressCB()]
        chosen = [next((cb for cb in cbs if isinstance(cb, type(u))), u) for u in usual]
        if measured.metrics and measured not in chosen:
            raise ValueError("metrics are in metrics= and in a MetricsCB of cbs: write one of them")
        if getattr(chosen[0], "places_batches", False) and chosen[1] is usual[1]:
            del chosen[1]  # an AccelerateCB is a DeviceCB, too
        return [*chosen, *(cb for cb in cbs if not any(cb is other for other in chosen))]


def load_learner(path: str | Path, device: Any = None, *, trust: bool = False) -> Learner:
    """Load what `learn.export` wrote, for predictions: `infer`, `get_preds`, `tta`.

    A model that a registered function makes is loaded without running any code of the folder, and
    nothing is unpickled.

    >>> folder = learn.export("cats")
    >>> learn = load_learner(folder)

    Args:
        path: the folder; or the file of a whole Learner that `torch.save` wrote.
        device: where to predict; by default the best there is, wherever the model was trained.
        trust: allow what may run any code: the graph of a model, a module that the folder names for
            the class of its model, and the file of a whole Learner.

    Raises:
        ValueError: the file needs `trust`; the model is not registered here and has no graph; or
            the function that made it takes other arguments now.
        CorruptFileError: (a ValueError) a file is incomplete.
        FileNotFoundError: there is no export, or one of its files is missing.
    """
    from .base.files import user_path
    from .inference.load_export import read_export, unpickled

    path = user_path(path)
    if path.is_file():
        return unpickled(path, device, trust)
    model, dls, cbs = read_export(path, device, trust)
    return Learner(model, dls, None, cbs=cbs)


def fit(
    epochs: int,
    model: nn.Module,
    loss_func: Callable[..., Any],
    opt: Any,
    train_dl: Any,
    valid_dl: Any,
) -> tuple[float, float]:
    """Train a classifier with a ready optimizer, without a Learner of your own.

    >>> opt = optim.SGD(model.parameters(), lr=0.1)
    >>> loss, acc = fit(1, model, F.cross_entropy, opt, dls.train, dls.valid)

    Args:
        epochs: full passes over the training data.
        model: gives logits, shape (B, K).
        loss_func: takes logits and labels.
        opt: holds the parameters of `model`.
        train_dl: batches of (inputs, labels).
        valid_dl: the same, for the validation after each epoch.

    Returns:
        Loss and accuracy of the last validation.
    """
    from .callbacks.training import TrainCB
    from .metrics.callback import MetricsCB
    from .metrics.functions import accuracy

    cbs = [TrainCB(), MetricsCB(accuracy=accuracy)]
    learn = Learner(model, (train_dl, valid_dl), loss_func, cbs=cbs, opt=opt)
    learn.fit(epochs)
    return learn.history["valid_loss"][-1], learn.history["accuracy"][-1]


@default_actions
class TrainLearner(Learner):
    """A Learner that needs no TrainCB: `batch` is (inputs, targets).

    Override an action to change the training; a callback that answers one (mixed precision, say)
    wins over these defaults.

    >>> TrainLearner(model, dls, F.cross_entropy, lr=0.1).fit(1)
    """

    @action
    def predict(self) -> None:
        """Run the model on the first item of the batch."""
        self.preds = self.model(self.batch[0])

    def get_loss(self) -> None:
        """Compare the predictions with the rest of the batch."""
        if self.loss_func is DEFAULT_LOSS and not self.iter:
            check_default_loss(self.preds, self.batch[1:])
        self.loss = compare(self.loss_func, self.preds, self.batch[1:])

    def backward(self) -> None:
        """Compute the gradients."""
        self.loss.backward()

    def step(self) -> None:
        """Let the optimizer make a step."""
        self.opt.step()

    def zero_grad(self) -> None:
        """Clear the gradients."""
        self.opt.zero_grad()


class MomentumLearner(TrainLearner):
    """Momentum by a trick for teaching: gradients are shrunk instead of cleared.

    It carries gradients from batch to batch, so it goes with no accumulation and no gradient
    scaler.

    >>> learn = MomentumLearner(model, dls, F.cross_entropy, lr=0.1, mom=0.9)
    >>> learn.fit(1)

    Args:
        mom: the fraction of the gradient that is carried on, 0 to 1.
        kwargs: `opt`, `metrics`, `count` and `train_loss` of a Learner, which explains the others.
    """

    def __init__(
        self,
        model: nn.Module,
        dls: Any,
        loss_func: Callable[..., Any],
        lr: float | None = None,
        cbs: Any = None,
        opt_func: Callable[..., Any] | None = optim.SGD,
        mom: float = 0.85,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, dls, loss_func, lr, cbs, opt_func, **kwargs)
        self.mom = mom

    def zero_grad(self) -> None:
        """Shrink the gradients by `mom`."""
        with torch.no_grad():
            for p in self.parameters():
                if p.grad is not None:
                    p.grad *= self.mom
