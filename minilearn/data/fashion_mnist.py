"""Fashion-MNIST: small images of clothes in ten classes; a sample needs no download.

`scripts/make_sample.py` made the sample, which is in the folder `sample/` beside this file.
"""

from __future__ import annotations

import gzip
import io
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset, DatasetDict, Features

CLASSES = ["T - shirt / top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt"]
CLASSES += ["Sneaker", "Bag", "Ankle boot"]
SAMPLE = Path(__file__).parent / "sample"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
FILES = {"train": "train", "test": "t10k"}  # split -> how its original files begin


def fashion_mnist(full: bool = False) -> DatasetDict:
    """Return Fashion-MNIST as a DatasetDict with the splits `train` and `test`.

    Each row has an `image`, a grey image of 28 x 28, and a `label`, a ClassLabel with K=10.

    >>> dls = DataLoaders.from_dd(fashion_mnist(), 64)

    Args:
        full: False for the sample in this package, 10,000 and 2,000 images with equal classes;
            True for all 60,000 and 10,000, from Debian's package `dataset-fashion-mnist` where it
            is installed, else from the Hugging Face hub or its local cache.

    Raises:
        FileNotFoundError: with `full`, neither the package nor the hub has the images.

    Source: Xiao, Rasul & Vollgraf 2017, "Fashion-MNIST" (arXiv:1708.07747).
    """
    with warnings.catch_warnings():  # in a notebook without widgets, tqdm complains at its import
        warnings.simplefilter("ignore")
        from datasets import DatasetDict

    if full and not DEBIAN.is_dir():
        return _from_hub()
    return DatasetDict({split: _as_dataset(split, full) for split in FILES})


def read_original(split: str, folder: Path = DEBIAN) -> tuple[np.ndarray, np.ndarray]:
    """Read a split's original files: images, uint8 (N, 28, 28), and labels, int64 (N,)."""
    images = _read_idx(folder / f"{FILES[split]}-images-idx3-ubyte.gz")
    return images, _read_idx(folder / f"{FILES[split]}-labels-idx1-ubyte.gz").astype("int64")


def _read_idx(path: Path) -> np.ndarray:
    """Read an IDX file of bytes: two zeros, type 8, number of axes, the sizes, then the values."""
    import numpy as np

    with gzip.open(path) as file:
        start = file.read(4)
        if start[:3] != b"\x00\x00\x08":
            raise ValueError(f"{path} is no IDX file of bytes: it starts with {start!r}")
        shape = np.frombuffer(file.read(4 * start[3]), ">i4")
        return np.frombuffer(file.read(math.prod(shape.tolist())), np.uint8).reshape(shape)


def as_table(images: np.ndarray, labels: np.ndarray, level: int) -> pa.Table:
    """Pack images (as PNG files of zlib `level`) and labels as `datasets` stores them."""
    import numpy as np
    import pyarrow as pa

    schema = _features().arrow_schema
    parts = np.split(images, range(1000, len(images), 1000))  # so that few files are held twice
    files = [pa.array([_file(image, level) for image in part], schema[0].type) for part in parts]
    return pa.Table.from_arrays([pa.chunked_array(files), pa.array(labels)], schema=schema)


def _file(image: np.ndarray, level: int) -> dict[str, Any]:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG", compress_level=level)
    return {"bytes": file.getvalue(), "path": None}


def _features() -> Features:
    from datasets import ClassLabel, Features, Image

    return Features({"image": Image(), "label": ClassLabel(names=CLASSES)})


def _as_dataset(split: str, full: bool) -> Dataset:
    import pyarrow.parquet as pq
    from datasets import Dataset, DatasetInfo, NamedSplit

    if full:  # not compressed, which makes it five times faster
        table = as_table(*read_original(split), level=0)
    else:  # not through load_dataset, which would copy the file to the user's cache folder
        table = pq.read_table(SAMPLE / f"{split}.parquet").cast(_features().arrow_schema)
    homepage = "https://github.com/zalandoresearch/fashion-mnist"
    info = DatasetInfo(features=_features(), license="MIT", homepage=homepage)
    # given, since `datasets` would copy the table to compute it
    fingerprint = f"fashion_mnist_{'full' if full else 'sample'}_{split}"
    return Dataset(table, info=info, split=NamedSplit(split), fingerprint=fingerprint)


def _from_hub() -> DatasetDict:
    from datasets import load_dataset

    try:
        return load_dataset("fashion_mnist")
    except Exception as e:
        raise FileNotFoundError(
            f"the full Fashion-MNIST is not on this machine: no {DEBIAN}, and the Hugging Face hub "
            f"answered {type(e).__name__}. Install Debian's package (apt install "
            'dataset-fashion-mnist), or go online once for datasets.load_dataset("fashion_mnist"), '
            "which keeps a copy."
        ) from e
