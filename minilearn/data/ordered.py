"""The same data without their shuffling: what a prediction runs over."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from .seeded import ArrayLoader, ShuffledSampler


def ordered(dl: Any) -> Any:
    """Return a loader that gives every sample of `dl` once, in the order of the data set.

    The loader given stays as it is. A sampler or batch sampler of the user's own keeps its choice
    and its order; a stream, and any other iterable, comes as it comes. A last batch that is not
    full is never left out, unless such a batch sampler does so.

    Args:
        dl: any iterable of batches; one that has a method `ordered` answers for itself.
    """
    if hasattr(dl, "ordered"):
        return dl.ordered()
    if isinstance(dl, ArrayLoader):
        own = copy.copy(dl)
        own.shuffle = own.drop_last = False
        return own
    return _ordered_torch(dl) if isinstance(dl, DataLoader) else dl


def _ordered_torch(dl: Any) -> DataLoader:
    own = copy.copy(dl)
    # a DataLoader lets nobody set these, and a new one would not be of a user's own class
    vars(own).update(persistent_workers=False, _iterator=None, drop_last=False)
    if isinstance(dl.dataset, IterableDataset) or type(dl.batch_sampler) not in (
        BatchSampler,
        type(None),
    ):
        return own
    sampler, batch_size, _ = drawn_by(dl)
    if _shuffles(sampler):
        sampler = SequentialSampler(dl.dataset)
    vars(own)["sampler"] = sampler
    if dl.batch_sampler is not None:
        vars(own)["batch_sampler"] = BatchSampler(sampler, batch_size, drop_last=False)
    return own


def drawn_by(dl: Any) -> tuple[Any, Any, bool]:
    """Return the sampler, batch size and drop_last that make the batches of a loader of torch's.

    One that was given a `BatchSampler` has others, which count for nothing.
    """
    given = getattr(dl, "batch_sampler", None)
    owner = given if type(given) is BatchSampler else dl
    return getattr(owner, "sampler", None), owner.batch_size, owner.drop_last


def _shuffles(sampler: Any) -> bool:
    """Return whether `sampler` is a permutation of the data set, and no choice of the user's."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is ShuffledSampler
