"""Models that run in another way for a fit: compiled, or with activations computed twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from ..base.text import did_you_mean, few
from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop

NO_FORWARD: Any = nn.Module.forward


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


class ActivationCheckpointCB(Callback):
    """Trade time for memory: parts of the model keep only their inputs for the backward pass.

    Each of these modules runs again in the backward pass. Predictions, gradients, dropout and the
    statistics of batch norm are those of a fit without; hooks inside the modules fire twice.

    >>> ActivationCheckpointCB("layers.*")  # each layer for itself
    >>> ActivationCheckpointCB("encoder", "decoder")

    Args:
        patterns: names of modules, as `model.named_modules()` has them. A module inside another one
            that is meant follows that one.

    Raises:
        ValueError: a pattern fits no module; near names are suggested.

    Events: before_fit, cleanup_fit
    Order:  PLACE
    Reads:  model
    Writes:

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174).
    """

    order = Order.PLACE  # before the model is compiled

    def __init__(self, *patterns: str) -> None:
        self.patterns, self._forwards = patterns, []

    def before_fit(self, learn: Loop) -> None:
        """Let the modules run through torch's `checkpoint`; the names of their weights stay."""
        found: dict[str, nn.Module] = {}
        # without the model itself, and without lists of modules, which do not run
        runs = (m for m in learn.model.named_modules() if type(m[1]).forward is not NO_FORWARD)
        modules = {name: m for name, m in runs if name}
        for pattern in self.patterns:
            named = {name: m for name, m in modules.items() if fnmatchcase(name, pattern)}
            if not named:
                hint = did_you_mean(pattern, modules) or f"; there are {few([*modules])}"
                raise ValueError(f"no module is named like {pattern!r}{hint}")
            found |= named
        inside = {id(m) for outer in found.values() for m in outer.modules() if m is not outer}
        self._forwards = [(m, m.forward) for m in found.values() if id(m) not in inside]
        for m, forward in self._forwards:
            m.forward = partial(_checkpointed, m, forward)

    def cleanup_fit(self, learn: Loop) -> None:
        """Let the modules run as before."""
        for m, forward in self._forwards:
            del m.forward
            if m.forward != forward:  # somebody else had replaced it
                m.forward = forward
        self._forwards = []

    def __repr__(self) -> str:
        """Show the names."""
        return f"ActivationCheckpointCB({', '.join(map(repr, self.patterns))})"


def _checkpointed(m: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.compiler.is_compiling():  # a compiled module changes its buffers once anyway
        kwargs["context_fn"] = lambda: (nullcontext(), _kept_statistics(m))
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


@contextmanager
def _kept_statistics(m: nn.Module) -> Iterator[None]:
    """Let norms in train mode leave their running statistics alone: a batch counts once."""
    norms: list[Any] = [x for x in m.modules() if isinstance(x, _NormBase) and x.training]
    norms = [x for x in norms if x.running_mean is not None]
    before = [(x.momentum, x.num_batches_tracked.clone()) for x in norms]
    for x in norms:
        x.momentum = 0.0
    try:
        yield
    finally:
        for x, (momentum, count) in zip(norms, before, strict=True):
            x.momentum = momentum
            x.num_batches_tracked.copy_(count)
