"""Statistics of the outputs of layers, batch by batch, and three charts of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..base.plotting import as_written, get_grid, show_image, subplots
from ..core.learner import Loop
from .hooks import Hook, HooksCallback, first_float

if TYPE_CHECKING:
    from matplotlib.axes import Axes


BINS, TOP = 40, 10  # of the histograms of absolute values
SAMPLE = 4096  # values in a histogram
BLOCK = 128  # batches that are kept on the device


def is_leaf(m: nn.Module) -> bool:
    """Return whether a module has no modules in it."""
    return next(m.children(), None) is None


class Stats:
    """What one hook recorded: `stats[0]` are means, `stats[1]` stds, `stats[2]` histograms.

    Each is a list with one tensor for each batch, on the CPU. Histograms count absolute values in
    40 bins from 0 to 10, of a sample of 4096 values.
    """

    def __init__(self, exact: bool = False) -> None:
        self.exact, self._sizes = exact, []
        self._done: list[Tensor] = []  # on the CPU, (n, 2 + BINS)
        self._block: Any = None  # on the device, (BLOCK, 2 + BINS)

    def add(self, acts: Tensor) -> None:
        """Measure the output of a batch, without reading the device."""
        if self._block is None or self._block.device != acts.device:
            self.flush()
            self._block = torch.zeros(BLOCK, 2 + BINS, device=acts.device)
        row, x = self._block[len(self._sizes)], _flat(acts)
        if self.exact:
            row[1], row[0] = torch.std_mean(x)
        else:  # sums, read in one pass; `flush` computes means and stds
            torch.sum(x, 0, out=row[0])
            torch.dot(x, x, out=row[1])
        row[2:] = _histogram((x if self.exact else x[:: _stride(len(x))]).abs())
        self._sizes.append(len(x))
        if len(self._sizes) == BLOCK:
            self.flush()

    def flush(self) -> None:
        """Bring what is on the device to the CPU."""
        if not self._sizes:
            return
        rows, sizes = self._block[: len(self._sizes)].cpu(), torch.tensor(self._sizes)
        if not self.exact:
            n, (total, squares) = sizes.double(), rows[:, :2].double().unbind(1)
            variance = (squares - total**2 / n) / (n - 1).clamp(min=1)
            rows[:, 0], rows[:, 1] = total / n, variance.clamp(min=0).sqrt()
        self._done.append(rows.clone())
        self._sizes, self._block = [], None

    @property
    def _rows(self) -> Tensor:
        self.flush()
        self._done = [torch.cat(self._done)] if self._done else [torch.zeros(0, 2 + BINS)]
        return self._done[0]

    def __getitem__(self, i: int) -> list[Tensor]:
        """Return means, stds or histograms."""
        if not -3 <= i < 3:
            raise IndexError(f"there are means [0], stds [1], histograms [2]; got [{i}]")
        return list(self._rows[:, (0, 1, slice(2, None))[i]])

    def __len__(self) -> int:
        """Return 3."""
        return 3


def append_stats(hook: Hook, mod: nn.Module, inp: Any, outp: Any, *, exact: bool = False) -> None:
    """Record mean, std and histogram of an output in `hook.stats`, see `Stats`.

    Of a nested output the first floating-point tensor counts, depth first; without one nothing is
    recorded. Means and stds are those of all values, computed in one pass: where the mean is a
    thousand times the std, the std is rough.

    >>> with Hooks(model, append_stats) as hooks:
    ...     out = model(xb)

    Args:
        hook: where to record.
        mod: the module.
        inp: its inputs.
        outp: its output.
        exact: use two passes for stds, and all values for histograms.
    """
    acts = first_float(outp)
    if not hasattr(hook, "stats"):
        hook.stats = Stats(exact)
    if acts is not None and acts.numel():
        with torch.no_grad():
            hook.stats.add(acts.detach())


def get_hist(h: Hook) -> Tensor:
    """Return the histograms of a hook as an image, log(1 + count): shape (40, batches).

    >>> with Hooks(model, append_stats) as hooks:
    ...     out = model(xb)
    ...     shape = get_hist(hooks[0]).shape
    >>> shape
    torch.Size([40, 1])
    """
    return torch.stack(h.stats[2]).t().float().log1p()


def get_min(h: Hook) -> Tensor:
    """Return for each batch the fraction of values in the first bin, within 0.25 of 0.

    >>> with Hooks(model, append_stats) as hooks:
    ...     out = model(xb)
    ...     dead = get_min(hooks[0])
    """
    counts = torch.stack(h.stats[2]).t().float()
    return counts[0] / counts.sum(0)


class ActivationStats(HooksCallback):
    """Record means, stds and histograms of layers in a fit, and chart them.

    Args:
        mod_filter: takes a module, returns whether to record it; by default modules without
            modules in them.
        on_train: as in `HooksCallback`, like the next two.
        on_valid: see there.
        every: see there.
        exact: as in `append_stats`.

    >>> astats = ActivationStats(lambda m: isinstance(m, nn.ReLU))
    >>> learn.fit(1, cbs=astats); astats.color_dim()

    Events: before_fit, after_batch, cleanup_fit
    Order:  METRICS
    Reads:  model, training, depth
    Writes:
    """

    def __init__(
        self,
        mod_filter: Callable[[nn.Module], Any] = is_leaf,
        on_train: bool = True,
        on_valid: bool = False,
        every: int = 1,
        *,
        exact: bool = False,
    ) -> None:
        hookfunc = partial(append_stats, exact=exact)
        super().__init__(hookfunc, mod_filter, on_train, on_valid, every=every)

    def cleanup_fit(self, learn: Loop) -> None:
        """Remove the hooks; what they recorded stays, on the CPU."""
        super().cleanup_fit(learn)
        for hook in self:
            if hasattr(hook, "stats"):
                hook.stats.flush()

    def recorded(self) -> list[Hook]:
        """Return the hooks that have recorded something.

        Raises:
            ValueError: there are none.
        """
        hooks = [h for h in self if hasattr(h, "stats") and h.stats[0]]
        if not hooks:
            raise ValueError(
                f"nothing was recorded of {len(self)} layers: give this to a fit, "
                "learn.fit(1, cbs=astats), and see that mod_filter selects layers"
            )
        return hooks

    def color_dim(self, figsize: tuple[float, float] | None = None) -> np.ndarray:
        """Show the histograms of each layer as an image over the batches: bright means many values.

        Args:
            figsize: width and height of the figure in inches.
        """

        def draw(ax: Axes, h: Hook) -> None:
            n, place = len(h.stats[0]), {"origin": "lower", "aspect": "auto", "noframe": False}
            show_image(get_hist(h), ax, extent=(0, n, 0, TOP), **place)
            ax.set(yticks=[0, TOP], xticks=[0, n])

        return self._plot_each("Histograms of |activation|", draw, figsize)

    def dead_chart(self, figsize: tuple[float, float] | None = None) -> np.ndarray:
        """Plot for each layer the fraction of values within 0.25 of 0 over the batches.

        Args:
            figsize: width and height of the figure in inches.
        """

        def draw(ax: Axes, h: Hook) -> None:
            ax.plot(get_min(h), **_marker(h.stats[0]))
            ax.set_ylim(0, 1)

        return self._plot_each("Fraction of activations near 0", draw, figsize)

    def plot_stats(self, figsize: tuple[float, float] | None = None) -> np.ndarray:
        """Plot the means and stds of all layers over the batches.

        Args:
            figsize: width and height of the figure in inches.
        """
        hooks = self.recorded()
        curves = {"Means": [h.stats[0] for h in hooks], "Stds": [h.stats[1] for h in hooks]}
        return plot_layers(curves, [h.name for h in hooks], self._unit(), figsize)

    def _plot_each(self, title: str, draw: Callable[[Axes, Hook], None], figsize: Any) -> Any:
        """Make a figure with axes for each layer."""
        hooks = self.recorded()
        few = len(hooks) < 30
        size: dict[str, Any] = {"figsize": figsize} if figsize else {"imsize": 2.2 if few else 1.5}
        fig, axes = get_grid(len(hooks), title=title, size=11, weight="normal", **size)
        for ax, h in zip(axes.flat, hooks, strict=False):
            draw(ax, h)
            ax.set_title(as_written(h.name), fontsize=8 if few else 6)
            ax.tick_params(labelsize=7)
        fig.supxlabel(self._unit(), size=9)
        return axes

    def _unit(self) -> str:
        return "batch" if self.every == 1 else f"record, one every {self.every} batches"


def plot_layers(
    curves: Mapping[str, Any], names: list[str], xlabel: str, figsize: Any, yscale: str = "linear"
) -> np.ndarray:
    """Plot axes for each title in `curves`, with a line for each layer, and one legend."""
    import matplotlib.pyplot as plt

    size = figsize or (5.5 * len(curves), max(4, 0.22 * min(len(names), 40)))
    fig, axes = subplots(1, len(curves), figsize=size)
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.95, len(names)))
    for ax, (title, lines) in zip(axes, curves.items(), strict=True):
        for line, colour, name in zip(lines, colours, names, strict=True):
            ax.plot(line, color=colour, label=as_written(name), **_marker(line))
        ax.set(title=title, xlabel=xlabel, yscale=yscale)
    legend = {"loc": "outside right center", "ncols": math.ceil(len(names) / 40), "fontsize": 8}
    fig.legend(*axes[0].get_legend_handles_labels(), **legend)
    return axes


def _marker(line: Any) -> dict[str, Any]:
    """Return what makes a line of a single point visible."""
    return {"marker": "o"} if len(line) == 1 else {}


def _flat(acts: Tensor) -> Tensor:
    """Return all values in memory order, shape (n,), in float32; a view where that is possible."""
    order = sorted(range(acts.dim()), key=acts.stride, reverse=True)
    return acts.permute(order).reshape(-1).float()


@lru_cache(maxsize=256)
def _stride(n: int) -> int:
    """Return a step that leaves at most SAMPLE of n values and meets all rows and channels."""
    stride = math.ceil(n / SAMPLE)
    while math.gcd(stride, n) > 1:
        stride += 1
    return stride


def _histogram(x: Tensor) -> Tensor:
    if x.is_cuda and torch.are_deterministic_algorithms_enabled():  # histc has no such kernel
        edges = torch.linspace(0, TOP, BINS + 1, device=x.device)
        below = torch.searchsorted(x.sort().values, edges)
        return below.diff().float()
    return x.histc(BINS, 0, TOP)
