"""Every public name and the module that it comes from.

Read by type checkers, and when `minilearn` is imported: a module is imported when a name of it is
first used.
"""

import torch

from .base.batch import default_device, map_batch, to_cpu, to_device
from .base.notebook import clean_ipython_hist, clean_mem, clean_tb
from .base.plotting import get_grid, plot_func, show_image, show_images, subplots
from .base.seed import set_seed
from .callbacks.averaging import EMACB, SWACB, precise_bn
from .callbacks.compile import ActivationCheckpointCB, CompileCB
from .callbacks.device import ChannelsLastCB, DeterministicCB, DeviceCB
from .callbacks.early_stopping import EarlyStopCB, TimeLimitCB
from .callbacks.gradients import ClipGradCB, GradAccumCB, NonFiniteCB
from .callbacks.handlers import HasLearnCB, LambdaCB
from .callbacks.limits import LimitBatchesCB, OverfitCB
from .callbacks.mixup import CutMixCB, MixCB, MixUpCB
from .callbacks.precision import ClosureCB, MixedPrecision, ScaledPrecision
from .callbacks.training import SingleBatchCB, TrainCB
from .callbacks.transforms import AugmentCB, BatchTransformCB, tfm_batch
from .checkpoint.callback import CheckpointCB
from .checkpoint.weights import load_model
from .core.callback import Callback, run_cbs
from .core.events import (
    ActionConflictError,
    CancelBackwardException,
    CancelBatchException,
    CancelEpochException,
    CancelException,
    CancelFitException,
    CancelRoundException,
    CancelStepException,
    MissingActionError,
    Order,
    register_level,
    with_cbs,
)
from .core.history import History
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
from .data.pipeline import Pipeline
from .distributed.accelerate import AccelerateCB
from .inference.items import Prediction
from .inference.predict import CapturePreds, Results
from .insight.activations import ActivationStats, append_stats, get_hist, get_min
from .insight.diagnosis import DebugCB
from .insight.gradient_stats import GradientStats
from .insight.hooks import Hook, Hooks, HooksCallback
from .insight.interpret import Interpretation
from .insight.lr_finder import LRFinderCB
from .insight.timing import TimerCB
from .learner import Learner, MomentumLearner, TrainLearner, fit, load_learner
from .loggers.base import LoggerCB, log_values
from .loggers.files import CSVLoggerCB, JSONLLoggerCB, TensorBoardCB
from .loggers.recorder import RecorderCB
from .loggers.run_info import RunCB
from .loggers.smoothing import HistoryBuffer, MetricStorage
from .loggers.text_log import LogCB, setup_logger
from .loggers.trackers import MLflowCB, WandbCB
from .metrics.callback import MetricsCB
from .metrics.functions import accuracy, accuracy_multi, mae, mse, rmse, skm
from .metrics.mean import averaged
from .nn.augment import RandCopy, RandErase, RandomCrop, RandomFlip, rand_copy, rand_erase
from .nn.init import init_weights, lsuv, lsuv_init
from .nn.layers import Dropout, GeneralRelu, GlobalAvgPool, ResBlock, act_gr, cnn_layers, conv
from .nn.models import get_model, resnet
from .nn.registry import create_model, list_models, register_model
from .optim.lookahead import lookahead
from .optim.optimizer import optimizer, param_groups
from .optim.param_sched import ParamSchedCB, combine_scheds
from .optim.sched_callbacks import BaseSchedCB, BatchSchedCB, EpochSchedCB, PlateauCB
from .optim.sched_names import schedule
from .optim.schedulers import constant, flat_cos, plot_sched, sched_lrs
from .optim.warmup import warmup
from .progress.callback import ProgressCB

__all__ = [
    "AccelerateCB",
    "ActionConflictError",
    "ActivationCheckpointCB",
    "ActivationStats",
    "ArrayLoader",
    "AugmentCB",
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
    "DebugCB",
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
    "MLflowCB",
    "MetricStorage",
    "MetricsCB",
    "MissingActionError",
    "MixCB",
    "MixUpCB",
    "MixedPrecision",
    "MomentumLearner",
    "NonFiniteCB",
    "Order",
    "OverfitCB",
    "ParamSchedCB",
    "Pipeline",
    "PlateauCB",
    "Prediction",
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
    "averaged",
    "clean_ipython_hist",
    "clean_mem",
    "clean_tb",
    "cnn_layers",
    "collate_dict",
    "combine_scheds",
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
    "lookahead",
    "lsuv",
    "lsuv_init",
    "mae",
    "map_batch",
    "mse",
    "optimizer",
    "param_groups",
    "plot_func",
    "plot_sched",
    "precise_bn",
    "rand_copy",
    "rand_erase",
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
