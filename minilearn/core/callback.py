"""The callback and how events reach it.

A callback is any object with methods named after events; the base class adds an order and the check
of names.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import chain
from types import FunctionType
from typing import Any, ClassVar

from ..base.batch import describe
from ..base.foreign_names import ForeignNames, hint, public_names
from ..base.text import few
from .events import (
    ACTIONS,
    EVENTS,
    CancelException,
    Order,
    cancel_level,
    check_event,
    is_meant_as_event,
    worst,
)

Handler = Callable[[Any], Any]
# how notes of `add_location` begin
LOCATION = re.compile(r"in [\w.<>]+(\.\w+|, on \w+)(, epoch |$)")


class Callback(ForeignNames):
    """Base of all callbacks: define methods named after events, each takes the Learner.

    Listen to an event by its name (`def after_batch(self, learn)`), answer an action by its name
    (`def predict(self, learn)`), end a level by raising a `CancelXException`. Results stay on the
    callback, which is found by type: `learn.find(MyCB)`.

    >>> class StopAtZero(Callback):
    ...     def after_loss(self, learn):
    ...         if learn.loss == 0:
    ...             raise CancelFitException
    >>> learn.fit(1, cbs=StopAtZero())

    Raises:
        TypeError: at the class statement, where a method looks like an event but is none, or does
            not take the Learner.
    """

    order: int = Order.DEFAULT
    in_probe: ClassVar[bool | None] = None  # True or False: take part in probes, whatever the rule
    per_process: ClassVar[bool] = False  # whether its state differs between processes
    differences: Sequence[str] = ()  # to what a resume loaded: a line each, with both values
    skips_non_finite: bool = False  # whether it skips updates whose gradients are not finite

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check the names of the event methods."""
        super().__init_subclass__(**kwargs)
        theirs = (vars(base) for base in cls.__mro__ if not issubclass(base, Callback))
        for name in {*vars(cls), *chain.from_iterable(theirs)}:  # own ones, and those of mixins
            if is_meant_as_event(name) and callable(getattr(cls, name)):
                check_event(name, f"{cls.__name__}.")
                check_takes_learn(cls, name)

    def companions(self, learn: Any) -> Sequence[Any]:
        """Return callbacks that come into a fit with this one, and leave with it."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a resume: numbers, strings, lists, dicts and tensors.

        A resume inside an epoch fires `before_fit`, `before_round` and `before_epoch` again,
        and then gives the state once more: what these counted on the way is forgotten. A validation
        is made again from its first batch. What is kept elsewhere, in a closure of `learn.on` say,
        counts these twice: read `learn.epoch` and `learn.steps_done`, or count `after_round`.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""

    def __repr__(self) -> str:
        """Show the class; subclasses add their settings."""
        return f"{type(self).__name__}()"


def check_takes_learn(cls: type, name: str) -> None:
    """Raise where the method `name` does not take what an event passes.

    Raises:
        TypeError: says what to write.
    """
    method = inspect.getattr_static(cls, name)
    if isinstance(method, FunctionType):
        try:
            inspect.signature(method).bind(None, None)
        except TypeError as e:
            raise TypeError(f"{cls.__name__}.{name}: {e}; write {name}(self, learn)") from e


BARE: dict[str, Any] = {
    "answers_by_default": lambda action: True,
    "cbs": (),
    "count": None,
    "depth": 0,
    "epoch": None,
    "error": None,
    "loss_func": None,
    "loss_parts": None,
    "metrics": None,
    "n_items": None,
    "opt": None,
    "owner": lambda action: None,
    "steps_done": None,
    "training": None,
    "valid_name": None,
}
"""What a learner-like class of a notebook may lack, with what our callbacks then take for it."""


def attribute(learn: Any, name: str) -> Any:
    """Return an attribute of the Learner, its default where a learner-like class lacks it."""
    return getattr(learn, name, BARE[name])


def order_of(cb: Any) -> int:
    """Return the slot of a callback; foreign objects without one come with the user's own."""
    return getattr(cb, "order", Order.DEFAULT)


def companions_of(cbs: Iterable[Any], learn: Any) -> list[Any]:
    """Return the companions of all callbacks for a fit that begins."""
    ours = [cb for cb in cbs if isinstance(cb, Callback)]
    return [companion for cb in ours for companion in cb.companions(learn)]


def as_callbacks(cbs: Any) -> list[Any]:
    """Return a new list of callbacks from None, one callback, a class, or a collection.

    Raises:
        TypeError: something is no callback: it has no method named after an event or an action.
        ValueError: the same object stands in it twice, and so would run twice.
    """
    if cbs is None:
        return []
    if isinstance(cbs, (type, str, Callback)) or not isinstance(cbs, Iterable):
        cbs = [cbs]
    cbs = [cb() if isinstance(cb, type) else cb for cb in cbs if cb is not None]
    for number, cb in enumerate(cbs):
        if isinstance(cb, str):
            near = hint(cb, public_names(), n=1)
            raise TypeError(f"cbs has the text {cb!r}, which is no callback: write an object{near}")
        if not isinstance(cb, Callback) and not answers(cb):
            here = hint(type(cb).__name__)
            raise TypeError(
                f"{cb!r} is no callback: it has no method such as before_fit{here}. Leave it out."
            )
        if any(cb is other for other in cbs[:number]):
            raise ValueError(f"{cb!r} stands twice in the callbacks, and so would run twice")
    return cbs


def known_names(cb: Any) -> Container[str]:
    """Return the names of all attributes of a callback; asking for one that lacks takes long."""
    if getattr(type(cb), "__getattr__", None) is vars(ForeignNames)["__getattr__"]:
        return set().union(vars(cb), *map(vars, type(cb).__mro__))
    return (*EVENTS, *ACTIONS)  # it may find attributes in its own way


def answers(cb: Any) -> bool:
    """Return whether an object has a method named after an event or an action."""
    names = known_names(cb)
    return any(name in names and hasattr(cb, name) for name in (*ACTIONS, *EVENTS))


def warn_of_silent(cbs: Iterable[Any]) -> None:
    """Warn of callbacks that nobody will call."""
    for cb in cbs:
        if not answers(cb) and type(cb).companions is Callback.companions:
            own = [name for name in vars(type(cb)) if not name.startswith("_")]
            warnings.warn(
                f"{cb!r} does nothing: it answers no event and no action, such as after_batch"
                f" (it has {few(own) or 'no methods'})",
                stacklevel=4,
            )


def run_cbs(cbs: Iterable[Any], method_nm: str, learn: Any = None) -> None:
    """Call `method_nm` on every callback that has it, lowest order first.

    The plain form of what a `Learner` does with a table; for loops of your own.

    >>> run_cbs([LambdaCB(after_fit=lambda learn: print("done"))], "after_fit")
    done
    """
    for cb in sorted(cbs, key=order_of):
        method = getattr(cb, method_nm, None)
        if method is not None:
            method(learn)


def handler_table(
    cbs: Iterable[Any], wrap: Callable[[str, Handler], Handler] | None = None
) -> dict[str, tuple[Handler, ...]]:
    """Resolve for every event who handles it: bound methods in firing order, wrapped if asked for.

    Clean-ups are bundled into one handler that runs all of them, in reverse order.
    """
    ordered = [(cb, known_names(cb)) for cb in sorted(cbs, key=order_of)]
    table = {}
    for event in EVENTS:
        found = [getattr(cb, event, None) for cb, names in ordered if event in names]
        found = [method for method in found if method is not None]
        methods = tuple(found if wrap is None else (wrap(event, m) for m in found))
        if methods and event.startswith("cleanup_"):
            methods = (CleanUp(event, methods[::-1]),)
        table[event] = methods
    return table


class CleanUp:
    """Runs every clean-up of an event, whatever the ones before it raise."""

    def __init__(self, event: str, methods: tuple[Handler, ...]) -> None:
        self.event, self.methods = event, methods

    def __call__(self, learn: Any) -> None:
        """Call all; then raise the worst of what they raised."""
        raised = []
        for method in self.methods:
            learn.handling = method
            try:
                call(method, (learn,), f"{owner_name(method)}.{self.event}", learn)
            except BaseException as e:
                raised.append(e)
        if raised:
            raise worst(raised)


def call(method: Callable, args: tuple, where: str, learn: Any) -> Any:
    """Call `method`; see that what it raises says where, and cancels only what is running."""
    try:
        return method(*args)
    except Exception as e:
        explain(e, where, learn)
        raise


def explain(error: Exception, where: str, learn: Any) -> None:
    """See that `error` says where it was raised, and cancels only what is running."""
    if isinstance(error, CancelException):
        check_cancel(error, where, learn)
    else:
        add_location(error, where, learn)


def check_cancel(error: CancelException, where: str, learn: Any) -> None:
    """Raise where `error` cancels what is not running; in its own clean-up a level still counts.

    Raises:
        RuntimeError: the level is not running; names the callback and the levels that are.
    """
    level = cancel_level(error)
    if level is None or level in learn.levels or where.endswith(f".cleanup_{level}"):
        return
    running = ", ".join(learn.levels) or "none"
    raise RuntimeError(
        f"{type(error).__name__} was raised in {where}, but no {level} is running there "
        f"(running: {running}). Cancel a level that is running."
    ) from error


def owner_name(method: Callable) -> str:
    """Return the name of the class that a bound method belongs to, or of the function itself."""
    if (owner := getattr(method, "__self__", None)) is not None:
        return type(owner).__name__
    return getattr(method, "__qualname__", str(method))


ADVICE = {
    "more than 1 value per channel": "A batch norm cannot train on one sample: drop_last=True "
    "leaves such a batch out",
    "channels, but got": "The model is made for another number of channels than the batch has",
    "is out of bounds": "Are there more classes than outputs of the model? Targets are 0 to K - 1",
    "expected scalar type Long": "Targets of classes are of type int64: targets.long()",
    "same dtype": "The model and its inputs differ in type: inputs.float(), or model.float()",
}
"""What to do about errors of torch, by a part of their text."""


def add_location(error: BaseException, where: str, learn: Any) -> None:
    """Say on `error` where it happened, once, without touching anything else of it."""
    if not isinstance(error, Exception) or isinstance(error, CancelException):
        return
    if any(LOCATION.match(note) for note in getattr(error, "__notes__", ())):
        return
    note = f"in {where}"
    if attribute(learn, "epoch") is not None:
        phase = "training" if learn.training else "validation"
        note += f", epoch {learn.epoch}, batch {learn.iter} ({phase})"
        if learn.batch is not None:
            note += f", batch shapes {describe(learn.batch)}"
    note += next((f". {advice}" for said, advice in ADVICE.items() if said in str(error)), "")
    error.add_note(note)
