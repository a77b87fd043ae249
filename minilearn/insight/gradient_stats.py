"""Statistics of gradients and updates, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from ..base.text import whole
from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop
from .activations import BLOCK, plot_layers


class GradientStats(Callback):
    """Record for each layer the norm of its gradient, and the ratio of its update to its weights.

    A healthy ratio is about 1e-3. Listed after a callback that clips, it sees clipped gradients.

    >>> stats = GradientStats()
    >>> learn.fit(1, cbs=stats)
    >>> stats.ratios.shape  # updates, layers
    torch.Size([4, 3])

    Args:
        every: record every `every`-th update; this copies the weights.

    Attributes:
        names: the layers that have parameters to train.
        norms: norms of the gradients, shape (updates, layers).
        ratios: norms of the updates over those of the weights, shape (updates, layers).

    Events: before_fit, before_step, after_step, cleanup_step, cleanup_fit
    Order:  GRADIENT
    Reads:  model
    Writes:
    """

    order = Order.GRADIENT
    in_probe = False

    def __init__(self, every: int = 1) -> None:
        self.every, self.names = whole("every", every, of="updates"), []
        self._rows, self._done, self._updates = [], [], 0
        self._old: Any = None  # the weights before an update that is measured

    def before_fit(self, learn: Loop) -> None:
        """Find the layers; what the last fit recorded goes."""
        self._layers = own_parameters(learn.model)
        self.names, self._rows, self._done, self._updates = list(self._layers), [], [], 0

    def before_step(self, learn: Loop) -> None:
        """Measure the gradients and remember the weights."""
        if self._updates % self.every == 0:
            self._old = [[p.detach().clone() for p in ps] for ps in self._layers.values()]
            self._norms = layer_norms([[p.grad for p in ps] for ps in self._layers.values()])

    def after_step(self, learn: Loop) -> None:
        """Measure how far the weights moved."""
        if self._old is not None:
            now = [
                torch._foreach_sub(list(map(Tensor.detach, ps)), old)
                for ps, old in zip(self._layers.values(), self._old, strict=True)
            ]
            ratios = layer_norms(now) / layer_norms(self._old)
            self._rows.append(torch.stack([self._norms, ratios]))
        self._updates += 1
        if len(self._rows) == BLOCK:
            self._flush()

    def cleanup_step(self, learn: Loop) -> None:
        """Forget the weights, also of an update that was not made."""
        self._old = None

    def cleanup_fit(self, learn: Loop) -> None:
        """Bring the records to the CPU."""
        self._flush()
        self._layers = {}

    def _flush(self) -> None:
        if self._rows:
            self._done.append(torch.stack(self._rows).cpu())
            self._rows = []

    def _records(self, i: int) -> Tensor:
        self._flush()
        return torch.cat(self._done)[:, i] if self._done else torch.zeros(0, len(self.names))

    @property
    def norms(self) -> Tensor:
        """The norms of the gradients."""
        return self._records(0)

    @property
    def ratios(self) -> Tensor:
        """The norms of the updates over those of the weights."""
        return self._records(1)

    def plot_stats(self, figsize: tuple[float, float] | None = None) -> np.ndarray:
        """Plot norms and ratios of all layers over the updates.

        Args:
            figsize: width and height of the figure in inches.

        Raises:
            ValueError: nothing was recorded.
        """
        if not len(self.norms):
            raise ValueError("no update was recorded: give this to a fit, learn.fit(1, cbs=gstats)")
        curves = {"Gradient norm": self.norms.t(), "Update / weight": self.ratios.t()}
        unit = "update" if self.every == 1 else f"record, one every {self.every} updates"
        return plot_layers(curves, self.names, unit, figsize, yscale="log")


def own_parameters(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the trainable parameters that each layer holds itself; a shared one counts once."""
    layers, seen = {}, set()
    for name, m in model.named_modules():
        own = [p for p in m.parameters(recurse=False) if p.requires_grad and p not in seen]
        seen.update(own)
        if own:
            layers[f"{name} {type(m).__name__}".strip()] = own
    return layers


def layer_norms(layers: Iterable[Iterable[Tensor | None]]) -> Tensor:
    """Return the norm of all values of each layer, 0 without any: shape (layers,), float32."""
    norms = [get_total_norm([_dense(t) for t in ts if t is not None]).float() for ts in layers]
    device = max((n.device for n in norms), key=lambda d: d.type != "cpu", default=None)
    return torch.stack([n.to(device) for n in norms]) if norms else torch.zeros(0)


def _dense(t: Tensor) -> Tensor:
    """Return the values of a sparse gradient, which has the same norm."""
    return t.coalesce().values() if t.is_sparse else t
