"""How events and actions reach their callbacks.

Handlers are resolved once, when a fit begins and when its callbacks change, into a tuple of bound
methods an event.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from ..base.foreign_names import HOOKS_HERE, hint
from .callback import Handler, as_callbacks, call, explain, handler_table, owner_name
from .events import ACTIONS, ActionConflictError, MissingActionError, check_event, worst
from .state import LoopState

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def action(predict: F) -> F:
    """Let a call with arguments from outside, `learn.predict(x)`, say who predicts items."""

    @wraps(predict)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            raise TypeError(
                f"predict() takes no arguments, it is an action of the loop{hint('predict')}"
            )
        predict(self)

    return call  # type: ignore[return-value]


class Dispatch(LoopState):
    """Fires events on `cbs`, and lets each action be answered by its one owner."""

    unheard: frozenset[str] = frozenset()  # while a fit runs: events that nobody handles
    _none_listed = False  # neither cbs nor metrics was given: a fit may add the usual callbacks
    handling: Any = None  # the handler that is running: a nested run leaves its callback out
    _wrap: Callable[[str, Handler], Handler] | None = None  # what `wrap_handlers` was given

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse hooks of other frameworks, which nobody would call."""
        super().__init_subclass__(**kwargs)
        for name in vars(cls).keys() & HOOKS_HERE.keys():
            raise TypeError(f"nobody calls {cls.__name__}.{name}{hint(name)}")

    def __init__(self, cbs: Any) -> None:
        self.cbs = as_callbacks(cbs)
        self._table: dict[str, tuple[Handler, ...]] = {}
        self._owners: dict[str, Owner] = {}

    def callback(self, event: str) -> None:
        """Call all that handle `event`, in order; errors get a note of where they happened.

        Raises:
            TypeError: there is no such event.
            RuntimeError: a handler cancelled a level that is not running.
        """
        handlers: Any = self._table.get(event)
        if handlers is None:
            handlers = self._resolve_late(event)
        outer = self.handling
        for handler in handlers:
            self.handling = handler
            try:
                handler(self)
            except Exception as e:
                self.handling = outer
                explain(e, f"{owner_name(handler)}.{event}", self)
                raise
        self.handling = outer

    def _resolve(self) -> None:
        """Find out once who handles each event and who owns each action."""
        owners, wrap = find_owners(self), self._wrap
        self._unbind()
        self._owners, self._wrap = owners, wrap
        self._keep_table(handler_table(self.cbs, wrap))
        for action, owner in owners.items():
            if wrap is not None:
                owner = owner._replace(method=wrap(action, owner.method))
            self.__dict__[action] = bind(action, owner, self)

    def wrap_handlers(self, wrap: Callable[[str, Handler], Handler]) -> None:
        """Call each handler and each action through what `wrap(name, method)` returns.

        This holds until the running fit ends, also for callbacks that come later.
        """
        self._wrap = wrap
        self._resolve()

    def _resolve_late(self, event: str) -> tuple[Handler, ...]:
        """Resolve outside a fit, where callbacks may change unannounced; or a new level's event."""
        check_event(event)
        table = handler_table(self.cbs, self._wrap)
        if "fit" in self.levels:
            self._keep_table(table)
        return table[event]

    def _keep_table(self, table: dict[str, tuple[Handler, ...]]) -> None:
        self._table = table
        if type(self).callback is Dispatch.callback and "callback" not in vars(self):
            self.unheard = frozenset(event for event, handlers in table.items() if not handlers)

    def _unbind(self) -> None:
        """Forget what `_resolve` found."""
        self.unheard, self.handling, self._wrap = frozenset(), None, None
        self._table, self._owners = {}, {}
        for action in ACTIONS:
            self.__dict__.pop(action, None)

    def add_cb(self, cb: Any) -> Any:
        """Add a callback (or a class of one) for good; in a fit it gets the `before_` events first.

        >>> learn.add_cb(EMACB())

        Returns:
            The callback.
        """
        (cb,) = as_callbacks(cb)
        if any(cb is mine for mine in self.cbs):
            return cb
        self._change_cbs([*self.cbs, cb])
        for event in (f"before_{level}" for level in self.levels):
            if (method := getattr(cb, event, None)) is not None:
                self.handling = method
                call(method, (self,), f"{type(cb).__name__}.{event}", self)
        return cb

    def remove_cb(self, cb: Any) -> None:
        """Remove a callback, or all of a class; in a fit it cleans up.

        >>> learn.remove_cb(ProgressCB)
        """
        of_class = cb if isinstance(cb, type) else ()
        gone = [mine for mine in self.cbs if mine is cb or isinstance(mine, of_class)]
        self._change_cbs([mine for mine in self.cbs if not any(mine is g for g in gone)])
        table: dict[str, Any] = handler_table(gone)
        raised = []
        for level in reversed(self.levels):
            for clean_up in table[f"cleanup_{level}"]:
                try:
                    clean_up(self)
                except BaseException as e:
                    raised.append(e)
        if raised:
            raise worst(raised)

    def _change_cbs(self, cbs: list[Any]) -> None:
        before, self.cbs[:] = list(self.cbs), cbs
        try:
            if "fit" in self.levels:
                self._resolve()
        except Exception:
            self.cbs[:] = before
            raise

    def find(self, kind: type[T]) -> T | None:
        """Return the first callback of a class (or a subclass of it), None where there is none.

        >>> learn.find(MetricsCB).rows
        []
        """
        return next((cb for cb in self.cbs if isinstance(cb, kind)), None)

    def owner(self, action: str) -> Any:
        """Return who answers an action: a callback, this Learner, or None."""
        owner = (self._owners or find_owners(self)).get(action)
        return owner and owner.who

    def answers_by_default(self, action: str) -> bool:
        """Return whether the usual answer to an action holds, or nobody answers it."""
        owner = (self._owners or find_owners(self)).get(action)
        return owner is None or owner.is_default

    # These five serve outside a fit; while one runs, each name is bound to its owner's answer.

    @action
    def predict(self) -> None:
        """Set `preds` from `batch`."""
        self._act("predict")

    def get_loss(self) -> None:
        """Set `loss` from `preds` and `batch`."""
        self._act("get_loss")

    def backward(self) -> None:
        """Compute the gradients of `loss`."""
        self._act("backward")

    def step(self) -> None:
        """Update the weights."""
        self._act("step")

    def zero_grad(self) -> None:
        """Clear the gradients."""
        self._act("zero_grad")

    def _act(self, action: str) -> None:
        owners = find_owners(self)
        if action not in owners:
            check_owners(self, owners, training=True)
        bind(action, owners[action], self)()


DEFAULTS: set[type] = set()  # classes whose answers to actions others may replace
C = TypeVar("C", bound=type)


def default_actions(cls: C) -> C:
    """Mark a class: the actions in its own body are defaults, those of its subclasses are not."""
    DEFAULTS.add(cls)
    return cls


class Owner(NamedTuple):
    """Who answers an action: a callback or the Learner, and the class that defines the answer."""

    who: Any
    definer: type
    method: Callable

    @property
    def is_default(self) -> bool:
        """Whether a specific answer may replace this one."""
        return self.definer in DEFAULTS

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that were given to the owner, such as `{"n_inp": 2}`."""
        return getattr(self.who, "settings", {})

    @property
    def name(self) -> str:
        """The class of the owner, with the settings that it was given."""
        given = ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        return f"{type(self.who).__name__}({given})" if given else type(self.who).__name__


def find_owners(learn: Dispatch, cbs: list[Any] | None = None) -> dict[str, Owner]:
    """Return the one owner of every action that somebody answers, with `cbs` or its own callbacks.

    Raises:
        ActionConflictError: two specific owners, or two defaults with different settings.
    """
    owners, cbs = {}, learn.cbs if cbs is None else cbs
    for action in ACTIONS:
        candidates = [o for who in (learn, *cbs) if (o := _owner(who, action, learn)) is not None]
        if candidates:
            owners[action] = _choose(action, candidates)
    return owners


def check_owners(learn: Dispatch, owners: dict[str, Owner], training: bool) -> None:
    """Raise where the fit that is to begin would ask for something that nobody can answer.

    Raises:
        MissingActionError: nothing answers an action that this fit needs.
        ActionConflictError: an owner does not take the arguments that the loop passes.
    """
    needed = ACTIONS if training else ACTIONS[:2]
    for action in needed:
        if action not in owners:
            names = ", ".join(type(cb).__name__ for cb in learn.cbs) or "none"
            raise MissingActionError(
                f"nothing answers {action!r}; callbacks are: {names}. Add TrainCB(), use a "
                f"TrainLearner, or add a callback with a method {action}(self, learn)."
            )
        _check_signature(action, owners[action], learn)


def bind(action: str, owner: Owner, learn: Dispatch) -> Callable[[], Any]:
    """Return what the loop calls for `action`; errors get a note of where they happened."""
    args = () if owner.who is learn else (learn,)
    method, where = owner.method, f"{type(owner.who).__name__}.{action}"

    def answer() -> Any:  # as `call`, with a frame less in every step and in tracebacks
        try:
            return method(*args)
        except Exception as e:
            explain(e, where, learn)
            raise

    return answer


def _owner(who: Any, action: str, learn: Dispatch) -> Owner | None:
    """Return `who` as an owner of `action`, or None where it does not define it."""
    definer = next((c for c in type(who).__mro__ if action in vars(c)), None)
    if who is not learn:
        on_instance = action in getattr(who, "__dict__", {})
        definer = type(who) if on_instance else definer
        return definer and Owner(who, definer, getattr(who, action))
    if definer is Dispatch or definer is None:
        return None  # its methods ask the owner
    return Owner(who, definer, getattr(definer, action).__get__(who, type(who)))


def _choose(action: str, candidates: list[Owner]) -> Owner:
    specific = [o for o in candidates if not o.is_default]
    if len(specific) > 1:
        raise ActionConflictError(
            f"{specific[0].name} and {specific[1].name} both answer {action!r}, and only one can. "
            f"Remove one of them, or let one subclass the other."
        )
    if specific:
        return specific[0]
    given = [o for o in candidates if o.settings]
    if any(o.settings != given[0].settings for o in given):
        raise ActionConflictError(
            f"{' and '.join(o.name for o in given)} answer {action!r} with different settings. "
            "Give the settings to one of them only."
        )
    return (given or candidates)[0]


def _check_signature(action: str, owner: Owner, learn: Dispatch) -> None:
    args = () if owner.who is learn else (learn,)
    try:
        inspect.signature(owner.method).bind(*args)
    except TypeError as e:
        wanted = f"{action}(self)" if owner.who is learn else f"{action}(self, learn)"
        raise ActionConflictError(
            f"{type(owner.who).__name__}.{action} cannot be called by the loop: {e}. "
            f"Define it as {wanted}."
        ) from e
    except ValueError:  # no signature to be had, as with some builtins
        pass
