"""Compiled models: CompileCB."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop


class CompileCB(Callback):
    """Compile the model for a fit with torch.compile; the object and its weights' names stay.

    >>> learn.fit(3, cbs=CompileCB(dynamic=True))  # doctest: +SKIP

    Args:
        keywords: passed on to `torch.compile`, such as `mode="max-autotune"` or `dynamic=True`.

    Raises:
        TypeError: the model is no `nn.Module`.

    Events: before_fit, cleanup_fit
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
        # without these guards, a model of the same form that was compiled before would pass on that
        # it had no hooks
        self._guards = torch._dynamo.config.patch(skip_nnmodule_hook_guards=False)
        self._guards.__enter__()
        run = learn.model._call_impl
        # a function of our own: torch.compile skips those of torch.nn, and would compile an
        # `nn.Sequential` layer by layer
        learn.model._compiled_call_impl = torch.compile(
            lambda *args, **kwargs: run(*args, **kwargs), **self.keywords
        )

    def cleanup_fit(self, learn: Loop) -> None:
        """Let the model run uncompiled again."""
        if hasattr(self, "_before"):
            learn.model._compiled_call_impl = self._before
            self._guards.__exit__(None, None, None)
            del self._before, self._guards
