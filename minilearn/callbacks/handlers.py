"""Plain functions as callbacks: `learn.on` and LambdaCB."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, Self

from minilearn.base.text import whole
from minilearn.core.callback import Callback, Handler, add_location
from minilearn.core.events import ACTIONS, Order, check_event
from minilearn.core.learner import Loop

PER_STEP = ("before_step", "after_step", "cleanup_step")
PER_BATCH = ("after_predict", "after_loss", "before_backward", "after_backward", "cleanup_backward")
PER_BATCH += ("before_batch", "after_batch", "cleanup_batch")
PER_EPOCH = tuple(f"{p}_{level}" for level in ("epoch", "round") for p in ("before", "after"))
PER_EPOCH += ("cleanup_epoch", "cleanup_round")


def on(  # noqa: D417
    self: Loop,
    event: str,
    fn: Handler | None = None,
    *,
    every: int = 1,
    once: bool = False,
    when: Callable[[Loop], Any] | None = None,
    order: int = Order.DEFAULT,
) -> Any:
    """Call `fn(learn)` at an event, from now on; also in the middle of a fit.

    >>> with learn.on("after_batch", lambda learn: print(learn.loss), every=100):
    ...     learn.fit(1)
    >>> @learn.on("after_step", once=True)
    ... def first_update(learn): print("it moves")

    Args:
        event: an event of the loop, or of a registered level.
        fn: a function of the Learner; without it this is a decorator.
        every: call it at every `every`-th batch, update or epoch, whichever the event belongs to.
            Multiples count: with 3, after the batches 3, 6, 9 of each pass, the updates 3, 6, 9 of
            the fit, the epochs 3, 6, 9.
        once: call it a single time.
        when: call it only where `when(learn)` is true.
        order: its place among the callbacks.

    Returns:
        The `OnEvent`, which `remove()` and the end of a `with` take off again.

    Raises:
        TypeError: there is no such event.
        ValueError: `every` is below 1, or the event belongs to nothing that is counted.
    """
    if fn is None:
        return partial(self.on, event, every=every, once=once, when=when, order=order)
    handle = OnEvent(self, event, fn, every=every, once=once, when=when, order=order)
    self.add_cb(handle)
    handle.active = True  # not before: a callback that is added is told what has begun already
    return handle


class OnEvent(Callback):
    """A function that listens to one event; what `learn.on` returns. Call it like the function.

    Events: (the one that it was made for)
    Order:  DEFAULT
    Reads:  iter, steps_done, epoch
    Writes:
    """

    def __init__(
        self,
        learn: Loop,
        event: str,
        fn: Handler,
        *,
        every: int = 1,
        once: bool = False,
        when: Callable[[Loop], Any] | None = None,
        order: int = Order.DEFAULT,
    ) -> None:
        check_event(event)
        _check_every(every, event)
        update_wrapper(self, fn)
        self.learn, self.event, self.fn = learn, event, fn
        self.every, self.once, self.when, self.order = every, once, when, order
        self.active = False
        setattr(self, event, self._hear)

    def _hear(self, learn: Loop) -> None:
        if not self.active or (self.every > 1 and count(learn, self.event) % self.every):
            return
        try:
            if self.when is not None and not self.when(learn):
                return
            if self.once:
                self.remove()
            self.fn(learn)
        except Exception as e:
            add_location(e, f"{_name(self.fn)}, on {self.event}", learn)
            raise

    def remove(self) -> None:
        """Stop listening, at once; a second call does nothing."""
        self.active = False
        self.learn.remove_cb(self)

    def __call__(self, learn: Loop) -> Any:
        """Call the function."""
        return self.fn(learn)

    def __enter__(self) -> Self:
        """Return the handle."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop listening."""
        self.remove()

    def __repr__(self) -> str:
        """Show the event and the function."""
        return f"on({self.event!r}, {_name(self.fn)})"


class LambdaCB(Callback):
    """A callback of functions, by event or action.

    >>> LambdaCB(after_batch=lambda learn: print(learn.loss), order=Order.REPORT)

    Args:
        order: its place among the callbacks.
        handlers: functions of the Learner by the name of an event or action.

    Raises:
        TypeError: there is no such event or action.

    Events: (those that it was given)
    Order:  DEFAULT
    Reads:
    Writes:
    """

    def __init__(self, *, order: int = Order.DEFAULT, **handlers: Handler) -> None:
        self.order, self.handlers = order, handlers
        for name, fn in handlers.items():
            if name not in ACTIONS:
                check_event(name)
            setattr(self, name, fn)

    def __repr__(self) -> str:
        """Show the functions by event."""
        return f"LambdaCB({', '.join(f'{k}={_name(fn)}' for k, fn in self.handlers.items())})"


class HasLearnCB(Callback):
    """Keeps the Learner as `self.learn` while a fit runs, for methods that are no handlers.

    Events: before_fit, cleanup_fit
    Order:  DEFAULT
    Reads:
    Writes:
    """

    learn: Loop | None = None

    def before_fit(self, learn: Loop) -> None:
        """Take it."""
        self.learn = learn

    def cleanup_fit(self, learn: Loop) -> None:
        """Let it go: a callback that outlives the fit must not hold the data."""
        self.learn = None


def count(learn: Loop, event: str) -> int:
    """Return which batch of its pass, update of the fit, or epoch `event` belongs to, from 1."""
    if event in PER_BATCH:
        return learn.iter + 1
    if event in PER_STEP:
        return learn.steps_done + (event == "before_step")  # the update that is about to be made
    return learn.epoch + 1


def _check_every(every: int, event: str) -> None:
    whole("every", every)
    if every > 1 and event not in (*PER_BATCH, *PER_STEP, *PER_EPOCH):
        raise ValueError(
            f"every={every} counts batches, updates or epochs, and {event!r} belongs to none of "
            "them; use when=, or an event of a batch, step or epoch"
        )


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)
