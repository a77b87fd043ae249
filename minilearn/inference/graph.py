"""Models as graphs in files: `.pt2` of torch.export, and ONNX."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..base.batch import map_batch
from ..base.files import check_zip, reading


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


class _TwoInputs(nn.Module):
    """Takes any inputs as two; returns the logits where a model returns an object of a library."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, args: tuple, kwargs: dict) -> Any:
        output = self.model(*args, **kwargs)
        return getattr(output, "logits", output)


def trace(model: nn.Module, args: tuple, kwargs: dict, size: int) -> torch.export.ExportedProgram:
    """Return the graph of what `model` computes, for batches of any size.

    Args:
        model: in eval mode.
        args: its inputs by position.
        kwargs: its inputs by keyword.
        size: B in these inputs, at least 2.
    """

    def free(x: Tensor) -> Any:
        return {0: torch.export.Dim.AUTO} if x.dim() and len(x) == size else None

    inputs = (args, kwargs)
    shapes = map_batch(free, inputs)
    program = torch.export.export(_TwoInputs(model), inputs, dynamic_shapes=shapes)
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            node.meta.pop("stack_trace", None)  # it has paths of this machine
    return program


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write a `.pt2` file, without the inputs that the graph was traced with."""
    program = copy.copy(program)
    program._example_inputs = None
    torch.export.save(program, path)


def load_program(path: Path, device: Any = "cpu") -> Program:
    """Load a `.pt2` file; torch may run code that is in it.

    Raises:
        CorruptFileError: it is incomplete, or was changed since it was written.
    """
    from torch.export.passes import move_to_device_pass

    with reading(path, "graph of a model", "Copy it again, or export it again with this torch."):
        check_zip(path)
        program = torch.export.load(path)
    return Program(move_to_device_pass(program, device))


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
    arrays = {node.name: inputs[node.name].numpy() for node in session.get_inputs()}
    return [torch.from_numpy(array) for array in session.run(None, arrays)]
