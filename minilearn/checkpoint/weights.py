"""Save and load weights: `learn.save`, `learn.load`, `load_model`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from ..base.files import FORMATS, check_format, reading, replaced, user_path, version_of
from ..base.rank import rank
from ..base.state_dict import clean_state, load_state
from ..callbacks.averaging import validated_state
from ..core.learner import Loop
from .files import SAFE, SUFFIX, read, serialisable

AGAIN = "Copy it again, or save the weights again."
KEYS = ("model", "state_dict", "model_state_dict")  # of the weights in files of other programs


def save(self: Loop, path: str | Path, *, averaged: bool = True) -> None:
    """Write the model's weights to a safetensors file, under names without wrappers' prefixes.

    Of several processes rank 0 writes. An error leaves an older file as it was.

    >>> learn.save("model.safetensors")

    Args:
        self: the Learner.
        path: the file.
        averaged: take the averages where an EMACB or SWACB has some, as a validation does; False
            for the weights that are trained.

    Raises:
        ValueError: the name does not end in `.safetensors`.
        TypeError: the model's state has something other than dense tensors.
    """
    write_weights(self, user_path(path), averaged)


def write_weights(
    learn: Loop, path: Path, averaged: bool = True, overwrite: bool = True, **more: str
) -> None:
    """Do what `save` does; `more` goes into the metadata of the file.

    Raises:
        FileExistsError: there is a file, and `overwrite` is False.
    """
    if path.suffix != SAFE:
        raise ValueError(f"weights are saved as {SAFE}, got {str(path)!r}")
    from safetensors.torch import save as to_bytes

    weights = validated_state(learn)["model"]["state"] if averaged else learn.live_state()
    state = serialisable(clean_state(weights, learn.model), "model")
    other = [n for n, t in state.items() if getattr(t, "layout", None) != torch.strided]
    if other:
        raise TypeError(f"{other[0]!r} of the model is no dense tensor: use save_checkpoint")
    names: dict[int, str] = {}
    tied = {
        name: first for name, t in state.items() if (first := names.setdefault(id(t), name)) != name
    }
    tensors = {name: t.contiguous() for name, t in state.items() if name not in tied}
    metadata = {
        "format": "pt",  # Hugging Face's: made by PyTorch
        "minilearn": version_of("minilearn"),
        "minilearn_format": str(FORMATS["weights"]),
        "tied": json.dumps(tied),
        **more,
    }
    if rank() == 0:
        with replaced(path, overwrite) as file:
            file.write(to_bytes(tensors, metadata=metadata))


def load(
    self: Loop, path: str | Path, *, strict: bool = True, averaged: bool = True, trust: bool = False
) -> None:
    """Load weights into the model; `load_model` explains the arguments.

    >>> learn.save("model.safetensors")
    >>> learn.load("model.safetensors")
    """
    load_model(path, self.model, strict=strict, averaged=averaged, trust=trust)


def load_model(
    path: str | Path,
    model: nn.Module,
    *,
    strict: bool = True,
    averaged: bool = True,
    trust: bool = False,
) -> nn.Module:
    """Load weights from a file into a model; each weight stays on its device.

    The model and the weights in the file may have prefixes of wrappers (DistributedDataParallel,
    torch.compile).

    >>> learn.save("model.safetensors")
    >>> model = load_model("model.safetensors", model)

    Args:
        path: safetensors, a checkpoint, or a file of `torch.save`.
        model: its weights are overwritten in place.
        strict: False to load what fits in name and shape; a warning names the rest.
        averaged: take the averaged weights of a checkpoint where there are some.
        trust: let an old pickle run its code; only for files of people whom you would let use
            your computer.

    Returns:
        The model.

    Raises:
        ValueError: the file holds another model (as a table), nothing that fits, or needs `trust`.
        CorruptFileError: (a ValueError) the file is incomplete.
        NewerFormatError: (a ValueError) a newer minilearn wrote it.
        FileNotFoundError: there is no such file.
    """
    load_state(model, read_weights(path, averaged=averaged, trust=trust), strict, str(path))
    return model


def read_weights(
    path: str | Path, *, averaged: bool = True, trust: bool = False
) -> dict[str, Tensor]:
    """Return the weights in a file by clean names, on the CPU; see `load_model`."""
    path = user_path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it, CheckpointCB.best say")
    if path.suffix == SAFE:
        return _read_safetensors(path)
    if path.suffix == SUFFIX:  # read with its checksums
        return _from_checkpoint(read(path), averaged)
    state: Any = _read_torch(path, trust)
    if isinstance(state, nn.Module):
        state = state.state_dict()
    if not isinstance(state, Mapping):
        raise ValueError(f"{path} holds a {type(state).__name__}, and no weights by name")
    if "minilearn" in state:
        check_format(path, "checkpoint", state.get("format", 1))
        return _from_checkpoint(state, averaged)
    inner = next((state[k] for k in KEYS if isinstance(state.get(k), Mapping)), state)
    return clean_state(inner)


def _read_safetensors(path: str | Path) -> dict[str, Tensor]:
    from safetensors import safe_open

    with reading(path, "safetensors file", AGAIN):
        with safe_open(path, "pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
            tied = json.loads(metadata.get("tied", "{}"))
        check_format(path, "weights", metadata.get("minilearn_format", 1))
        return clean_state(state | {name: state[first] for name, first in tied.items()})


def _read_torch(path: str | Path, trust: bool) -> Any:
    whole = partial(reading, path, "file of weights", AGAIN)
    with whole():
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as e:
            if not isinstance(e, UnpicklingError) and "weights_only" not in str(e):
                raise
            refused = e  # it holds objects
    if not trust:
        raise ValueError(
            f"{path} cannot be read as weights alone: {str(refused).splitlines()[0]}. If it is a "
            "pickle of someone you trust, trust=True reads it, and runs any code in it."
        ) from refused
    warnings.warn(f"{path} is read with all the code in it", stacklevel=3)
    with whole():
        return torch.load(path, map_location="cpu", weights_only=False)


def _from_checkpoint(state: Mapping[str, Any], averaged: bool) -> dict[str, Tensor]:
    weights = state["model"]
    for saved in state.get("callbacks", {}).values() if averaged else ():
        if saved.get("n_averaged") and "averages" in saved:
            mean = {weights[n].data_ptr(): t for n, t in saved["averages"].items()}
            weights = {n: mean.get(t.data_ptr(), t) for n, t in weights.items()}  # tied ones, too
    return weights
