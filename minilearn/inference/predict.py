"""Use the model: validate, and predict any amount of data in order.

Nothing here changes the Learner, and all of it may be called in the middle of a fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from ..base.batch import describe
from ..base.seed import preserved_random_states, random_states, restore_random_states
from ..callbacks.training import loss_by_sample
from ..core.callback import as_callbacks
from ..core.history import format_value
from ..core.learner import Loop
from ..core.nested import inner, participants
from ..core.stream import Stream, Unshared, check_loader, pick_loader
from ..data.ordered import ordered
from ..distributed.sync import Processes
from ..metrics.callback import MetricsCB
from .capture import TakePreds, Wanted
from .outputs import NpyWriter, joined, kept, opened

__all__ = ["Results"]

NOTHING = "nothing was predicted: a callback cancelled the pass, or every batch of it"


class Results(Mapping):
    """Values by name, read as `res["loss"]` or `res.loss`; they cannot be changed."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__["_values"] = dict(values)

    def __getitem__(self, name: str) -> Any:
        """Return a value by name."""
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_values":  # asked for while a copy is made
            raise AttributeError(name)
        if name not in self._values:
            raise AttributeError(f"no result {name!r}; there are {', '.join(self) or 'none'}")
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"results are read-only; dict(results) can be changed ({name})")

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._values)

    def __repr__(self) -> str:
        """Show the values in short."""
        shown = (f"{name}={format_value(value)}" for name, value in self._values.items())
        return f"Results({', '.join(shown)})"


def validate(self: Loop, dl: Any = None, cbs: Any = None) -> Results:
    """Measure loss and metrics on a loader, as the validation of a fit does.

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
        results = {name: value for cb in metrics for name, value in _last(cb.rows).items()}
    return Results(results)


def _last(rows: list[dict[str, Any]]) -> dict[str, Any]:
    row = rows[-1] if rows else {}
    return {name: value for name, value in row.items() if name not in ("epoch", "train")}


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

    Whatever the loader shuffles or leaves out is undone; a sampler of your own keeps its order, a
    stream comes as it comes. Structures of tensors come back as the same structures. Where shapes
    differ from batch to batch (sequences), the result is a list with one tensor a sample.

    >>> preds, targs = learn.get_preds()

    Args:
        self: the Learner. Nothing about it changes, and a fit may be under way.
        dl: a loader, or the name of one of `dls`; by default the one for validation.
        act: makes of the predictions of a batch what is wanted, `partial(F.softmax, dim=1)` say.
        with_inputs: whether to return what the model was given, as it was given it.
        with_targs: whether to return the targets; None where there are none.
        with_loss: whether to return the loss of each sample, shape (N,).
        decoded: whether to return the class decided on, shape (N,); or a function of the
            predictions that decides.
        to: the device of the results; None for where they were made.
        out: a `.npy` file for the predictions. All results are then written to files while they are
            made (`preds_targs.npy` beside `preds.npy`), and memory does not grow with the data.
        cbs: further callbacks.

    Returns:
        `(inputs, preds, targs, losses, decoded)`, those that were asked for; a single one bare.
        Half precision as float32. With `out`, arrays that are read from their files when needed.

    Raises:
        ValueError: there is no loader, or no loss by sample, or `decoded` cannot decide.
        RuntimeError: a callback cancelled all of it, and there is nothing to return.
        TypeError: `dl` is no loader; with `out`, a result is not one tensor.
    """
    want = Wanted(act, with_inputs, with_targs, with_loss, decoded, None if out else to)
    dl = ordered(_loader(self, dl))
    if out is not None:
        return _to_files(self, dl, cbs, want, Path(out))
    found: list[tuple[list[Any], int]] = []
    _predict(self, dl, cbs, want, lambda *batch: found.append(batch))
    if (processes := _processes(self, cbs)) is not None:  # each has a part of every group
        of_all = processes.gather(kept(found))
        found = [part for group in zip_longest(*of_all) for part in group if part is not None]
    if not found:
        raise RuntimeError(NOTHING)
    parts, sizes = zip(*found, strict=True)
    return want.bare([joined(list(column), list(sizes)) for column in zip(*parts, strict=True)])


def iter_preds(self: Loop, dl: Any = None, *, cbs: Any = None, **kwargs: Any) -> Iterator[Any]:
    """Predict batch by batch: yield what `get_preds` returns, for one batch at a time.

    Between two batches the Learner is as it was, so the loop may do with it what it likes.

    Args:
        self: the Learner.
        dl: as in `get_preds`.
        cbs: as in `get_preds`.
        kwargs: all others of `get_preds`, without `out`.
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
                restore_random_states(states)  # the random numbers of one pass, not of many
                batch = next(batches, None)
                states = random_states()
                if batch is None:
                    return
                take = lambda values, size: found.append((values, random_states()))  # noqa: E731
                _predict(learn, Unshared([batch]), cbs, want, take)
            if found:  # else a callback cancelled the batch
                values, states = found.pop()
                yield want.bare(values)
    finally:
        stream.close()


def capture_preds(self: Loop, cbs: Any = None, inps: bool = False) -> tuple[Any, ...]:
    """Return predictions and targets of the validation set; with `inps` also the inputs, last.

    Args:
        self: the Learner.
        cbs: further callbacks, such as a BatchTransformCB for test-time augmentation.
        inps: whether to return the inputs.
    """
    found = self.get_preds(cbs=cbs, with_inputs=inps)
    return (*found[1:], found[0]) if inps else found


def _predict(learn: Loop, dl: Any, cbs: Any, want: Wanted, give: Callable[..., Any]) -> None:
    """Run the model over `dl` and call `give(results, size)` for each batch."""
    loss_func = loss_by_sample(learn.loss_func) if want.with_loss else learn.loss_func
    cbs = [*participants(learn), *as_callbacks(cbs), TakePreds(want, give)]
    with inner(learn, cbs, valid=dl):
        learn.loss_func = loss_func
        learn.fit(1, train=False)


def _processes(learn: Loop, cbs: Any) -> Processes | None:
    """Return the processes that share what this Learner goes through, None where it is alone."""
    found = (getattr(cb, "processes", None) for cb in (*learn.cbs, *as_callbacks(cbs)))
    return next((p for p in found if p is not None), None)


def _to_files(learn: Loop, dl: Any, cbs: Any, want: Wanted, out: Path) -> Any:
    if out.suffix != ".npy":
        raise ValueError(f"out is the path of a .npy file, got {str(out)!r}")
    paths = [out if n == "preds" else out.with_stem(f"{out.stem}_{n}") for n in want.names]

    def write_all() -> None:
        writers = [NpyWriter(path) for path in paths]
        try:
            _predict(learn, Unshared(dl), cbs, want, lambda found, size: _write(writers, found))
            if not writers[0].rows:
                raise RuntimeError(NOTHING)
            for writer in writers:
                writer.finish()
        finally:
            for writer in writers:
                writer.abandon()

    processes = _processes(learn, cbs)
    write_all() if processes is None else processes.from_first(write_all)
    return want.bare([opened(path) for path in paths])


def _write(writers: list[NpyWriter], found: list[Any]) -> None:
    for writer, value in zip(writers, found, strict=True):
        writer.write(kept(value))


def _loader(learn: Loop, dl: Any) -> Any:
    if isinstance(dl, str):
        if dl in ("train", "valid"):  # also where dls is a tuple or list of the two
            return pick_loader(learn.dls, dl == "train")
        return learn.dls[dl]
    if isinstance(dl, Tensor) or (isinstance(dl, Dataset) and not isinstance(dl, IterableDataset)):
        raise TypeError(
            f"dl is a loader of batches, got {describe(dl)}: wrap it, DataLoader(data, 64)"
        )
    return pick_loader(learn.dls, False) if dl is None else dl
