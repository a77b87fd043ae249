"""Find layers that do not learn: `learn.diagnose`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn

from ..core.callback import Callback, as_callbacks, order_of
from ..core.events import CancelFitException, CancelStepException, Order
from ..core.learner import Loop
from ..core.nested import inner, participants
from .activations import is_leaf
from .gradient_stats import layer_norms, own_parameters
from .hooks import Hook, HooksCallback, first_float

PASSES_ON = (nn.Flatten, nn.Unflatten, nn.Identity, nn.modules.dropout._DropoutNd)


class Findings(list):
    """A list of sentences, one for each finding."""

    def __repr__(self) -> str:
        """Show one in each line."""
        return "\n".join(self) or "no layer is dead, exploding or frozen"


def diagnose(
    self: Loop,
    n: int = 50,
    *,
    near: float = 0.05,
    dead: float = 0.9,
    exploding: float = 1e3,
    frozen: float = 1e-9,
    cbs: Any = None,
) -> Findings:
    """Run training batches through the model as it is, and name the layers that do not learn.

    No update is made, and nothing changes.

    >>> learn.diagnose()

    Args:
        self: the Learner.
        n: the number of batches; the loader is repeated as often as needed.
        near: values within this of 0 are near 0.
        dead: a layer is dead if more than this fraction of its values is near 0.
        exploding: a layer explodes if the root mean square of a batch is above this, or if values
            or gradients are not finite.
        frozen: a layer is frozen if the norm of its gradient is never above this fraction of the
            norm of its weights. Those with `requires_grad=False` are left out.
        cbs: further callbacks.

    Returns:
        A list of sentences that begin with the name of the layer.
    """
    watch, gradients = HooksCallback(partial(_measure, near=near), _computes), _Gradients(n)
    own = [cb for cb in participants(self) if order_of(cb) != Order.ACCUMULATE]
    found = Findings()
    with inner(self, [*own, *as_callbacks(cbs), watch, gradients], trains=True):
        self.fit(n, valid=False, lr=1.0 if self.lr is None else self.lr)  # the lr is never used
        for hook in watch:
            found += _finding(hook, near, dead, exploding)
        for name, norm in zip(gradients.layers, gradients.norms.tolist(), strict=True):
            if not math.isfinite(norm):
                found.append(f"{name} is exploding: its gradient is not finite")
            elif norm <= frozen:
                found.append(f"{name} is frozen: no gradient reaches its weights")
    return found


class _Gradients(Callback):
    """Measures the gradients of `n` batches, skips their updates, and ends the fit."""

    order = Order.ACCUMULATE  # before a scaler or clipping changes them

    def __init__(self, n: int) -> None:
        self.left = n

    def before_fit(self, learn: Loop) -> None:
        self.layers, self.norms = own_parameters(learn.model), torch.zeros(())

    def after_backward(self, learn: Loop) -> None:
        layers = self.layers.values()
        weights = layer_norms([[p.detach() for p in ps] for ps in layers]).clamp(min=1e-12)
        norms = layer_norms([[p.grad for p in ps] for ps in layers]) / weights
        self.norms = torch.maximum(self.norms.to(norms.device), norms)
        for p in learn.model.parameters():
            p.grad = None

    def before_step(self, learn: Loop) -> None:
        raise CancelStepException

    def after_batch(self, learn: Loop) -> None:
        self.left -= 1
        if not self.left:
            raise CancelFitException


def _computes(m: nn.Module) -> bool:
    return is_leaf(m) and not isinstance(m, PASSES_ON)


@torch.no_grad()
def _measure(hook: Hook, mod: nn.Module, inp: Any, outp: Any, *, near: float) -> None:
    """Record the fraction of an output that is near 0, and its root mean square."""
    x = first_float(outp)
    if x is not None and x.numel():
        x = x.detach().float()
        found = torch.stack([(x.abs() < near).float().mean(), x.square().mean().sqrt()])
        hook.records = [*getattr(hook, "records", []), found]


def _finding(hook: Hook, near: float, dead: float, exploding: float) -> list[str]:
    if not hasattr(hook, "records"):
        return []
    fractions, sizes = torch.stack(hook.records).cpu().unbind(1)
    fraction, size = fractions.mean().item(), sizes.max().item()
    if not math.isfinite(size):
        return [f"{hook.name} is exploding: not all values are finite"]
    if size > exploding:
        return [f"{hook.name} is exploding: the root mean square of its values is {size:.3g}"]
    if fraction > dead:
        return [f"{hook.name} is dead: {fraction:.1%} of its values are within {near} of 0"]
    return []
