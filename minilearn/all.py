"""`from minilearn.all import *`: every public name, and what a notebook needs beside them.

Names of torch are torch's own (`nn`, `init`, `optim`). `fc`, `plt`, `TF`, `load_dataset` and the
metrics of torcheval import their library when they are first used.
"""

from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim, tensor
from torch.nn import init
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, default_collate

import minilearn
from minilearn import *  # noqa: F403

from .base.lazy import LazyModule, LazyName

fc = LazyModule("fastcore.all")
plt = LazyModule("matplotlib.pyplot")
TF = LazyModule("torchvision.transforms.functional")

load_dataset = LazyName("datasets", "load_dataset")
load_dataset_builder = LazyName("datasets", "load_dataset_builder")

TORCHEVAL = """
    AUC BLEUScore BinaryAUPRC BinaryAUROC BinaryAccuracy BinaryBinnedAUPRC BinaryBinnedAUROC
    BinaryBinnedPrecisionRecallCurve BinaryConfusionMatrix BinaryF1Score BinaryNormalizedEntropy
    BinaryPrecision BinaryPrecisionRecallCurve BinaryRecall BinaryRecallAtFixedPrecision Cat
    ClickThroughRate FrechetAudioDistance FrechetInceptionDistance HitRate Max Mean
    MeanSquaredError Metric Min MulticlassAUPRC MulticlassAUROC MulticlassAccuracy
    MulticlassBinnedAUPRC MulticlassBinnedAUROC MulticlassBinnedPrecisionRecallCurve
    MulticlassConfusionMatrix MulticlassF1Score MulticlassPrecision MulticlassPrecisionRecallCurve
    MulticlassRecall MultilabelAUPRC MultilabelAccuracy MultilabelBinnedAUPRC
    MultilabelBinnedPrecisionRecallCurve MultilabelPrecisionRecallCurve
    MultilabelRecallAtFixedPrecision PeakSignalNoiseRatio Perplexity R2Score ReciprocalRank
    RetrievalPrecision Sum Throughput TopKMultilabelAccuracy WeightedCalibration WindowedBinaryAUROC
    WindowedBinaryNormalizedEntropy WindowedClickThroughRate WindowedMeanSquaredError
    WindowedWeightedCalibration WordErrorRate WordInformationLost WordInformationPreserved
""".split()
globals().update({name: LazyName("torcheval.metrics", name) for name in TORCHEVAL})

__all__ = [
    *minilearn.__all__,
    *TORCHEVAL,
    "DataLoader",
    "F",
    "Path",
    "TF",
    "def_device",  # noqa: F405
    "default_collate",
    "fc",
    "init",
    "itemgetter",
    "load_dataset",
    "load_dataset_builder",
    "lr_scheduler",
    "nn",
    "np",
    "optim",
    "partial",
    "plt",
    "tensor",
    "torch",
]


def __getattr__(name: str) -> Any:
    if name == "def_device":
        return minilearn.def_device
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
