"""The number of this process among those that train together."""

from __future__ import annotations

import os

import torch.distributed as dist


def rank() -> int:
    """Return the number of this process among those of a launcher; the first one, 0, writes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", 0))
