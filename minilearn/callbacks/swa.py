"""Equal averages of the last part of a fit: SWACB, and batch norm statistics to go with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from minilearn.base.batch import n_batches
from minilearn.base.modes import set_mode
from minilearn.base.text import whole
from minilearn.core.callback import Callback
from minilearn.core.events import Order
from minilearn.core.nested import inner, participants
from minilearn.core.stream import pick_loader

from ..core.events import CancelBatchException, CancelException
from ..core.stream import Unshared
from .averaging import _Averages
from .limits import Shortened

if TYPE_CHECKING:
    from minilearn.core.learner import Loop


class SWACB(_Averages):
    """Average the weights of the last part of a fit, all with equal shares.

    They stand in as those of `EMACB` do. When the fit is over, one pass over the training data (as
    a validation would see them) makes the statistics of batch norm for the averages: means over its
    batches with equal shares. An error or Ctrl-C spares that pass.

    Args:
        start: when to begin: a share of the fit's updates (0.75), or a number of them (1000).
        every: take in the weights of every so many updates.
        keep: end the fit with the averages, and their statistics, in the model.

    Attributes:
        n_averaged: how often weights were taken in.

    Raises:
        ValueError: `start` or `every` makes no sense, or is a share of an unknown number.

    Events: before_epoch, after_step, cleanup_epoch, cleanup_fit
    Order:  SCHEDULE + 1
    Reads:  depth, training, model, n_steps, steps_done, error, dls
    Writes:

    Source: Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima" (arXiv:1803.05407).
    """

    def __init__(self, start: float | int = 0.75, every: int = 1, *, keep: bool = False) -> None:
        if isinstance(start, bool) or start < 0 or (isinstance(start, float) and start >= 1):
            raise ValueError(f"start is a share (0.75) or a number of updates (1000), got {start}")
        super().__init__(keep)
        self.start, self.every, self._skipped = start, whole("every", every, of="updates"), 0

    def _begin(self, learn: Loop) -> None:
        if isinstance(self.start, float) and learn.n_steps is None:
            raise ValueError(
                f"SWACB(start={self.start}) is a share of the fit's updates, and nobody knows "
                "their number: give a number of updates, or fit(n_steps=...)"
            )
        total: Any = learn.n_steps
        share = isinstance(self.start, float)
        self._skipped = round(self.start * total) if share else self.start
        super()._begin(learn)

    def _weight(self, learn: Loop) -> float | None:
        late = learn.steps_done - self._skipped
        return 1 / (1 + self.n_averaged) if late > 0 and late % self.every == 0 else None

    def cleanup_fit(self, learn: Loop) -> None:
        """Make the statistics for the averages, first of all."""
        self._take_up(learn)
        ended_well = isinstance(learn.error, (type(None), CancelException))
        if self._trains and self.n_averaged and not learn.depth and ended_well:
            self._refresh(learn)
        super().cleanup_fit(learn)

    def _refresh(self, learn: Loop) -> None:
        if not any(map(_has_statistics, learn.model.modules())):
            return
        # by itself each process makes the same statistics: those of all the data
        dl, live = Unshared(pick_loader(learn.dls, True)), _buffers(learn.model)
        if n_batches(dl) is None:  # it may have no end
            dl = Shortened(dl, learn.steps_done)
        cbs = [cb for cb in participants(learn) if not isinstance(cb, _Averages)]
        cbs.append(_FreshStatistics(list(learn.frozen)))
        try:
            with self.swapped(), inner(learn, cbs, valid=dl):
                learn.fit(1, train=False)
            self._stats = _buffers(learn.model)
        finally:
            for name, buffer in learn.model.named_buffers():
                buffer.data.copy_(live[name])

    def __repr__(self) -> str:
        """Show when it begins."""
        return f"SWACB({self.start})"


class _FreshStatistics(Callback):
    """Lets batch norm gather its statistics anew in one pass, as torch's update_bn does.

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
            m.momentum = None  # cumulative: each batch has the same share

    def after_predict(self, learn: Loop) -> None:
        raise CancelBatchException

    def cleanup_epoch(self, learn: Loop) -> None:
        for m, momentum in self.momenta:
            m.momentum = momentum


def _has_statistics(m: nn.Module) -> bool:
    return isinstance(m, _BatchNorm) and m.running_mean is not None


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}
