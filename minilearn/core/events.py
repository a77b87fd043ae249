"""What fires when, in which order callbacks hear it, and the decorator that makes a level."""

from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import wraps
from typing import Any, Literal, TypeVar, get_args

from ..base.foreign_names import HOOKS_HERE, hint
from ..base.text import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

ACTIONS = ("predict", "get_loss", "backward", "step", "zero_grad")
"""What the loop asks to be done; each has exactly one owner."""

Event = Literal[
    "before_fit",
    "before_round",
    "before_epoch",
    "before_batch",
    "after_predict",
    "after_loss",
    "before_backward",
    "after_backward",
    "cleanup_backward",
    "before_step",
    "after_step",
    "cleanup_step",
    "after_batch",
    "cleanup_batch",
    "after_epoch",
    "cleanup_epoch",
    "after_round",
    "cleanup_round",
    "after_fit",
    "cleanup_fit",
]
EVENTS: list[str] = list(get_args(Event))
"""What callbacks may listen to, in firing order; a user's own levels are added at the end."""

PREFIXES = ("before_", "after_", "cleanup_")


class Order(IntEnum):
    """The order of callbacks at an event: lower slots run first, ties follow the list.

    >>> class Last(Callback):
    ...     order = Order.STOP + 1
    """

    ACCUMULATE = -10  # decides whether there is an update before anyone unscales or cancels
    PLACE = 0  # nobody sees a batch on the wrong device
    TRANSFORM = 10  # the batch is final before anyone reads it
    TRAIN = 20  # answers the actions
    GRADIENT = 30  # true gradients, before the step
    METRICS = 40  # measure what just happened, with the lr that was used
    SCHEDULE = 50  # after the recorder, before anyone saves
    DEFAULT = 60  # a user's callback sees finished metrics
    REPORT = 70  # rows are complete
    SAVE = 80  # after the schedule moved
    STOP = 90  # cancel last, so that all others have seen the batch


def register_level(level: str) -> type[BaseException]:
    """Register a level of your own, so that callbacks may handle its events.

    >>> CancelStageException = register_level("stage")

    Args:
        level: a name such as "stage"; its events are `before_stage`, `after_stage`,
            `cleanup_stage`.

    Returns:
        The exception that cancels the level, here `CancelStageException`. Known levels keep theirs.

    Raises:
        ValueError: `level` is not a Python name.
    """
    if not level.isidentifier():
        raise ValueError(f"a level needs a Python name, got {level!r}; try 'stage'")
    if level not in CANCELS:
        name = f"Cancel{level.title().replace('_', '')}Exception"
        CANCELS[level] = type(name, (CancelException,), {"__doc__": f"Skip the rest of {level}."})
        EVENTS.extend(prefix + level for prefix in PREFIXES)
    return CANCELS[level]


def check_event(name: str, where: str = "") -> None:
    """Raise where `name` is not an event, and say which one was probably meant.

    Raises:
        TypeError: `name` is neither an event nor of a registered level.
    """
    if name in EVENTS:
        return
    level = name.partition("_")[2] or name
    own = f"(a level of your own needs register_level({level!r}) first)"
    near = hint(name, EVENTS, n=1, cutoff=0.8)
    raise TypeError(f"{where}{name} is not an event{near} {own}")


def is_meant_as_event(name: str) -> bool:
    """Return whether a method's name is an event's, nearly one, or one of another framework."""
    if name.startswith((*PREFIXES, "_")) or name in ACTIONS:
        return name.startswith(PREFIXES)
    return name in HOOKS_HERE or bool(did_you_mean(name, EVENTS, n=1, cutoff=0.9))


class with_cbs:
    """Make a method a level: `before_X`, the body, `after_X`, and always `cleanup_X`.

    The method keeps its name, docstring and return value. A `CancelXException` skips the rest,
    `after_X` included, and makes the method return None. An error in a clean-up never hides the
    first. The object needs nothing but a method `callback(event)`; `levels` and `error` are set on
    it.

    >>> class TwoStages(Learner):
    ...     @with_cbs("stage")
    ...     def stage(self):
    ...         self.fit(1)

    Args:
        level: the name X; an unknown one is registered. A class `CancelXException` that you define
            beside the method cancels the level too.
        after: False where the body fires `after_X` by itself.
    """

    def __init__(self, level: str, *, after: bool = True) -> None:
        register_level(level)
        self.level, self.fires_after = level, after

    def __call__(self, f: F) -> F:
        """Wrap the method `f`."""
        level, fires_after = self.level, self.fires_after
        before, after, cleanup = (prefix + level for prefix in PREFIXES)

        @wraps(f)
        def run(o: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                outer, unheard = o.levels, o.unheard
            except AttributeError:  # a class of the user's own
                outer, unheard = getattr(o, "levels", ()), frozenset()
                o.unheard = unheard
            o.levels = (*outer, level)
            try:
                if before not in unheard:  # a call saved is a step nearer to the loop by hand
                    o.callback(before)
                result = f(o, *args, **kwargs)
                if fires_after and after not in o.unheard:
                    o.callback(after)
            except BaseException as raised:
                o.levels = outer
                left = worst((raised, _clean_up(o, cleanup, raised)), own_cancels(level, f))
                if left is raised:
                    raise
                if left is not None:
                    raise left  # noqa: B904  what it replaces stays visible as its context
                return None
            o.levels = outer
            if cleanup in o.unheard:
                return result
            raised = _clean_up(o, cleanup, None)
            if raised is not None and not isinstance(raised, own_cancels(level, f)):
                raise raised
            return result

        return run  # type: ignore[return-value]


def own_cancels(level: str, f: Callable) -> tuple[type[BaseException], ...]:
    """Return what cancels `level`: the registered class, and one so named where `f` was written."""
    cancel = CANCELS[level]
    theirs = getattr(f, "__globals__", {}).get(cancel.__name__)
    return (cancel, theirs) if isinstance(theirs, type) else (cancel,)


def _clean_up(o: Any, event: str, error: BaseException | None) -> BaseException | None:
    """Fire the clean-up `event` with `o.error` set; return what it raised instead of raising it."""
    outer = getattr(o, "error", None)
    o.error = error
    try:
        o.callback(event)
    except BaseException as raised:
        return raised
    finally:
        o.error = outer
    return None


class CancelException(Exception):
    """The common base of all cancels: catch it to let control flow through."""


class CancelFitException(CancelException):
    """End the fit; `after_fit` does not run, all clean-up does."""


class CancelRoundException(CancelException):
    """End this training epoch and its validation; go on with the next round."""


class CancelEpochException(CancelException):
    """End this epoch over a loader; the validation of a training epoch still runs."""


class CancelBatchException(CancelException):
    """Skip the rest of this batch."""


class CancelBackwardException(CancelException):
    """Skip the backward pass of this batch; no step is made without one."""


class CancelStepException(CancelException):
    """Make no update in this batch and keep its gradients."""


class MissingActionError(RuntimeError):
    """Nothing answers an action of the loop, such as `predict`."""


class ActionConflictError(RuntimeError):
    """An action of the loop has two owners, or an owner that cannot be called."""


CANCELS: dict[str, type[BaseException]] = {
    "fit": CancelFitException,
    "round": CancelRoundException,
    "epoch": CancelEpochException,
    "batch": CancelBatchException,
    "backward": CancelBackwardException,
    "step": CancelStepException,
}


ATTACHED = "also raised: "  # how the note begins that keeps another error


def cancel_level(error: BaseException | None) -> str | None:
    """Return the level that `error` cancels, or None where it is no cancel."""
    return next((level for level, cancel in CANCELS.items() if isinstance(error, cancel)), None)


def worst(errors: Iterable[BaseException | None], own: tuple[type[BaseException], ...] = ()) -> Any:
    """Choose what leaves a level, and attach the others to it as notes.

    A fault beats a cancel, the first fault beats later ones, a wider cancel beats a narrower one.

    Args:
        errors: what its body and its clean-up raised, in the order of raising.
        own: the cancels of that level, which end here.

    Returns:
        The exception to raise, or None.
    """
    left = [e for e in errors if e is not None and not isinstance(e, own)]
    if len(left) < 2:
        return left[0] if left else None
    width = {level: rank for rank, level in enumerate(CANCELS)}
    chosen = min(left, key=lambda e: width.get(cancel_level(e) or "", -1))
    for other in left:
        if other is not chosen:
            chosen.add_note(f"{ATTACHED}{type(other).__name__}: {other}")
            for note in getattr(other, "__notes__", ()):
                if note.startswith(ATTACHED):  # it would be lost with the one that carries it
                    chosen.add_note(note)
    return chosen
