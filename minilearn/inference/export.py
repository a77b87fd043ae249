"""Write a trained model into a folder that `load_learner` predicts from: `learn.export`."""

from __future__ import annotations

import copy
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..base.batch import describe, map_batch, n_rows, tensors
from ..base.files import FORMATS, user_path, version_of
from ..base.rank import rank
from ..base.seed import preserved_random_states
from ..base.state_dict import unwrapped
from ..base.text import write_out
from ..callbacks.handlers import LambdaCB
from ..callbacks.training import is_entropy, split_by_owner
from ..callbacks.transforms import BatchTransformCB
from ..checkpoint.weights import save
from ..core.events import CancelFitException, Order
from ..core.learner import Loop
from ..core.nested import inner, participants
from ..core.stream import Unshared, check_loader
from ..data.ordered import ordered
from ..data.pipeline import Pipeline, class_names
from ..nn.registry import MODELS, built_by, class_and_arguments, made_alike, remake_model
from .items import chooses, first_loader
from .load_export import GRAPH, METADATA, SEVERAL, WEIGHTS, read_model

ONNX = "model.onnx"
FILES = (METADATA, WEIGHTS, GRAPH, ONNX)
N_CHECKED = 4  # rows; torch.export takes a single one for a constant
HALF_PRECISION = 0.05  # how far predictions may be from the model's own, as a fraction
WAYS = (
    "An export can hold a model that a registered function made (@register_model) with arguments "
    "for JSON, one of a class in a module that keeps such arguments under their names, or any "
    "model as its graph, export(..., pt2=True)."
)


def export(self: Loop, folder: str | Path, *, pt2: bool = False, onnx: bool = False) -> Path:
    """Write a folder from which `load_learner` predicts, without the script that trained.

    A model of a registered function is made again by that, any other one by its class, which must
    be in a module and keep its arguments, if it has some, under their names (`self.depth = depth`);
    a line says so, and `load_learner` needs `trust=True`.

    It holds the weights (`model.safetensors`; averaged ones where a validation uses those) and
    `metadata.json`: how the model is made, `dls.pipeline`, class names, shapes of inputs, metrics,
    history, versions. Everything is loaded again and compared on a batch before the folder takes
    its name; an older export there is replaced only then.

    >>> folder = learn.export("cats")
    >>> learn = load_learner(folder)

    Args:
        self: the Learner, with a validation or training loader. Nothing about it changes.
        folder: a new folder, an empty one, or an older export.
        pt2: also write the model's graph, `model.pt2`, which needs no code to be made again, and
            which `load_learner` loads with `trust=True`.
        onnx: also write `model.onnx`; needs the packages onnx, onnxscript and onnxruntime.

    Returns:
        The path of the folder.

    Raises:
        ValueError: the model cannot be made again, a callback changes its predictions, or what was
            loaded again predicts otherwise.
        FileExistsError: `folder` holds other files.
    """
    folder = user_path(folder)
    for cb in self.cbs:
        if isinstance(cb, BatchTransformCB) and cb.on_val:
            warnings.warn(
                f"{cb!r} changes the batches of a validation, and the export leaves it out: let a "
                "layer of the model do it, or use on_val=False",
                stacklevel=2,
            )
    with preserved_random_states():
        made_by = _made_by(self.model, pt2)
    snapshot = take_snapshot(self)
    if rank():  # of several processes rank 0 writes
        return folder
    with preserved_random_states(), torch.no_grad(), _complete_or_absent(folder) as part:
        _write(snapshot, _metadata(self, made_by, snapshot), part, pt2, onnx)
    if made_by and ":" in made_by["name"]:
        write_out(f"export: load_learner({str(folder)!r}, trust=True) imports {made_by['name']}\n")
    return folder


@dataclass
class Snapshot:
    """A CPU copy of the model as a validation uses it, and one batch of its inputs."""

    model: nn.Module
    args: tuple
    kwargs: dict[str, Any]
    size: int
    targets: Any  # what the loss takes from the batch
    settings: dict[str, Any]  # how batches are split

    def inputs(self, n: int) -> tuple[tuple, dict[str, Any]]:
        """Return `n` rows of the inputs, by position and by keyword."""
        rows = torch.arange(n) % self.size

        def few(t: Tensor) -> Tensor:
            return t[rows] if t.dim() and len(t) == self.size else t

        return map_batch(few, (self.args, self.kwargs))


def take_snapshot(learn: Loop) -> Snapshot:
    """Copy the model and a batch of a validation; nothing about the Learner changes.

    Raises:
        ValueError: there is no loader, or the model's outputs are not what the Learner predicts.
    """
    dl = first_loader(learn)
    check_loader(dl, False)
    found = []

    def after_predict(learn: Loop) -> None:  # when averages of weights are swapped in
        found.append(_snapshot(learn))
        raise CancelFitException

    take = LambdaCB(after_predict=after_predict, order=Order.STOP)
    with inner(learn, [*participants(learn), take], valid=Unshared(ordered(dl))):
        learn.fit(1, train=False)
    return found[0]


def _snapshot(learn: Loop) -> Snapshot:
    args, kwargs, targets = split_by_owner(learn)
    model = unwrapped(learn.model)
    if not close(model(*args, **kwargs), learn.preds, HALF_PRECISION):
        raise ValueError(
            "what this Learner predicts is not what its model gives for the batch: a callback, "
            "or a predict of its own, changes it. Let the model do so, or leave it out."
        )
    args, kwargs = map_batch(lambda t: t.detach().cpu(), (tuple(args), dict(kwargs)))
    settings = dict(getattr(learn.owner("get_loss"), "settings", {}))
    size = n_rows((*args, kwargs))
    return Snapshot(copy.deepcopy(model).cpu().eval(), args, kwargs, size, tuple(targets), settings)


def close(ours: Any, theirs: Any, tolerance: float) -> bool:
    """Return whether two outputs differ by at most a fraction of the largest element."""
    pairs = list(zip(tensors(_logits(ours)), tensors(_logits(theirs)), strict=False))
    return bool(pairs) and all(
        a.shape == b.shape
        and torch.allclose(
            a.double(), b.double(), 0, tolerance * (1 + float(b.nan_to_num().abs().max())), True
        )
        for a, b in pairs
    )


def _logits(output: Any) -> Any:
    return getattr(output, "logits", output)


def _made_by(model: Any, pt2: bool) -> dict[str, Any] | None:
    """Return the function or class and the arguments that make the model."""
    model = unwrapped(model)
    try:
        known = built_by(model)
        if known is None and not pt2:
            known = class_and_arguments(model)
            if not made_alike(model, remake_model(*known, trust=True)):
                raise ValueError(f"{known[0]} with {known[1]} makes another model")
    except Exception as e:  # the constructor may raise anything
        if not pt2:
            name = type(model).__name__
            raise ValueError(f"nothing says how this {name} was made: {e}. {WAYS}") from e
        return None
    if known and not pt2 and getattr(MODELS.get(known[0]), "__module__", "") == "__main__":
        warnings.warn(
            f"{known[0]}, which makes the model, is in the running script, where no other program "
            "finds it: move it to a module that both import, or add the graph, pt2=True",
            stacklevel=3,
        )
    return known and dict(zip(("name", "arguments"), known, strict=True))


def _metadata(learn: Loop, made_by: dict[str, Any] | None, snapshot: Snapshot) -> dict[str, Any]:
    pipeline = getattr(learn.dls, "pipeline", None) or Pipeline(classes=class_names(learn.dls))
    args, kwargs = snapshot.inputs(N_CHECKED)
    if pipeline.classes is None and chooses(learn):  # so that `load_learner` knows it, too
        k = next(tensors(snapshot.model(*args, **kwargs))).shape[1]
        pipeline = replace(pipeline, classes=list(range(k)))
    args, kwargs = snapshot.inputs(1)
    inputs = kwargs or {str(i): x for i, x in enumerate(args)}
    # JSON knows no infinity
    history = json.loads(json.dumps(list(learn.history), default=str), parse_constant=str)
    return {
        "format": FORMATS["export"],
        "versions": {n: version_of(n) for n in ("minilearn", "torch")},
        "model": made_by,
        "inputs": {name: describe(x) for name, x in inputs.items()},
        "batch": snapshot.settings,
        "pipeline": asdict(pipeline),
        SEVERAL: _gives_several(learn, snapshot, pipeline.classes),
        "metrics": history[-1] if history else {},
        "history": history,
    }


def _gives_several(learn: Loop, snapshot: Snapshot, classes: list[Any] | None) -> bool:
    """Return whether the targets are rows of yes and no, one for each class."""
    target = snapshot.targets[0] if len(snapshot.targets) == 1 else None
    if is_entropy(learn.loss_func) or classes is None or not isinstance(target, Tensor):
        return False
    is_row = target.dim() == 2 and target.shape[1] == len(classes)
    return is_row and target.is_floating_point() and bool(((target == 0) | (target == 1)).all())


def _write(snapshot: Snapshot, metadata: dict[str, Any], part: Path, pt2: bool, onnx: bool) -> None:
    (part / METADATA).write_text(json.dumps(metadata, indent=1))
    save(Loop(snapshot.model), part / WEIGHTS)
    if pt2 or onnx:
        from .graph import run_onnx, save_onnx, save_program, trace

        try:
            program = trace(snapshot.model, *snapshot.inputs(N_CHECKED), N_CHECKED)
        except Exception as e:
            raise ValueError(f"torch cannot trace the graph of the model: {e}. {WAYS}") from e
    if pt2:
        save_program(program, part / GRAPH)
        _check(GRAPH, snapshot, read_model(part, None, trust=True))
    if onnx:
        save_onnx(program, part / ONNX)
        _check(ONNX, snapshot, partial(run_onnx, part / ONNX))
    if metadata["model"] is not None:
        _check(WEIGHTS, snapshot, read_model(part, metadata["model"], trust=True))


def _check(file: str, snapshot: Snapshot, again: Callable[..., Any]) -> None:
    """Raise a ValueError where what was loaded again predicts otherwise, for one row or several."""
    for n in (N_CHECKED, 1):
        args, kwargs = snapshot.inputs(n)
        try:
            same = close(again(*args, **kwargs), snapshot.model(*args, **kwargs), 1e-4)
            why, cause = "it predicts otherwise", None
        except Exception as e:  # torch and onnxruntime raise their own kinds
            same, why, cause = False, str(e), e
        if not same:
            raise ValueError(
                f"the model loaded again from {file} does not serve for a batch of {n}: {why}. It "
                f"was changed after it was made, or its graph depends on the batch. {WAYS}"
            ) from cause


@contextmanager
def _complete_or_absent(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, whose files get into `folder` when all of them are written.

    The metadata are the last to come and the first to go: without them a folder is no export. The
    folder itself stays, as it may be linked to, be on a disk of its own, or the current one.

    Raises:
        FileExistsError: `folder` holds other files than an export's.
    """
    folder = Path(os.path.realpath(folder))
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    ours = [name for name in FILES if _is_export(folder) and (folder / name).is_file()]
    found = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if others := found.difference(ours):
        raise FileExistsError(f"{folder} holds other files ({min(others)}); name another folder")
    part, old = (folder / f".{os.getpid()}.{kind}" for kind in ("part", "old"))
    part.mkdir()
    old.mkdir()
    moves = [(folder / name, old / name) for name in ours]
    try:
        yield part
        moves += [
            (part / name, folder / name) for name in reversed(FILES) if (part / name).exists()
        ]
        for source, target in moves:
            os.replace(source, target)
    except BaseException:
        for source, target in reversed(moves):
            if not source.exists() and target.exists():
                os.replace(target, source)
        raise
    finally:
        for left in (part, old):
            shutil.rmtree(left, ignore_errors=True)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def _is_export(folder: Path) -> bool:
    try:
        return "minilearn" in json.loads((folder / METADATA).read_text())["versions"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
