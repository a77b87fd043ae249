"""Faster training: compiled models, matrix products in TF32, batches copied ahead of time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from minilearn.base.batch import tensors, to_device
from minilearn.core.callback import Callback
from minilearn.core.events import Order

if TYPE_CHECKING:
    from minilearn.core.learner import Loop

COMPILERS = ("c++", "g++", "clang++", "cl")
END = object()


class CompileCB(Callback):
    """Compile the model for a fit with torch.compile; the object and its weights' names stay.

    Args:
        keywords: passed on to `torch.compile`, such as `mode="max-autotune"` or `dynamic=True`.

    Raises:
        RuntimeError: the model runs on the CPU and there is no C++ compiler.

    Events: before_fit, before_epoch, cleanup_fit
    Order:  PLACE + 1
    Reads:  model
    Writes:

    Source: Ansel et al. 2024, "PyTorch 2" (doi:10.1145/3620665.3640366).
    """

    order = Order.PLACE + 1  # the model is where it will stay

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords

    def before_fit(self, learn: Loop) -> None:
        """Compile in place: `learn.model` stays the object that it is."""
        if not isinstance(learn.model, nn.Module):
            raise TypeError(f"CompileCB compiles an nn.Module; the model is {learn.model!r}")
        self._before = learn.model._compiled_call_impl
        # else a model of the same form that was compiled before hands on its lack of hooks
        self._guards = torch._dynamo.config.patch(skip_nnmodule_hook_guards=False)
        self._guards.__enter__()
        learn.model._compiled_call_impl = torch.compile(in_a_frame(learn.model), **self.keywords)

    def before_epoch(self, learn: Loop) -> None:
        """See, before minutes of compiling, that there is a compiler for a model on the CPU."""
        on_cpu = all(p.device.type == "cpu" for p in learn.model.parameters())
        by_inductor = self.keywords.get("backend", "inductor") == "inductor"
        if on_cpu and by_inductor and not has_compiler():
            raise RuntimeError(
                "torch.compile needs a C++ compiler for the CPU, and none of "
                f"{', '.join(COMPILERS)} is there. Install one (Debian: apt install g++), name it "
                "in CXX, or leave CompileCB out."
            )

    def cleanup_fit(self, learn: Loop) -> None:
        """Give the model its own call back."""
        if hasattr(self, "_before"):
            learn.model._compiled_call_impl = self._before
            self._guards.__exit__(None, None, None)
            del self._before, self._guards


def in_a_frame(model: nn.Module) -> Callable[..., Any]:
    """Return a function of our own that calls `model`, hooks included.

    torch.compile begins at no function of torch.nn, so `nn.Sequential`, compiled in place, would be
    compiled layer by layer.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)

    return call


def has_compiler() -> bool:
    """Return whether a C++ compiler can be found, as torch would: `CXX`, or one of the usual."""
    named = os.environ.get("CXX")
    return any(shutil.which(name) for name in ([named] if named else COMPILERS))


class Prefetched:
    """A loader whose next batch is copied to a CUDA device while this one is worked on.

    Args:
        dl: the loader; with `pin_memory=True` the copy overlaps with the work.
        device: a CUDA device.
    """

    def __init__(self, dl: Any, device: torch.device) -> None:
        self.dl, self.device = dl, device

    def __iter__(self) -> Iterator[Any]:
        """Yield batches on the device, one copy ahead."""
        stream, batches = torch.cuda.Stream(self.device), iter(self.dl)
        ahead = self._fetch(batches, stream)
        while ahead is not END:
            torch.cuda.current_stream(self.device).wait_stream(stream)
            batch = ahead
            for tensor in tensors(batch):  # its memory must not be reused while this stream works
                tensor.record_stream(torch.cuda.current_stream(self.device))
            ahead = self._fetch(batches, stream)
            yield batch

    def _fetch(self, batches: Iterator[Any], stream: Any) -> Any:
        batch = next(batches, END)
        if batch is END:
            return END
        with torch.cuda.stream(stream):
            return to_device(batch, self.device)

    def __len__(self) -> int:
        return len(self.dl)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dl, name)
