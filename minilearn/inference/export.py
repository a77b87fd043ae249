"""Put a trained model into a folder, and predict from it anywhere: `export`, `load_learner`.

A folder holds data alone: weights, a JSON card, and by choice the graph of the model.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..base.batch import default_device, describe, tensors
from ..base.files import reading
from ..base.rank import rank
from ..base.seed import preserved_random_states
from ..callbacks.device import DeviceCB
from ..callbacks.training import TrainCB
from ..checkpoint.weights import load_model, save
from ..core.learner import Loop
from ..data.loaders import DataLoaders
from ..data.pipeline import Pipeline, class_names
from ..nn.registry import MODELS, built_by, remake_model
from .items import chooses, is_entropy
from .portable import Taken, bare, close, functions, take

CARD, WEIGHTS, GRAPH, ONNX = "card.json", "model.safetensors", "model.pt2", "model.onnx"
SEVERAL = "several_labels"  # in the card
N_CHECKED = 4  # rows; torch.export takes a single one for a constant
WAYS = (
    "An export can hold a model in two ways: made by a registered function (@register_model) with "
    "arguments for JSON, or as its graph, export(..., pt2=True)."
)


def export(self: Loop, folder: str | Path, *, pt2: bool = False, onnx: bool = False) -> Path:
    """Write a folder from which `load_learner` predicts, without the script that trained.

    It holds the weights (`model.safetensors`; averaged ones where the Learner validates those) and
    `card.json`: how the model is made, `dls.pipeline`, class names, shapes of inputs, metrics,
    history, versions. Everything is loaded again and compared on a batch before the folder takes
    its name; an older export there is replaced only then.

    Args:
        self: the Learner, with a validation or training loader. Nothing about it changes.
        folder: a new folder, an empty one, or an older export.
        pt2: also write the model's graph, `model.pt2`, which needs no code to be made again.
        onnx: also write `model.onnx`; needs the packages onnx, onnxscript and onnxruntime.

    Returns:
        The path of the folder.

    Raises:
        ValueError: the model cannot be made again, a function changes what it is given, or what
            was loaded again predicts otherwise. Says which part.
        FileExistsError: `folder` holds other files.
    """
    folder = Path(folder)
    for where, function in functions(self):
        name = getattr(function, "__qualname__", None) or repr(function)
        raise ValueError(
            f"{where} is a function ({name}), and an export holds data alone. Describe what it "
            "does in learn.dls.pipeline = Pipeline(...), let a layer of the model do it, or keep "
            "it out of predictions: BatchTransformCB(..., on_val=False)."
        )
    made_by, taken = _made_by(self.model, pt2), take(self)
    if rank():  # of several processes the first one writes
        return folder
    with preserved_random_states(), torch.no_grad(), _complete_or_absent(folder) as part:
        _write(taken, _card(self, made_by, taken), part, pt2, onnx)
    return folder


def read_export(path: Path, device: Any = None) -> tuple[nn.Module, DataLoaders, list[Any]]:
    """Return the model, the data's description and the callbacks of a folder of `learn.export`."""
    card, device = read_card(path), default_device() if device is None else torch.device(device)
    dls = DataLoaders()
    with _reading_card(path):
        dls.pipeline = Pipeline(**card["pipeline"])
        cbs = [TrainCB(**card["batch"]), DeviceCB(device)]
    return _model(path, card["model"], device), dls, cbs


def read_card(folder: Path) -> dict[str, Any]:
    """Return what the card of an export says.

    Raises:
        CorruptFileError: it is cut, no card, or has not all that a card has.
        FileNotFoundError: there is none.
    """
    if not (folder / CARD).is_file():
        raise FileNotFoundError(f"{folder} is no folder of learn.export: it has no {CARD}")
    with _reading_card(folder):
        card = json.loads((folder / CARD).read_text())
        if not isinstance(card, dict):
            raise ValueError(f"it is a {type(card).__name__}, and not an object with names")
        if missing := [key for key in ("model", "batch", "pipeline") if key not in card]:
            raise ValueError(f"it does not say {', '.join(missing)}")
        if (made_by := card["model"]) is not None:
            card["model"] = {"name": str(made_by["name"]), "arguments": dict(made_by["arguments"])}
    return card


def _reading_card(folder: Path) -> AbstractContextManager[None]:
    advice = "Copy the folder again, or export the model again with this minilearn."
    return reading(folder / CARD, "card of an export", advice)


def has_several_labels(folder: Path) -> bool:
    """Return whether the items that an exported model was trained on may have several labels."""
    return bool(read_card(folder).get(SEVERAL))  # cards of before do not say


def unpickled(path: Path, device: Any, trust: bool) -> Any:
    """Return the whole Learner in a file that `torch.save` wrote, where the caller trusts it."""
    if not trust:
        raise ValueError(
            f"{path} is a file, not a folder of learn.export. A whole Learner in a file runs code "
            "when it is loaded: pass trust=True if you know who made it."
        )
    with reading(path, "file of a Learner", "Copy it again, or import what it was made of."):
        return torch.load(path, map_location=device, weights_only=False)


def _model(path: Path, made_by: dict[str, Any] | None, device: Any = "cpu") -> nn.Module:
    if made_by is None or (made_by["name"] not in MODELS and (path / GRAPH).is_file()):
        from .graph import load_program

        return load_program(_part(path, GRAPH), device)
    with preserved_random_states():
        model = _made_again(**made_by).to(device)
    return load_model(_part(path, WEIGHTS), model).eval()


def _part(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise FileNotFoundError(f"{folder} has a {CARD} and no {name}: copy the whole folder")
    return folder / name


def _made_again(name: str, arguments: dict[str, Any]) -> nn.Module:
    try:
        return remake_model(name, arguments)
    except TypeError as e:
        raise ValueError(
            f"the model was made by {name} with {arguments}, which it does not take here: {e}. "
            "Import the function as it was then, or export the model again."
        ) from e


# ---- what is written ----


def _made_by(model: Any, pt2: bool) -> dict[str, Any] | None:
    """Return the registered function and the arguments that made the model."""
    try:
        known = built_by(bare(model))
    except ValueError as e:
        if not pt2:
            raise ValueError(f"the model cannot be made again: {e}. {WAYS}") from e
        return None
    if known is None and not pt2:
        raise ValueError(f"nothing says how {type(bare(model)).__name__} was made. {WAYS}")
    return known and dict(zip(("name", "arguments"), known, strict=True))


def _card(learn: Loop, made_by: dict[str, Any] | None, taken: Taken) -> dict[str, Any]:
    pipeline = getattr(learn.dls, "pipeline", None) or Pipeline(classes=class_names(learn.dls))
    args, kwargs = taken.inputs(N_CHECKED)
    if pipeline.classes is None and chooses(learn):  # so that numbers are answered where it is used
        k = next(tensors(taken.model(*args, **kwargs))).shape[1]
        pipeline = replace(pipeline, classes=list(range(k)))
    args, kwargs = taken.inputs(1)
    inputs = kwargs or {str(i): x for i, x in enumerate(args)}
    # JSON knows no infinity
    history = json.loads(json.dumps(list(learn.history), default=str), parse_constant=str)
    return {
        "versions": {n: version(n) for n in ("minilearn", "torch")},
        "model": made_by,
        "inputs": {name: describe(x) for name, x in inputs.items()},
        "batch": taken.settings,
        "pipeline": asdict(pipeline),
        SEVERAL: _gives_several(learn, taken, pipeline.classes),
        "metrics": history[-1] if history else {},
        "history": history,
    }


def _gives_several(learn: Loop, taken: Taken, classes: list[Any] | None) -> bool:
    """Return whether the targets are rows of yes and no, one for each class."""
    target = taken.targets[0] if len(taken.targets) == 1 else None
    if is_entropy(learn.loss_func) or classes is None or not isinstance(target, Tensor):
        return False
    is_row = target.dim() == 2 and target.shape[1] == len(classes)
    return is_row and target.is_floating_point() and bool(((target == 0) | (target == 1)).all())


def _write(taken: Taken, card: dict[str, Any], part: Path, pt2: bool, onnx: bool) -> None:
    (part / CARD).write_text(json.dumps(card, indent=1))
    save(Loop(taken.model), part / WEIGHTS)
    if pt2 or onnx:
        from .graph import run_onnx, save_onnx, save_program, trace

        try:
            program = trace(taken.model, *taken.inputs(N_CHECKED), N_CHECKED)
        except Exception as e:
            raise ValueError(f"torch cannot write down the graph of the model: {e}. {WAYS}") from e
    if pt2:
        save_program(program, part / GRAPH)
        _check(GRAPH, taken, _model(part, None))
    if onnx:
        save_onnx(program, part / ONNX)
        _check(ONNX, taken, partial(run_onnx, part / ONNX))
    if card["model"] is not None:
        _check(WEIGHTS, taken, _model(part, card["model"]))


def _check(file: str, taken: Taken, again: Callable[..., Any]) -> None:
    """Raise where what was loaded again predicts otherwise, for one row or several.

    Raises:
        ValueError: it does; names the file.
    """
    for n in (N_CHECKED, 1):
        args, kwargs = taken.inputs(n)
        try:
            same = close(again(*args, **kwargs), taken.model(*args, **kwargs), 1e-4)
            why, cause = "it predicts otherwise", None
        except Exception as e:  # torch and onnxruntime have their own kinds
            same, why, cause = False, str(e), e
        if not same:
            raise ValueError(
                f"the model loaded again from {file} does not serve for a batch of {n}: {why}. It "
                f"was changed after it was made, or its graph depends on the batch. {WAYS}"
            ) from cause


@contextmanager
def _complete_or_absent(folder: Path) -> Iterator[Path]:
    """Give a folder to write to, which takes the name `folder` when all is written.

    Raises:
        FileExistsError: `folder` holds other files than an export's.
    """
    folder = folder.absolute()
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if others := found - {CARD, WEIGHTS, GRAPH, ONNX}:
        raise FileExistsError(f"{folder} holds other files ({min(others)}); name another folder")
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    old = part.with_suffix(".old")
    part.mkdir(parents=True)
    try:
        yield part
        if folder.exists():
            folder.rename(old)
        part.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for left in (part, old):
            shutil.rmtree(left, ignore_errors=True)
