"""Layers, models and initialisation: plain PyTorch modules that need nothing else from here."""

from minilearn.nn.augment import RandCopy, RandErase, RandomCrop, RandomFlip, rand_copy, rand_erase
from minilearn.nn.init import init_weights, lsuv, lsuv_init
from minilearn.nn.layers import (
    Dropout,
    GeneralRelu,
    GlobalAvgPool,
    ResBlock,
    act_gr,
    cnn_layers,
    conv,
)
from minilearn.nn.models import get_model, resnet
from minilearn.nn.registry import create_model, list_models, register_model

__all__ = [
    "Dropout",
    "GeneralRelu",
    "GlobalAvgPool",
    "RandCopy",
    "RandErase",
    "RandomCrop",
    "RandomFlip",
    "ResBlock",
    "act_gr",
    "cnn_layers",
    "conv",
    "create_model",
    "get_model",
    "init_weights",
    "list_models",
    "lsuv",
    "lsuv_init",
    "rand_copy",
    "rand_erase",
    "register_model",
    "resnet",
]
