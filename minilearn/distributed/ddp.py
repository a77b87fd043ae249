"""The model as all processes train it: prepared by accelerate, and given back as it was."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minilearn.base.state_dict import fit_modules, loss_parameters
from minilearn.distributed.sync import Processes

from ..base.batch import n_batches
from ..base.text import few, without_address
from ..core.nested import changes_training
from ..core.stream import pick_loader

if TYPE_CHECKING:
    from accelerate import Accelerator

    from minilearn.core.learner import Loop

MARKS = ("forward", "_original_forward", "_is_accelerate_prepared")  # what accelerate sets on it


class Nothing(nn.Module):
    """Stands in for a model: the gradient of every weight is zero, whatever its value."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.params = [p for p in model.parameters() if p.requires_grad]  # no child of this module

    def forward(self) -> Any:
        """Return a loss of zero that depends on all weights."""
        return sum(p.flatten()[:0].sum() for p in self.params)


class Wrapped:
    """A model that accelerate has prepared for training, or only for validation.

    Args:
        accelerator: does it.
        learn: has the model, and says whether the epoch trains.
        sync_bn: give batch norm the statistics of all processes.

    Attributes:
        own: the model itself.
        model: what a training batch is to be given to.
        exchanges: whether a backward pass of `model` exchanges gradients.
    """

    def __init__(self, accelerator: Accelerator, learn: Loop, sync_bn: bool) -> None:
        self.accelerator, self.own, self.training = accelerator, learn.model, learn.training
        self._marks = {k: vars(self.own)[k] for k in MARKS if k in vars(self.own)}
        self.model: Any
        self._replaced: list[tuple[nn.Module, str, nn.Module]] = []
        self._trainable = self._flags()
        frozen = not any(self._trainable)
        if sync_bn and self.training:
            self._synchronise_norms(learn.plan.frozen)
        # sharded weights exchange their gradients by themselves
        evaluates = frozen or not self.training or is_sharded(self.own)
        shards = accelerator.distributed_type.value == "FSDP" and not evaluates
        with warnings.catch_warnings():  # torch wants another word for it in later versions
            warnings.filterwarnings("ignore", ".*broadcast_buffers", FutureWarning)
            if shards:  # FSDP 2 gives the optimizer the parts in the place of the weights
                self.model, _ = accelerator.prepare(self.own, learn.opt)
            else:
                self.model = accelerator.prepare_model(self.own, evaluation_mode=evaluates)
        self.exchanges = isinstance(self.model, DistributedDataParallel)
        if self.exchanges:
            self.model.training = self.own.training
            equal_buffers(learn)
            for p in loss_parameters(learn).values():
                dist.broadcast(p.data, 0)
            self._settle()

    def _flags(self) -> list[bool]:
        return [p.requires_grad for p in self.own.parameters()]

    def serves(self, model: Any, training: bool) -> bool:
        """Return whether this is the wrapper for an epoch over `model`."""
        same = model is self.own and self._flags() == self._trainable
        return same and (self.training or not training)

    def _settle(self) -> None:
        """Let DDP order its buckets now: later, a process without a batch would be waited for."""
        for _ in range(2):
            self.nothing().backward()
        for p in self.own.parameters():
            p.grad = None

    def nothing(self) -> Tensor:
        """Return a loss that adds nothing to any gradient, and takes part in their exchange.

        Raises:
            RuntimeError: the weights are sharded, so no process can be without a batch.
        """
        if not self.exchanges:
            raise RuntimeError(
                "a batch was cancelled in some processes only, and with sharded weights each needs "
                "all others in every batch: cancel it in all of them"
            )
        self.model.module = Nothing(self.own)
        try:
            return self.model()
        finally:
            self.model.module = self.own

    def check_all_used(self) -> None:
        """Raise where DDP waits for gradients that do not come.

        Raises:
            RuntimeError: names the weights, and what to do.
        """
        if not self.exchanges or self.model.find_unused_parameters:
            return
        named = self.own.named_parameters()
        if unused := [name for name, p in named if p.requires_grad and p.grad is None]:
            raise RuntimeError(_no_gradient(unused))

    def explain_unused(self, error: RuntimeError) -> None:
        """Raise in place of DDP's error about weights that got no gradient in an earlier batch.

        Raises:
            RuntimeError: names the weights, and what to do.
        """
        indices = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        if indices is not None:
            names = [name for name, p in self.own.named_parameters() if p.requires_grad]
            unused = [names[int(i)] for i in indices[1].split()]
            raise RuntimeError(f"in an earlier batch {_no_gradient(unused)}") from error

    def _synchronise_norms(self, frozen: list[nn.Module]) -> None:
        for parent in list(self.own.modules()):
            for name, child in parent.named_children():
                is_norm = isinstance(child, nn.modules.batchnorm._BatchNorm)
                if is_norm and not any(child is m for m in frozen):
                    self._replaced.append((parent, name, child))
                    setattr(parent, name, nn.SyncBatchNorm.convert_sync_batchnorm(child))

    def undo(self) -> None:
        """Leave the model as it was; its weights and buffers are the trained ones."""
        if self.exchanges:  # whoever else still holds the wrapper: it must exchange nothing more
            self.model._remove_autograd_hooks()
        for parent, name, norm in self._replaced:
            norm.train(getattr(parent, name).training)
            setattr(parent, name, norm)
        for mark in MARKS:
            vars(self.own).pop(mark, None)
        vars(self.own).update(self._marks)
        self.accelerator._models.clear()


def _no_gradient(names: list[str]) -> str:
    return (
        f"{len(names)} weights got no gradient: {few(names, 5)}. Let the loss depend on them, "
        "freeze them (learn.freeze), or use AccelerateCB(find_unused_parameters=True)."
    )


def equal_buffers(learn: Loop) -> None:
    """Let all processes have the buffers of the first."""
    for module in fit_modules(learn).values():
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)


def average_grads(params: Iterable[nn.Parameter]) -> None:
    """Let all processes have the mean gradient of parameters that are not the model's."""
    for p in params:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def compare_weights(model: nn.Module, processes: Processes) -> None:
    """Compare weights over all processes; warn in the first one where they differ."""
    if is_sharded(model):
        return
    sums = [float(p.detach().double().sum()) for p in model.parameters()]
    if any(other != sums for other in processes.gather(sums)) and processes.rank == 0:
        warnings.warn(
            "the processes made different weights; all begin with those of the first. Seed before "
            "the model is made: set_seed(42)",
            stacklevel=2,
        )


def compare_fits(learn: Loop, processes: Processes) -> None:
    """Compare what decides about the training; warn in the first process where it differs."""
    cbs = [cb for cb in learn.cbs if changes_training(cb)]
    groups = getattr(learn.opt, "param_groups", ())
    here = {
        "callbacks": ", ".join(map(without_address, cbs)) or "none",
        "optimizer": str([{k: v for k, v in g.items() if k != "params"} for g in groups]),
        "batches for training": n_batches(pick_loader(learn.dls, True)),
        "batches for validation": n_batches(pick_loader(learn.dls, False)),
    }
    for rank, there in enumerate(processes.gather(here)):
        changed = [f"{k}: {v}, and {there[k]} there" for k, v in here.items() if v != there[k]]
        if changed and processes.rank == 0:
            lines = "\n  ".join(changed)
            warnings.warn(
                f"the fit in process {rank} is not that of process 0:\n  {lines}\nGive all the "
                "same, or their weights may differ",
                stacklevel=2,
            )


def is_sharded(model: Any) -> bool:
    """Return whether this process holds a part of the weights only."""
    return bool(sharded_modules(model))


def sharded_modules(model: Any) -> list[Any]:
    """Return the modules that `fully_shard` has changed; between epochs some hold all weights."""
    return [m for m in getattr(model, "modules", tuple)() if hasattr(m, "reshard")]
