"""Validate, and predict data sets in order: `validate`, `get_preds`, `iter_preds`, `tta`.

None of these changes the Learner, and all may be called in the middle of a fit. CapturePreds keeps
the predictions that a fit makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from ..base.batch import describe, n_rows
from ..base.files import replaced, user_path
from ..base.seed import preserved_random_states, random_states, restore_random_states
from ..callbacks.handlers import LambdaCB
from ..callbacks.training import inputs_and_targets, loss_by_sample, own_loss, part_of
from ..callbacks.transforms import BatchTransformCB
from ..core.callback import Callback, as_callbacks
from ..core.events import CancelBatchException, Order
from ..core.history import format_value
from ..core.learner import Loop
from ..core.nested import inner, participants
from ..core.state import learner_of
from ..core.stream import Stream, Unshared, check_loader, pick_loader
from ..data.ordered import ordered
from ..data.seeded import draw_seed
from ..distributed.barrier import connected
from ..metrics.callback import MetricsCB
from .outputs import NpyWriter, joined, kept

__all__ = ["CapturePreds", "Results"]

NOTHING = "nothing was predicted: a callback cancelled the epoch, or every batch of it"


class Results(dict[str, Any]):
    """Loss and metrics by name, read as `res["loss"]` or `res.loss`.

    >>> res = learn.validate()
    >>> res.loss == res["loss"]
    True
    """

    __slots__ = ()  # `res.loss = 0` is an error

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"no result {name!r}; there are {', '.join(self) or 'none'}")
        return self[name]

    def __repr__(self) -> str:
        """Show the values in short."""
        shown = (f"{name}={format_value(value)}" for name, value in self.items())
        return f"Results({', '.join(shown)})"


def validate(self: Loop, dl: Any = None, cbs: Any = None) -> Results:
    """Measure loss and metrics on a loader, as the validation of a fit does.

    >>> learn.validate()["loss"] == learn.validate().loss
    True

    Args:
        self: the Learner. Nothing about it changes, and no row of history is written.
        dl: a loader, or the name of one of `dls`; by default the one for validation.
        cbs: further callbacks; a MetricsCB among them takes the place of the Learner's.

    Returns:
        `loss` and the metrics by name.

    Raises:
        ValueError: there is no such loader, or it gives no batch.
    """
    own = [cb for cb in participants(self) if not isinstance(cb, MetricsCB)]
    cbs = as_callbacks(cbs)
    given = [cb for cb in cbs if isinstance(cb, MetricsCB)]
    metrics = given or [cb for cb in self.cbs if isinstance(cb, MetricsCB)] or [MetricsCB()]
    cbs += [cb for cb in metrics if cb not in cbs]
    with inner(self, [*own, *cbs], valid=_loader(self, dl)):
        for cb in metrics:
            cb._log = lambda row: None
        self.fit(1, train=False)
        rows = [row for cb in metrics for row in cb.rows[-1:]]
    return Results({k: v for row in rows for k, v in row.items() if k not in ("epoch", "train")})


@dataclass
class Wanted:
    """Which results `get_preds` takes from each batch; it explains the options."""

    act: Callable[[Any], Any] | None = None
    with_inputs: bool = False
    with_targs: bool = True
    with_loss: bool = False
    decoded: bool | Callable[[Any], Any] = False
    to: Any = "cpu"

    @property
    def names(self) -> list[str]:
        """The names of the results, in their order."""
        asked = {"inputs": self.with_inputs, "preds": True, "targs": self.with_targs}
        asked |= {"losses": self.with_loss, "decoded": self.decoded}
        return [name for name, wanted in asked.items() if wanted]

    def take(self, learn: Loop) -> tuple[Any, ...]:
        """Return the results for the current batch."""
        inputs, targs = inputs_and_targets(learn)
        found = {"inputs": kept(inputs, self.to)} if self.with_inputs else {}
        preds = kept(_predictions(learn), self.to)
        found["preds"] = preds if self.act is None else self.act(preds)
        if self.with_targs:
            found["targs"] = kept(targs, self.to)
        if self.with_loss:
            found["losses"] = kept(learn.loss.reshape(len(learn.loss), -1).mean(1), self.to)
        if self.decoded:
            found["decoded"] = (_decide if self.decoded is True else self.decoded)(found["preds"])
        return tuple(found.values())


def get_preds(
    self: Loop,
    dl: Any = None,
    *,
    act: Callable[[Any], Any] | None = None,
    with_inputs: bool = False,
    with_targs: bool = True,
    with_loss: bool = False,
    decoded: bool | Callable[[Any], Any] = False,
    to: Any = "cpu",
    out: str | Path | None = None,
    cbs: Any = None,
) -> Any:
    """Predict a whole data set: every sample once, in the order of the data set.

    A loader that shuffles or drops samples predicts all, in order; a sampler of your own and a
    stream keep their order. Structures of tensors come back as the same structures. Where shapes
    differ from batch to batch (sequences), the result is a list with one tensor for each sample.

    >>> preds, targs = learn.get_preds()

    Args:
        self: the Learner. Nothing about it changes, and a fit may be under way.
        dl: a loader, or the name of one of `dls`; by default the one for validation.
        act: is applied to the predictions of each batch, such as `partial(F.softmax, dim=1)`.
        with_inputs: whether to return the model's inputs.
        with_targs: whether to return the targets; None where there are none.
        with_loss: whether to return the loss of each sample, shape (N,).
        decoded: whether to return the predicted classes, shape (N,); or a function that decodes
            the predictions.
        to: the device of the results; None for where they were made.
        out: a `.npy` file for the predictions. All results are then written to files batch by
            batch (`preds_targs.npy` beside `preds.npy`), and memory does not grow with the data.
        cbs: further callbacks.

    Returns:
        `(inputs, preds, targs, losses, decoded)`, those that were asked for; a single one not in a
        tuple. Half precision as float32. With `out`, arrays that are read from disk when needed.

    Raises:
        ValueError: there is no loader, no loss for each sample, or no class to decode.
        RuntimeError: callbacks cancelled every batch, and there is nothing to return.
        TypeError: `dl` is no loader; with `out`, a result is not one tensor.
    """
    want = Wanted(act, with_inputs, with_targs, with_loss, decoded, None if out else to)
    dl = ordered(_loader(self, dl))
    if out is not None:
        return _to_files(self, dl, cbs, want, user_path(out))
    found: list[tuple[tuple[Any, ...], int]] = []
    _predict(self, dl, cbs, want, lambda *batch: found.append(batch))
    if (
        processes := connected((*self.cbs, *as_callbacks(cbs)))
    ) is not None:  # batches go to the processes in turn
        gathered = processes.gather(kept(found))
        found = [part for group in zip_longest(*gathered) for part in group if part is not None]
    if not found:
        raise RuntimeError(NOTHING)
    parts, sizes = zip(*found, strict=True)
    return _alone_or_all(joined(list(parts), list(sizes)))


def iter_preds(self: Loop, dl: Any = None, *, cbs: Any = None, **kwargs: Any) -> Iterator[Any]:
    """Yield what `get_preds` returns, for one batch at a time.

    Between two batches the Learner is as it was, and may be used for anything.

    >>> for preds, targs in learn.iter_preds():
    ...     print(len(preds))
    8
    8

    Args:
        self: the Learner.
        dl: as in `get_preds`.
        cbs: as in `get_preds`.
        kwargs: `act`, `with_inputs`, `with_targs`, `with_loss`, `decoded` and `to` of `get_preds`.
    """
    want = Wanted(**kwargs)
    dl = ordered(_loader(self, dl))
    check_loader(dl, False)
    return _batch_by_batch(self, Stream(dl, "validation"), cbs, want)


def _batch_by_batch(learn: Loop, stream: Stream, cbs: Any, want: Wanted) -> Iterator[Any]:
    batches, states, found = iter(stream), random_states(), []
    try:
        while True:
            with preserved_random_states():
                restore_random_states(states)  # draw as one validation does, not as many
                batch = next(batches, None)
                states = random_states()
                if batch is None:
                    return
                take = lambda values, size: found.append((values, random_states()))  # noqa: E731
                _predict(learn, Unshared([batch]), cbs, want, take)
            if found:  # else a callback cancelled the batch
                values, states = found.pop()
                yield _alone_or_all(values)
    finally:
        stream.close()


def capture_preds(self: Loop, cbs: Any = None, inps: bool = False) -> tuple[Any, ...]:
    """Return predictions and targets of the validation set; with `inps` also the inputs, last.

    >>> preds, targs = learn.capture_preds()

    Args:
        self: the Learner.
        cbs: further callbacks, such as a BatchTransformCB for test-time augmentation.
        inps: whether to return the inputs.
    """
    found = learner_of(self).get_preds(cbs=cbs, with_inputs=inps)
    return (*found[1:], found[0]) if inps else found


class CapturePreds(Callback):
    """Keep inputs, predictions and targets of the last epoch on the CPU, joined at its end.

    For the validation set use `learn.fit(1, train=False, cbs=CapturePreds())`. `learn.get_preds`
    does more: it predicts every sample once, in order.

    >>> capture = CapturePreds()
    >>> learn.fit(1, train=False, cbs=capture)

    Args:
        inps: whether to keep the inputs.

    Attributes:
        all_inps: the model's inputs, (N, ...).
        all_preds: its predictions, (N, K), or a structure of tensors.
        all_targs: the targets; None where there are none.

    Events: before_epoch, after_batch, cleanup_epoch
    Order:  STOP
    Reads:  batch, preds, loss_func
    Writes:
    """

    order = Order.STOP

    def __init__(self, inps: bool = True) -> None:
        self.inps = inps
        self.all_inps = self.all_preds = self.all_targs = None
        self._parts: list[tuple[Any, Any, Any]] = []
        self._sizes: list[int] = []

    def before_epoch(self, learn: Loop) -> None:
        """Drop what is left of the epoch before."""
        self._parts, self._sizes = [], []

    def after_batch(self, learn: Loop) -> None:
        """Keep a batch."""
        inputs, targets = inputs_and_targets(learn)
        self._parts.append(kept((inputs if self.inps else None, learn.preds, targets)))
        self._sizes.append(n_rows(learn.batch))

    def cleanup_epoch(self, learn: Loop) -> None:
        """Join what there is, also where a cancel ended the epoch."""
        if self._parts:
            self.all_inps, self.all_preds, self.all_targs = joined(self._parts, self._sizes)
        self._parts, self._sizes = [], []


def tta(
    self: Loop,
    n: int,
    *tfms: Callable[[Any], Any],
    dl: Any = None,
    act: Callable[[Any], Tensor] | None = None,
    cbs: Any = None,
) -> tuple[Any, Any]:
    """Predict a data set `n` times with different transforms, and return the mean.

    >>> preds, targs = learn.tta(2, lambda b: b, lambda b: (b[0].flip(-1), b[1]))

    Args:
        self: the Learner. Nothing about it changes.
        n: how often. Random transforms draw anew each time; they follow the global random state,
            which does not change.
        tfms: functions of a batch, as in `BatchTransformCB`, used in turn; none for the mean over
            random layers.
        dl: as in `get_preds`.
        act: is applied before the mean is taken, such as softmax.
        cbs: further callbacks, such as MCDropoutCB.

    Returns:
        The mean of the predictions, shape (N, ...), and the targets, as `get_preds` does.
    """
    if n < 1:
        raise ValueError(f"tta predicts at least once, got n={n}")
    total: Any = None
    targs = None
    with preserved_random_states():
        seed = draw_seed()
        for i in range(n):
            torch.manual_seed(seed + i)
            extra = [BatchTransformCB(tfms[i % len(tfms)])] if tfms else []
            preds, targs = learner_of(self).get_preds(dl, act=act, cbs=[*as_callbacks(cbs), *extra])
            total = preds if total is None else total.add_(preds)
    return total / n, targs


def _predict(learn: Loop, dl: Any, cbs: Any, want: Wanted, give: Callable[..., Any]) -> None:
    """Run the model over `dl` and call `give(results, size)` for each batch."""
    loss_func = loss_by_sample(learn.loss_func) if want.with_loss else learn.loss_func

    def take(learn: Loop) -> None:
        give(want.take(learn), n_rows(learn.batch))
        if not want.with_loss:
            raise CancelBatchException  # nothing else of the batch is needed

    event = "after_batch" if want.with_loss else "after_predict"
    cb = LambdaCB(**{event: take}, order=Order.STOP)
    with inner(learn, [*participants(learn), *as_callbacks(cbs), cb], valid=dl):
        learn.loss_func = loss_func
        learn.fit(1, train=False)


def _to_files(learn: Loop, dl: Any, cbs: Any, want: Wanted, out: Path) -> Any:
    if out.suffix != ".npy":
        raise ValueError(f"out is the path of a .npy file, got {str(out)!r}")
    paths = [out if n == "preds" else out.with_stem(f"{out.stem}_{n}") for n in want.names]

    def write_all() -> None:
        with ExitStack() as stack:
            writers = [NpyWriter(stack.enter_context(replaced(path)), path.name) for path in paths]

            def write(found: tuple[Any, ...], size: int) -> None:
                for writer, value in zip(writers, found, strict=True):
                    writer.write(kept(value))

            _predict(learn, Unshared(dl), cbs, want, write)
            if not writers[0].rows:
                raise RuntimeError(NOTHING)
            for writer in writers:
                writer.finish()

    processes = connected((*learn.cbs, *as_callbacks(cbs)))
    write_all() if processes is None else processes.from_first(write_all)
    import numpy as np

    return _alone_or_all(tuple(np.load(path, mmap_mode="r") for path in paths))


def _alone_or_all(values: Any) -> Any:
    return values if len(values) > 1 else values[0]


def _loader(learn: Loop, dl: Any) -> Any:
    if isinstance(dl, str):
        if dl in ("train", "valid"):  # also where dls is a tuple or list of the two
            return pick_loader(learn.dls, dl == "train")
        return learn.dls[dl]
    if hasattr(dl, "__array__") or (
        isinstance(dl, Dataset) and not isinstance(dl, IterableDataset)
    ):
        raise TypeError(
            f"dl is a loader of batches, got {describe(dl)}: wrap it, DataLoader(data, 64)"
        )
    return pick_loader(learn.dls, False) if dl is None else dl


def _predictions(learn: Loop) -> Any:
    """Return the predictions alone where the model computes its loss, too."""
    if learn.loss_func is not None:
        return learn.preds
    try:
        preds = own_loss(learn.preds)[0]
    except TypeError:  # without targets it makes no loss
        return part_of(learn.preds, "logits", learn.preds)
    if preds is None:
        raise ValueError("this model returns its loss alone: let it return (preds, loss)")
    return preds


def _decide(preds: Any) -> Tensor:
    if not isinstance(preds, Tensor) or preds.dim() < 2 or preds.shape[1] < 2:
        raise ValueError(
            f"decoded=True takes the largest of K classes in predictions (B, K, ...), and these "
            f"are {describe(preds)}: give a function, decoded=lambda p: p > 0"
        )
    return preds.argmax(1)
