"""The norm of all gradients, and ways to bound them; each returns the norm before."""

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


@torch.no_grad()
def clip_value(params: list[Any], bound: float) -> Tensor:
    """Bound the absolute value of each number."""
    norm = total_norm(params)
    if dense := [p for p in params if not p.grad.is_sparse]:
        nn.utils.clip_grad_value_(dense, bound)
    for p in params:
        if p.grad.is_sparse:
            p.grad = p.grad.coalesce()  # what is there twice is one number
            p.grad.values().clamp_(-bound, bound)
    return norm


@torch.no_grad()
def clip_adaptively(params: list[Any], ratio: float) -> Tensor:
    """Bound each row of a gradient to `ratio` times the norm of the same row of the weights.

    Raises:
        ValueError: a gradient is sparse within its rows.
    """
    norm = total_norm(params)
    for p in params:
        weights, grads = _rows(p)
        most = _row_norms(weights).clamp(min=1e-3) * ratio
        norms = _row_norms(grads)
        grads.mul_(torch.where(norms > most, most / norms.clamp(min=1e-6), 1.0))
    return norm


def _rows(p: Any) -> tuple[Tensor, Tensor]:
    """Return weights and gradient; of a sparse one the rows that it has."""
    if not p.grad.is_sparse:
        return p, p.grad
    if p.grad.sparse_dim() > 1:
        raise ValueError(
            f"agc bounds rows, and the gradient of a parameter of shape {tuple(p.shape)} is sparse "
            "within them; use ClipGradCB(max_norm) or max_value"
        )
    p.grad = p.grad.coalesce()
    return p if p.dim() < 2 else p[p.grad.indices()[0]], p.grad.values()


def _row_norms(x: Tensor) -> Tensor:
    # a row makes one output: (K, ...) -> (K, 1, ...); a bias or a scale is one row
    return x.norm() if x.dim() < 2 else x.flatten(1).norm(dim=1).view(-1, *[1] * (x.dim() - 1))


CLIP: dict[str, Callable[[list[Any], float], Tensor]] = {
    "max_norm": clip_norm,
    "max_value": clip_value,
    "agc": clip_adaptively,
}
