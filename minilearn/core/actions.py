"""Who answers what: each action of the loop has exactly one owner.

Stands on events, exceptions and callback. What a class marked with `default_actions` defines is a
default answer; any other definition is a specific one and wins over all defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .callback import call
from .events import ACTIONS
from .exceptions import ActionConflictError, MissingActionError

if TYPE_CHECKING:
    from .dispatch import Dispatch

C = TypeVar("C", bound=type)


def default_actions(cls: C) -> C:
    """Mark a class: the actions in its own body are defaults, those of its subclasses are not."""
    cls._defines_defaults = cls
    return cls


class Owner(NamedTuple):
    """Who answers an action: a callback or the Learner, and the class that defines the answer."""

    who: Any
    definer: type
    method: Callable

    @property
    def is_default(self) -> bool:
        """Whether a specific answer may replace this one."""
        return self.definer.__dict__.get("_defines_defaults") is self.definer

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that were given to the owner, such as `{"n_inp": 2}`."""
        return getattr(self.who, "settings", {})

    @property
    def name(self) -> str:
        """The class of the owner, with the settings that it was given."""
        given = ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        return f"{type(self.who).__name__}({given})" if given else type(self.who).__name__


def find_owners(learn: Dispatch) -> dict[str, Owner]:
    """Return the one owner of every action that somebody answers.

    Raises:
        ActionConflictError: two specific owners, or two defaults with different settings.
    """
    owners = {}
    for action in ACTIONS:
        candidates = [
            o for who in (learn, *learn.cbs) if (o := _owner(who, action, learn)) is not None
        ]
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
    """Return what the loop calls for `action`; errors get their place noted."""
    method, args = owner.method, () if owner.who is learn else (learn,)

    return partial(call, method, args, f"{type(owner.who).__name__}.{action}", learn)


def _owner(who: Any, action: str, learn: Dispatch) -> Owner | None:
    """Return `who` as an owner of `action`, or None where it does not define it."""
    definer = next((c for c in type(who).__mro__ if action in c.__dict__), None)
    on_instance = who is not learn and action in getattr(who, "__dict__", {})
    if definer is None or on_instance:
        return Owner(who, type(who), getattr(who, action)) if on_instance else None
    if definer.__dict__.get("_asks_owner") is definer:
        return None  # the Learner's own method asks the owner, it is none
    if who is learn:
        return Owner(who, definer, getattr(definer, action).__get__(who, type(who)))
    return Owner(who, definer, getattr(who, action))


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
