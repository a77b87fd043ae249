"""Averages of the weights, which stand in for them wherever the model is judged: EMACB.

What is trained stays what it is: for a validation the averages are copied into the same parameters,
and afterwards what was there is copied back (R14).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from minilearn.base.batch import HALF
from minilearn.core.callback import Callback
from minilearn.core.events import Order
from minilearn.core.learner import Loop

if TYPE_CHECKING:
    from torch.nn import Parameter


class _Averages(Callback):
    """Keeps an average of each parameter; subclasses say how much an update weighs in it."""

    order = Order.SCHEDULE + 1
    in_probe = True  # validate and get_preds judge the averages, as the fit's own validation does

    def __init__(self, keep: bool) -> None:
        self.keep, self.n_averaged = keep, 0
        self._model: Any = None
        self._params: list[Parameter] = []
        self._averages: dict[str, Tensor] = {}
        self._stats: dict[str, Tensor] = {}  # buffers, where those of the averages are not the live
        self._live: Any = None  # while averages stand in: what was there
        self._swapped_at = 0  # the depth of the pass that they stand in for
        self._trains = False  # a fit that trains is under way
        self._versions: list[int] | None = None  # of the parameters, when the fit was over
        self._loaded: dict[str, Any] | None = None

    def _weight(self, learn: Loop) -> float | None:
        """Return the share of the new weights in the average, None to leave it as it is."""
        raise NotImplementedError

    # ---- events ----

    def before_epoch(self, learn: Loop) -> None:
        """Begin the averages with the first training pass; swap them in for a validation."""
        goes_on = learn.training or self._loaded is not None  # a resume may begin with a validation
        if goes_on and not learn.depth:  # what a probe trains will be undone
            if not self._trains:
                self._begin(learn)
            self._follow(learn.model)
        if not learn.training and self.n_averaged and self._live is None:
            if self._fit_to(learn.model):
                self._swapped_at = learn.depth
                self._swap_in()

    @torch.no_grad()
    def after_step(self, learn: Loop) -> None:
        """Take in the new weights."""
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
        """Note how the fit left the weights; with `keep` these are the averages."""
        self._take_up(learn)
        if self._trains and not learn.depth:
            if self.keep and self.n_averaged:
                torch._foreach_copy_(*self._pairs())
            self._end()

    def _take_up(self, learn: Loop) -> None:
        """Take up a state that no pass took up: a resumed fit was over already."""
        if self._loaded is not None and not learn.depth:
            self._begin(learn)
            self._follow(learn.model)

    def _begin(self, learn: Loop) -> None:
        self._trains, self._versions = True, None
        self.n_averaged, self._averages, self._stats = 0, {}, {}
        self._restore()

    def _follow(self, model: nn.Module) -> None:
        """See that every parameter has an average, on its device."""
        named = dict(model.named_parameters())
        self._model, self._params = model, list(named.values())
        self._averages = {
            name: _as_average(p) if (a := self._averages.get(name)) is None else a.to(p.device)
            for name, p in named.items()
        }

    def _end(self) -> None:
        self._trains, self._versions = False, [p._version for p in self._params]

    def _fit_to(self, model: nn.Module) -> bool:
        """Return whether these are averages of what is in the model: it may have been loaded."""
        unchanged = self._versions in (None, [p._version for p in self._params])
        return model is self._model and unchanged

    # ---- in and out ----

    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return tensors of the model, and what stands in for them."""
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
        """Have the averages in the model for a `with` block; without any yet, nothing changes.

        >>> with learn.find(EMACB).swapped():
        ...     export(learn.model)
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
        """Take what is in the model for the average, and average no more in this fit."""
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
            self._follow(self._model)

    def _restore(self) -> None:
        state, self._loaded = self._loaded, None
        if state is not None:
            self.n_averaged, self._averages = state["n_averaged"], _copies(state["averages"])


def _as_average(p: Parameter) -> Tensor:
    # in half precision a share of a thousandth would be lost
    return p.detach().to(torch.float32 if p.dtype in HALF else p.dtype, copy=True)


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in tensors.items()}


class EMACB(_Averages):
    """Keep an exponential moving average of the weights, and judge the model by it.

    After each update `average = decay * average + (1 - decay) * weights`, beginning with the
    weights at the start of the fit; buffers are the model's own. The averages stand in the model in
    every validation of the fit, and in `learn.validate` and `learn.get_preds`; training never sees
    them. It takes `1 / (1 - decay)` updates to forget most of the start: short fits want `warmup`.

    Args:
        decay: the share that the average keeps, from 0 to below 1.
        warmup: let the decay grow with the number t of updates before: `1 - (1 + t)^(-2/3)`, not
            above `decay`.
        keep: end the fit with the averages as the weights of the model.

    Attributes:
        n_averaged: the number of updates taken in.

    Raises:
        ValueError: `decay` is out of its range.

    Events: before_epoch, after_step, cleanup_epoch, cleanup_fit
    Order:  SCHEDULE + 1
    Reads:  depth, training, model
    Writes:

    Source: the warm-up is that of timm's ModelEmaV3.
    """

    def __init__(self, decay: float = 0.999, warmup: bool = False, *, keep: bool = False) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is the share that is kept, from 0 to below 1; got {decay}")
        super().__init__(keep)
        self.decay, self.warmup = decay, warmup

    def _weight(self, learn: Loop) -> float:
        grown = 1 - (1 + self.n_averaged) ** (-2 / 3)
        return 1 - (min(self.decay, grown) if self.warmup else self.decay)

    def __repr__(self) -> str:
        """Show the decay."""
        return f"EMACB({self.decay}{', warmup=True' if self.warmup else ''})"


# ---- which weights are which, for those who save or choose ----


def live_state(self: Loop) -> dict[str, Any]:
    """Return the state of the model that is trained, also while averages stand in for it."""
    standing_in = [cb for cb in _averages_of(self) if cb._live is not None]
    for cb in reversed(standing_in):
        cb._swap_out()
    state = copy.deepcopy(self.model.state_dict()) if standing_in else self.model.state_dict()
    for cb in standing_in:
        cb._swap_in()
    return state


def validated_state(learn: Loop) -> dict[str, Any]:
    """Return a copy of the state that a validation judges: averages once there are some."""
    begun = [cb for cb in _averages_of(learn) if cb.n_averaged]
    return begun[-1].averaged_state_dict() if begun else copy.deepcopy(learn.live_state())


def restore_validated(learn: Loop, state: dict[str, Any]) -> None:
    """Put such a state into the model, so that from now on it is what a validation judges."""
    learn.model.load_state_dict(state)
    for cb in _averages_of(learn):
        cb.adopt()


def _averages_of(learn: Loop) -> list[_Averages]:
    return [cb for cb in learn.cbs if isinstance(cb, _Averages)]
