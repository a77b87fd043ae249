"""Batches of any structure: walk them, move them, count their items.

A batch may nest dicts, lists, tuples, named tuples and dataclasses; what is not a tensor is left
alone.
"""

import copy
import dataclasses
import inspect
import os
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

HALF = (torch.float16, torch.bfloat16)
OPTIONS = ("weight", "size_average", "log_input", "p", "margin", "reduction", "delta")  # of losses
SEQUENCES = (tuple, list, deque, UserList)


def map_batch(f: Callable[[Any], Any], batch: Any) -> Any:
    """Apply `f` to every tensor of `batch` and keep the structure around them.

    Containers are made anew, with their own types and names, and with what else hangs on them;
    strings, numbers and None are returned as the same objects. Objects that have a method `to` (a
    `PackedSequence`, a `BatchEncoding`) go to `f` too.

    >>> map_batch(lambda t: t * 2, {"x": tensor(1), "name": "a"})
    {'x': tensor(2), 'name': 'a'}

    Args:
        f: takes a tensor (or an object with `to`) and returns what stands in its place.
        batch: any nest of Mapping, list, deque, tuple, named tuple and dataclass.
    """
    if isinstance(batch, Tensor):
        return f(batch)
    walk = partial(map_batch, f)
    if isinstance(batch, Mapping):
        return _like_mapping(batch, {key: walk(value) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "to"):  # PackedSequence, which has rules
        return f(batch)
    if isinstance(batch, SEQUENCES):
        return _like_sequence(batch, [walk(value) for value in batch])
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _like_dataclass(batch, walk)
    if hasattr(batch, "to") and not isinstance(batch, torch.nn.Module):
        return f(batch)
    return batch


def _like_mapping(old: Mapping, values: dict) -> Any:
    if type(old) is dict:
        return values
    new: Any
    try:
        if isinstance(old, (dict, UserDict)):
            new = copy.copy(old)  # keeps default factories and attributes of subclasses
        else:  # a shallow copy might share its store with the old one
            new = copy.deepcopy(old, {id(value): value for value in old.values()})
        for key, value in values.items():
            new[key] = value
    except TypeError:  # a read-only Mapping
        make: Any = type(old)
        return make(values)
    return new


def _like_sequence(old: Any, values: list) -> Any:
    if type(old) is list:
        return values
    if not isinstance(old, tuple):
        new = copy.copy(old)  # keeps what subclasses hold, and the length of a deque
        new.clear()
        new.extend(values)
        return new
    try:  # past a constructor of the subclass, which may take anything
        new = tuple.__new__(type(old), values)
    except TypeError:  # tuples made in C, as what `torch.max` returns
        return type(old)(values)
    if hasattr(old, "__dict__"):
        vars(new).update(vars(old))
    return new


def _like_dataclass(old: Any, walk: Callable[[Any], Any]) -> Any:
    new = copy.copy(old)  # not `replace`: fields with init=False and __post_init__ stay out of it
    for field in dataclasses.fields(old):
        if hasattr(old, field.name):
            object.__setattr__(new, field.name, walk(getattr(old, field.name)))
    return new


def tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of `batch`, depth first."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, SEQUENCES):
        for value in batch:
            yield from tensors(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from tensors(getattr(batch, field.name, None))


def batch_size(batch: Any, split: Callable[[Any], Any] | None = None) -> int | None:
    """Return the number of items in a batch, None where it cannot be known.

    That is the first dimension that inputs and targets share: the rows of a tensor or an array, the
    sequences of a `PackedSequence`, the length of a list. Without targets all inputs must agree,
    but for single rows, which are broadcast. A target without a dimension shares none.

    Args:
        batch: any structure, see `map_batch`.
        split: returns the positional and keyword inputs and the targets of a tuple, list or dict;
            by default the first item of a tuple is the input.
    """
    if type(batch) in (tuple, list) and len(batch) == 2:  # by far the most frequent
        x, y = batch
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x.dim() and y.dim():
            if (rows := x.size(0)) == y.size(0):
                return rows
    if isinstance(batch, (tuple, list, Mapping)) and not isinstance(batch, PackedSequence):
        args, keywords, targets = (split or _split)(batch)
    else:
        args, keywords, targets = (batch,), {}, ()
    if any(isinstance(target, Tensor) and not target.dim() for target in targets):
        return None
    ours, theirs = _lengths((*args, *keywords.values())), _lengths(targets)
    inputs, outputs = set[int]().union(*ours), set[int]().union(*theirs)
    known = inputs & outputs if ours and theirs else inputs | outputs
    if len(known) > 1:
        known = known.intersection(*(part for part in (*ours, *theirs) if part != {1}))
    return known.pop() if len(known) == 1 else None


def holds_items(batch: Any) -> bool:
    """Return whether a list holds single items as dicts, as those of detectron2 do.

    Inputs and targets may be dicts, too; the values of such dicts share a length.
    """
    if type(batch) is not list or not batch or isinstance(batch[0], Tensor):
        return False
    if not all(isinstance(item, Mapping) and item.keys() == batch[0].keys() for item in batch):
        return False
    values = [value for item in batch for value in item.values()]
    if len(batch) > 2 or any(isinstance(value, (str, Real)) for value in values):
        return True
    lengths = _lengths(values)
    return len(lengths) > 1 and not set.intersection(*lengths)


def _split(batch: Any) -> tuple[Any, Any, Any]:
    if isinstance(batch, Mapping):
        return (), batch, ()
    return ((batch,), {}, ()) if holds_items(batch) else (batch[:1], {}, batch[1:])


def _lengths(parts: Iterable[Any]) -> list[set[int]]:
    """Return what may be the number of items in each part that has a length."""
    return [lengths for lengths in map(_length, parts) if lengths]


def _length(x: Any) -> set[int]:
    if isinstance(x, PackedSequence):
        return {int(x.batch_sizes[0])}
    if isinstance(x, Mapping):
        return set().union(*map(_length, x.values()))
    if dataclasses.is_dataclass(x) or hasattr(x, "_fields"):
        names = getattr(x, "_fields", None) or [field.name for field in dataclasses.fields(x)]
        return set().union(*(_length(getattr(x, name, None)) for name in names))
    if isinstance(x, SEQUENCES):  # of items, or of parts that share their first dimension
        parts = [n for part in x if not isinstance(part, Mapping) and (n := _length(part))]
        return {len(x)}.union(set.intersection(*parts) if parts else ()) if x else set()
    if isinstance(x, Tensor):  # the shape of a nested one cannot be asked for
        return {x.size(0)} if x.dim() else set()
    shape = getattr(x, "shape", None)
    return {int(shape[0])} if isinstance(shape, tuple) and shape else set()


def as_count(n: Any) -> Any:
    """Return what a `count` of the user's returned as a number, or a tensor, that can be added up.

    Raises:
        ValueError: it is no number of items.
    """
    if isinstance(n, Tensor) and n.numel() == 1:
        return n.reshape(()) if n.is_floating_point() else n.reshape(()).long()
    n = n.item() if getattr(n, "size", 0) == 1 and hasattr(n, "item") else n  # numpy's
    if n is not None and not (isinstance(n, (int, float)) and n >= 0):
        raise ValueError(f"count= returned {describe(n)}, and is to return a number of items")
    return n


def counted(items: Any, batch: Any, why: str) -> Any:
    """Return a number of items that must be known.

    Raises:
        ValueError: it is None.
    """
    if items is None:
        raise ValueError(
            f"{why}, and the number of items in this batch is unknown: it is {describe(batch)}, "
            "whose inputs and targets share no length. Give the Learner count=, a function that "
            "takes a batch and returns its number of items"
        )
    return items


def n_rows(batch: Any) -> int:
    """Return the number of items in a batch; where it is unknown, the rows of its first tensor."""
    return batch_size(batch) or next((x.size(0) for x in tensors(batch) if x.dim()), 1)


def is_empty(batch: Any) -> bool:
    """Return whether `batch` has no sample: nothing but None and tensors without rows."""
    if isinstance(batch, Tensor):
        return not batch.numel() and batch.dim() > 0 and len(batch) == 0
    if isinstance(batch, SEQUENCES):
        return all(map(is_empty, batch))
    if isinstance(batch, Mapping):
        return all(map(is_empty, batch.values()))
    return batch is None


def is_dense(x: Tensor) -> bool:
    """Return whether the values of a tensor can be read in a row: not if sparse, nested or meta."""
    return x.layout == torch.strided and not (x.is_nested or x.is_meta)


def is_number(x: Any) -> bool:
    """Return whether `x` is a real number, or a tensor that holds one."""
    if isinstance(x, Tensor):
        return x.numel() == 1 and is_dense(x) and not x.is_complex()
    return isinstance(x, Real)


def describe(batch: Any, depth: int = 3) -> str:
    """Say in a short line what `batch` is made of: containers, shapes, types.

    >>> describe({"x": torch.zeros(2, 3), "ids": [1, 2]})
    'dict(x=Tensor[2, 3], ids=list(int, int))'
    """
    if isinstance(batch, Tensor):
        kind = "" if batch.dtype == torch.float32 else f" {str(batch.dtype).removeprefix('torch.')}"
        shape = f"[{batch.size(0)}, nested]" if batch.is_nested else list(batch.shape)
        return f"Tensor{shape}{kind}"
    name = type(batch).__name__
    if depth == 0:
        return name
    if isinstance(batch, Mapping):
        parts = [f"{key}={describe(value, depth - 1)}" for key, value in batch.items()]
    elif isinstance(batch, (tuple, list)):
        parts = [describe(value, depth - 1) for value in batch]
    else:
        return name
    shown = parts if len(parts) <= 6 else [*parts[:5], f"… {len(parts) - 5} more"]
    return f"{name}({', '.join(shown)})"


def default_device() -> torch.device:
    """Return the device to use when none is named.

    The environment variable `MINILEARN_DEVICE` wins; else CUDA (the process's own under torchrun),
    MPS, CPU.

    >>> model = model.to(default_device())
    """
    if name := os.environ.get("MINILEARN_DEVICE"):
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", torch.cuda.current_device())))
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def to_device(batch: Any, device: torch.device | str | None = None) -> Any:
    """Return `batch` with every tensor on `device`; copies from pinned memory do not block.

    >>> batch = to_device({"x": xb}, "cpu")

    Args:
        batch: any structure, see `map_batch`.
        device: where to; `default_device()` when it is not given.
    """
    device = default_device() if device is None else torch.device(device)

    def move(x: Any) -> Any:
        if isinstance(x, Tensor):
            # is_pinned asks the driver: only worth it where a copy to CUDA is coming
            return x.to(device, non_blocking=device.type == "cuda" and x.device.type == "cpu")
        return x.to(device)

    return map_batch(move, batch)


def to_cpu(batch: Any) -> Any:
    """Return `batch` detached and on the CPU, half precision as float32, ready for numpy.

    >>> to_cpu((torch.ones(1, dtype=torch.float16), "a"))
    (tensor([1.]), 'a')
    """

    def move(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x.to("cpu")
        x = x.detach().cpu()
        return x.float() if x.dtype in HALF else x

    return map_batch(move, batch)


def detach(batch: Any) -> Any:
    """Return `batch` with every tensor cut from its graph."""
    if isinstance(batch, Tensor):
        # `data` takes half the time of `detach()`, and the backward pass is over
        return batch.data if batch.requires_grad else batch
    return map_batch(lambda x: detach(x) if isinstance(x, Tensor) else x, batch)


def compare(loss_func: Callable[..., Any], preds: Any, targets: Sequence[Any]) -> Any:
    """Return the loss of `preds`; targets that know how they are compared, mixed ones, do it."""
    if len(targets) > 1 and targets[1] is not None:
        check_targets(loss_func, targets)
    if len(targets) and type(targets[0]) is not Tensor and hasattr(targets[0], "compare"):
        return targets[0].compare(loss_func, preds, targets)
    return loss_func(preds, *targets)


def check_targets(loss_func: Callable[..., Any], targets: Sequence[Any]) -> None:
    """Check that a further item of a batch is a target to one of torch's loss functions.

    Raises:
        TypeError: the function would take it for an option, such as weights of classes.
    """
    inner = getattr(loss_func, "func", loss_func)  # of a partial
    if getattr(inner, "__module__", None) != "torch.nn.functional":
        return
    names = list(inspect.signature(inner).parameters)[2 : 1 + len(targets)]
    shapes = [getattr(target, "shape", None) for target in targets[:2]]
    each = "binary" in inner.__name__ and shapes[0] == shapes[1]
    if options := [name for name in names if name in OPTIONS and not (name == "weight" and each)]:
        raise TypeError(
            f"{inner.__name__} takes item 3 of the batch as {options[0]!r}, and it has "
            f"{len(targets)} targets. If it is a weight for each sample, say so: "
            "TrainCB(sample_weight=2); if it is an input, TrainCB(n_inp=2)"
        )


def n_batches(dl: Any) -> int | None:
    """Return how many batches `dl` says it has, or None for a stream without a length."""
    try:
        return len(dl)
    except Exception:  # whatever its `__len__` raises
        return None


def __getattr__(name: str) -> Any:
    if name == "def_device":  # asked for when used: the first question to a driver takes a while
        return default_device()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
