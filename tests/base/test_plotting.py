"""Plots: nothing is lost, the right pixels are shown, and no display is needed."""

import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from minilearn import act_gr
from minilearn.base.plotting import (
    _grid_shape,
    as_written,
    get_grid,
    plot_func,
    show_image,
    show_images,
    subplots,
)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def shown(ax):
    return np.asarray(ax.get_images()[0].get_array())


@pytest.mark.parametrize(
    "plot",
    [
        lambda: show_image(torch.rand(4, 4)),
        lambda: show_images(torch.rand(3, 4, 4)),
        lambda: show_images(torch.rand(3, 4, 4))[0],
        lambda: plot_func(torch.relu),
        lambda: show_image(torch.rand(4, 4), plt.figure().gca()),
    ],
)
def test_a_cell_that_ends_in_a_plot_prints_no_axes(plot):
    from IPython.core.formatters import DisplayFormatter

    assert DisplayFormatter().format(plot()) == ({}, {})


def is_blank(ax):
    return not ax.axison and not ax.get_images()


def test_a_grid_fits_any_n_without_a_row_too_many():
    for n in range(1, 101):
        rows, cols = _grid_shape(n, None, None)
        assert n <= rows * cols < n + rows and rows <= cols <= rows + 2


@given(st.integers(1, 100), st.integers(1, 20), st.booleans())
def test_grid_keeps_the_given_side_and_finds_the_other(n, side, by_rows):
    rows, cols = _grid_shape(n, side if by_rows else None, None if by_rows else side)
    assert (rows if by_rows else cols) == side
    assert rows * cols >= n > rows * cols - side


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 10, 11, 13])
def test_get_grid_blanks_the_axes_beyond_n(n):
    _, axs = get_grid(n, imsize=0.3)
    assert [ax.axison for ax in axs.flat] == [True] * n + [False] * (axs.size - n)


def test_get_grid_refuses_a_grid_that_loses_images():
    with pytest.raises(ValueError, match="2 x 3 axes are too few for 7"):
        get_grid(7, 2, 3)
    with pytest.raises(ValueError, match="n=0"):
        get_grid(0)


def test_get_grid_sets_the_title_and_passes_the_rest_on():
    fig, _ = get_grid(4, title="Layers", size=11, figsize=(3, 2))
    assert fig.get_suptitle() == "Layers" and tuple(fig.get_size_inches()) == (3, 2)


@pytest.mark.parametrize(("nrows", "ncols"), [(1, 1), (1, 3), (2, 2)])
def test_subplots_give_an_array_of_axes_sized_by_the_image(nrows, ncols):
    fig, axs = subplots(nrows, ncols, imsize=2, suptitle="t")
    assert isinstance(axs, np.ndarray) and axs.size == nrows * ncols
    assert tuple(fig.get_size_inches()) == (2 * ncols, 2 * nrows)
    assert fig.get_suptitle() == "t"


RGB = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)
GRAY = RGB[..., 0]


@pytest.mark.parametrize(
    ("im", "expected"),
    [
        (GRAY, GRAY),
        (GRAY.tolist(), GRAY),
        (RGB, RGB),
        (RGB.transpose(2, 0, 1), RGB),
        (GRAY[None], GRAY),
        (GRAY[..., None], GRAY),
        (torch.tensor(GRAY), GRAY),
        (torch.tensor(RGB), RGB),
        (torch.tensor(RGB).permute(2, 0, 1), RGB),
        (torch.tensor(GRAY)[None], GRAY),
        (torch.tensor(GRAY)[..., None], GRAY),
        (torch.tensor(GRAY).bfloat16(), GRAY),
        (torch.tensor(GRAY).half(), GRAY),
        (torch.tensor(GRAY).double().requires_grad_(), GRAY),
        (torch.tensor(GRAY > 99), GRAY > 99),
        (Image.fromarray(RGB), RGB),
        (Image.fromarray(GRAY), GRAY),
        (Image.fromarray(GRAY > 99), GRAY > 99),
        (Image.fromarray(RGB).convert("P"), None),
        (Image.fromarray(RGB).convert("CMYK"), None),
        (Image.fromarray(GRAY).convert("LA"), None),
        # three or four rows are rows, not channels, where the other end says so
        (RGB[:3], RGB[:3]),
        (RGB[:4, :, :1], GRAY[:4]),
        (torch.tensor(RGB[:3]).permute(2, 0, 1), RGB[:3]),
    ],
)
def test_show_image_shows_the_pixels_of_any_kind_of_image(im, expected):
    ax = show_image(im)
    if expected is not None:
        bf16 = torch.is_tensor(im) and im.dtype == torch.bfloat16
        np.testing.assert_allclose(shown(ax), expected, rtol=0.01 if bf16 else 0)
    assert shown(ax).shape[:2] in {(5, 7), (3, 7), (4, 7)}
    ax.figure.canvas.draw()


@pytest.mark.parametrize("shape", [(2, 28, 28), (28, 28, 5), (1, 3, 8, 8), (9,)])
def test_show_image_refuses_other_shapes_and_says_what_it_saw(shape):
    with pytest.raises(ValueError, match=r"got (shape )?\(" + ", ".join(map(str, shape))):
        show_image(torch.zeros(shape))


def test_show_image_draws_on_the_axes_it_is_given():
    _, axs = plt.subplots(1, 2)
    ax = show_image(GRAY, axs[1], title="boot", noframe=False, cmap="gray", origin="lower")
    assert ax is axs[1] and ax.get_title() == "boot" and ax.axison
    assert ax.get_images()[0].get_cmap().name == "gray" and ax.get_images()[0].origin == "lower"
    assert not axs[0].get_images()
    assert show_image(GRAY, figsize=(2, 1)).figure.get_figwidth() == 2


@pytest.mark.parametrize("n", [1, 3, 5, 7])
def test_show_images_shows_each_image_once(n):
    axs = show_images(torch.arange(n).float()[:, None, None, None].expand(n, 1, 3, 3), imsize=0.3)
    assert [shown(ax)[0, 0] for ax in axs.flat[:n]] == list(range(n))
    assert all(is_blank(ax) for ax in axs.flat[n:])
    assert len(plt.get_fignums()) == 1


def test_show_images_takes_generators_and_titles_of_any_kind():
    axs = show_images((GRAY for _ in range(3)), titles=torch.tensor([7, 8]), cmap="gray")
    assert [ax.get_title() for ax in axs.flat] == ["7", "8", ""]
    axs = show_images([GRAY] * 2, ncols=1, titles=("Bag", "Boot"), imsize=1)
    assert [ax.get_title() for ax in axs.flat] == ["Bag", "Boot"]


@pytest.mark.parametrize("imsize", [0.8, 1.5, 3])
def test_titles_of_neighbours_do_not_overlap(imsize):
    axs = show_images(
        [GRAY] * 4, ncols=2, titles=["Ankle boot / T-shirt\n13.07"] * 4, imsize=imsize
    )
    axs.flat[0].figure.canvas.draw()
    left, right = (ax.title.get_window_extent() for ax in axs[0])
    assert left.x0 >= 0 and left.x1 <= right.x0
    assert (axs[0, 0].title.get_fontsize() == plt.rcParams["font.size"] * 1.2) == (imsize == 3)


def test_show_images_refuses_more_titles_than_images():
    with pytest.raises(ValueError, match="3 titles for 2 images"):
        show_images([GRAY] * 2, titles="abc")
    with pytest.raises(ValueError, match="at least one"):
        show_images([])


def test_plot_func_draws_the_function_and_shares_the_current_axes():
    ax = plot_func(act_gr(), -2, 2, 5)
    assert plot_func(nn.PReLU()) is ax
    x, y = ax.lines[0].get_data()
    np.testing.assert_allclose(x, [-2, -1, 0, 1, 2])
    np.testing.assert_allclose(y, [-0.6, -0.5, -0.4, 0.6, 1.6], rtol=1e-6)
    _, own = plt.subplots()
    assert plot_func(torch.sin, ax=own) is own


def test_plotting_is_imported_without_matplotlib():
    code = "import minilearn.base.plotting, sys; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- F04: names with dollars ----

NAMES = ["$x^$", "5$ to 10$", "$", r"\$_$", "a_$\\frac$", "_hidden", "plain"]


def drawn_text(text):
    """Return whether matplotlib parses a text as a formula, and what it shows."""
    return plt.Text(text=text)._preprocess_math(text)


def check_names_can_be_drawn(write):
    fig, ax = plt.subplots()
    for name in NAMES:
        ax.plot([0, 1], label=write(name))
        ax.set_title(write(name))
        fig.canvas.draw()
        text, is_math = drawn_text(write(name))
        assert (text.strip(), is_math) == (name, False)
    assert len(ax.legend().get_texts()) == len(NAMES)
    fig.canvas.draw()


@pytest.mark.case("F04")
def test_names_are_drawn_as_they_are_written():
    check_names_can_be_drawn(as_written)
    show_images([GRAY] * len(NAMES), titles=NAMES)[0, 0].figure.canvas.draw()


@pytest.mark.case("F04")
def test_the_check_notices_names_that_are_read_as_formulas():
    with pytest.raises(ValueError, match="(?s)ParseSyntaxException|Expected|x\\^"):
        check_names_can_be_drawn(str)
