"""ImageDataset of any mode as the right numbers (C094), against pixels written down by hand."""

import io
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from minilearn.data.decode import in_threads, read_image, to_tensor
from minilearn.data.pipeline import Pipeline

RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)


def palette() -> Image.Image:
    """An image (1, 2) of palette indices 1 and 0: red, then green."""
    image = Image.new("P", (2, 1))
    image.putpalette([*GREEN, *RED])
    image.putdata([1, 0])
    return image


def one_pixel(mode, *values) -> Image.Image:
    image = Image.new(mode, (2, 1))
    image.putdata(list(values))
    return image


def palette_alpha() -> Image.Image:
    image = Image.new("PA", (2, 1))
    image.putpalette([*GREEN, *RED])
    image.putdata([(1, 255), (0, 0)])
    return image


def palette_transparent() -> Image.Image:
    image = palette()
    image.info["transparency"] = 0
    return image


# mode -> image, RGB of its two pixels
MIXED = {
    "1": (one_pixel("1", 255, 0), WHITE, (0, 0, 0)),
    "L": (one_pixel("L", 7, 200), (7, 7, 7), (200, 200, 200)),
    "LA": (one_pixel("LA", (7, 255), (7, 0)), (7, 7, 7), WHITE),
    "P": (palette(), RED, GREEN),
    "P with transparency": (palette_transparent(), RED, WHITE),
    "PA": (palette_alpha(), RED, WHITE),
    "RGB": (one_pixel("RGB", RED, (1, 2, 3)), RED, (1, 2, 3)),
    "RGBA": (one_pixel("RGBA", (*RED, 255), (*RED, 0)), RED, WHITE),
    "CMYK": (one_pixel("CMYK", (0, 255, 255, 0), (255, 0, 255, 0)), RED, GREEN),
    "I;16": (Image.fromarray(np.array([[257 * 7, 65535]], np.uint16)), (7, 7, 7), WHITE),
    "I": (Image.fromarray(np.array([[257 * 7, 65535]], np.int32)), (7, 7, 7), WHITE),
}


def check_mixed(read):
    """All modes give three channels of the right colours, and stack."""
    batch = torch.stack([read(image) for image, *_ in MIXED.values()])  # (N, 3, 1, 2)
    expected = torch.tensor([[first, second] for _, first, second in MIXED.values()])
    assert torch.equal(batch[:, :, 0].transpose(1, 2), expected.to(torch.uint8))


@pytest.mark.case("C094")
def test_images_of_every_mode_are_read_as_their_colours_and_stack():
    assert {image.mode for image, *_ in MIXED.values()} == {m.split()[0] for m in MIXED}
    check_mixed(read_image)


@pytest.mark.case("C094")
@pytest.mark.parametrize(
    "wrong",
    [
        lambda image: to_tensor(image),  # indices for colours, and shapes that do not stack
        lambda image: to_tensor(Image.fromarray(np.asarray(image)).convert("RGB")),
        lambda image: to_tensor(image.convert("RGB")),  # what lies under transparent pixels
    ],
)
def test_that_check_sees_images_read_without_care(wrong):
    with pytest.raises((AssertionError, RuntimeError, TypeError, ValueError)):
        check_mixed(wrong)


@pytest.mark.parametrize("mode", ["P", "RGBA", "PA", "I;16", "1"])
def test_grey_is_made_by_way_of_the_colours(mode):
    image, *colours = MIXED[mode]
    expected = [Image.new("RGB", (1, 1), c).convert("L").getpixel((0, 0)) for c in colours]
    assert read_image(image, channels=1).flatten().tolist() == expected


def test_transparent_pixels_are_laid_on_white():
    image = one_pixel("RGBA", (*RED, 0), (200, 0, 0, 128))
    assert read_image(image)[:, 0, 0].tolist() == [255, 255, 255]
    half = (200 * 128 + 255 * 127) / 255
    assert read_image(image)[0, 0, 1].item() == pytest.approx(half, abs=1)
    assert read_image(image, channels=4)[:, 0, 0].tolist() == [*RED, 0]


def test_a_image_is_turned_as_its_camera_says(tmp_path):
    image = one_pixel("RGB", RED, GREEN)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    image.save(tmp_path / "a.png", exif=exif)
    turned = read_image(tmp_path / "a.png")
    assert turned.shape == (3, 2, 1)
    assert turned[:, :, 0].T.tolist() == [list(RED), list(GREEN)]


def test_paths_bytes_files_and_images_are_read_alike(tmp_path):
    palette().save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    sources = [tmp_path / "a.png", str(tmp_path / "a.png"), data, io.BytesIO(data), palette()]
    assert all(torch.equal(read_image(s), read_image(palette())) for s in sources)


def test_what_has_no_range_or_is_no_image_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="mode F.*as a tensor"):
        read_image(Image.new("F", (2, 2)))
    with pytest.raises(ValueError, match="1 to 4 channels.*got 5"):
        read_image(palette(), channels=5)
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(OSError, match="cannot identify"):
        read_image(tmp_path / "a.png")


# ---- the pipeline ----


def test_the_pipeline_gives_the_batches_of_from_dd():
    from minilearn import DataLoaders
    from minilearn.data.fashion_mnist import CLASSES, fashion_mnist

    dd = fashion_mnist()
    dd = type(dd)({name: ds.select(range(20)) for name, ds in dd.items()})
    dls = DataLoaders.from_dd(dd, 8, splits={"valid": "test"})
    x, y = next(iter(dls.valid))
    rows = dd["test"][: len(x)]
    assert torch.equal(torch.stack([dls.pipeline(im) for im in rows["image"]]), x)
    assert dls.pipeline.classes == CLASSES
    assert (dls.pipeline.size, dls.pipeline.channels) == ((28, 28), 1)
    assert dls.train.transforms["image"].__self__ is dls.pipeline


@pytest.mark.parametrize(
    ("resize", "first_column"), [("crop", GREEN), ("pad", WHITE), ("stretch", RED)]
)
def test_another_size_is_cropped_padded_or_stretched(resize, first_column):
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, :2], pixels[:, 2:] = RED, GREEN  # crop cuts two columns on either side
    image = Image.fromarray(pixels)
    if resize == "pad":
        image = image.rotate(90, expand=True)
    x = Pipeline((4, 4), resize, channels=3)(image)
    assert x.shape == (3, 4, 4)
    assert x[:, 0, 0].mul(255).tolist() == pytest.approx(
        list(first_column), abs=40
    )  # edges are blurred


def test_pixels_as_tensor_and_array_are_prepared_and_floats_are_taken_as_ready():
    pixels = torch.arange(24, dtype=torch.uint8).reshape(3, 2, 4)
    pipeline = Pipeline((2, 4), channels=3, mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
    expected = (pixels / 255 - 0.5) / 0.25
    assert torch.equal(pipeline(pixels), expected)
    assert torch.equal(pipeline(pixels.permute(1, 2, 0).numpy()), expected)
    assert pipeline(expected) is expected
    assert Pipeline()("some text") == "some text"


def test_a_image_without_a_way_to_prepare_it_is_an_error_that_names_the_setting():
    with pytest.raises(ValueError, match=r"set dls\.pipeline = Pipeline"):
        Pipeline(classes=["a", "b"])(palette())


def test_an_unknown_way_to_resize_is_refused():
    with pytest.raises(ValueError, match="crop, pad, stretch, got 'squash'"):
        Pipeline((2, 2), "squash")


# ---- a bar ----


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "seconds", "shown"),
    [(Screen, 1.5, True), (Screen, 0.1, False), (io.StringIO, 1.5, False)],
)
def test_a_bar_appears_where_somebody_looks_on_for_a_second(stream, seconds, shown, monkeypatch):
    screen = stream()
    monkeypatch.setattr(sys, "stderr", screen)
    seen = []

    def read(row):
        seen.append(row)
        time.sleep(seconds / 16)

    in_threads(read, 16 * 8)  # eight threads, each with sixteen images
    assert sorted(seen) == list(range(128))
    assert ("reading images" in screen.getvalue()) == shown
