"""Forward and backward hooks that remove themselves; `HooksCallback` has them for a fit."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..base.batch import is_dense, tensors
from ..base.text import few, whole
from ..core.callback import Callback, attribute
from ..core.events import Order
from ..core.learner import Loop


class _Relay:
    """What a module holds: a weak reference to a Hook, so that the module keeps nothing alive.

    Copies and pickles of the module get one without a hook, which does nothing.
    """

    def __init__(self, hook: Hook | None = None) -> None:
        self.ref = (lambda: None) if hook is None else weakref.ref(hook)

    def __call__(self, *args: object) -> None:
        hook = self.ref()
        if hook is not None:
            hook(*args)

    def __reduce__(self) -> tuple:
        return _Relay, ()


class _Removable:
    """Calls its `remove()` at the end of a `with`."""

    remove: Callable[[], None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class Hook(_Removable):
    """Call a function each time that a module has run, until the hook is removed or deleted.

    `f(hook, module, input, output)` may keep what it finds as attributes of `hook`. It observes:
    its return value is ignored. A module that runs twice in a forward pass fires twice. Keep a
    reference: a hook that nobody holds is gone at once.

    >>> shapes = []
    >>> with Hook(model[0], lambda hook, module, inp, outp: shapes.append(outp.shape)):
    ...     out = model(xb)

    Args:
        m: the module.
        f: the function; with `backward` it gets the gradients of input and output instead.
        backward: fire in the backward pass.

    Raises:
        TypeError: `m` is not a module.
        RuntimeError: `m` is compiled, and would not see the hook.
    """

    name: str  # of the module, in a model
    stats: Any  # for what the function finds
    records: Any
    _handle: Any = None  # so that __del__ works after a failed constructor

    def __init__(self, m: nn.Module, f: Callable[..., Any], *, backward: bool = False) -> None:
        if not isinstance(m, nn.Module):
            raise TypeError(f"a hook needs an nn.Module, got {type(m).__name__}: {m!r:.80}")
        check_not_compiled(m)
        self._f: Any = f
        register = m.register_full_backward_hook if backward else m.register_forward_hook
        self._handle = register(_Relay(self))

    def __call__(self, *args: object) -> None:
        """Call the function."""
        if self._f is not None:
            self._f(self, *args)

    def remove(self) -> None:
        """Take the hook off the module; what it has recorded stays. A second call does nothing."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._f = None  # the function may hold a Learner

    def __del__(self) -> None:
        """Remove the hook."""
        self.remove()


class Hooks(_Removable, list):
    """Hooks on several modules: a list, and a context manager that removes them all.

    Deleting an element removes its hook. If one module is refused, none keeps a hook.

    >>> def keep_mean(hook, module, inp, outp):
    ...     hook.mean = float(outp.mean())
    >>> with Hooks(model, keep_mean) as hooks:
    ...     out = model(xb)
    ...     means = [hook.mean for hook in hooks]

    Args:
        ms: modules; or one module, for its children (itself, where it has none).
        f: called as `f(hook, module, input, output)`, see `Hook`.
        backward: as in `Hook`.

    Raises:
        TypeError, RuntimeError: as in `Hook`.
    """

    def __init__(
        self, ms: nn.Module | Iterable[nn.Module], f: Callable[..., Any], *, backward: bool = False
    ) -> None:
        super().__init__()
        if isinstance(ms, nn.Module):
            check_not_compiled(ms)
            parent, ms = ms, list(ms.children()) or [ms]
            if ms[0] is not parent and _forward_is_compiled(parent):
                warn_of_silence([type(m).__name__ for m in ms])
        try:
            for m in ms:
                self.append(Hook(m, f, backward=backward))
        except BaseException:
            self.remove()  # the traceback would keep them alive, and so attached
            raise

    def __delitem__(self, i: int | slice) -> None:
        """Remove the hooks at `i`, then drop them from the list."""
        for hook in self[i] if isinstance(i, slice) else [self[i]]:
            hook.remove()
        super().__delitem__(i)

    def remove(self) -> None:
        """Take all hooks off their modules; the list and what they have recorded stay."""
        for hook in self:
            hook.remove()


class HooksCallback(Callback):
    """Hook modules for the time of a fit; iterate over it for the hooks and what they recorded.

    The hooks are removed when the fit ends, however it ended. Nested runs (`validate` within the
    fit, say) are not recorded. A module that runs twice in a batch is recorded twice.

    >>> def keep_std(hook, module, inp, outp):
    ...     hook.std = float(outp.std())
    >>> hooks = HooksCallback(keep_std, lambda module: isinstance(module, nn.ReLU))
    >>> learn.fit(1, cbs=hooks)
    >>> stds = [hook.std for hook in hooks]

    Args:
        hookfunc: called as `hookfunc(hook, module, input, output)`; `hook.name` is the layer's.
        mod_filter: takes a module, returns whether to hook it; by default all are.
        on_train: whether to fire in training.
        on_valid: whether to fire in validation.
        mods: the modules, instead of those that `mod_filter` selects.
        every: fire in every `every`-th batch of the fit.

    Raises:
        RuntimeError: the model is compiled, and would not see the hooks.

    Events: before_fit, after_batch, cleanup_fit
    Order:  METRICS
    Reads:  model, training, depth
    Writes:
    """

    order = Order.METRICS
    in_probe = False

    def __init__(
        self,
        hookfunc: Callable[..., Any],
        mod_filter: Callable[[nn.Module], Any] | None = None,
        on_train: bool = True,
        on_valid: bool = False,
        mods: Iterable[nn.Module] | None = None,
        every: int = 1,
    ) -> None:
        self.hookfunc, self.mod_filter = hookfunc, mod_filter
        self.every = whole("every", every, of="batches")
        self.on_train, self.on_valid, self.mods = on_train, on_valid, list(mods or ())
        self.hooks: Any = []
        self._silent: list[Hook] = []  # those in compiled modules that did not fire so far

    def before_fit(self, learn: Loop) -> None:
        """Attach new hooks; what the last fit recorded goes."""
        check_not_compiled(learn.model)
        self._depth, self._batches = attribute(learn, "depth"), 0
        hidden = hidden_layers(learn.model)
        names = {m: name for name, m in learn.model.named_modules()}
        mods = self.mods or [m for m in names if self.mod_filter is None or self.mod_filter(m)]
        self.hooks = Hooks(mods, partial(self._fire, learn))
        for hook, m in zip(self.hooks, mods, strict=True):
            hook.name = f"{names.get(m, '')} {type(m).__name__}".strip()
        self._silent = [h for h, m in zip(self.hooks, mods, strict=True) if m in hidden]

    def _fire(self, learn: Loop, hook: Hook, *args: Any) -> None:
        due = self._batches % self.every == 0 and self._watches(learn)
        if due and attribute(learn, "depth") == self._depth:
            if self._silent:
                self._silent = [h for h in self._silent if h is not hook]
            self.hookfunc(hook, *args)

    def _watches(self, learn: Loop) -> bool:
        return self.on_train if learn.training else self.on_valid

    def after_batch(self, learn: Loop) -> None:
        """Count the batch, and say once which hooks it did not reach."""
        self._batches += self._watches(learn)
        if self._silent and self._watches(learn):
            warn_of_silence([hook.name for hook in self._silent])
            self._silent = []

    def cleanup_fit(self, learn: Loop) -> None:
        """Remove the hooks; what they recorded stays."""
        self.hooks.remove()
        self._silent = []

    def __iter__(self) -> Iterator[Hook]:
        """Yield the hooks."""
        return iter(self.hooks)

    def __len__(self) -> int:
        """Return the number of hooks."""
        return len(self.hooks)


def first_float(x: object) -> Tensor | None:
    """Return the first dense floating-point tensor in a nested structure, depth first, or None.

    Args:
        x: what a module returned: a tensor, None, or tuples, lists, dicts and dataclasses of such.
    """
    return next((t for t in tensors(x) if t.is_floating_point() and is_dense(t)), None)


def _is_compiled(m: Any) -> bool:
    return hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None


def hidden_layers(model: nn.Module) -> set[nn.Module]:
    """Return the layers inside of compiled or traced modules, whose hooks may never fire."""
    hiding = [m for m in model.modules() if _is_compiled(m) or _forward_is_compiled(m)]
    return {layer for m in hiding for layer in m.modules() if layer is not m}


def _forward_is_compiled(m: nn.Module) -> bool:
    # torch.compile marks what it returns
    compiled = hasattr(m.forward, "_torchdynamo_orig_callable")
    traced = (torch.jit.ScriptModule, torch.jit.ScriptFunction)
    return compiled or isinstance(m, traced) or isinstance(m.forward, traced)


def warn_of_silence(names: list[str]) -> None:
    """Say which layers were not seen."""
    warnings.warn(
        f"nothing is seen of {few(names)}: they are inside of a module that is compiled or traced, "
        "and does not run hooks. Look at the model as it was before.",
        stacklevel=3,
    )


def check_not_compiled(m: Any) -> None:
    """Raise if `m` is compiled: torch.compile ignores later hooks, without a word."""
    if _is_compiled(m):
        raise RuntimeError(
            f"{type(m).__name__} is compiled and does not see new hooks. Hook and run the model "
            f"that you gave to torch.compile, or add the hooks before compiling."
        )
