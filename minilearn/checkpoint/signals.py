"""Signals: handle SIGTERM and the like during a fit, and end the program at the right moment."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

PATIENCE = 5  # seconds after which a second signal counts, where several processes get the first


class Signals:
    """Keeps a signal that this process received, until its owner has saved and calls `leave`.

    A second signal ends the process at once. Where several processes train together, a signal of
    one counts when all know of it: the owner then sets `number`.

    Args:
        numbers: the signals to handle.
        together: whether several processes must agree.

    Attributes:
        number: the signal to act on, None before it came.
        received: with several processes, the signal and when it came, for the others to know.
    """

    def __init__(self, numbers: Iterable[int], together: bool) -> None:
        self.numbers, self.together = tuple(numbers), together
        self.number: Any = None
        self.received: tuple[int, float] | None = None
        self._handlers: dict[int, Any] = {}

    def listen(self) -> None:
        """Install the handlers; only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in self.numbers:
                if signal.getsignal(number) is not None:  # None is a handler outside Python
                    self._handlers[number] = signal.signal(number, partial(self._hear, os.getpid()))

    def give_back(self) -> None:
        """Restore the handlers that were there before."""
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def leave(self) -> None:
        """End the program in the way of the signal.

        Raises:
            KeyboardInterrupt: it was SIGINT.
            SystemExit: for all others, with the status that a shell reports for them.
        """
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + self.number)

    def _hear(self, process: int, number: int, frame: Any) -> None:
        if os.getpid() != process:  # a forked one, which has nothing to save
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not self.together:
            self.number, first = self.number or number, self.number is None
            if not first:
                self.leave()
        elif self.received is None:
            self.received = number, time.monotonic()
        elif time.monotonic() - self.received[1] > PATIENCE:  # launchers send it to all processes
            self.number = number
            self.leave()
