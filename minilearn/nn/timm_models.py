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
HUB = "hf-hub:"  # prefix of models on the Hugging Face hub, which timm loads
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
    if name.startswith(HUB):
        return timm_module().create_model
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
        if not (arguments.get("pretrained") or name.startswith(HUB)):
            raise
        raise ValueError(
            f"the pretrained weights of timm/{name} cannot be had: {_last_line(e)}. Go online once "
            "(they are kept), or leave out pretrained"
        ) from e
    kept = {k: v for k, v in arguments.items() if k not in EXTERNAL}
    if name.startswith(HUB):  # a file names the architecture, which is made without the hub
        name = model.pretrained_cfg["architecture"]
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


def data_config(name: str, channels: int) -> dict[str, Any]:
    """Return how the images of a timm model are prepared, as options of `image_dls`.

    Args:
        name: of the model, without "timm/".
        channels: of the images; the mean and std of 3 channels are averaged for 1.

    Returns:
        `mean`, `std`, `interpolation` and `crop_pct`; nothing for a model without weights.
    """
    entry(name)
    if name.startswith(HUB):
        hub = timm_module("timm.models")
        cfg = hub.load_model_config_from_hf(name.removeprefix(HUB))[0]
    else:
        found = timm_module().get_pretrained_cfg(name)
        cfg = {} if found is None else vars(found)
    config = {key: cfg[key] for key in ("interpolation", "crop_pct") if cfg.get(key)}
    for key in ("mean", "std"):
        if values := list(cfg.get(key) or ()):
            same = channels == len(values)
            config[key] = values if same else [sum(values) / len(values)] * channels
    return config


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
