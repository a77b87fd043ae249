"""PNG in bulk, against PIL, which reads and writes files independently of us."""

import io
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from minilearn.data import png
from minilearn.data.png import decode_pngs, encode_pngs

SHAPES = {"L": (9, 7), "LA": (9, 7, 2), "RGB": (9, 7, 3), "RGBA": (9, 7, 4)}


def images(mode: str, n: int = 6) -> list[np.ndarray]:
    """Noise and smooth slopes: PIL then chooses different filters for them."""
    rng = np.random.default_rng(0)
    slope = np.linspace(0, 200, np.prod(SHAPES[mode])).reshape(SHAPES[mode])
    noise = [rng.integers(0, 256, SHAPES[mode]) for _ in range(n)]
    return [
        x.astype(np.uint8) for x in [*noise, slope, *(slope + 20 * rng.random(slope.shape))[None]]
    ]


def as_file(pixels: np.ndarray, format: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format, **options)
    return file.getvalue()


def by_pil(files: list[bytes]) -> torch.Tensor:
    pixels = [np.array(Image.open(io.BytesIO(f))) for f in files]
    return torch.tensor(np.stack([p.reshape(*p.shape[:2], -1).transpose(2, 0, 1) for p in pixels]))


def refilter(pixels: np.ndarray, kinds: list[int]) -> bytes:
    """Write a PNG whose row y has filter kinds[y % len], by the formulas of the PNG standard."""
    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    rows = pixels.reshape(height, -1).astype(int)
    raw = bytearray()
    for y, row in enumerate(rows):
        kind = kinds[y % len(kinds)]
        raw.append(kind)
        for i, value in enumerate(row):
            left = row[i - channels] if i >= channels else 0
            up = rows[y - 1, i] if y else 0
            corner = rows[y - 1, i - channels] if y and i >= channels else 0
            p = left + up - corner
            paeth = min((left, up, corner), key=lambda v: abs(p - v))  # the first of equals
            raw.append((value - (0, left, up, (left + up) // 2, paeth)[kind]) % 256)
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, colour, 0, 0, 0])
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(raw))), (b"IEND", b"")]
    return png.SIGNATURE + b"".join(png._chunk(kind, body) for kind, body in parts)


@pytest.mark.parametrize("mode", SHAPES)
def test_decoded_files_of_pil_equal_pils_own_decoding(mode):
    files = [as_file(p) for p in images(mode)]
    decoded, (height, width) = decode_pngs(files), SHAPES[mode][:2]
    assert torch.equal(decoded, by_pil(files))
    # one channel has many equal strides, and convolutions choose their path by them
    assert decoded.stride()[1:] == (height * width, width, 1)


@pytest.mark.parametrize("mode", SHAPES)
@pytest.mark.parametrize("kinds", [[0], [1], [2], [3], [4], [4, 3, 2, 1, 0], [0, 4, 1, 3]])
def test_every_filter_is_undone_as_pil_does(mode, kinds):
    files = [refilter(p, kinds) for p in images(mode, n=2)]
    files.append(refilter(images(mode)[3], kinds[::-1]))  # filters differ between images
    expected = by_pil(files)
    assert torch.equal(expected[0], by_pil([as_file(images(mode)[0])])[0])
    assert torch.equal(decode_pngs(files), expected)


def test_groups_join_to_the_same_images(monkeypatch):
    files = [as_file(p) for p in images("RGB")]
    whole = decode_pngs(files)
    monkeypatch.setattr(png, "GROUP", 3)
    assert torch.equal(decode_pngs(files), whole)


@pytest.mark.parametrize("level", [0, 1, 9])
def test_encoded_images_are_read_back_by_pil(level):
    grey = np.stack(images("L"))
    files = list(encode_pngs(grey, level))
    assert np.array_equal(by_pil(files)[:, 0].numpy(), grey)


def text_chunk() -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_text("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>')
    return as_file(images("L")[0], pnginfo=info)


@pytest.mark.parametrize(
    "file",
    {
        "jpeg": as_file(images("RGB")[0], "JPEG"),
        "16 bits": as_file(np.zeros((9, 7), np.uint16)),
        "text, which may hold an orientation": text_chunk(),
        "exif": as_file(images("L")[0], exif=b"Exif\x00\x00MM\x00*"),
        "cut": as_file(images("L")[0])[:60],
        "another size": as_file(np.zeros((5, 5), np.uint8)),
        "corrupt": as_file(images("L")[0]).replace(b"IDAT", b"IDAT\x00"),
        "empty": b"",
    }.items(),
    ids=lambda item: item[0],
)
def test_all_that_is_not_plain_is_left_to_pil(file):
    plain = as_file(images("L")[1])
    assert decode_pngs([plain, file[1]]) is None
    assert decode_pngs([plain, plain]) is not None


def test_no_files_are_left_to_pil():
    assert decode_pngs([]) is None
