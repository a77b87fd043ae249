"""Averages of the weights, with which the model is evaluated: EMACB and SWACB.

Training works on the weights themselves. For a validation the averages are copied into the same
parameters, and afterwards the weights are copied back.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..base.batch import HALF, n_batches
from ..base.modes import set_mode
from ..base.state_dict import fit_modules, full_state, load_full, named_params
from ..base.text import whole
from ..core.callback import Callback
from ..core.events import CancelBatchException, CancelException, Order
from ..core.learner import Loop
from ..core.nested import inner, make_lazy_weights, participants
from ..core.stream import Unshared, pick_loader
from .limits import Shortened


class _Averages(Callback):
    """Keeps an average of each parameter; subclasses say how much an update weighs in it."""

    order = Order.SCHEDULE + 1
    in_probe = True  # validate and get_preds use the averages, as the fit's own validation does

    def __init__(self, keep: bool) -> None:
        self.keep, self.n_averaged = keep, 0
        self._model: Any = None
        self._params: list[nn.Parameter] = []
        self._averages: dict[str, Tensor] = {}
        self._stats: dict[str, Tensor] = {}  # buffers that go with the averages, where they differ
        self._live: Any = None  # the weights, while averages are swapped in
        self._swapped_at = 0  # the depth of the run for which they were swapped in
        self._trains = False  # whether a fit that trains is running
        self._versions: list[int] | None = None  # of the parameters, when the fit was over
        self._loaded: dict[str, Any] | None = None

    def _weight(self, learn: Loop) -> float | None:
        """Return the weight of this update in the average, None to leave the average as it is."""
        raise NotImplementedError

    # ---- events ----

    def before_epoch(self, learn: Loop) -> None:
        """Begin with the first training epoch; swap the averages in for a validation."""
        if learn.training or self._loaded is not None:  # a resume may begin with a validation
            self._follow(learn)
        if not learn.training and self.n_averaged and self._live is None:
            # the user may have loaded other weights since the fit
            unchanged = self._versions in (None, [p._version for p in self._params])
            if learn.model is self._model and unchanged:
                self._swapped_at = learn.depth
                self._swap_in()
                learn.row = {**learn.row, "weights": type(self).__name__.removesuffix("CB")}

    @torch.no_grad()
    def after_step(self, learn: Loop) -> None:
        """Update the averages."""
        weight = None if learn.depth else self._weight(learn)
        if weight is None:
            return
        averages = list(self._averages.values())
        live = [
            p if p.dtype == average.dtype else p.to(average.dtype)
            for p, average in zip(self._params, averages, strict=True)
        ]
        torch._foreach_lerp_(averages, live, weight)
        self.n_averaged += 1

    def cleanup_epoch(self, learn: Loop) -> None:
        """Swap the averages out, whatever has happened."""
        if self._live is not None and self._swapped_at == learn.depth:
            self._swap_out()

    def cleanup_fit(self, learn: Loop) -> None:
        """End the averaging; with `keep`, the averages become the weights."""
        if self._loaded is not None:  # the resumed fit was over already
            self._follow(learn)
        if self._trains and not learn.depth:
            if self.n_averaged:
                self._complete(learn)
            if self.n_averaged and self.keep:
                torch._foreach_copy_(*self._pairs())
            self._end()

    def _complete(self, learn: Loop) -> None:
        """Add what goes with the averages, when the fit is over."""

    def _follow(self, learn: Loop) -> None:
        """Begin, if this fit has not yet, and average every parameter where it is now."""
        if not learn.depth:  # what a nested run trains will be undone
            if not self._trains:
                self._begin(learn)
            make_lazy_weights(learn)
            self._track(learn.model)

    def _begin(self, learn: Loop) -> None:
        self._trains, self._versions = True, None
        self.n_averaged, self._averages, self._stats = 0, {}, {}
        self._restore()

    def _track(self, model: nn.Module) -> None:
        """See that every parameter that can be averaged has an average, on its device."""
        named = {name: p for name, p in named_params(model).items() if _can_be_averaged(p)}
        self._model, self._params = model, list(named.values())
        self._averages = {
            name: _as_average(p) if (a := self._averages.get(name)) is None else a.to(p.device)
            for name, p in named.items()
        }

    def _end(self) -> None:
        self._trains, self._versions = False, [p._version for p in self._params]

    # ---- in and out ----

    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return tensors of the model, and their averages."""
        buffers = dict(self._model.named_buffers()) if self._stats else {}
        ours = [*self._params, *(buffers[name] for name in self._stats)]
        # `.data`: a graph that waits for its backward must not see a change that is undone
        return [t.data for t in ours], [*self._averages.values(), *self._stats.values()]

    def _swap_in(self) -> None:
        tensors, averages = self._pairs()
        self._live = [t.clone() for t in tensors]
        torch._foreach_copy_(tensors, averages)

    def _swap_out(self) -> None:
        torch._foreach_copy_(self._pairs()[0], self._live)
        self._live = None

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Put the averages into the model for a `with` block, if there are any yet.

        >>> ema = learn.add_cb(EMACB())
        >>> learn.fit(1)
        >>> with ema.swapped():
        ...     torch.save(learn.model, "averaged.pt")
        """
        if self._live is not None or not self.n_averaged:
            yield
            return
        self._swap_in()
        try:
            yield
        finally:
            self._swap_out()

    def averaged_state_dict(self) -> dict[str, Any]:
        """Return a copy of the model's state with the averages in it.

        Raises:
            ValueError: there are none yet.
        """
        if not self.n_averaged:
            raise ValueError(f"{self!r} has averaged nothing yet; learn.live_state() is the state")
        with self.swapped():
            return copy.deepcopy(self._model.state_dict())

    def adopt(self) -> None:
        """Take the model's present weights for the average, and stop averaging in this fit."""
        if self.n_averaged:
            self._stats = {}
            torch._foreach_copy_(list(self._averages.values()), [p.data for p in self._params])
            self._end()

    def state_dict(self) -> dict[str, Any]:
        """Return the averages by the names of the parameters, and the number of updates in them."""
        return {"n_averaged": self.n_averaged, "averages": _copies(self._averages)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: in the running fit, or when the next one begins to train."""
        self._loaded = state
        if self._trains:
            self._restore()
            self._track(self._model)

    def _restore(self) -> None:
        state, self._loaded = self._loaded, None
        if state is not None:
            self.n_averaged, self._averages = state["n_averaged"], _copies(state["averages"])


def _can_be_averaged(p: nn.Parameter) -> bool:
    """Return whether arithmetic works on `p`: not on the bytes of quantised weights."""
    return (p.is_floating_point() or p.is_complex()) and p.element_size() > 1


def _as_average(p: nn.Parameter) -> Tensor:
    # half precision would round a thousandth of a weight away
    return p.detach().to(torch.float32 if p.dtype in HALF else p.dtype, copy=True)


def _copies(tensors: Any) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in dict(tensors).items()}


class EMACB(_Averages):
    """Keep an exponential moving average of the weights, and evaluate the model with it.

    After each update `average = decay * average + (1 - decay) * weights`, beginning with the
    weights at the start of the fit; buffers are the model's own. The averages are in the model in
    every validation of the fit, whose row of the history says so in the column `weights`, and in
    `learn.validate` and `learn.get_preds`; training never sees them.

    >>> learn.fit(3, cbs=EMACB(0.99))

    Args:
        decay: how much of the average is kept at each update, from 0 to below 1.
        warmup: let the decay grow with the number t of updates before: `1 - (1 + t)^(-2/3)`, not
            above `decay`. Without it, it takes `1 / (1 - decay)` updates to forget most of the
            start, longer than many a fit.
        keep: end the fit with the averages as the weights of the model.

    Attributes:
        n_averaged: the number of updates in the average.

    Raises:
        ValueError: `decay` is out of its range.

    Events: before_epoch, after_step, cleanup_epoch, cleanup_fit
    Order:  SCHEDULE + 1
    Reads:  depth, training, model, row
    Writes: row

    Source: the warm-up is that of timm's ModelEmaV3.
    """

    def __init__(self, decay: float = 0.999, warmup: bool = True, *, keep: bool = False) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is a fraction from 0 to below 1; got {decay}")
        super().__init__(keep)
        self.decay, self.warmup = decay, warmup

    def _weight(self, learn: Loop) -> float:
        grown = 1 - (1 + self.n_averaged) ** (-2 / 3)
        return 1 - (min(self.decay, grown) if self.warmup else self.decay)

    def __repr__(self) -> str:
        """Show the decay, and whether it grows."""
        return f"EMACB({self.decay}, warmup={self.warmup})"


class SWACB(_Averages):
    """Average the weights of the last part of a fit, all with equal weight.

    The model is evaluated with them, as with those of `EMACB`. When the fit is over, a run over the
    training data (transformed as for a validation) computes the statistics of batch norm for the
    averages, each batch with equal weight. After an error or Ctrl-C there is no such run.

    >>> learn.fit(4, cbs=SWACB(start=0.5))

    Args:
        start: when to begin: a fraction of the fit's updates (0.75), or a number of them (1000).
        every: average the weights of every so many updates.
        keep: end the fit with the averages, and their statistics, in the model.

    Attributes:
        n_averaged: the number of updates in the average.

    Raises:
        ValueError: `start` or `every` makes no sense, or is a fraction of an unknown number.

    Events: before_epoch, after_step, cleanup_epoch, cleanup_fit
    Order:  SCHEDULE + 1
    Reads:  depth, training, model, row, n_steps, steps_done, error, dls
    Writes: row

    Source: Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima" (arXiv:1803.05407).
    """

    def __init__(self, start: float | int = 0.75, every: int = 1, *, keep: bool = False) -> None:
        if isinstance(start, bool) or start < 0 or (isinstance(start, float) and start >= 1):
            raise ValueError(f"start is a fraction (0.75) or a number (1000), got {start}")
        super().__init__(keep)
        self.start, self.every, self._skipped = start, whole("every", every, of="updates"), 0

    def _begin(self, learn: Loop) -> None:
        self._skipped: Any = self.start
        if isinstance(self.start, float):
            if learn.n_steps is None:
                raise ValueError(
                    f"{self!r} begins after a fraction of the fit's updates, whose number is "
                    "unknown: give a number of updates, or fit(n_steps=...)"
                )
            self._skipped = round(self.start * learn.n_steps)
        super()._begin(learn)

    def _weight(self, learn: Loop) -> float | None:
        late = learn.steps_done - self._skipped
        return 1 / (1 + self.n_averaged) if late > 0 and late % self.every == 0 else None

    def _complete(self, learn: Loop) -> None:
        """Compute the statistics of batch norm for the averages, where the fit ended well."""
        ended_well = isinstance(learn.error, (type(None), CancelException))
        if ended_well:
            with self.swapped():
                stats = _fresh_buffers(learn)
            self._stats = stats  # only now: what was swapped in goes out again

    def __repr__(self) -> str:
        """Show when it begins."""
        return f"SWACB({self.start})"


def precise_bn(learn: Loop, n: int | None = None) -> None:
    """Replace the statistics of batch norm by true means over training batches.

    Running statistics lag behind the weights; these are of the weights that a validation uses, with
    averages where there are some. Each batch has equal weight.

    >>> learn.on("after_epoch", precise_bn, training=True, args=(200,))

    Args:
        learn: a Learner, in a fit or not.
        n: the number of batches, the whole training data by default.

    Source: Wu & Johnson 2021, "Rethinking 'Batch' in BatchNorm" (arXiv:2105.07576); detectron2's
        PreciseBN.
    """
    with _with_averages(learn):
        fresh = _fresh_buffers(learn, n)
    norms = [(name, m) for name, m in learn.model.named_modules() if _has_statistics(m)]
    for name, m in norms if fresh else ():
        for key, buffer in m.named_buffers(recurse=False):
            buffer.copy_(fresh[f"{name}.{key}".lstrip(".")])


def _fresh_buffers(learn: Loop, n: int | None = None) -> dict[str, Tensor]:
    """Return the model's buffers after a run over training data, none without batch norm."""
    if not any(map(_has_statistics, learn.model.modules())):
        return {}
    # each process runs over all the data, so that all get the same statistics
    dl = Unshared(pick_loader(learn.dls, True))
    if n is not None or n_batches(dl) is None:  # it may have no end
        dl = Shortened(dl, n or learn.steps_done)
    cbs = [cb for cb in participants(learn) if not isinstance(cb, _Averages)]
    cbs.append(_FreshStatistics(list(learn.plan.frozen)))
    with inner(learn, cbs, valid=dl):
        learn.fit(1, train=False)
        return _copies(learn.model.named_buffers())


class _FreshStatistics(Callback):
    """Lets batch norm compute its statistics anew, as torch's update_bn does.

    Layers that the user froze keep theirs.
    """

    order = Order.STOP

    def __init__(self, frozen: list[nn.Module]) -> None:
        self.frozen = frozen
        self.momenta: list[tuple[Any, float | None]] = []

    def before_epoch(self, learn: Loop) -> None:
        set_mode(learn.model, True, self.frozen)
        norms: list[Any] = [m for m in learn.model.modules() if _has_statistics(m) and m.training]
        self.momenta = [(m, m.momentum) for m in norms]
        for m in norms:
            m.reset_running_stats()
            m.momentum = None  # a cumulative mean: each batch has the same weight

    def after_predict(self, learn: Loop) -> None:
        raise CancelBatchException

    def cleanup_epoch(self, learn: Loop) -> None:
        for m, momentum in self.momenta:
            m.momentum = momentum


def _has_statistics(m: nn.Module) -> bool:
    return isinstance(m, _BatchNorm) and m.running_mean is not None


# ---- which weights are which, for callbacks that save or choose ----


def live_state(self: Loop) -> dict[str, Any]:
    """Return the state of the model that is trained, also while averages are swapped in."""
    swapped = [cb for cb in _averages_of(self) if cb._live is not None]
    for cb in reversed(swapped):
        cb._swap_out()
    state = copy.deepcopy(self.model.state_dict()) if swapped else self.model.state_dict()
    for cb in swapped:
        cb._swap_in()
    return state


def validated_state(learn: Loop) -> dict[str, Any]:
    """Return a copy of the state of a fit's modules, as a validation uses them.

    That is with averages, once there are some; by the names of `fit_modules`.
    """
    with _with_averages(learn):
        return copy.deepcopy({n: full_state(m) for n, m in fit_modules(learn).items()})


def _with_averages(learn: Loop) -> Any:
    begun = [cb for cb in _averages_of(learn) if cb.n_averaged]
    return begun[-1].swapped() if begun else nullcontext()


def restore_validated(learn: Loop, state: dict[str, Any]) -> None:
    """Load such a state, so that the model is evaluated with it from now on."""
    for name, module in fit_modules(learn).items():
        load_full(module, state[name], "the best state")
    for cb in _averages_of(learn):
        cb.adopt()


def _averages_of(learn: Loop) -> list[_Averages]:
    return [cb for cb in learn.cbs if isinstance(cb, _Averages)]
