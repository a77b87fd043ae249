"""Layers, models and initialisation: plain PyTorch modules that need nothing else from here."""

from . import models as models  # which registers cnn and resnet
