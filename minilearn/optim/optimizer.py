"""Optimizers by name, and groups of parameters with options of their own.

Each fit makes its optimizer here, from `Learner(opt_func="adamw")` say, or
`opt_func=optimizer("adamw", wd=0.05, layer_decay=0.75)`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from ..base.state_dict import loss_parameters
from ..base.text import did_you_mean, few, in_columns
from ..core.learner import Loop
from ..core.nested import make_lazy_weights
from ..nn.init import NORMS
from ..nn.timm_models import timm_module
from .lookahead import lookahead
from .schedulers import set_lr

__all__ = ["optimizer", "param_groups"]

Splitter = Callable[[nn.Module], Iterable[Any]]

# Names that promise a momentum, which torch's classes have as an option only.
NAMED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9}),
}


def optimizer(
    func: str | Callable[..., Any],
    *,
    wd: float | None = None,
    no_decay: str | None = None,
    layer_decay: float | None = None,
    splitter: Splitter | None = None,
    **kwargs: Any,
) -> OptFunc:
    """Return an `opt_func` for a Learner that sorts the parameters of its model into groups.

    >>> adamw = optimizer("adamw", wd=0.05, layer_decay=0.75, betas=(0.9, 0.95))
    >>> learn = Learner(model, dls, F.cross_entropy, 1e-3, opt_func=adamw)

    Args:
        func: the name of an optimizer of torch, or of timm where that is installed, with the
            options that timm gives it (momentum 0.9); or a class. "momentum" and "nesterov" are SGD
            with a momentum of 0.9, which "rmsprop" has too. "lookahead_adamw" and the like wrap any
            of them in `lookahead`.
        wd: this and the next three are passed to `param_groups`.
        no_decay: see there.
        layer_decay: see there.
        splitter: see there.
        kwargs: passed to the optimizer.

    Raises:
        ValueError: there is no optimizer of this name; near names are suggested.
    """
    grouping = dict(wd=wd, no_decay=no_decay, layer_decay=layer_decay, splitter=splitter)
    found, options = named_optimizer(func) if isinstance(func, str) else (func, {})
    return OptFunc(found, grouping, options | kwargs)


@dataclass(frozen=True)
class OptFunc:
    """Makes an optimizer for a model; `optimizer` returns it."""

    func: Callable[..., Any]
    grouping: dict[str, Any]
    kwargs: dict[str, Any]
    takes_model = True

    def __call__(self, model: nn.Module, lr: float | slice) -> Any:
        """Make the optimizer."""
        by_layer = isinstance(lr, slice) or self.grouping["layer_decay"] is not None
        groups = param_groups(model, **self.grouping, lr=lr if by_layer else None)
        opt = self.func(list(groups), lr.stop if isinstance(lr, slice) else lr, **self.kwargs)
        if not isinstance(opt, torch.optim.Optimizer):
            raise TypeError(f"{self.__name__} is no torch.optim.Optimizer, so it takes no groups")
        if self.grouping["wd"] is not None and "weight_decay" not in opt.defaults:
            raise ValueError(f"{self.__name__} has no weight decay: leave out wd=")
        return opt

    @property
    def __name__(self) -> str:
        """The name of the class that is made."""
        func = getattr(self.func, "func", self.func)
        return getattr(func, "__name__", type(func).__name__)


def named_optimizer(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the optimizer of torch, or of timm if installed, that has this name, and its options.

    Raises:
        ValueError: there is none; near names are suggested.
    """
    known = {
        n.lower(): c
        for n, c in vars(torch.optim).items()
        if isinstance(c, type) and issubclass(c, torch.optim.Optimizer) and n != "Optimizer"
    }
    name = name.lower()
    if name.startswith("lookahead_"):
        func, options = named_optimizer(name.removeprefix("lookahead_"))
        return lookahead(func), options
    if name in NAMED:
        return NAMED[name]
    if name in known:
        return known[name], {}
    try:
        timms = timm_module("timm.optim")
    except ImportError:
        names = list(known)
    else:
        if name in (names := [*known, *timms.list_optimizers()]):
            return _of_timm(timms, name)
    hint = did_you_mean(name, names)
    raise ValueError(f"no optimizer {name!r}{hint}; torch has {', '.join(sorted(known))}")


def _of_timm(timms: Any, name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return an optimizer of timm, and the options that `timm.optim.create_optimizer_v2` adds."""
    found = timms.get_optimizer_class(name)  # with the options of its name
    if not hasattr(timms, "get_optimizer_info"):  # an old timm
        return found, {}
    options = {"weight_decay": 0.0}
    if timms.get_optimizer_info(name).has_momentum:
        options["momentum"] = 0.9
    return found, options | getattr(found, "keywords", {})


def make_optimizer(self: Loop, lr: float | slice) -> Any:
    """Make the optimizer of a fit. An `opt_func` with `takes_model = True` gets the model."""
    func: Any = self.opt_func
    takes_model = getattr(func, "takes_model", False)
    if isinstance(func, str) or (isinstance(lr, slice) and not takes_model):
        func, takes_model = optimizer(func), True
    if takes_model:
        make_lazy_weights(self)
    return self._with_loss(func(self.model if takes_model else self.model.parameters(), lr))


def set_optimizer_lr(self: Loop, lr: float | slice) -> None:
    """Give the optimizer that is kept another rate; its groups keep the ratio of their rates."""
    groups = getattr(self.opt, "param_groups", None)
    name = type(self.opt).__name__
    if isinstance(lr, slice):
        raise ValueError(f"rates by layer need a new optimizer, and {name} is kept from before")
    if groups is None and not hasattr(self.opt, "lr"):
        raise ValueError(
            f"{name} is kept from before and has neither param_groups nor lr, so fit(lr={lr!r}) "
            "cannot reach it: set its rate yourself"
        )
    if groups is None:
        self.opt.lr = lr
        return
    largest = max(float(group["lr"]) for group in groups)
    for group in groups:
        group.pop("initial_lr", None)  # the next schedule begins with the new rate
        set_lr(group, lr * (float(group["lr"]) / largest if largest else 1.0))


def check_optimizer(self: Loop) -> None:
    """Check, before each training epoch, that the optimizer has all weights and its closure."""
    groups = getattr(self.opt, "param_groups", None)
    params = loss_parameters(self)
    if groups is not None and isinstance(self.model, nn.Module):
        params |= dict(self.model.named_parameters())
    there = {id(p) for group in groups or () for p in group["params"]}
    names = [name for name, p in params.items() if p.requires_grad and id(p) not in there]
    if names:
        warnings.warn(
            f"the optimizer lacks {few(names)}, which can be trained and will not be. Give it all "
            "parameters, or let the Learner make it: opt_func=…",
            stacklevel=2,
        )
    if groups is None:
        return
    owner = self._owners.get("backward")
    ours = owner is None or owner.definer.__module__.startswith("minilearn.")
    if getattr(self.opt, "is_second_order", False) and ours:
        raise TypeError(
            f"{type(self.opt).__name__} differentiates the gradients, whose graph a usual backward "
            "pass does not keep. Use a subclass of TrainCB whose backward(self, learn) is "
            "learn.loss.backward(create_graph=True)"
        )
    try:
        closure = inspect.signature(self.opt.step).parameters.get("closure")
    except (TypeError, ValueError):  # it has no signature
        return
    owner = self._owners.get("step")
    if closure and closure.default is closure.empty and owner and owner.is_default:
        name = type(self.opt).__name__
        raise TypeError(f"{name} computes the loss itself, with a closure: add ClosureCB() to cbs")


class ParamGroups(list):
    """Groups for an optimizer that print as a table."""

    def __init__(self, groups: list[dict[str, Any]], model: nn.Module) -> None:
        super().__init__(groups)
        self._names = {id(p): name for name, p in model.named_parameters()}

    @property
    def names(self) -> list[list[str]]:
        """The names of the parameters in each group."""
        return [[self._names.get(id(p), "?") for p in group["params"]] for group in self]

    def __repr__(self) -> str:
        """Show the size, the options and the first names of each group."""
        rows = [("group", "tensors", "elements", "lr", "weight decay", "names")]
        for i, (group, names) in enumerate(zip(self, self.names, strict=True)):
            options = (group.get(key, "default") for key in ("lr", "weight_decay"))
            lr, wd = (s if isinstance(s, str) else f"{s:.3g}" for s in options)
            size = sum(p.numel() for p in group["params"])
            rows.append((str(i), str(len(names)), f"{size:,}", lr, wd, few(names)))
        return "\n".join(in_columns(rows, [str.rjust] * 5 + [str.ljust]))


def param_groups(
    model: nn.Module,
    wd: float | None = None,
    *,
    no_decay: str | None = None,
    layer_decay: float | None = None,
    splitter: Splitter | None = None,
    lr: float | slice | None = None,
) -> ParamGroups:
    """Sort the parameters of a model into groups with their own weight decay and learning rate.

    Each parameter is in exactly one group, frozen ones too, so that they learn once they are
    unfrozen; tied weights count once. Parameters that a module names in its method
    `no_weight_decay()` have no decay.

    >>> groups = param_groups(model, wd=0.01)
    >>> opt = optim.AdamW(groups)

    Args:
        model: its layers are its blocks, in the order in which they were made; each block of a
            stack is a layer, and parameters outside of blocks belong to the first.
        wd: weight decay; the optimizer's default where it is not given.
        no_decay: parameters without it: "norm" (norm layers), "bias", "1d" (one dimension or none)
            and patterns of names such as "*.embed*", with commas; "norm,bias,1d" where `wd` is
            given, and "none" for none.
        layer_decay: the last layer has the rate `lr`, each one before it this fraction of the next.
        splitter: takes the model and returns its layers, as modules or lists of parameters.
        lr: one learning rate; or `slice(first, last)`, which grows by a constant factor from layer
            to layer; `slice(last)` has a tenth of it for all other layers.

    Raises:
        ValueError: the splitter left out a parameter, a pattern of `no_decay` fits none, or
            `layer_decay` comes without one rate.

    Source: layer decay as in Clark et al. 2020, "ELECTRA" (arXiv:2003.10555).
    """
    layers = layer_groups(model, splitter)
    rates = _rates(lr, layer_decay, len(layers))
    spared = _without_decay(model, no_decay or ("" if wd is None else "norm,bias,1d"))
    found: dict[tuple, list[Parameter]] = {}
    for i, (layer, rate) in enumerate(zip(layers, rates, strict=True)):
        for p in layer:
            key = (i if splitter else None, rate, 0.0 if id(p) in spared else wd)
            found.setdefault(key, []).append(p)
    groups = []
    for (_, lr, wd), params in found.items():
        options = {"lr": lr, "weight_decay": wd}
        groups.append({"params": params} | {k: v for k, v in options.items() if v is not None})
    return ParamGroups(groups, model)


def _rates(lr: float | slice | None, decay: float | None, n: int) -> list[float | None]:
    """Return the learning rate of each of `n` layers, from the first to the last."""
    if decay is not None:
        if not isinstance(lr, (int, float)):
            raise ValueError(f"layer_decay={decay} needs one learning rate: lr=0.001; got lr={lr}")
        return [lr * decay ** (n - 1 - i) for i in range(n)]
    if not isinstance(lr, slice):
        return [lr] * n
    if lr.start is None:
        return [lr.stop / 10] * (n - 1) + [lr.stop]
    return [lr.stop * (lr.start / lr.stop) ** ((n - 1 - i) / max(n - 1, 1)) for i in range(n)]


def _without_decay(model: nn.Module, rules: str) -> set[int]:
    """Return the ids of the parameters that have no weight decay."""
    tokens = {token.strip() for token in rules.split(",")}
    patterns = tokens - {"norm", "bias", "1d", "none", ""}
    spared = set()
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    for pattern in sorted(patterns):
        if not any(matches(name, [pattern]) for name in names):
            hint = did_you_mean(pattern, names) or f"; there are {few(names)}"
            raise ValueError(f"no_decay: no parameter is named like {pattern!r}{hint}")
    for prefix, module in model.named_modules():
        theirs = getattr(module, "no_weight_decay", set)()
        spared |= {id(p) for name, p in module.named_parameters() if name in theirs}
        for name, p in module.named_parameters(recurse=False):
            if (
                ("norm" in tokens and isinstance(module, NORMS))
                or ("bias" in tokens and name == "bias")
                or ("1d" in tokens and p.dim() <= 1)
                or matches(f"{prefix}.{name}".lstrip("."), patterns)
            ):
                spared.add(id(p))
    return spared


def layer_groups(model: nn.Module, splitter: Splitter | None = None) -> list[list[Parameter]]:
    """Return the parameters of each layer of `model`, each parameter once.

    Raises:
        ValueError: the splitter left out a parameter.
    """
    groups, seen = [], set()
    for part in splitter(model) if splitter else _blocks(model):
        params = part.parameters() if isinstance(part, nn.Module) else part
        params = [params] if isinstance(params, Parameter) else params
        groups.append([p for p in params if not (id(p) in seen or seen.add(id(p)))])
    rest = {name: p for name, p in model.named_parameters() if id(p) not in seen}
    if rest and splitter:
        raise ValueError(f"the splitter left out {few(list(rest))}: put each into some group")
    groups = [group for group in groups if group] or [[]]
    groups[0] = [*rest.values(), *groups[0]]
    return groups


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if any(_is_stack(part) for part in child.modules()):
            yield from _blocks(child)
        else:
            yield child


def _is_stack(module: nn.Module) -> bool:
    """Return whether `module` holds blocks, and not only single layers or runs of them."""
    return isinstance(module, (nn.Sequential, nn.ModuleList)) and any(
        next(child.children(), None) is not None and not isinstance(child, nn.Sequential)
        for child in module
    )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether `name` fits one of the patterns; upper and lower case differ."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
