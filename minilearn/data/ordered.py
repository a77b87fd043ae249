"""Loaders in the order of the data set, for predictions."""

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

from minilearn.core.position import own_copy

from .seeded import ArrayLoader, ShuffledSampler


def ordered(dl: Any) -> Any:
    """Return a loader that gives every sample of `dl` once, in the order of the data set.

    `dl` itself does not change. A user's own sampler or batch sampler keeps its choice and order;
    streams and other iterables keep theirs. A last batch that is not full is never left out, unless
    such a batch sampler does so.

    Args:
        dl: any iterable of batches; its method `ordered` is used if it has one.
    """
    if hasattr(dl, "ordered"):
        return dl.ordered()
    if isinstance(dl, ArrayLoader):
        own = copy.copy(dl)
        own.shuffle = own.drop_last = False
        return own
    return _ordered_torch(dl) if isinstance(dl, DataLoader) else dl


def _ordered_torch(dl: Any) -> DataLoader:
    own = own_copy(dl)
    vars(own)["drop_last"] = False  # a DataLoader refuses to set these by name
    has_own_batches = type(dl.batch_sampler) not in (BatchSampler, type(None))
    if has_own_batches or isinstance(dl.dataset, IterableDataset):
        return own
    sampler, batch_size, _ = drawn_by(dl)
    if _shuffles(sampler):
        sampler = SequentialSampler(dl.dataset)
    vars(own)["sampler"] = sampler
    if dl.batch_sampler is not None:
        vars(own)["batch_sampler"] = BatchSampler(sampler, batch_size, drop_last=False)
    return own


def drawn_by(dl: Any) -> tuple[Any, Any, bool]:
    """Return the sampler, batch size and drop_last that a torch DataLoader really uses.

    Those of a `BatchSampler` override the loader's own.
    """
    given = getattr(dl, "batch_sampler", None)
    owner = given if type(given) is BatchSampler else dl
    return getattr(owner, "sampler", None), owner.batch_size, owner.drop_last


def _shuffles(sampler: Any) -> bool:
    """Return whether `sampler` is a permutation of the data set, not a selection by the user."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is ShuffledSampler
