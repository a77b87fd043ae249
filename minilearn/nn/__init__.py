"""Layers, models and initialisation: plain PyTorch modules that need nothing else from here."""
