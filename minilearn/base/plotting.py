"""Show images and functions: each function takes axes, or makes them, and returns them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["get_grid", "plot_func", "show_image", "show_images", "subplots"]

CHANNELS = (1, 3, 4)  # gray, RGB, RGBA
PIL_MODES = {"P": "RGBA", "PA": "RGBA", "LA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB"}


class AxesGrid(np.ndarray):
    """An array of axes. As the last value of a notebook's cell it shows its figure alone."""

    def _ipython_display_(self) -> None:
        pass


def quiet(ax: Axes) -> Axes:
    """Return axes that a notebook does not print below their figure."""
    ax._ipython_display_ = _show_nothing  # type: ignore[attr-defined]
    return ax


def _show_nothing() -> None:
    pass


def as_written(name: Any) -> str:
    """Return a name for a title or label: its dollars begin no formula, and legends hide none."""
    text = str(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def show_image(
    im: Any,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    title: Any = None,
    noframe: bool = True,
    **kwargs: Any,
) -> Axes:
    """Show one image on `ax`, or on a new figure.

    >>> show_image(xb[0], title="a shirt")

    Args:
        im: a PIL image, or a tensor, array or nested list of shape (H, W), (C, H, W) or (H, W, C)
            with 1, 3 or 4 channels. Where both ends could be the channels, tensors have them
            first and all others last.
        ax: the axes; None for a new figure.
        figsize: width and height of the new figure in inches.
        title: shown above the image, as it is written.
        noframe: leave out the frame.
        **kwargs: go to `Axes.imshow`, such as `cmap` or `origin`.

    Raises:
        ValueError: `im` has another shape.
    """
    ax = ax or new_axes(figsize)
    ax.imshow(_image_array(im), **kwargs)
    if title is not None:
        ax.set_title(as_written(title.item() if torch.is_tensor(title) else title))
    ax.set(xticks=[], yticks=[])
    if noframe:
        ax.axis("off")
    return quiet(ax)


def new_axes(figsize: tuple[float, float] | None = None) -> Axes:
    """Return the axes of a new figure that has no others."""
    return subplots(figsize=figsize)[1][0]


def subplots(
    nrows: int = 1,
    ncols: int = 1,
    figsize: tuple[float, float] | None = None,
    imsize: float = 3,
    suptitle: str | None = None,
    **kwargs: Any,
) -> tuple[Figure, np.ndarray]:
    """Make a figure for images of `imsize` inches.

    >>> fig, axes = subplots(2, 2)

    Args:
        nrows: number of rows.
        ncols: number of columns.
        figsize: width and height of the figure in inches; by default from `imsize`.
        imsize: size of each axes in inches.
        suptitle: title of the figure.
        **kwargs: go to `plt.subplots`.

    Returns:
        The figure and an array of axes, which is an array for a single one too.
    """
    import matplotlib.pyplot as plt

    if not kwargs.keys() & {"layout", "constrained_layout", "tight_layout"}:
        kwargs["layout"] = "constrained"  # space for titles and labels
    figsize = figsize or (ncols * imsize, nrows * imsize)
    fig, axs = plt.subplots(nrows, ncols, figsize=figsize, **kwargs)
    if suptitle is not None:
        fig.suptitle(suptitle)
    axs = np.atleast_1d(axs).view(AxesGrid)
    for ax in axs.flat:
        quiet(ax)
    return fig, axs


def get_grid(
    n: int,
    nrows: int | None = None,
    ncols: int | None = None,
    title: str | None = None,
    weight: str = "bold",
    size: float = 14,
    **kwargs: Any,
) -> tuple[Figure, np.ndarray]:
    """Make a figure with a grid of at least `n` axes; those beyond `n` are blank.

    >>> fig, axes = get_grid(6)

    Args:
        n: number of axes that will be used.
        nrows: number of rows; by default from `ncols`, or the root of `n`, rounded down.
        ncols: number of columns; by default as many as `n` needs.
        title: title of the figure.
        weight: font weight of the title.
        size: font size of the title in points.
        **kwargs: go to `subplots`, such as `figsize` or `imsize`.

    Returns:
        The figure and the array of all axes.

    Raises:
        ValueError: `n` is below 1, or `nrows` by `ncols` is too small for `n`.
    """
    nrows, ncols = _grid_shape(n, nrows, ncols)
    fig, axs = subplots(nrows, ncols, **kwargs)
    for ax in axs.flat[n:]:
        ax.set_axis_off()
    if title is not None:
        fig.suptitle(title, weight=weight, size=size)
    return fig, axs


def show_images(
    ims: Iterable[Any],
    nrows: int | None = None,
    ncols: int | None = None,
    titles: Sequence[Any] | Tensor | None = None,
    *,
    cmap: str | None = None,
    **kwargs: Any,
) -> np.ndarray:
    """Show images in a grid, all of them.

    >>> show_images(xb[:4], titles=yb[:4])

    Args:
        ims: images as in `show_image`, for example a batch of shape (B, C, H, W).
        nrows: as in `get_grid`.
        ncols: as in `get_grid`.
        titles: one for each image; fewer leave the last ones without. Long ones are shrunk.
        cmap: colours of images with one channel; None for matplotlib's setting.
        **kwargs: go to `get_grid`, such as `imsize` or `title`.

    Returns:
        The array of all axes of the grid.

    Raises:
        ValueError: no images, more titles than images, or as in `get_grid` and `show_image`.
    """
    ims = list(ims)
    titles = [] if titles is None else list(titles)
    if len(titles) > len(ims):
        raise ValueError(f"{len(titles)} titles for {len(ims)} images; pass at most one for each.")
    axs = get_grid(len(ims), nrows, ncols, **kwargs)[1]
    titles += [None] * (len(ims) - len(titles))
    for im, title, ax in zip(ims, titles, axs.flat, strict=False):
        show_image(im, ax, title=title, cmap=cmap)
    _fit_titles(axs)
    return axs


def plot_func(
    f: Callable[[Tensor], Tensor],
    start: float = -5.0,
    end: float = 5.0,
    steps: int = 100,
    ax: Axes | None = None,
) -> Axes:
    """Plot y = f(x) with its axes and a grid, such as an activation function.

    >>> plot_func(GeneralRelu(leak=0.1, sub=0.4))

    Args:
        f: takes and returns a tensor of shape (steps,).
        start: the first x.
        end: the last x.
        steps: number of points.
        ax: the axes; None for the current ones, so that several calls scale a plot.
    """
    import matplotlib.pyplot as plt

    ax = ax or plt.gca()
    x = torch.linspace(start, end, steps)
    with torch.no_grad():
        ax.plot(x, f(x))
    ax.grid(True, which="both", ls="--")
    ax.axhline(y=0, color="k", linewidth=0.7)
    ax.axvline(x=0, color="k", linewidth=0.7)
    return quiet(ax)


def _fit_titles(axs: np.ndarray) -> None:
    """Shrink all titles alike where the widest overlaps its neighbours."""
    first = axs.flat[0]
    width = first.figure.bbox.width / first.get_gridspec().ncols  # in pixels, as the next
    scale = 0.95 * width / max(1, *(ax.title.get_window_extent().width for ax in axs.flat))
    for ax in axs.flat:
        ax.title.set_fontsize(min(1, scale) * ax.title.get_fontsize())


def _grid_shape(n: int, nrows: int | None, ncols: int | None) -> tuple[int, int]:
    if n < 1:
        raise ValueError(f"a grid needs at least one image or axes, got n={n}.")
    if nrows is None and ncols is None:
        nrows = math.isqrt(n)
    nrows = nrows or math.ceil(n / (ncols or n))
    ncols = ncols or math.ceil(n / nrows)
    if nrows * ncols < n:
        raise ValueError(f"{nrows} x {ncols} axes are too few for {n}; leave out nrows or ncols.")
    return nrows, ncols


def _image_array(im: Any) -> np.ndarray:
    """Return an image as (H, W) or (H, W, C), with a dtype that matplotlib takes."""
    is_tensor = torch.is_tensor(im)
    arr = _tensor_array(im) if is_tensor else np.asarray(_pil_convert(im))
    if arr.ndim == 3:
        arr = _channels_last(arr, prefer_first=is_tensor)
    if arr.ndim != 2 and arr.ndim != 3:
        raise ValueError(
            f"an image has shape (H, W), (C, H, W) or (H, W, C), got {arr.shape}. "
            f"For a batch use show_images."
        )
    return arr


def _tensor_array(im: Tensor) -> np.ndarray:
    im = im.detach().cpu()
    return (im.float() if im.is_floating_point() else im).numpy()  # numpy knows no bfloat16


def _pil_convert(im: Any) -> Any:
    mode = getattr(im, "mode", None)
    return im.convert(PIL_MODES[mode]) if mode in PIL_MODES else im


def _channels_last(arr: np.ndarray, prefer_first: bool) -> np.ndarray:
    first, last = arr.shape[0] in CHANNELS, arr.shape[-1] in CHANNELS
    if not first and not last:
        raise ValueError(f"an image has 1, 3 or 4 channels, first or last; got shape {arr.shape}.")
    if first and (prefer_first or not last):
        arr = np.moveaxis(arr, 0, -1)  # (C, H, W) -> (H, W, C)
    return arr[..., 0] if arr.shape[-1] == 1 else arr
