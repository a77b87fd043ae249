"""How events and actions reach their callbacks: the half of the Learner that is not the loop.

Stands on actions, callback and events. Handlers are resolved once, when a fit begins and when its
callbacks change, into a tuple of bound methods an event.
"""

from __future__ import annotations

from typing import Any, TypeVar

from .actions import ACTIONS, Owner, bind, check_owners, find_owners
from .callback import (
    Handler,
    add_location,
    as_callbacks,
    call,
    check_cancel,
    handler_table,
    owner_name,
)
from .events import check_event
from .exceptions import CancelException, worst

T = TypeVar("T")


class Dispatch:
    """Fires events on `cbs`, and lets each action be answered by its one owner."""

    cbs: list[Any]
    levels: tuple[str, ...]
    _asks_owner: Any  # this class: its actions ask the owner, they are no answer themselves
    unheard: frozenset[str] = frozenset()  # while a fit runs: events that nobody handles

    def __init__(self, cbs: Any) -> None:
        self.cbs = as_callbacks(cbs)
        self._table: dict[str, tuple[Handler, ...]] = {}
        self._owners: dict[str, Owner] = {}

    def callback(self, event: str) -> None:
        """Call all that handle `event`, in order; errors are passed on with their place noted.

        Raises:
            TypeError: there is no such event.
            RuntimeError: a handler cancelled a level that is not running.
        """
        handlers: Any = self._table.get(event)
        if handlers is None:
            handlers = self._resolve_late(event)
        for handler in handlers:
            try:
                handler(self)
            except CancelException as e:
                check_cancel(e, f"{owner_name(handler)}.{event}", self)
                raise
            except Exception as e:
                add_location(e, f"{owner_name(handler)}.{event}", self)
                raise

    def _resolve(self) -> None:
        """Find out once who handles each event and who owns each action."""
        owners = find_owners(self)
        self._unbind()
        self._owners = owners
        self._keep_table(handler_table(self.cbs))
        for action, owner in owners.items():
            self.__dict__[action] = bind(action, owner, self)

    def _resolve_late(self, event: str) -> tuple[Handler, ...]:
        """Resolve outside a fit, where callbacks may change unannounced; or a new level's event."""
        check_event(event)
        table = handler_table(self.cbs)
        if "fit" in self.levels:
            self._keep_table(table)
        return table[event]

    def _keep_table(self, table: dict[str, tuple[Handler, ...]]) -> None:
        self._table = table
        if type(self).callback is Dispatch.callback and "callback" not in vars(self):
            self.unheard = frozenset(event for event, handlers in table.items() if not handlers)

    def _unbind(self) -> None:
        """Forget what `_resolve` found."""
        self.unheard = frozenset()
        self._table, self._owners = {}, {}
        for action in ACTIONS:
            self.__dict__.pop(action, None)

    def add_cb(self, cb: Any) -> Any:
        """Add a callback (or a class of one), for good; in a running fit it is told what has begun.

        Returns:
            The callback.
        """
        (cb,) = as_callbacks(cb)
        if any(cb is mine for mine in self.cbs):
            return cb
        self._change_cbs([*self.cbs, cb])
        for event in (f"before_{level}" for level in self.levels):
            if (method := getattr(cb, event, None)) is not None:
                call(method, (self,), f"{type(cb).__name__}.{event}", self)
        return cb

    def remove_cb(self, cb: Any) -> None:
        """Remove a callback, or all of a class; in a running fit it is told to clean up."""
        gone = [
            mine
            for mine in self.cbs
            if mine is cb or (isinstance(cb, type) and isinstance(mine, cb))
        ]
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
        """Return the first callback of a class (or a subclass of it), None where there is none."""
        return next((cb for cb in self.cbs if isinstance(cb, kind)), None)

    def owner(self, action: str) -> Any:
        """Return who answers an action: a callback, this Learner, or None."""
        owner = (self._owners or find_owners(self)).get(action)
        return owner and owner.who

    # These five serve outside a fit; while one runs, each name is bound to its owner's answer.

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


Dispatch._asks_owner = Dispatch
