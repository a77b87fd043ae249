"""Names from elsewhere: what fastai, Lightning, Keras, ignite and others say, and what it is here.

Errors quote these tables, and docs/coming_from.md shows them; a test compares the two.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from .text import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

# Methods that a framework calls. A callback or a Learner that defines one waits in vain.
HOOKS = {
    "fastai": {
        "before_train, before_validate": "`before_epoch`, and `learn.training`",
        "after_train, after_validate": "`after_epoch`, and `learn.training`",
        "after_pred": "`after_predict`",
        "after_cancel_fit, after_cancel_epoch": "`cleanup_fit`, `cleanup_epoch`; `learn.error`",
        "begin_fit, begin_epoch, begin_batch": "`before_fit`, `before_epoch`, `before_batch`",
    },
    "Lightning": {
        "training_step": "`predict` and `get_loss` of a `TrainCB`",
        "validation_step, test_step, predict_step": "`predict` and `get_loss` of a `TrainCB`",
        "configure_optimizers": "`opt_func=` of the Learner, and `BatchSchedCB`",
        "on_fit_start, on_train_start": "`before_fit`",
        "on_fit_end": "`after_fit`, or `cleanup_fit`, which always runs",
        "on_train_epoch_start": "`before_epoch`, in training",
        "on_train_epoch_end": "`after_epoch`, in training, or `after_round`",
        "on_validation_epoch_start, on_validation_start": "`before_epoch`, in validation",
        "on_validation_epoch_end, on_validation_end": "`after_epoch`, in validation",
        "training_epoch_end, validation_epoch_end": "`after_epoch`, and `learn.training`",
        "on_train_batch_start": "`before_batch`, in training",
        "on_validation_batch_start": "`before_batch`, in validation",
        "on_validation_batch_end": "`after_batch`, in validation",
        "on_before_backward, on_after_backward": "`before_backward`, `after_backward`",
        "on_before_optimizer_step": "`before_step`",
        "on_before_zero_grad": "`after_step`",
        "on_exception": "`cleanup_fit` with `learn.error`",
        "on_save_checkpoint, on_load_checkpoint": "`state_dict`, `load_state_dict`",
    },
    "Keras": {
        "on_train_begin, on_test_begin": "`before_fit`",
        "on_train_end": "`after_fit`, or `cleanup_fit`, which always runs",
        "on_epoch_begin": "`before_round`",
        "on_epoch_end": "`after_round(learn)`, and `learn.row`",
        "on_batch_begin, on_train_batch_begin": "`before_batch`, in training",
        "on_batch_end, on_train_batch_end": "`after_batch`, in training",
        "on_test_batch_begin": "`before_batch`, in validation",
        "on_test_batch_end": "`after_batch`, in validation",
        "on_test_end": "`after_epoch`, in validation",
    },
    "ignite": {
        "iteration_started, iteration_completed": "`before_batch`, `after_batch`",
        "epoch_started, epoch_completed": "`before_epoch`, `after_epoch`, or `after_round`",
        "exception_raised": "`cleanup_fit` with `learn.error`",
    },
    "Others": {
        "before_iter, after_iter": "`before_batch`, `after_batch`",
        "before_train_iter, before_val_iter": "`before_batch`, and `learn.training`",
        "after_train_iter, after_val_iter": "`after_batch`, and `learn.training`",
        "before_train_epoch, before_val_epoch": "`before_epoch`, and `learn.training`",
        "after_train_epoch, after_val_epoch": "`after_epoch`, and `learn.training`",
        "before_run, after_run": "`before_fit`, `after_fit`",
        "on_step_begin, on_step_end": "`before_step`, `after_step`",
    },
}

# What a user types: attributes and methods, arguments, classes.
NAMES = {
    "fastai": {
        "predict": "`learn.infer(item)` for single items, `learn.get_preds(dl)` for a loader",
        "recorder": "`learn.history`, and `RecorderCB` for each update",
        "to_fp16": '`MixedPrecision("fp16")` among `cbs`',
        "to_bf16": '`MixedPrecision("bf16")` among `cbs`',
        "to_distributed, distrib_ctx": "`AccelerateCB()` among `cbs`",
        "model_summary": "`learn.summary()`",
        "fit_sgdr": "`fit` with `BatchSchedCB` around torch's `CosineAnnealingWarmRestarts`",
        "add_cbs, remove_cbs": "`add_cb`, `remove_cb`",
        "no_bar, no_logging": "`cbs` without a `ProgressCB`",
        "one_batch": "`learn.dry_run()`, or `fit(1, cbs=SingleBatchCB())`",
        "xb, yb, x, y": "`learn.batch`, inputs and targets",
        "pred": "`learn.preds`",
        "model, dls, opt, loss_func, preds, training": "attributes of the argument `learn`",
        "learn": "the argument `learn` of each event; `HasLearnCB` keeps it",
        "lr, max_lr": "`lr_max` of `fit_one_cycle`, `base_lr` of `fine_tune`",
        "wd, moms": '`opt_func=optimizer("adamw", wd=…, betas=…)`',
        "splitter": "`opt_func=optimizer(…, splitter=…)`",
        "vocab, c, classes": "`dls.pipeline.classes`, and its length",
        "valid_pct": "`image_dls(…, valid=0.2)`",
        "item_tfms, batch_tfms": "`image_dls(…, size=…, tfms=…)`, and `AugmentCB` among `cbs`",
        "bs": "an argument of the loaders, `DataLoaders.from_dsets(…, bs=64)`",
        "start_epoch": "`resume=True`, with a `CheckpointCB`",
        "cnn_learner, vision_learner": "`Learner(create_model(…), dls, F.cross_entropy)`",
        "ImageDataLoaders, ImageBlock": "`image_dls`",
        "SaveModelCallback": "`CheckpointCB`",
        "EarlyStoppingCallback": "`EarlyStopCB`",
        "ReduceLROnPlateau": "`PlateauCB`",
        "GradientAccumulation": "`GradAccumCB`, in batches",
        "GradientClip": "`ClipGradCB`",
        "MixUp, CutMix": "`MixUpCB`, `CutMixCB`",
        "ParamScheduler": "`ParamSchedCB`",
        "ShowGraphCallback": "`ProgressCB(plot=True)`",
        "CSVLogger": "`CSVLoggerCB`",
        "TerminateOnNaNCallback": "`MetricsCB`, which raises",
        "ClassificationInterpretation": "`Interpretation`",
    },
    "Lightning": {
        "Trainer": "`Learner(model, dls, loss_func)`, then `fit(n)`",
        "LightningModule": "an ordinary `nn.Module`",
        "test": "`learn.validate(dl)`",
        "log_dict": "`learn.log(**values)`",
        "manual_backward": "a subclass of `TrainCB` with its own `backward`",
        "optimizers, optimizer_step": "`learn.opt`",
        "trainer": "the Learner itself, `learn` in callbacks",
        "global_step": "`learn.steps_done`",
        "current_epoch": "`learn.epoch`",
        "callback_metrics, logged_metrics": "`learn.history[-1]`",
        "load_from_checkpoint": '`learn.load(path)`, or `fit(n, resume="folder")`',
        "should_stop": "`raise CancelFitException()`",
        "max_epochs, epoch, epochs": "`n_epochs`",
        "max_steps": "`n_steps`",
        "val_check_interval, check_val_every_n_epoch": '`valid_every=k`, or `(k, "step")`',
        "limit_train_batches, limit_val_batches": "`LimitBatchesCB`",
        "overfit_batches": "`OverfitCB`",
        "fast_dev_run": "`learn.dry_run()`",
        "ckpt_path": "`resume=`",
        "accelerator, devices": '`DeviceCB("cuda")`, or `AccelerateCB()`, among `cbs`',
        "precision": '`MixedPrecision("bf16")` among `cbs`',
        "accumulate_grad_batches": "`GradAccumCB(n)` among `cbs`",
        "gradient_clip_val": "`ClipGradCB(norm)` among `cbs`",
        "datamodule, train_dataloaders, val_dataloaders": "`dls=(train_dl, valid_dl)`",
        "ModelCheckpoint": "`CheckpointCB`",
        "EarlyStopping": "`EarlyStopCB`",
        "LearningRateMonitor": '`RecorderCB("lr")`',
        "StochasticWeightAveraging": "`SWACB`",
        "seed_everything": "`set_seed`",
    },
    "Keras": {
        "compile": "arguments of `Learner`; `CompileCB` for torch's compiler",
        "evaluate": "`learn.validate(dl)`",
        "save_model, save_weights": '`learn.save("model.safetensors")`',
        "load_model, load_weights": '`learn.load("model.safetensors")`',
        "train_on_batch, fit_generator": "`fit(n)`; a loader is any iterable of batches",
        "predict_on_batch": "`learn.get_preds([batch])`",
        "optimizer": "`opt_func=`, or a ready `opt=`",
        "loss, loss_fn, criterion": "`loss_func`",
        "learning_rate": "`lr`",
        "callbacks": "`cbs`",
        "batch_size": "an argument of the loaders, `DataLoaders.from_dsets(…, bs=64)`",
        "validation_data": "`dls=(train_dl, valid_dl)`",
        "validation_split": "`image_dls(…)`, or `dls=(train_dl, valid_dl)`",
        "validation_freq": "`valid_every=k`",
        "steps_per_epoch, validation_steps": "`LimitBatchesCB`, or `n_steps` with `valid_every`",
        "initial_epoch": "`resume=`",
        "verbose": "`cbs` without a `ProgressCB`",
        "class_weight": "`partial(F.cross_entropy, weight=…)` as `loss_func`",
        "LearningRateScheduler": "`EpochSchedCB` around one of torch's schedules",
        "TensorBoard": "`TensorBoardCB`",
        "TerminateOnNaN": "`MetricsCB`, which raises",
        "LambdaCallback": "`LambdaCB`, or `learn.on`",
    },
    "ignite": {
        "add_event_handler": "`learn.on`",
        "terminate": "`raise CancelFitException()`",
        "state": "attributes of the Learner, such as `learn.epoch`",
        "run": "`fit`",
    },
    "Others": {
        "score": "`learn.validate(dl)`",
        "predict_proba, transform": "`learn.get_preds(dl)`",
        "partial_fit": "`fit(1, reset_opt=False)`",
        "train": "`fit(n)`",
    },
}


def _by_name(table: dict[str, dict[str, str]]) -> dict[str, str]:
    rows = (row for section in table.values() for row in section.items())
    return {name: here for names, here in rows for name in names.split(", ")}


HOOKS_HERE = _by_name(HOOKS)
HERE = _by_name(NAMES) | HOOKS_HERE


def public_names() -> list[str]:
    """Return the public names of the package."""
    return sys.modules[__name__.partition(".")[0]].__all__


def hint(name: str, known: Iterable[str] = (), **kwargs: Any) -> str:
    """Return what to add to an error about `name`: what it is here, or the `known` names near it.

    Args:
        name: what was written.
        known: what may be written.
        kwargs: as in `did_you_mean`.
    """
    return f": here it is {HERE[name]}" if name in HERE else did_you_mean(name, known, **kwargs)


class ForeignNames:
    """Base of classes whose errors about a name from elsewhere say what it is here."""

    if not TYPE_CHECKING:  # else every name would be known to type checkers

        def __getattr__(self, name: str) -> Any:
            if name not in HERE:
                return object.__getattribute__(self, name)  # raises, as a property of this name did
            try:
                return object.__getattribute__(self, name)
            except AttributeError as e:
                if e.name == name and e.obj is self:
                    e.args = (f"{e}{hint(name)}",)
                raise


class Refused:
    """A name from elsewhere as an attribute: who sets it would wait in vain, so that raises."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        raise AttributeError(f"no attribute {self.name!r}", name=self.name, obj=obj)

    def __set__(self, obj: Any, value: Any) -> None:
        raise AttributeError(f"nothing reads {self.name!r}{hint(self.name)}")


def known_keywords(*more: str) -> Callable[[F], F]:
    """Let a call with a keyword that a function does not take name the one that was meant.

    Args:
        more: what it takes beside its parameters and passes on.
    """

    def decorate(f: F) -> F:
        names = {*inspect.signature(f).parameters, *more}

        @wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            check_keywords(f, kwargs, names)
            return f(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def check_keywords(f: Callable, kwargs: Iterable[str], names: Collection[str]) -> None:
    """Raise where one of `kwargs` is none of the `names` that `f` takes.

    Raises:
        TypeError: says which of them was probably meant.
    """
    for name in kwargs:
        if name not in names:
            text = f"{f.__name__}() has no argument {name!r}{hint(name, names, n=1)}"
            raise TypeError(text.replace("__init__", "Learner"))
