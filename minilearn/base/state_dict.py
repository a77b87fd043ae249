"""The state of modules: all that training may change in them, by names without wrappers.

A module's `state_dict` leaves out buffers that are not persistent or not there yet, and what is
frozen. Checkpoints, resumes, the best weights and nested runs all take the state from here.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from .modes import held, hold
from .text import in_columns

is_lazy: Any = nn.parameter.is_lazy

# ---- which modules, and their names ----


def fit_modules(learn: Any) -> dict[str, nn.Module]:
    """Return the modules that a fit may change, by name: the model, and a loss with a state."""
    loss = getattr(learn, "loss_func", None)
    while isinstance(loss, partial):
        loss = loss.func
    found = {"model": unwrapped(learn.model), "loss": getattr(loss, "__self__", loss)}
    if found["loss"] is found["model"]:
        del found["loss"]
    return {name: module for name, module in found.items() if isinstance(module, nn.Module)}


def loss_parameters(learn: Any) -> dict[str, nn.Parameter]:
    """Return the parameters of a loss module that can be trained and are not the model's."""
    modules = fit_modules(learn)
    if "loss" not in modules or not learn.train_loss:
        return {}
    others = {id(p) for p in modules["model"].parameters()} if "model" in modules else set()
    return {
        f"loss.{name}": p
        for name, p in modules["loss"].named_parameters()
        if p.requires_grad and id(p) not in others
    }


def unwrapped(model: Any) -> Any:
    """Return a model without the wrappers of torch.compile and of several processes."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while (inner := getattr(model, "_orig_mod", None)) is not None or isinstance(model, wrappers):
        model = model.module if inner is None else inner
    return model


def clean_name(name: str) -> str:
    """Return a name without what torch.compile puts into it, for the model or parts of it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def named_params(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by clean names."""
    return {clean_name(name): p for name, p in unwrapped(model).named_parameters()}


def clean_state(state: Mapping[str, Any], model: Any = None) -> dict[str, Any]:
    """Return a state by clean names.

    Args:
        state: of a model, or of a wrapper of it, which calls the model `module`.
        model: decides where `module` is a wrapper, and where it is a part of the model.
    """
    names = {name: clean_name(name) for name in state}
    if len(set(names.values())) < len(names):
        names = {name: name for name in state}
    if hasattr(model, "state_dict"):
        ours = set(map(clean_name, unwrapped(model).state_dict()))

        # the form that has most names of the model; of equal ones the first
        forms = [names, {name: f"module.{clean}" for name, clean in names.items()}]
        for _ in range(2):
            forms.append({name: clean.removeprefix("module.") for name, clean in names.items()})
            names = forms[-1]
        names = max(forms, key=lambda form: len(ours & set(form.values())))
    return {names[name]: value for name, value in state.items()}


# ---- saved and loaded ----


def full_state(module: nn.Module) -> dict[str, Any]:
    """Return the state dict of a module, and what that leaves out; tensors are not copied."""
    return {"state": clean_state(module.state_dict(), module), "rest": rest_of(module)}


def load_full(module: nn.Module, saved: dict[str, Any], source: str) -> None:
    """Put a module into the state that `full_state` returned."""
    load_rest(module, saved["rest"])
    load_state(module, saved["state"], source=source, resize=True)


def rest_of(module: nn.Module) -> dict[str, Any]:
    """Return what training may change in a module, and its state dict leaves out."""
    return {
        "buffers": {
            name: owner._buffers[key]
            for name, owner, key in _buffers(module)
            if owner._buffers[key] is None or key in owner._non_persistent_buffers_set
        },
        "trainable": {name: p.requires_grad for name, p in named_params(module).items()},
        "held": [clean_name(name) for name, m in module.named_modules() if held(m)],
    }


def load_rest(module: nn.Module, rest: dict[str, Any]) -> None:
    """Put back what `rest_of` returned."""
    for name, owner, key in _buffers(module):
        if name in rest["buffers"]:
            value = rest["buffers"][name]
            _make_buffer(owner, key, value, module)
            if (buffer := owner._buffers[key]) is not None:
                buffer.data.copy_(value)
    for name, p in named_params(module).items():
        p.requires_grad_(rest["trainable"].get(name, p.requires_grad))
    for name, m in module.named_modules():
        hold(m, clean_name(name) in rest["held"], module.training)


def load_state(
    model: nn.Module,
    state: Mapping[str, Any],
    strict: bool = True,
    source: str = "the file",
    resize: bool = False,
) -> None:
    """Copy a state into the tensors that a model has, wherever they are; tied ones stay tied.

    What the load hooks of modules translate (old names, buffers of another size) is compared
    afterwards. A buffer that is None takes what the state has.

    Args:
        model: plain, compiled or wrapped.
        state: of the same model in any of these forms.
        strict: False to load what fits in name and shape.
        source: what an error calls the state.
        resize: let buffers take the shapes of the state.

    Raises:
        ValueError: the two differ, as a table; or nothing at all fits. The model is as it was.
    """
    model = unwrapped(model)
    raw = {clean_name(name): name for name in model.state_dict()}
    given = {raw.get(name, name): value for name, value in clean_state(state, model).items()}
    made = [
        (owner, key, given[name])
        for clean, owner, key in _buffers(model)
        if (name := raw.get(clean, clean)) in given and (resize or owner._buffers[key] is None)
    ]
    own = model.state_dict()
    same = own.keys() == given.keys() and not any(_differ(own[n], given[n]) for n in given)
    undo = None if same else keep(model)
    try:
        for owner, key, value in made:
            _make_buffer(owner, key, value, model)
        own = model.state_dict()
        differ = [name for name in given if _differ(own.get(name), given[name])]
        try:
            missing, unexpected = model.load_state_dict(given, strict=False)
            differ = []
        except RuntimeError:
            fits = {name: value for name, value in given.items() if name not in differ}
            missing, unexpected = model.load_state_dict(fits, strict=False)
        bad = {*missing, *unexpected, *differ}
        if bad and (strict or not given.keys() - bad):
            lines = _table(own, given, bad)
            advice = "strict=False loads what fits"
            advice += "." if given.keys() - bad else ", and nothing does."
            raise ValueError(f"{source} holds another model than this; {advice}\n{lines}")
    except BaseException:
        if undo is not None:
            undo()
        raise
    if bad:
        warnings.warn(f"not loaded from {source}:\n{_table(own, given, bad)}", stacklevel=2)


def _buffers(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the clean name of each buffer, also of those that are None, its module and its key."""
    for prefix, owner in module.named_modules():
        for key in list(owner._buffers) if isinstance(owner._buffers, dict) else ():  # not traced
            yield clean_name(f"{prefix}.{key}".lstrip(".")), owner, key


def _make_buffer(owner: nn.Module, key: str, like: Any, module: nn.Module) -> None:
    """See that a buffer has the shape of `like`; one that has it already stays the same object."""
    buffer = owner._buffers[key]
    if like is None:
        owner._buffers[key] = None
    elif buffer is None or (buffer.shape != like.shape and not is_lazy(buffer)):
        others = (t for t in (*module.parameters(), *module.buffers()) if t is not None)
        near = next(others, like) if buffer is None else buffer
        owner._buffers[key] = torch.empty_like(like, device=near.device)


def _differ(ours: Any, theirs: Any) -> bool:
    both = isinstance(ours, Tensor) and isinstance(theirs, Tensor)
    return both and not is_lazy(ours) and ours.shape != theirs.shape


def _shape(x: Any) -> str:
    if x is None:
        return "-"
    if not isinstance(x, Tensor):
        return type(x).__name__
    return "lazy" if is_lazy(x) else str(list(x.shape))


def _table(own: Mapping[str, Any], given: Mapping[str, Any], bad: set[str], most: int = 20) -> str:
    names = [name for name in dict.fromkeys([*own, *given, *sorted(bad)]) if name in bad]
    rows = [(clean_name(n), _shape(own.get(n)), _shape(given.get(n))) for n in names[:most]]
    text = in_columns([("tensor", "model", "file"), *rows], [str.ljust] * 3)
    return "\n".join(text + ([f"... and {len(names) - most} more"] if len(names) > most else []))


# ---- kept and put back ----


def keep(module: nn.Module, weights: bool = True) -> Callable[[], None]:
    """Note all that training may change in a module; return what puts it back.

    Tensors, also those that are replaced or change their size, stay the objects that they are.

    Args:
        module: whose state to keep.
        weights: False where only buffers may change: values of parameters are not copied then.
    """
    stores: list[Any] = [s for m in module.modules() for s in (m._parameters, m._buffers)]
    stores = [store for store in stores if isinstance(store, dict)]  # traced ones are fixed
    contents = [dict(store) for store in stores]
    params, buffers = list(module.parameters()), list(module.buffers())
    tensors = [t for t in [*(params if weights else ()), *buffers] if not is_lazy(t)]
    values = [t.detach().clone() for t in tensors]
    flags = [(p, p.requires_grad, dict(vars(p))) for p in params if not is_lazy(p)]
    holds = [(m, held(m)) for m in module.modules()]
    extra = [(m, copy.deepcopy(m.get_extra_state())) for m in module.modules() if _has_extra(m)]
    # a graph of the outer batch would refuse what was changed since, though it is changed back
    versions = _unsafe_preserve_version_counter(tuple(tensors))

    def undo() -> None:
        for store, content in zip(stores, contents, strict=True):
            store.clear()
            store.update(content)
        for t, value in zip(tensors, values, strict=True):
            if t.shape == value.shape:
                t.data.copy_(value)
            else:
                t.data = value
        for p, trainable, attributes in flags:
            p.requires_grad_(trainable)
            vars(p).clear()
            vars(p).update(attributes)
        for m, was_held in holds:
            hold(m, was_held, module.training)
        for m, state in extra:
            m.set_extra_state(state)
        versions.__exit__()

    return undo


def _has_extra(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state
