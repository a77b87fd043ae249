"""Where the model and the batches are, and how the device computes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..base.batch import default_device, map_batch, tensors, to_device
from ..base.state_dict import fit_modules
from ..core.callback import Callback, attribute
from ..core.events import Order
from ..core.learner import Loop
from ..core.stream import WrappedLoader


class DeviceCB(Callback):
    """Move the model, a loss module and the optimizer's state when a fit begins, and every batch.

    >>> Learner(model, dls, F.cross_entropy, cbs=[TrainCB(), DeviceCB("cpu")])

    Args:
        device: where to, such as "cuda:1"; `default_device()` when it is not given.
        prefetch: on CUDA, copy the next batch while this one is used.

    Raises:
        ValueError: the device is called "gpu", which torch calls "cuda".

    Events: before_fit, before_epoch, before_batch
    Order:  PLACE
    Reads:  model, loss_func, opt, batch
    Writes: batch, dl
    """

    order = Order.PLACE

    def __init__(self, device: torch.device | str | None = None, prefetch: bool = False) -> None:
        if device in ("gpu", "GPU"):
            raise ValueError(
                f"device is {device!r}: write DeviceCB('cuda'), or DeviceCB() for the best"
            )
        self.device = default_device() if device is None else torch.device(device)
        self.prefetch = prefetch and self.device.type == "cuda"

    def before_fit(self, learn: Loop) -> None:
        """Move what stays for the whole fit."""
        for module in (learn.model, *fit_modules(learn).values()):
            if hasattr(module, "to"):
                module.to(self.device)
        _follow_parameters(attribute(learn, "opt"))

    def before_epoch(self, learn: Loop) -> None:
        """Prefetch, if asked to."""
        if self.prefetch:
            learn.dl = Prefetched(learn.dl, self.device)

    def before_batch(self, learn: Loop) -> None:
        """Move the batch."""
        learn.batch = to_device(learn.batch, self.device)

    def __repr__(self) -> str:
        """Show the device."""
        return f"DeviceCB({str(self.device)!r})"


def _follow_parameters(opt: object) -> None:
    """Move state that an optimizer made before its parameters moved (Adagrad does) after them."""
    for p, state in getattr(opt, "state", {}).items():
        for name, value in state.items():
            # a step counter stays on the CPU on purpose: only what is shaped like p moves
            if isinstance(value, Tensor) and value.shape == p.shape:
                state[name] = value.to(p.device)


class Prefetched(WrappedLoader):
    """A loader that copies its next batch to a CUDA device while this one is used.

    Args:
        dl: the loader; with `pin_memory=True` the copy overlaps with the training.
        device: a CUDA device.
    """

    def __init__(self, dl: Any, device: torch.device) -> None:
        super().__init__(dl)
        self.device = device

    def __iter__(self) -> Iterator[Any]:
        """Yield batches on the device, one copy ahead."""
        stream, batches = torch.cuda.Stream(self.device), iter(self.dl)

        def fetch() -> list[Any]:
            found = list(islice(batches, 1))
            with torch.cuda.stream(stream):
                return to_device(found, self.device)

        ahead = fetch()
        while ahead:
            (batch,), present = ahead, torch.cuda.current_stream(self.device)
            present.wait_stream(stream)
            for tensor in tensors(batch):  # its memory must not be reused while `present` works
                tensor.record_stream(present)
            ahead = fetch()
            yield batch


class DeterministicCB(Callback):
    """Let torch use only operations that give the same bits each time, during a fit.

    cuDNN is set to be deterministic and not to benchmark; operations that cannot be deterministic
    raise. All settings are put back when the fit is over, however it ended. This sets no seed;
    `set_seed` does.

    >>> learn.fit(1, cbs=DeterministicCB())

    Args:
        warn_only: warn about such operations instead; None keeps what was set before.

    Raises:
        RuntimeError: torch raises it for an operation that cannot be deterministic; on CUDA for
            matrix products, too, unless CUBLAS_WORKSPACE_CONFIG was set when the process began.

    Events: before_fit, cleanup_fit
    Order:  PLACE
    Reads:
    Writes:

    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """

    order = Order.PLACE

    def __init__(self, warn_only: bool | None = None) -> None:
        self.warn_only, self._before = warn_only, None

    def before_fit(self, learn: Loop) -> None:
        """Note the settings and change them."""
        cudnn, enabled = torch.backends.cudnn, torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        self._before = enabled, warn_only, cudnn.deterministic, cudnn.benchmark
        _set_determinism(True, warn_only if self.warn_only is None else self.warn_only, True, False)

    def cleanup_fit(self, learn: Loop) -> None:
        """Put the settings back."""
        if self._before is not None:
            _set_determinism(*self._before)
            self._before = None

    def __repr__(self) -> str:
        """Show the setting that was given."""
        return f"DeterministicCB({'' if self.warn_only is None else f'warn_only={self.warn_only}'})"


def _set_determinism(enabled: bool, warn_only: bool, cudnn: bool, benchmark: bool) -> None:
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn, benchmark


class ChannelsLastCB(Callback):
    """Keep images and the weights of convolutions with their channels last in memory.

    Shapes and results stay; convolutions are faster on GPUs with tensor cores and on many CPUs. At
    the end of the fit the weights lie as they did before.

    >>> learn.fit(1, cbs=ChannelsLastCB())

    Events: before_fit, before_batch, cleanup_fit
    Order:  PLACE
    Reads:  model, batch
    Writes: batch

    Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """

    order = Order.PLACE

    def __init__(self) -> None:
        self._contiguous: list[Tensor] = []

    def before_fit(self, learn: Loop) -> None:
        """Lay out the weights; in a nested run this is done already."""
        held = [*learn.model.parameters(), *learn.model.buffers()]
        self._contiguous = [t for t in held if t.dim() == 4 and t.is_contiguous()]
        for t in self._contiguous:
            t.data = t.data.contiguous(memory_format=torch.channels_last)

    def before_batch(self, learn: Loop) -> None:
        """Lay out the images of the batch: float tensors of shape (B, C, H, W)."""
        learn.batch = map_batch(_channels_last, learn.batch)

    def cleanup_fit(self, learn: Loop) -> None:
        """Lay the weights out as before."""
        for t in self._contiguous:
            t.data = t.data.contiguous()
        self._contiguous = []


def _channels_last(x: Any) -> Any:
    if isinstance(x, Tensor) and x.dim() == 4 and x.is_floating_point():
        return x.contiguous(memory_format=torch.channels_last)
    return x
