"""Plain functions as callbacks: `learn.on` and LambdaCB."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, Self

from ..base.text import whole
from ..core.callback import Callback, Handler, add_location
from ..core.events import ACTIONS, Order, check_event
from ..core.learner import Loop

IN_BATCH = ("batch", "predict", "loss", "backward")
COUNTED = (*IN_BATCH, "step", "epoch", "round")


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
            With 3, those are batches 3, 6, 9 of each epoch, updates 3, 6, 9 of the fit, and
            epochs 3, 6, 9.
        once: call it a single time.
        when: call it only where `when(learn)` is true.
        order: its slot among the callbacks.

    Returns:
        The `OnEvent`; its `remove()`, or the end of a `with`, ends the calls.

    Raises:
        TypeError: there is no such event.
        ValueError: `every` is below 1, or the event belongs to nothing that is counted.
    """
    if fn is None:
        return partial(self.on, event, every=every, once=once, when=when, order=order)
    handle = OnEvent(self, event, fn, every, once, when, order)
    self.add_cb(handle)
    handle.active = True  # only now: `add_cb` calls the events of levels that run already
    return handle


class OnEvent(Callback):
    """A function that listens to one event; what `learn.on` returns. Call it like the function.

    Events: (the one that it was made for)
    Order:  DEFAULT
    Reads:  iter, steps_done, epoch
    Writes:
    """

    def __init__(
        self, learn: Loop, event: str, fn: Handler, every: int, once: bool, when: Any, order: int
    ) -> None:
        check_event(event)
        whole("every", every)
        if every > 1 and _level(event) not in COUNTED:
            raise ValueError(
                f"every={every} counts batches, updates or epochs, and {event!r} belongs to none "
                "of them; use when=, or an event of a batch, step or epoch"
            )
        update_wrapper(self, fn)
        self.learn, self.event, self.fn = learn, event, fn
        self.every, self.once, self.when, self.order = every, once, when, order
        self.active = False
        setattr(self, event, self._run)

    def _run(self, learn: Loop) -> None:
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
        order: its slot among the callbacks.
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
    """Keeps the Learner as `self.learn` while a fit runs, for methods that handle no event.

    Events: before_fit, cleanup_fit
    Order:  DEFAULT
    Reads:
    Writes:
    """

    learn: Loop | None = None

    def before_fit(self, learn: Loop) -> None:
        """Keep it."""
        self.learn = learn

    def cleanup_fit(self, learn: Loop) -> None:
        """Let it go: a callback that outlives the fit must not hold the data."""
        self.learn = None


def count(learn: Loop, event: str) -> int:
    """Return the number, from 1, of the batch, update or epoch that `event` belongs to."""
    if _level(event) in IN_BATCH:
        return learn.iter + 1
    if _level(event) == "step":
        return learn.steps_done + (event == "before_step")  # the update that is about to be made
    return learn.epoch + 1


def _level(event: str) -> str:
    return event.partition("_")[2]


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)
