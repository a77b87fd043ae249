"""Models of timm by name, where it is installed.

Importing this module does not import timm; its functions do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from torch import nn

from minilearn.base.text import did_you_mean

TIMM = "timm/"  # prefix of its models' names
# Arguments that read files from elsewhere.
EXTERNAL = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path")
EXTERNAL += ("cache_dir",)


@cache
def names() -> tuple[str, ...]:
    """Return the names of all models."""
    return tuple(timm_module().list_models())


def entry(name: str) -> Callable[..., nn.Module]:
    """Return timm's function for a name.

    Raises:
        ValueError: it has none; near names are suggested.
    """
    if name.partition(".")[0] not in names():
        raise ValueError(f"timm has no model {name!r}{did_you_mean(name, names())}")
    return timm_module().model_entrypoint(name)


def create(name: str, arguments: dict[str, Any]) -> nn.Module:
    """Make a model of timm; see `create_model`."""
    entry(name)
    try:
        model = timm_module().create_model(name, **arguments)
    except TypeError as e:  # its constructors accept any keyword
        raise ValueError(f"timm/{name} cannot be made with {arguments}: {e}") from e
    except Exception as e:  # each way of downloading has its own errors
        if not arguments.get("pretrained"):
            raise
        raise ValueError(
            f"the pretrained weights of timm/{name} cannot be had: {_last_line(e)}. Go online once "
            "(they are kept), or leave out pretrained"
        ) from e
    kept = {k: v for k, v in arguments.items() if k not in EXTERNAL}
    model._built_by = (f"{TIMM}{name}", kept)
    return model


def check_remade(name: str, arguments: Mapping[str, Any]) -> None:
    """Check a model that a file describes.

    Raises:
        ValueError: timm would read other files for it.
    """
    asked = sorted(set(EXTERNAL) & set(arguments)) or ([name] if ":" in name else [])
    if asked:
        raise ValueError(f"the metadata of {name} asks for {asked[0]}, which is no part of it")


def normalisation(name: str, channels: int) -> dict[str, list[float]]:
    """Return the mean and std of each channel that a model of timm was trained with."""
    entry(name)
    cfg = timm_module().get_pretrained_cfg(name)
    if cfg is None:  # a model without weights for it has none
        return {}
    stats = {"mean": list(cfg.mean), "std": list(cfg.std)}
    if channels == len(stats["mean"]):
        return stats
    return {key: [sum(values) / len(values)] * channels for key, values in stats.items()}


def _last_line(e: Exception) -> str:
    lines = [line for line in str(e).splitlines() if line.strip()]
    return f"{type(e).__name__}: {lines[-1].rstrip(chr(46))}" if lines else type(e).__name__


def timm_module(name: str = "timm") -> Any:
    """Return timm, or a module of it.

    Raises:
        ImportError: it is not installed, or does not work here.
    """
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as e:  # RuntimeError: its torchvision is for another torch
        raise ImportError(
            f"names that begin with timm/ need timm, which cannot be imported here: {e}. "
            "pip install timm"
        ) from e
