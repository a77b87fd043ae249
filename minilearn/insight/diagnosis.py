"""Find layers that do not learn, `learn.diagnose`, and values that are not finite, DebugCB."""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..base.batch import is_dense, tensors
from ..core.callback import Callback, as_callbacks, order_of
from ..core.events import CancelFitException, CancelStepException, Order
from ..core.learner import Loop
from ..core.nested import inner, participants
from .activations import is_leaf
from .gradient_stats import layer_norms, own_parameters
from .hooks import Hook, Hooks, HooksCallback, first_float

PASSES_ON = (nn.Flatten, nn.Unflatten, nn.Identity, nn.modules.dropout._DropoutNd)


class Findings(list):
    """What `learn.diagnose` found: a list of sentences, one for each finding."""

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


class DebugCB(Callback):
    """Find out where a value stops being finite, before an update carries it into the weights.

    Before the backward pass of a training batch it looks at the loss and its parts, and before an
    update at the gradients. The error names the part of the loss, the first module by the order in
    which they ran, and the first parameter. torch's anomaly detection is on, and names the function
    whose backward pass makes NaN. All this takes time: use it to search, not to train.

    >>> learn.fit(1, cbs=DebugCB())

    Raises:
        FloatingPointError: a loss or a gradient is not finite.
        RuntimeError: from torch, for a NaN that begins in the backward pass.

    Events: before_fit, before_batch, after_loss, before_step, cleanup_fit
    Order:  GRADIENT - 1
    Reads:  model, training, batch, loss, loss_parts
    Writes:
    Syncs: once a batch, and once an update
    """

    order = Order.GRADIENT - 1  # before those that skip such an update
    in_probe = False

    def __init__(self) -> None:
        self._open, self._outputs = ExitStack(), {}

    def before_fit(self, learn: Loop) -> None:
        """Switch torch's anomaly detection on, and watch each module."""
        self._names = {m: name or "the model" for name, m in learn.model.named_modules()}
        self._open.enter_context(torch.autograd.set_detect_anomaly(True))
        self._open.enter_context(Hooks(list(self._names), self._note))

    def _note(self, hook: Hook, mod: nn.Module, inp: Any, outp: Any) -> None:
        finite = [_finite(x) for x in tensors(outp) if is_dense(x)]
        self._outputs.setdefault(f"{self._names[mod]} ({type(mod).__name__})", []).extend(finite)

    def before_batch(self, learn: Loop) -> None:
        """Forget the last batch."""
        self._outputs = {}

    def after_loss(self, learn: Loop) -> None:
        """Look at the loss and its parts."""
        losses = {f"the loss part {k!r}": v for k, v in (learn.loss_parts or {}).items()}
        losses = {what: x for what, x in losses.items() if isinstance(x, Tensor)}
        if learn.training and (bad := first_not_finite({**losses, "the loss": learn.loss})):
            flags = {name: torch.stack(f).all() for name, f in self._outputs.items() if f}
            module = next((name for name, finite in flags.items() if not finite), "none")
            param = first_not_finite(dict(learn.model.named_parameters())) or "none"
            batch = first_not_finite({str(i): x for i, x in enumerate(tensors(learn.batch))})
            raise FloatingPointError(
                f"{bad} is not finite. First module whose output is not: {module}; first "
                f"parameter: {param}{'; nor is the batch' if batch else ''}"
            )

    def before_step(self, learn: Loop) -> None:
        """Look at the gradients."""
        grads = {n: p.grad for n, p in learn.model.named_parameters() if p.grad is not None}
        if bad := first_not_finite(grads):
            raise FloatingPointError(
                f"the loss is finite, and the gradient of {bad} is not: the first of the parameters"
            )

    def cleanup_fit(self, learn: Loop) -> None:
        """Leave torch and the modules as they were."""
        self._open.close()


def _finite(x: Tensor) -> Tensor:
    x = (x.coalesce().values() if x.is_sparse else x).detach()
    x = x.float() if x.element_size() == 1 else x  # of 8 bits torch cannot say
    return x.isfinite().all()


def first_not_finite(named: dict[str, Any]) -> str | None:
    """Return the first name whose tensor is not finite; the device is read once."""
    flags = [_finite(x) for x in named.values()]
    finite = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist() if flags else []
    return next((name for name, ok in zip(named, finite, strict=True) if not ok), None)
