"""Make the Fashion-MNIST sample that ships in the package from the original files.

Run `python scripts/make_sample.py` where Debian's package `dataset-fashion-mnist` is installed, or
give the folder that holds the four original files. The first 1,000 training and 200 test images
of each class are used, in their original order, so the same files always give the same sample.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from minilearn.data.fashion_mnist import CLASSES, DEBIAN, SAMPLE, as_table, read_original

PER_CLASS = {"train": 1000, "test": 200}


def chosen(labels: np.ndarray, per_class: int) -> np.ndarray:
    """Return the sorted positions of the first `per_class` images of each class."""
    firsts = [np.flatnonzero(labels == k)[:per_class] for k in range(len(CLASSES))]
    return np.sort(np.concatenate(firsts))


def main(folder: Path = DEBIAN) -> None:
    """Write `train.parquet` and `test.parquet` into the package's sample folder."""
    SAMPLE.mkdir(exist_ok=True)
    for split, per_class in PER_CLASS.items():
        images, labels = read_original(split, folder)
        rows = chosen(labels, per_class)
        path = SAMPLE / f"{split}.parquet"
        table = as_table(images[rows], labels[rows], level=9).replace_schema_metadata(None)
        pq.write_table(table, path, compression="zstd", compression_level=19)
        print(f"{path}: {len(rows):,} images, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
