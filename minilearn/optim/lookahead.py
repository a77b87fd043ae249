"""Lookahead: slow weights that follow any optimizer's, and pull them back."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..base.text import whole


def lookahead(func: Callable[..., Any], k: int = 6, alpha: float = 0.5) -> Callable[..., Any]:
    """Return an `opt_func` whose optimizer also keeps slow weights.

    After every `k` updates `slow += alpha * (weights - slow)`, and the weights become the slow
    ones. Slow weights begin where the fit does, and are part of the optimizer's state.

    >>> adamw = optimizer(lookahead(optim.AdamW, k=5), wd=0.01)
    >>> learn = Learner(model, dls, F.cross_entropy, 1e-3, opt_func=adamw)
    >>> learn = Learner(model, dls, F.cross_entropy, 1e-3, opt_func="lookahead_radam")

    Args:
        func: a class of optimizers of torch, or what makes one.
        k: updates between two moves of the slow weights.
        alpha: how far they move towards the weights, above 0, up to 1.

    Raises:
        ValueError: `k` is below 1, or `alpha` out of its range.

    Source: Zhang et al. 2019, "Lookahead Optimizer" (arXiv:1907.08610).
    """
    whole("k", k, of="updates")
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha is above 0 and at most 1, got {alpha}")

    @wraps(func, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        opt, start = func(*args, **kwargs), dict[Tensor, Tensor]()

        def before(opt: Optimizer, *_: Any) -> None:
            for group in opt.param_groups:
                for p in group["params"]:
                    if p.grad is not None and "slow" not in opt.state.get(p, ()):
                        start[p] = p.detach().clone()

        @torch.no_grad()
        def after(opt: Optimizer, *_: Any) -> None:
            for p in start:  # only now: for an optimizer a parameter with a state is not new
                opt.state[p].update(slow=start[p], slow_step=0)
            start.clear()
            for group in opt.param_groups:
                followed = [p for p in group["params"] if "slow" in opt.state.get(p, ())]
                for p in followed:
                    opt.state[p]["slow_step"] += 1
                if due := [p for p in followed if opt.state[p]["slow_step"] % k == 0]:
                    slow = [opt.state[p]["slow"] for p in due]
                    torch._foreach_lerp_(slow, due, alpha)
                    torch._foreach_copy_(due, slow)

        opt.register_step_pre_hook(before)
        opt.register_step_post_hook(after)
        return opt

    make.__name__ = f"lookahead_{getattr(func, '__name__', 'optimizer')}"
    return make
