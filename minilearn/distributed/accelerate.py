"""The same fit on many processes, through Hugging Face accelerate: AccelerateCB.

The engine is accelerate over torch.distributed; what is here makes the results those of one
process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from minilearn.base.batch import default_device
from minilearn.base.seed import set_seed
from minilearn.base.state_dict import loss_parameters
from minilearn.core.events import Order
from minilearn.data.seeded import derive_seed, draw_seed
from minilearn.distributed.shards import Shard, warn_of_rest
from minilearn.distributed.sync import Processes

from ..callbacks.device import DeviceCB
from ..callbacks.gradients import GradAccumCB, items_of
from ..callbacks.precision import MixedPrecision, ScaledPrecision
from ..callbacks.training import TrainCB, adds_up
from ..core.events import ActionConflictError, CancelException
from ..core.stream import Unshared, pick_loader
from .barrier import BarrierCB, ShardCB, processes_of
from .ddp import Wrapped, average_grads, compare_fits, compare_weights, equal_buffers

if TYPE_CHECKING:
    from accelerate import Accelerator

    from minilearn.core.learner import Loop

KINDS = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_HPU")


class AccelerateCB(TrainCB):
    """Train on all processes that `torchrun`, `accelerate launch` or a notebook's launcher started.

    It stands in the place of TrainCB and DeviceCB, and alone it is both. Each process has the same
    script and the same loaders; every batch of a group goes to one of them, so the batch size is
    that of one process, and n processes make the updates of one with the n-fold batch. Gradients
    are the mean over the items of all; metrics, history and predictions are those of all data, each
    sample once, and the same everywhere. A stop or an error of one process ends all. Schedules step
    once an update.

    Weights begin as those of the first process, and noise differs from process to process. Between
    batches `learn.model` is the model itself; wrappers come for a batch of training and go.

    >>> Learner(model, dls, F.cross_entropy, cbs=[AccelerateCB(), MetricsCB(accuracy)])

    Args:
        n_inp: as in `TrainCB`.
        mixed_precision: "bf16", "fp16" or "no"; None for the one of `accelerate launch`.
        inputs: as in `TrainCB`.
        targets: as in `TrainCB`.
        shard_data: False where the loaders of each process give its own part of the data already,
            as an `IterableDataset` may that reads its own files.
        sync_bn: let batch norm have the statistics of all processes, on accelerators.
        find_unused_parameters: let some weights go without a gradient in an update.
        kwargs: those of accelerate's `Accelerator`.

    Attributes:
        accelerator: accelerate's own object.
        processes: those that train together; None where this one is alone.

    Raises:
        ValueError: accelerate is set up for an engine with a loop of its own, or to
            accumulate.
        ActionConflictError: there is a MixedPrecision, too.
        RuntimeError: weights get no gradient; names them.

    Events: before_fit, before_epoch, before_batch, before_step, after_step, cleanup_step,
        cleanup_batch, after_epoch, cleanup_epoch, cleanup_fit, predict, get_loss, backward, step,
        zero_grad
    Order:  PLACE
    Reads:  model, batch, loss_func, preds, loss, opt, training, depth, iter, dl, dls, cbs,
            error
    Writes: preds, loss, loss_parts, batch, model

    Source: Li et al. 2020, "PyTorch Distributed" (arXiv:2006.15704).
    """

    order = Order.PLACE  # nobody sees a batch on the wrong device
    places_batches = True  # in the place of a DeviceCB

    def __init__(
        self,
        n_inp: int | None = None,
        mixed_precision: str | None = None,
        *,
        inputs: str | Sequence[str] | Mapping[str, str] | None = None,
        targets: str | Sequence[str] | None = None,
        shard_data: bool = True,
        sync_bn: bool = False,
        find_unused_parameters: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(n_inp, inputs=inputs, targets=targets)
        self.accelerator = make_accelerator(mixed_precision, find_unused_parameters, kwargs)
        several = self.accelerator.num_processes > 1
        if sync_bn and several and self.accelerator.device.type == "cpu":
            raise ValueError("torch synchronises batch norm on accelerators only; drop sync_bn")
        self.sync_bn, self.shard_data = sync_bn and several, shard_data
        self.processes: Any = Processes() if several else None
        self._together: Any = None  # the same, in a fit that all make together
        self._place = DeviceCB(self.accelerator.device)
        scaler = self.accelerator.scaler
        self._scaled = None if scaler is None else ScaledPrecision(scaler=scaler)
        self._wrapped: Any = None  # a Wrapped, while a fit runs
        self._keeps = False  # a fit inside another leaves that one's wrapper
        self._accum: GradAccumCB | None = None
        self._quiet = ExitStack()  # of a batch whose gradients are not exchanged yet
        self._exchanges = self._exchanged = True
        self._checked = self._warned = False

    @property
    def skips_non_finite(self) -> bool:
        """Whether the fit goes on after an update whose gradients are not finite: under fp16."""
        return self._scaled is not None and self._scaled.skips_non_finite

    def companions(self, learn: Loop) -> list[Any]:
        """Return the callbacks that keep the processes together."""
        processes: Any = self.processes
        if processes is None or isinstance(pick_loader(learn.dls, False), Unshared):
            return []
        barrier = BarrierCB(processes, self._join)
        return [ShardCB(barrier, self.shard_data), barrier]

    # ---- events ----

    def before_fit(self, learn: Loop) -> None:
        """Place the model, and let noise differ from process to process."""
        if (half := learn.find(MixedPrecision)) is not None:
            raise ActionConflictError(
                f"{half!r} and AccelerateCB both decide on the precision: drop the first and use "
                f"AccelerateCB(mixed_precision={half.dtype!r})"
            )
        if self._wrapped is not None and learn.model is self._wrapped.model:
            learn.model = self._wrapped.own  # this fit is inside a batch of another
        self._place.before_fit(learn)
        self._keeps = self._wrapped is not None and learn.depth > 0
        self._together, self._warned = processes_of(learn), False
        self._accum = learn.find(GradAccumCB)
        if self._accum is not None and self._together is not None:
            self._accum.items_of = lambda learn: self.processes.mean_items
        if self._scaled is not None:
            self._scaled.before_fit(learn)
        if self._together is not None and self._together.rank and not learn.depth:
            set_seed(derive_seed(draw_seed(), self._together.rank))

    def before_epoch(self, learn: Loop) -> None:
        """Wrap the model, if it is not wrapped yet for such an epoch."""
        if self._wrapped is None or not self._wrapped.serves(learn.model, learn.training):
            self._release()
            self._keeps = False
            if self._together is not None and learn.training:
                compare_weights(learn.model, self._together)
                compare_fits(learn, self._together)
            self._wrapped = Wrapped(self.accelerator, learn, self.sync_bn)
        if learn.training and not self._warned and isinstance(learn.dl, Shard):
            self._warned = True
            warn_of_rest(learn.dl)
        self._checked = not learn.training

    def before_batch(self, learn: Loop) -> None:
        """Move the batch; in training wrap the model and say whether gradients are exchanged."""
        self._place.before_batch(learn)
        if learn.training:
            learn.model = self._wrapped.model
            self._quiet.enter_context(self._exchange_if_closing(learn))

    def predict(self, learn: Loop) -> None:
        """Run the model; say which weights DDP waits for, where it waits for some."""
        try:
            super().predict(learn)
        except RuntimeError as e:
            self._wrapped.explain_unused(e)
            raise

    def backward(self, learn: Loop) -> None:
        """Compute the gradients; with the last batch of an update all processes exchange them."""
        loss, processes = learn.loss, self._together
        if processes is not None:
            if not processes.items:
                loss = self._wrapped.nothing()
            elif adds_up(learn):
                loss = loss * processes.n  # what is exchanged is a mean
            elif processes.items != processes.mean_items:
                loss = loss * (processes.items / processes.mean_items)
        self.accelerator.backward(loss)
        self._exchanged = self._exchanges
        if not self._checked:
            self._checked = True
            self._wrapped.check_all_used()

    def before_step(self, learn: Loop) -> None:
        """See that gradients were exchanged, then unscale them."""
        if not self._exchanged:  # an open group was closed when no batch came any more
            self.accelerator.backward(self._wrapped.nothing())
            self._exchanged = True
        if self._together is not None:
            average_grads(loss_parameters(learn).values())
        if self._scaled is not None:
            self._scaled.before_step(learn)

    def after_step(self, learn: Loop) -> None:
        """An update was made: no more skips in a row."""
        if self._scaled is not None:
            self._scaled.after_step(learn)

    def cleanup_step(self, learn: Loop) -> None:
        """Change the scale of the loss, with fp16."""
        if self._scaled is not None:
            self._scaled.cleanup_step(learn)

    def cleanup_batch(self, learn: Loop) -> None:
        """Take the wrapper off the model."""
        self._quiet.close()
        if self._wrapped is not None:
            learn.model = self._wrapped.own

    def after_epoch(self, learn: Loop) -> None:
        """Let all processes have the buffers of the first; each had statistics of its own part."""
        if self._together is not None and learn.training:
            equal_buffers(learn)

    def cleanup_epoch(self, learn: Loop) -> None:
        """Let all have the buffers of the first process after a cancelled epoch, too."""
        if isinstance(learn.error, CancelException):
            self.after_epoch(learn)

    def cleanup_fit(self, learn: Loop) -> None:
        """Leave the model as it was."""
        if self._scaled is not None:
            self._scaled.cleanup_fit(learn)
        if not self._keeps:
            self._release()
        if self._accum is not None and not learn.depth:
            self._accum.items_of = items_of

    # ---- together with the others ----

    def _exchange_if_closing(self, learn: Loop) -> AbstractContextManager:
        """Let gradients be exchanged in this batch, if it closes an update."""
        closes = self._accum is None or self._accum.closes(learn)
        self._exchanges = closes or not self._wrapped.exchanges
        return nullcontext() if self._exchanges else self.accelerator.no_sync(self._wrapped.model)

    def _join(self, learn: Loop) -> None:
        """Make the update of the others, to which this process has no batch to give."""
        with self._exchange_if_closing(learn):
            learn.loss = torch.zeros((), device=self.accelerator.device)
            learn.backward_and_step()

    def _release(self) -> None:
        if self._wrapped is not None:
            self._wrapped.undo()
        self._wrapped = None

    def state_dict(self) -> dict[str, Any]:
        """Return the scale of the loss, where there is one."""
        return {} if self._scaled is None else self._scaled.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back the scale of the loss."""
        if self._scaled is not None and state:
            self._scaled.load_state_dict(state)
            self.differences = self._scaled.differences


def make_accelerator(
    mixed_precision: str | None, find_unused_parameters: bool, kwargs: dict[str, Any]
) -> Accelerator:
    """Make accelerate's object; it begins the process group where a launcher asks for one.

    Raises:
        ValueError: it would use an engine that has a loop of its own, or accumulate.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs

    handlers = list(kwargs.pop("kwargs_handlers", None) or [])
    if not any(isinstance(h, DistributedDataParallelKwargs) for h in handlers):
        # buffers are made equal at the end of an epoch: no forward pass waits for them
        handlers.append(
            DistributedDataParallelKwargs(
                broadcast_buffers=False, find_unused_parameters=find_unused_parameters
            )
        )
    if default_device().type == "cpu":
        kwargs.setdefault("cpu", True)
    made = Accelerator(mixed_precision=mixed_precision, kwargs_handlers=handlers, **kwargs)
    if dist.is_initialized() and dist.get_world_size() != made.num_processes:
        raise RuntimeError(
            f"{dist.get_world_size()} processes were started, and accelerate sees "
            f"{made.num_processes}: start them with torchrun, accelerate launch or "
            "accelerate.notebook_launcher, which set RANK, LOCAL_RANK and WORLD_SIZE"
        )
    if made.gradient_accumulation_steps > 1:
        raise ValueError("accelerate would divide the loss: use GradAccumCB(n) to accumulate")
    kind, fsdp = made.distributed_type.value, getattr(made.state, "fsdp_plugin", None)
    if kind not in KINDS and not (kind == "FSDP" and getattr(fsdp, "fsdp_version", 1) == 2):
        raise ValueError(
            f"AccelerateCB works with DDP and FSDP version 2; accelerate is set up for {kind}"
        )
    return made
