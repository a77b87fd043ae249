"""Read and write many small 8-bit PNG files at once.

Opening a 28 x 28 image with PIL costs ten times its decompression. Here each file is only
decompressed, and PNG's row filters are undone for all images together. `decode_pngs` handles the
plain types (grey, RGB, with or without alpha) and returns None for all others: PIL reads those.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # PNG colour type -> C: grey, RGB, grey + alpha, RGBA
# Chunks that change no pixel. Text is not among them: it may hold an orientation, which PIL obeys.
HARMLESS = {b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"bKGD", b"pHYs", b"tIME"}
GROUP = 16384  # images unfiltered together: enough to make numpy's calls cheap, 13 MB at 28 x 28


def encode_pngs(images: np.ndarray, level: int = 1) -> Iterator[bytes]:
    """Encode grey images as PNG files, one after another.

    Args:
        images: grey levels, uint8, shape (N, H, W).
        level: zlib's compression level, 0 (none) to 9.
    """
    import numpy as np

    n, height, width = images.shape
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    rows = np.zeros((n, height, 1 + width), np.uint8)  # each row starts with its filter: 0, none
    rows[:, :, 1:] = images
    for image in rows:
        body = _chunk(b"IDAT", zlib.compress(image.data, level))
        yield SIGNATURE + head + body + _chunk(b"IEND", b"")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def decode_pngs(files: Sequence[bytes]) -> torch.Tensor | None:
    """Decode PNG files of one size and type to uint8, shape (N, C, H, W), or return None.

    None means that some file is no plain PNG (another format, palette, 16 bits, interlaced,
    corrupt, with text or orientation) or differs from the first in size or type: read the files
    with PIL then.
    """
    import numpy as np

    shape = _shape(files[0]) if files else None
    if shape is None:
        return None
    channels, height, width = shape
    images = torch.empty(len(files), channels, height, width, dtype=torch.uint8)
    for start in range(0, len(files), GROUP):
        group = [_inflate(file, files[0][16:29]) for file in files[start : start + GROUP]]
        size = height * (1 + width * channels)
        whole = [raw for raw in group if raw is not None and len(raw) == size]
        if len(whole) < len(group):
            return None
        rows = np.frombuffer(bytearray().join(whole), np.uint8).reshape(len(group), height, -1)
        if rows[:, :, 0].max() > 4:
            return None
        pixels = _unfilter(rows, channels)
        pixels = pixels.reshape(len(group), height, width, channels)
        images[start : start + GROUP] = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    return images


def _shape(file: bytes) -> tuple[int, int, int] | None:
    """Read (C, H, W) from the header of a PNG, None where its type is not plain."""
    if len(file) < 33 or file[:8] != SIGNATURE or file[12:16] != b"IHDR":
        return None
    width, height, depth, colour, *method = struct.unpack(">IIBBBBB", file[16:29])
    plain = depth == 8 and colour in COLOUR_CHANNELS and method == [0, 0, 0]
    return (COLOUR_CHANNELS[colour], height, width) if plain else None


def _inflate(file: bytes, header: bytes) -> bytes | None:
    """Return the filtered rows of a PNG that has this header and only harmless chunks."""
    if file[:8] != SIGNATURE or file[16:29] != header:
        return None
    parts, at = [], 33
    while (kind := file[at + 4 : at + 8]) != b"IEND":
        size = int.from_bytes(file[at : at + 4], "big")
        if kind == b"IDAT":
            parts.append(file[at + 8 : at + 8 + size])
        elif kind not in HARMLESS:  # also the empty one after the end of a cut file
            return None
        at += size + 12
    try:
        return zlib.decompress(parts[0] if len(parts) == 1 else b"".join(parts))
    except zlib.error:
        return None


def _unfilter(rows: np.ndarray, channels: int) -> np.ndarray:
    """Undo PNG's row filters, all images together: (N, H, 1 + W*C) -> (N, H, W*C)."""
    import numpy as np

    filters, pixels = rows[:, :, 0], rows[:, :, 1:]
    above = np.zeros_like(pixels[:, 0])
    for y in range(pixels.shape[1]):
        for number in np.flatnonzero(np.bincount(filters[:, y])).tolist():
            if number:
                which = np.flatnonzero(filters[:, y] == number)
                pixels[which, y] = _undo(number, pixels[which, y], above[which], channels)
        above = pixels[:, y]
    return pixels


def _undo(number: int, row: np.ndarray, above: np.ndarray, channels: int) -> np.ndarray:
    """Add to each pixel what the filter predicts from its neighbours, for one row (M, W*C)."""
    import numpy as np

    if number == UP:  # the most frequent one needs no loop
        return row + above
    n = len(row)
    row, above = (a.T.reshape(-1, channels, n).astype(np.int16) for a in (row, above))  # (W, C, M)
    left = corner = np.zeros((channels, n), np.int16)
    for x, up in enumerate(above):
        left = row[x] = (row[x] + PREDICTIONS[number](left, up, corner)) & 255
        corner = up
    return row.reshape(-1, n).T


def _paeth(left: np.ndarray, up: np.ndarray, corner: np.ndarray) -> np.ndarray:
    import numpy as np

    by_left, by_up = np.abs(up - corner), np.abs(left - corner)
    by_corner = np.abs(left + up - 2 * corner)
    nearest = np.where(by_up <= by_corner, up, corner)
    return np.where((by_left <= by_up) & (by_left <= by_corner), left, nearest)


UP = 2
PREDICTIONS = {  # by the number of the filter, from the pixels left, above and above left
    1: lambda left, up, corner: left,
    3: lambda left, up, corner: (left + up) >> 1,
    4: _paeth,
}
