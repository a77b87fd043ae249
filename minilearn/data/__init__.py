"""Data: loaders that repeat to the bit, Hugging Face data sets, a sample of Fashion-MNIST."""

from .building import Dataset, get_dls
from .fashion_mnist import fashion_mnist
from .hub import collate_dict, inplace
from .loaders import DataLoaders
from .seeded import ArrayLoader, SeededLoader

__all__ = [
    "ArrayLoader",
    "DataLoaders",
    "Dataset",
    "SeededLoader",
    "collate_dict",
    "fashion_mnist",
    "get_dls",
    "inplace",
]
