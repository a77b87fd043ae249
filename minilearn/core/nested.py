"""Nested runs: fits inside, or beside, a fit that leave everything as they found it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..base.seed import preserved_random_states
from ..base.state_dict import fit_modules, keep
from .callback import Callback, order_of
from .events import ACTIONS, EVENTS, CancelFitException, Order
from .learner import Loop
from .position import own_copy, undo_position
from .stream import pick_loader

SHAPES_BATCH = ("before_batch", "after_predict", "after_loss")
MAX_DEPTH = 8  # nobody nests so deep on purpose


def takes_part(cb: Any) -> bool:
    """Return whether `cb` takes part in nested runs: it prepares, trains or changes a batch.

    `in_probe = True | False` on its class decides; else its order, or what it handles.
    """
    if (decided := getattr(cb, "in_probe", None)) is not None:
        return decided
    shapes = any(hasattr(cb, name) for name in (*ACTIONS, *SHAPES_BATCH))
    return order_of(cb) <= Order.GRADIENT or shapes


def changes_training(cb: Any) -> bool:
    """Return whether a callback decides about the training."""
    return takes_part(cb) or is_schedule(cb) or order_of(cb) <= Order.GRADIENT


def is_schedule(cb: Any) -> bool:
    """Return whether a callback moves options of the optimizer, or averages weights."""
    return Order.SCHEDULE <= order_of(cb) < Order.DEFAULT


def participants(learn: Loop) -> list[Any]:
    """Return the callbacks of `learn` that take part in a nested run that begins now.

    One that is handling an event is left out, unless it answers an action: it would start the same
    run again.
    """
    handler = learn.handling
    busy = [cb for cb in learn.cbs if handler is not None and _handles(cb, handler)]
    return [cb for cb in learn.cbs_of_fit() if takes_part(cb) and not any(cb is b for b in busy)]


def _handles(cb: Any, handler: Any) -> bool:
    answers = any(hasattr(cb, name) for name in ACTIONS)
    running = (handler, getattr(handler, "__wrapped__", handler))
    return not answers and any(getattr(cb, event, None) in running for event in EVENTS)


@contextmanager
def inner(
    learn: Loop, cbs: list[Any], *, train: Any = None, valid: Any = None, trains: bool = False
) -> Iterator[None]:
    """Let a fit run inside whatever `learn` is doing, and undo all that it changes.

    At the end, however it comes, these are as they were: the Learner's attributes, gradients,
    random states, the position of loaders that have a state, attributes and metric objects of
    `cbs`, buffers; and where the fit trains, weights and the optimizer too. Loaders of torch, and
    others that count their epochs, are copied: an epoch over them that is under way goes on
    undisturbed.

    Args:
        learn: may be in the middle of a fit, or not.
        cbs: the callbacks of the inner fit.
        train: its training loader; the Learner's own when it is not given.
        valid: its validation loader, likewise.
        trains: whether weights may change.

    Raises:
        RuntimeError: a callback starts a nested run inside each that it starts.
    """
    if learn.depth >= MAX_DEPTH:
        raise RuntimeError(
            f"{MAX_DEPTH} runs are nested: a callback starts one whenever it is in one. "
            " Let it look at learn.depth first, which is 0 in the fit itself."
        )
    if trains:
        make_lazy_weights(learn)
    loaders = [pick_loader(learn.dls, True), pick_loader(learn.dls, False)]
    with ExitStack() as stack:
        if "fit" not in learn.levels:  # else `stop` may be meant for the fit around this run
            stack.callback(setattr, learn.interrupts, "reason", learn.stopped)
        for undo in _undos(learn, cbs, [*loaders, train, valid], trains):
            stack.callback(undo)
        stack.enter_context(preserved_random_states())
        if trains:  # also inside a validation
            stack.enter_context(torch.enable_grad())
        own_train, own_valid = loaders
        learn.dls = SimpleNamespace(
            train=own_copy(own_train if train is None else train),
            valid=own_copy(own_valid if valid is None else valid),
        )
        learn.cbs, learn.levels, learn.error = list(cbs), (), None
        learn.nesting = learn.nesting._replace(depth=learn.depth + 1)
        yield


def make_lazy_weights(learn: Loop) -> None:
    """Let a batch run through a model with lazy layers, which makes their weights; once.

    Whoever reads weights before the first batch of a fit calls this.

    Raises:
        ValueError: the loader would lose this batch.
    """
    model = learn.model
    if not isinstance(model, nn.Module):
        return
    if not any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        return
    dl = pick_loader(learn.dls, True)
    dl = pick_loader(learn.dls, False) if dl is None else dl
    if isinstance(dl, Iterator):
        raise ValueError(
            "the model has lazy layers, whose weights a first batch must make, and the loader is "
            "an iterator, which would lose that batch: run one through the model before"
        )
    try:
        with inner(learn, [*participants(learn), _StopCB()], valid=dl):
            learn.fit(1, train=False)
    except Exception as e:
        e.add_note("a first batch was to make the weights of the model's lazy layers")
        raise


class _StopCB(Callback):
    """Ends a fit after the first prediction."""

    order = Order.STOP

    def after_predict(self, learn: Loop) -> None:
        raise CancelFitException


def _undos(learn: Loop, cbs: list[Any], loaders: list[Any], trains: bool) -> list[Callable]:
    """Note how things are; return what puts each of them back."""
    undos = [_undo_attributes(learn), _undo_grads(learn)]
    undos += [_undo_attributes(cb) for cb in cbs]
    undos += [undo_position(dl) for dl in loaders]
    undos += [keep(module, weights=trains) for module in fit_modules(learn).values()]
    return [*undos, _undo_opt(learn.opt)] if trains else undos


def _undo_attributes(o: Any) -> Callable[[], None]:
    """Keep the attributes of `o`, what its lists, dicts and sets hold, and its metric objects."""
    if not hasattr(o, "__dict__"):
        return lambda: None
    saved = dict(vars(o))
    held = [(v, copy.copy(v)) for v in saved.values() if type(v) in (list, dict, set)]
    undo_metrics = _lend_copies(_metrics_in(saved.values()))

    def undo() -> None:
        vars(o).clear()
        vars(o).update(saved)
        for container, content in held:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)
        undo_metrics()

    return undo


def _metrics_in(values: Iterable[Any]) -> list[Any]:
    """Return what accumulates among `values` and in their lists and dicts."""
    found = {}
    for value in values:
        within = value.values() if type(value) is dict else value if type(value) is list else ()
        for x in (value, *within):
            if _accumulates(x):
                found[id(x)] = x
    return list(found.values())


def _accumulates(x: Any) -> bool:
    """Return whether `x` can be reset, and is no class and no model (some have a `reset`, too)."""
    is_model = isinstance(x, nn.Module) and not hasattr(x, "compute")  # metrics may be modules
    return hasattr(x, "reset") and hasattr(x, "__dict__") and not (is_model or isinstance(x, type))


def _lend_copies(metrics: list[Any]) -> Callable[[], None]:
    """Let metric objects work on copies of their state; return what gives them back their own."""
    own = [dict(vars(metric)) for metric in metrics]
    memo = {id(metric): metric for metric in metrics}  # they may refer to each other
    for metric, state in zip(metrics, own, strict=True):
        # what cannot be copied (a bar with its terminal, say) keeps its attributes, but no more
        with suppress(Exception):
            vars(metric).update(copy.deepcopy(state, memo))

    def undo() -> None:
        for metric, state in zip(metrics, own, strict=True):
            vars(metric).clear()
            vars(metric).update(state)

    return undo


def _undo_grads(learn: Loop) -> Callable[[], None]:
    saved = [(p, p.grad) for p in learn.parameters()]

    def undo() -> None:
        for p, grad in saved:
            p.grad = grad

    return undo


def _undo_opt(opt: Any) -> Callable[[], None]:
    """Keep an optimizer's state and settings; its parameters stay the same objects."""
    groups = getattr(opt, "param_groups", None)
    if groups is None:  # none yet, or a notebook's own: all its attributes but tensors that train
        return _undo_attributes(opt)
    memo = {id(p): p for group in groups for p in group["params"]}
    settings, state = copy.deepcopy((list(groups), dict(opt.state)), memo)

    def undo() -> None:
        for group, saved in zip(groups, settings, strict=False):
            group.clear()  # in place: schedules and recorders hold the groups
            group.update(saved)
        opt.state.clear()
        opt.state.update(state)

    return undo
