"""Every public name and the room that it comes from.

Read by type checkers, and when `minilearn` is imported: a room is imported when a name of it is
first used.
"""

import torch

from .callbacks.augment import BatchTransformCB, tfm_batch
from .callbacks.averaging import EMACB
from .callbacks.capture import CapturePreds
from .callbacks.checkpoint import CheckpointCB
from .callbacks.closure import ClosureCB
from .callbacks.device import ChannelsLastCB, DeterministicCB, DeviceCB
from .callbacks.distributed import AccelerateCB
from .callbacks.dropout import MCDropoutCB
from .callbacks.gradients import ClipGradCB, GradAccumCB, NonFiniteCB
from .callbacks.handlers import HasLearnCB, LambdaCB
from .callbacks.limits import LimitBatchesCB, OverfitCB
from .callbacks.loggers import CSVLoggerCB, JSONLLoggerCB, TensorBoardCB
from .callbacks.metrics import MetricsCB
from .callbacks.mixing import CutMixCB, MixUpCB
from .callbacks.named_schedules import schedule
from .callbacks.precision import MixedPrecision, ScaledPrecision
from .callbacks.progress import ProgressCB
from .callbacks.recipes import fit
from .callbacks.recorder import RecorderCB
from .callbacks.rows import LoggerCB, log_values
from .callbacks.run import RunCB
from .callbacks.schedule import BaseSchedCB, BatchSchedCB, EpochSchedCB, PlateauCB
from .callbacks.schedulers import constant, flat_cos, plot_sched, sched_lrs
from .callbacks.scores import accuracy, accuracy_multi, mae, mse, rmse, skm
from .callbacks.smoothing import HistoryBuffer, MetricStorage
from .callbacks.speed import CompileCB, MatmulPrecisionCB
from .callbacks.stopping import EarlyStopCB, SpikeCB, TimeLimitCB
from .callbacks.swa import SWACB
from .callbacks.textlog import LogCB, setup_logger
from .callbacks.timing import MemoryCB, ProfilerCB, TimerCB
from .callbacks.trackers import MLflowCB, WandbCB
from .callbacks.training import SingleBatchCB, TrainCB
from .callbacks.warmup import warmup
from .core.batch import default_device, map_batch, to_cpu, to_device
from .core.callback import Callback, run_cbs
from .core.events import Order, register_level, with_cbs
from .core.exceptions import (
    ActionConflictError,
    CancelBackwardException,
    CancelBatchException,
    CancelEpochException,
    CancelException,
    CancelFitException,
    CancelRoundException,
    CancelStepException,
    MissingActionError,
)
from .core.history import History
from .core.learner import Learner
from .core.seed import set_seed
from .core.train_learner import MomentumLearner, TrainLearner
from .data import (
    ArrayLoader,
    DataLoaders,
    Dataset,
    SeededLoader,
    collate_dict,
    fashion_mnist,
    get_dls,
    image_dls,
    inplace,
)
from .data.images import read_image
from .data.pipeline import Pipeline
from .export import load_learner
from .infer import Prediction
from .inference import Results
from .insight.activations import (
    ActivationStats,
    append_stats,
    get_hist,
    get_min,
)
from .insight.gradient_stats import GradientStats
from .insight.hooks import Hook, Hooks, HooksCallback
from .insight.interpret import Interpretation
from .insight.lr_finder import LRFinderCB
from .insight.plotting import get_grid, plot_func, show_image, show_images, subplots
from .nn import (
    Dropout,
    GeneralRelu,
    GlobalAvgPool,
    RandCopy,
    RandErase,
    RandomCrop,
    RandomFlip,
    ResBlock,
    act_gr,
    cnn_layers,
    conv,
    create_model,
    get_model,
    init_weights,
    list_models,
    lsuv,
    lsuv_init,
    rand_copy,
    rand_erase,
    register_model,
    resnet,
)
from .optim import optimizer, param_groups
from .weights import load_model

__all__ = [
    "AccelerateCB",
    "ActionConflictError",
    "ActivationStats",
    "ArrayLoader",
    "BaseSchedCB",
    "BatchSchedCB",
    "BatchTransformCB",
    "CSVLoggerCB",
    "Callback",
    "CancelBackwardException",
    "CancelBatchException",
    "CancelEpochException",
    "CancelException",
    "CancelFitException",
    "CancelRoundException",
    "CancelStepException",
    "CapturePreds",
    "ChannelsLastCB",
    "CheckpointCB",
    "ClipGradCB",
    "ClosureCB",
    "CompileCB",
    "CutMixCB",
    "DataLoaders",
    "Dataset",
    "DeterministicCB",
    "DeviceCB",
    "Dropout",
    "EMACB",
    "EarlyStopCB",
    "EpochSchedCB",
    "GeneralRelu",
    "GlobalAvgPool",
    "GradAccumCB",
    "GradientStats",
    "HasLearnCB",
    "History",
    "HistoryBuffer",
    "Hook",
    "Hooks",
    "HooksCallback",
    "Interpretation",
    "JSONLLoggerCB",
    "LRFinderCB",
    "LambdaCB",
    "Learner",
    "LimitBatchesCB",
    "LogCB",
    "LoggerCB",
    "MCDropoutCB",
    "MLflowCB",
    "MatmulPrecisionCB",
    "MemoryCB",
    "MetricStorage",
    "MetricsCB",
    "MissingActionError",
    "MixUpCB",
    "MixedPrecision",
    "MomentumLearner",
    "NonFiniteCB",
    "Order",
    "OverfitCB",
    "Pipeline",
    "PlateauCB",
    "Prediction",
    "ProfilerCB",
    "ProgressCB",
    "RandCopy",
    "RandErase",
    "RandomCrop",
    "RandomFlip",
    "RecorderCB",
    "ResBlock",
    "Results",
    "RunCB",
    "SWACB",
    "ScaledPrecision",
    "SeededLoader",
    "SingleBatchCB",
    "SpikeCB",
    "TensorBoardCB",
    "TimeLimitCB",
    "TimerCB",
    "TrainCB",
    "TrainLearner",
    "WandbCB",
    "accuracy",
    "accuracy_multi",
    "act_gr",
    "append_stats",
    "cnn_layers",
    "collate_dict",
    "constant",
    "conv",
    "create_model",
    "default_device",
    "fashion_mnist",
    "fit",
    "flat_cos",
    "get_dls",
    "get_grid",
    "get_hist",
    "get_min",
    "get_model",
    "image_dls",
    "init_weights",
    "inplace",
    "list_models",
    "load_learner",
    "load_model",
    "log_values",
    "lsuv",
    "lsuv_init",
    "mae",
    "map_batch",
    "mse",
    "optimizer",
    "param_groups",
    "plot_func",
    "plot_sched",
    "rand_copy",
    "rand_erase",
    "read_image",
    "register_level",
    "register_model",
    "resnet",
    "rmse",
    "run_cbs",
    "sched_lrs",
    "schedule",
    "set_seed",
    "setup_logger",
    "show_image",
    "show_images",
    "skm",
    "subplots",
    "tfm_batch",
    "to_cpu",
    "to_device",
    "warmup",
    "with_cbs",
]

__version__: str
def_device: torch.device
