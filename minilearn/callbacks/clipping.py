"""The norm of all gradients, and ways to bound them; each returns the norm before.

Stands on torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def total_norm(params: list[Any]) -> Tensor:
    """Return the norm of all gradients together, sparse ones included."""
    return nn.utils.get_total_norm([_numbers(p.grad) for p in params])


def _numbers(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def clip_norm(params: list[Any], bound: float) -> Tensor:
    """Bound the norm of all gradients together."""
    if not any(p.grad.is_sparse for p in params):
        return nn.utils.clip_grad_norm_(params, bound)
    norm = total_norm(params)  # torch bounds sparse gradients, but does not measure them
    nn.utils.clip_grads_with_norm_(params, bound, norm)
    return norm


def clip_value(params: list[Any], bound: float) -> Tensor:
    """Bound the absolute value of each number."""
    norm = total_norm(params)
    nn.utils.clip_grad_value_(params, bound)
    return norm


@torch.no_grad()
def clip_adaptively(params: list[Any], ratio: float) -> Tensor:
    """Bound each row of a gradient to `ratio` times the norm of the same row of the weights."""
    norm = total_norm(params)
    for p in params:
        most = _row_norms(p).clamp(min=1e-3) * ratio
        norms = _row_norms(p.grad)
        p.grad.mul_(torch.where(norms > most, most / norms.clamp(min=1e-6), 1.0))
    return norm


def _row_norms(x: Tensor) -> Tensor:
    # a row makes one output: (K, ...) -> (K, 1, ...); a bias or a scale is one row
    return x.norm() if x.dim() < 2 else x.flatten(1).norm(dim=1).view(-1, *[1] * (x.dim() - 1))


CLIP: dict[str, Callable[[list[Any], float], Tensor]] = {
    "max_norm": clip_norm,
    "max_value": clip_value,
    "agc": clip_adaptively,
}
