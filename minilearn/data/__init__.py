"""Data: loaders that repeat exactly, images, Hugging Face data sets, Fashion-MNIST."""

from .fashion_mnist import fashion_mnist
from .hf_datasets import collate_dict, inplace
from .images.image_dls import image_dls
from .loader_factory import Dataset, get_dls
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
    "image_dls",
    "inplace",
]
