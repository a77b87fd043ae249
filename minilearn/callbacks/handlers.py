"""Plain functions as callbacks: `learn.on` and LambdaCB."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from math import inf
from types import MethodType
from typing import Any, Self

from ..base.text import whole
from ..core.callback import Callback, Handler, add_location
from ..core.events import ACTIONS, Event, Order, check_event
from ..core.learner import Loop, name_of
from ..core.state import learner_of

IN_BATCH = ("batch", "predict", "loss", "backward")
COUNTED = (*IN_BATCH, "step", "epoch", "round")


def on(  # noqa: D417
    self: Loop,
    *events: Event | str | Callable[..., Any],
    fn: Callable[..., Any] | None = None,
    every: int = 1,
    once: bool | int = False,
    before: int | None = None,
    after: int | None = None,
    when: Callable[[Loop], Any] | None = None,
    training: bool | None = None,
    args: tuple[Any, ...] = (),
    order: int = Order.DEFAULT,
) -> Any:
    """Call `fn(learn)` at an event, from now on; also in the middle of a fit.

    >>> with learn.on("after_batch", lambda learn: print(learn.loss), every=100):
    ...     learn.fit(1)
    >>> @learn.on("after_step", once=True)
    ... def first_update(learn): print("it moves")

    `every`, `before` and `after` go by the number, from 1, of the batch, update or epoch that the
    event belongs to: batches are counted in their epoch, updates and epochs in the fit.

    Args:
        events: one or several events of the loop, or of a registered level.
        fn: a function of the Learner and of `args`, or of nothing; it may also follow the events.
            Without it this is a decorator.
        every: call it where the number can be divided by this: with 3, in batches 3, 6, 9 of each
            epoch, at updates 3, 6, 9 of the fit, in epochs 3, 6, 9.
        once: call it a single time; or so many times. A resumed fit counts them anew.
        before: call it only where the number is below this.
        after: call it only where the number is above this.
        when: call it only where `when(learn)` is true.
        training: True to call it in training only, False in validation only.
        args: further arguments for `fn`.
        order: its slot among the callbacks.

    Returns:
        The `OnEvent`; its `remove()`, or the end of a `with`, ends the calls.

    Raises:
        TypeError: there is no such event, or none at all.
        ValueError: `every` or `once` is below 1, or an option makes no sense for an event.
    """
    names = [event for event in events if isinstance(event, str)]
    fns = [event for event in events if not isinstance(event, str)] or [fn]
    if not names or len(fns) > 1:
        raise TypeError(f"learn.on takes events, then one function; got {events}")
    (fn,) = fns
    options: Any = dict(every=every, once=once, before=before, after=after, when=when)
    options |= dict(training=training, args=args, order=order)
    if fn is None:
        return lambda fn: learner_of(self).on(*names, fn=fn, **options)
    handle = OnEvent(self, names, fn, **options)
    self.add_cb(handle)
    handle.active = True  # only now: `add_cb` calls the events of levels that run already
    return handle


@dataclass(eq=False, repr=False)
class OnEvent(Callback):
    """A function that listens to events; what `learn.on` returns. Call it like the function.

    Events: (those that it was made for)
    Order:  DEFAULT
    Reads:  iter, steps_done, epoch, training
    Writes:
    """

    learn: Loop
    events: Sequence[str]
    fn: Callable[..., Any]
    every: int
    once: bool | int
    before: int | None
    after: int | None
    when: Callable[[Loop], Any] | None
    training: bool | None
    args: tuple[Any, ...]
    order: int = Order.DEFAULT
    active: bool = False

    def __post_init__(self) -> None:
        whole("every", self.every)
        self.left = None if self.once is False else whole("once", int(self.once), of="calls")
        self.numbered = self.every > 1 or self.before is not None or self.after is not None
        self.takes_nothing = not self.args and _takes_nothing(self.fn)
        for event in self.events:
            check_event(event)
            if self.numbered and _level(event) not in COUNTED:
                raise ValueError(
                    f"every, before and after count batches, updates or epochs, and {event!r} "
                    "belongs to none of them; use when=, or an event of a batch, step or epoch"
                )
            if self.training is not None and _level(event) in ("fit", "round"):
                raise ValueError(f"training= is for what happens in an epoch, {event!r} does not")
            run: Any = partial(OnEvent._run, event=event)
            setattr(self, event, MethodType(run, self))
        own = dict(vars(self))
        update_wrapper(self, self.fn)
        vars(self).update(own)  # whatever attributes the function has

    def _run(self, learn: Loop, event: str) -> None:
        if not self.active or (self.numbered and not self._has_number(count(learn, event))):
            return
        if self.training is not None and self.training is not learn.training:
            return
        try:
            if self.when is not None and not self.when(learn):
                return
            if self.left is not None:
                self.left -= 1
                if not self.left:
                    self.remove()
            self.fn(*(() if self.takes_nothing else (learn, *self.args)))
        except Exception as e:
            add_location(e, f"{name_of(self.fn)}, on {event}", learn)
            raise

    def _has_number(self, number: int) -> bool:
        low = 0 if self.after is None else self.after
        high = inf if self.before is None else self.before
        return low < number < high and number % self.every == 0

    def remove(self) -> None:
        """Stop listening, at once; a second call does nothing."""
        self.active = False
        self.learn.remove_cb(self)

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self.fn(*args)

    def __enter__(self) -> Self:
        """Return the handle."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop listening."""
        self.remove()

    def __repr__(self) -> str:
        """Show the events and the function."""
        return f"on({', '.join(map(repr, self.events))}, {name_of(self.fn)})"


def _takes_nothing(fn: Callable[..., Any]) -> bool:
    """Return whether `fn` takes no argument; what has no signature takes the Learner."""
    try:
        return not inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False


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
        return f"LambdaCB({', '.join(f'{k}={name_of(fn)}' for k, fn in self.handlers.items())})"


class HasLearnCB(Callback):
    """Keep the Learner as `self.learn` while a fit runs, for methods that handle no event.

    >>> class Last(HasLearnCB):
    ...     def loss(self):
    ...         return float(self.learn.loss)

    Events: before_fit, cleanup_fit
    Order:  DEFAULT
    Reads:
    Writes:
    """

    learn: Loop | None = None

    def before_fit(self, learn: Loop) -> None:
        """Keep the Learner."""
        self.learn = learn

    def cleanup_fit(self, learn: Loop) -> None:
        """Let the Learner go: a callback that outlives the fit must not hold the data."""
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
