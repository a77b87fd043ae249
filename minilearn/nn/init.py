"""Initialise weights: Kaiming for each layer, or LSUV, which measures activations.

For Xavier and the rest use `torch.nn.init`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from minilearn.base.seed import preserved_random_states

LAYERS = (nn.modules.conv._ConvNd, nn.Linear)
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
SOFTMAXES = (nn.Softmax, nn.LogSoftmax, nn.Softmax2d, nn.Softmin)  # their mean is fixed


@torch.no_grad()
def init_weights(m: nn.Module, leaky: float = 0.0) -> None:
    """Fill the weight of `m` by Kaiming's normal rule, if it is a convolution.

    The std is sqrt(2 / (1 + leaky**2) / fan_in), so that activations keep their
    size through layers of (leaky) ReLUs. Biases and other modules stay as they are. For a whole
    model: `model.apply(init_weights)` or `model.apply(partial(init_weights, leaky=0.1))`.

    >>> model = model.apply(partial(init_weights, leaky=0.1))

    Args:
        m: any module; only `nn.Conv1d`, `nn.Conv2d` and `nn.Conv3d` change.
        leaky: slope of the activation below 0.

    Source: He et al. 2015, "Delving deep into rectifiers" (arXiv:1502.01852).
    """
    if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        _assign(m, "weight", nn.init.kaiming_normal_(torch.empty_like(m.weight), a=leaky))


def lsuv_init(
    model: nn.Module,
    m: nn.Module,
    m_in: nn.Module,
    xb: Tensor,
    *,
    tol: float = 1e-3,
    max_steps: int = 100,
) -> None:
    """Rescale `m_in` until the output of `m` has mean 0 and std 1.

    >>> model = get_model(act_gr, (1, 8, 16))
    >>> lsuv_init(model, model[0][1], model[0][0], xb)

    Args:
        model: run on `xb` in its current mode without gradients; only `m_in` changes, in place.
            Running statistics and the global random states do not.
        m: the module whose output is measured, usually the activation after `m_in`.
        m_in: a layer with a weight and a bias. Without a bias only the std is set.
        xb: one batch, shape (B, C, H, W), on the model's device.
        tol: largest distance of mean and std from 0 and 1.
        max_steps: largest number of corrections, each of which runs the model once.

    Raises:
        ValueError: the output is constant (nothing to scale), or not finite; `max_steps` did not
            suffice; `m` does not run. `m_in` is then unchanged.
        TypeError: `m_in` has no weight.

    Source: Mishkin & Matas 2015, "All you need is a good init" (arXiv:1511.06422).
    """
    _standardise(model, _Pair("m_in", m_in, m, call=-1), xb, tol, max_steps)


def lsuv(model: nn.Module, xb: Tensor, *, tol: float = 1e-3, max_steps: int = 100) -> list[str]:
    """Apply `lsuv_init` to each convolution and linear layer of `model`, in order of execution.

    Each layer is measured after the activation that takes its output, or at its own output where
    no activation module does. A layer before a norm layer stays as it is: the norm sets mean and
    std itself.

    >>> names = lsuv(get_model(act_gr, (1, 8, 16)), xb)

    Args:
        model: run on `xb` in its current mode, see `lsuv_init`.
        xb: one batch, shape (B, C, H, W), on the model's device.
        tol: as in `lsuv_init`, for each layer.
        max_steps: as in `lsuv_init`, for each layer.

    Returns:
        The names of the layers that were rescaled.

    Raises:
        ValueError: as in `lsuv_init`, naming the layer; all layers are then unchanged.
    """
    pairs = _pairs(model, xb)
    with _all_or_nothing([pair.layer for pair in pairs]):
        for pair in pairs:
            _standardise(model, pair, xb, tol, max_steps)
    return [pair.name for pair in pairs]


class _Pair(NamedTuple):
    """A layer to rescale, and the module whose output at its `call`-th run is measured."""

    name: str
    layer: nn.Module
    measured: nn.Module
    call: int


def _standardise(model: nn.Module, pair: _Pair, xb: Tensor, tol: float, max_steps: int) -> None:
    layer: Any = pair.layer
    centred = getattr(layer, "bias", None) is not None
    with _all_or_nothing([layer]):
        # Inside, as reading a weight under spectral norm changes its buffers.
        if not torch.is_tensor(getattr(layer, "weight", None)):
            raise TypeError(f"{layer} has no weight to rescale; pass a convolution or linear layer")
        for _ in range(max_steps + 1):
            mean, std = _measure(model, pair, xb)
            if abs(std - 1) <= tol and (abs(mean) <= tol or not centred):
                return
            # The bias is scaled with the weight: without an activation one step is then exact.
            with torch.no_grad():
                if centred:
                    _assign(layer, "bias", (layer.bias - mean) / std)
                _assign(layer, "weight", layer.weight / std)
        raise _failure(pair, f"does not converge in {max_steps} steps", mean, std)


def _measure(model: nn.Module, pair: _Pair, xb: Tensor) -> tuple[float, float]:
    """Return mean and std of the output of `pair.measured`."""
    moments: list[tuple[Tensor, Tensor]] = []

    def record(m: nn.Module, inp: tuple, out: Tensor) -> None:
        acts = out.float()
        moments.append((acts.mean(), acts.std()))  # now: later modules may work in place

    with pair.measured.register_forward_hook(record):
        _run(model, xb)
    if not moments:
        raise ValueError(
            f"LSUV of {pair.name}: {pair.measured} does not run in this model, or the model is "
            f"compiled and does not see new hooks: pass the one that you gave to torch.compile."
        )
    mean, std = (x.item() for x in moments[pair.call])
    if not math.isfinite(mean + std) or std <= 1e-6 * abs(mean):
        raise _failure(pair, "is constant or not finite", mean, std)
    return mean, std


def _failure(pair: _Pair, what: str, mean: float, std: float) -> ValueError:
    return ValueError(
        f"LSUV of {pair.name}: the output of {pair.measured} {what} (mean {mean:.4g}, std "
        f"{std:.4g}). An activation without negative values, such as ReLU, cannot have mean 0: "
        f"take act_gr. A norm layer between the two, or spectral norm, undoes the scaling. A layer "
        f"before it may be dead or exploding: start with init_weights."
    )


@torch.no_grad()
def _run(model: nn.Module, xb: Tensor) -> None:
    """Run the model without changing its buffers or the global random states."""
    # Equal random states also give equal dropout masks in each run, without which a model in train
    # mode would not converge.
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    try:
        with preserved_random_states():
            model(xb)
    finally:
        for name, b in model.named_buffers():
            if name in buffers:
                b.copy_(buffers[name])


@contextmanager
def _all_or_nothing(layers: list[nn.Module]) -> Iterator[None]:
    """Restore all parameters and buffers of `layers` if the body fails."""
    state = [t for layer in layers for t in (*layer.parameters(), *layer.buffers())]
    before = [t.detach().clone() for t in state]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for t, value in zip(state, before, strict=True):
                t.copy_(value)
        raise


def _assign(m: nn.Module, name: str, value: Tensor) -> None:
    """Set a parameter in place, through its parametrisation where it has one."""
    if parametrize.is_parametrized(m, name):
        setattr(m, name, value)
    else:
        getattr(m, name).copy_(value)


def _pairs(model: nn.Module, xb: Tensor) -> list[_Pair]:
    """Run the model once to find the layers to rescale, and where to measure each of them."""
    names = {m: name for name, m in model.named_modules()}
    pairs: dict[nn.Module, _Pair] = {}
    runs: Counter[nn.Module] = Counter()
    outputs: dict[int, tuple[object, nn.Module]] = {}  # id of a tensor: itself, and its layer

    def record(m: nn.Module, inp: tuple, out: object) -> None:
        call, x = runs[m], inp[0] if inp else None
        runs[m] += 1
        _, layer = outputs.pop(id(x), (None, None))
        if isinstance(m, LAYERS):
            if call == 0:
                pairs[m] = _Pair(names[m], m, m, 0)
                outputs[id(out)] = out, m
        elif layer is not None and isinstance(m, NORMS):
            del pairs[layer]
        elif layer is not None and _is_activation(m, x, out):
            pairs[layer] = pairs[layer]._replace(measured=m, call=call)
        elif layer is not None:  # pooling, dropout
            outputs[id(out)] = out, layer

    with ExitStack() as stack:
        for m in model.modules():
            # A layer with a parametrised weight has children.
            if isinstance(m, LAYERS) or not any(m.children()):
                stack.enter_context(m.register_forward_hook(record))
        _run(model, xb)
    return list(pairs.values())


def _is_activation(m: nn.Module, x: object, out: object) -> bool:
    module = type(m).__module__
    if module.startswith("torch.nn."):
        return module == "torch.nn.modules.activation" and not isinstance(m, SOFTMAXES)
    same_shape = getattr(x, "shape", None) == getattr(out, "shape", 0)
    return same_shape and not list(m.parameters())
