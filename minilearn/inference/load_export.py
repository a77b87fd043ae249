"""Load a folder of `learn.export`: its metadata, and its model from weights or a graph."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..base.batch import default_device
from ..base.files import check_format, reading
from ..base.seed import preserved_random_states
from ..callbacks.device import DeviceCB
from ..callbacks.training import TrainCB
from ..checkpoint.weights import load_model
from ..data.loaders import DataLoaders
from ..data.pipeline import Pipeline
from ..nn.registry import MODELS, remake_model

METADATA, WEIGHTS, GRAPH = "metadata.json", "model.safetensors", "model.pt2"
SEVERAL = "several_labels"  # a key of the metadata


def read_export(
    folder: Path, device: Any = None, trust: bool = False
) -> tuple[nn.Module, DataLoaders, list[Any]]:
    """Return the model, the description of the data, and the callbacks of an export."""
    metadata = read_metadata(folder)
    device = default_device() if device is None else torch.device(device)
    dls = DataLoaders()
    with _reading_metadata(folder):
        dls.pipeline = Pipeline(**metadata["pipeline"])
        cbs = [TrainCB(**metadata["batch"]), DeviceCB(device)]
    return read_model(folder, metadata["model"], device, trust), dls, cbs


def read_metadata(folder: Path) -> dict[str, Any]:
    """Return the metadata of an export.

    Raises:
        CorruptFileError: the file is incomplete, or lacks an entry.
        NewerFormatError: a newer minilearn wrote it.
        FileNotFoundError: there is none.
    """
    if not (folder / METADATA).is_file():
        raise FileNotFoundError(f"{folder} is no folder of learn.export: it has no {METADATA}")
    with _reading_metadata(folder):
        metadata = json.loads((folder / METADATA).read_text())
        check_format(folder / METADATA, "export", metadata.get("format", 1))
        if (made_by := metadata["model"]) is not None:
            arguments = dict(made_by["arguments"])
            metadata["model"] = {"name": str(made_by["name"]), "arguments": arguments}
    return metadata


def _reading_metadata(folder: Path) -> AbstractContextManager[None]:
    advice = "Copy the folder again, or export the model again with this minilearn."
    return reading(folder / METADATA, "metadata of an export", advice)


def has_several_labels(folder: Path) -> bool:
    """Return whether an item may have several labels in the data that the model was trained on."""
    return bool(read_metadata(folder).get(SEVERAL))  # exports of before do not say


def unpickled(path: Path, device: Any, trust: bool) -> Any:
    """Return the whole Learner in a file of `torch.save`, where the caller trusts it."""
    if not trust:
        raise ValueError(
            f"{path} is a file, not a folder of learn.export. A whole Learner in a file runs code "
            "when it is loaded: pass trust=True if you know who made it."
        )
    device = default_device() if device is None else torch.device(device)
    torch.zeros(1, device=device)  # where that fails, the file is not corrupt
    with reading(path, "file of a Learner", "Copy it again, or import what it was made of."):
        learn = torch.load(path, map_location=device, weights_only=False)
    for cb in getattr(learn, "cbs", ()):
        if isinstance(cb, DeviceCB):
            cb.device = device
    return learn


def read_model(
    folder: Path, made_by: dict[str, Any] | None, device: Any = "cpu", trust: bool = False
) -> nn.Module:
    """Return the model of an export, made by a registered function, else from its graph.

    Args:
        folder: the export.
        made_by: name and arguments of the function that made the model; None to take the graph.
        device: where to put the model.
        trust: allow the graph, which may run code, and the import of a class that is named.
    """
    if made_by is None or (made_by["name"] not in MODELS and (folder / GRAPH).is_file()):
        from .graph import load_program

        path = _existing(folder, GRAPH)
        if not trust:
            other = f", or import the module that registers {made_by['name']!r}" if made_by else ""
            raise ValueError(
                f"{path} is the graph of a model, and torch may run code in it: pass trust=True "
                f"if you know who made it{other}."
            )
        return load_program(path, device)
    with preserved_random_states():
        model = _made_again(**made_by, trust=trust).to(device)
    return load_model(_existing(folder, WEIGHTS), model).eval()


def _existing(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise FileNotFoundError(f"{folder} has {METADATA} and no {name}: copy the whole folder")
    return folder / name


def _made_again(name: str, arguments: dict[str, Any], trust: bool) -> nn.Module:
    try:
        return remake_model(name, arguments, trust)
    except ImportError as e:
        raise ValueError(f"{e}. Put that module on the path, or export with pt2=True.") from e
    except TypeError as e:
        raise ValueError(
            f"the model was made by {name} with {arguments}, which it does not take here: {e}. "
            "Import the function as it was then, or export the model again."
        ) from e
