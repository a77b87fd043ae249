"""The exceptions that steer the loop, and the errors of its contract.

Stands on nothing. A `CancelXException` skips the rest of level X; it is flow control, not a fault.
"""

from collections.abc import Iterable
from typing import Any


class CancelException(Exception):
    """The common base of all cancels: catch it to let flow control pass."""


class CancelFitException(CancelException):
    """End the fit; `after_fit` does not run, all clean-up does."""


class CancelRoundException(CancelException):
    """End this training pass and its validation; go on with the next round."""


class CancelEpochException(CancelException):
    """End this pass over a loader; a validation that belongs to it still runs."""


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
"""Level to its cancel, outermost first. `register_level` adds a user's own."""


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
