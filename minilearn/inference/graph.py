"""Models as graphs in files: `.pt2` of torch.export, and ONNX.

torch reads its `.pt2` files with pickle, `eval` and `exec`; here each is first made anew of the
parts that are nothing but numbers, names of tensors and torch's own operators.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..base.batch import map_batch
from ..base.files import CorruptFileError, reading

PARTS = re.compile(
    r"archive_(format|version)|byteorder|\.data/(version|serialization_id)|models/model\.json"
    r"|data/(weights|constants)/((weight|tensor)_\d+|model_(weights|constants)_config\.json)"
)
_SYMBOL = r"Symbol\('\w+'(?:, \w+=(?:True|False))*\)|[su]\d"  # sizes; torch evaluates them
_TERM = rf"(?:{_SYMBOL}|Integer|Add|Mul|Pow|FloorDiv|CleanDiv|Mod|PythonMod|Max|Min|\d|[-+*/(), ])"
_OPS = "add|sub|mul|truediv|floordiv|mod|pow|neg|getitem|eq|ne|lt|le|gt|ge|and_|or_|not_"
RULES = {  # what the values of these keys must look like, wherever they stand
    "target": rf"torch\.ops\.(aten|prims)\.\w+\.\w+|_operator\.({_OPS})"
    r"|torch\.ops\.higher_order\.wrap_with_(set_grad_enabled|autocast)|torch\.sym_\w+|",
    "as_operator": r"torch\.ops\.(aten|prims)\.\w+\.\w+",
    "expr_str": f"{_TERM}+",
    "path_name": r"(weight|tensor)_\d+",
    "in_spec": "(?!.*(__enum__|_factory)).*",
    "out_spec": "(?!.*(__enum__|_factory)).*",
    "use_pickle": "False",
    **dict.fromkeys(("as_int", "min_val", "max_val"), r"-?\d+|None"),
    "as_float": r"[-+.\de]+|-?inf|nan",
}
DROPPED = {"metadata": {}, "guards_code": []}  # source lines with their paths; code to run


class Program(nn.Module):
    """A model loaded from a `.pt2` file; it was written in eval mode and stays in it."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        self.graph = program.module()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph."""
        return self.graph(args, kwargs)

    def train(self, mode: bool = True) -> Program:
        """Do nothing: the graph has one mode."""
        return self


class _Bare(nn.Module):
    """Takes any inputs as two; gives the logits where a model returns an object of a library."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, args: tuple, kwargs: dict) -> Any:
        output = self.model(*args, **kwargs)
        return getattr(output, "logits", output)


def trace(model: nn.Module, args: tuple, kwargs: dict, size: int) -> torch.export.ExportedProgram:
    """Write down what `model` computes, for batches of any size.

    Args:
        model: in eval mode.
        args: its inputs by position.
        kwargs: its inputs by keyword.
        size: B in these inputs, at least 2.
    """

    def free(x: Tensor) -> Any:
        return {0: torch.export.Dim.AUTO} if x.dim() and len(x) == size else None

    inputs = (args, kwargs)
    return torch.export.export(_Bare(model), inputs, dynamic_shapes=map_batch(free, inputs))


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write a `.pt2` file that holds what `load_program` takes, and no path of this machine."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    path.write_bytes(cleaned(buffer).getvalue())


def load_program(path: Path, device: Any = "cpu") -> Program:
    """Load a `.pt2` file of `save_program` without running anything of it.

    Raises:
        CorruptFileError: it is incomplete, or holds more than numbers and torch's own operators.
    """
    from torch.export.passes import move_to_device_pass

    with reading(path, "graph of a model", "Copy it again, or export it again with this torch."):
        program = torch.export.load(cleaned(path))
    return Program(move_to_device_pass(program, device))


def cleaned(file: Any) -> io.BytesIO:
    """Make a `.pt2` archive anew of the parts that hold data alone.

    Raises:
        CorruptFileError: a part, or something in it, could make torch run code; names it.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.namelist():
            name = entry.partition("/")[2]
            content = old.read(entry)
            if name == "data/sample_inputs/model.pt":
                content = b""  # a pickle
            elif not PARTS.fullmatch(name):
                raise CorruptFileError(f"{name!r} in the .pt2 file could run code; it is not loaded")
            elif name.endswith(".json"):
                content = json.dumps(_checked(json.loads(content))).encode()
            new.writestr(f"model/{name}", content)
    made.seek(0)
    return made


def _checked(node: Any) -> Any:
    """Return JSON without what is dropped; every value of a key in RULES is as it must be."""
    if isinstance(node, list):
        return [_checked(item) for item in node]
    if not isinstance(node, dict):
        return node
    for key, value in node.items():
        if key in RULES and not re.fullmatch(RULES[key], str(value)):
            raise CorruptFileError(f"{key}={value!r} in the .pt2 file could run code; it is not loaded")
    for name in node.get("range_constraints", ()):
        _checked({"expr_str": name})
    return {key: DROPPED.get(key, _checked(value)) for key, value in node.items()}


def save_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write an ONNX file; needs the packages onnx and onnxscript."""
    examples: Any = program.example_inputs
    args, kwargs = examples[0]
    names = [f"input_{i}" for i in range(len(args))] + list(kwargs)
    torch.onnx.export(program, f=path, input_names=names, external_data=False, verbose=False)


def run_onnx(path: Path, *args: Tensor, **kwargs: Tensor) -> list[Tensor]:
    """Run an ONNX file by onnxruntime, on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = {f"input_{i}": x for i, x in enumerate(args)} | kwargs
    feeds = {node.name: inputs[node.name].numpy() for node in session.get_inputs()}
    return [torch.from_numpy(array) for array in session.run(None, feeds)]
