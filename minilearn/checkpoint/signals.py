"""Hear SIGTERM and its like while a fit runs, and end when there is a good moment: Signals."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

PATIENCE = 5  # seconds after which a second signal counts, where several processes hear the first


class Signals:
    """Keeps the signal that this process heard, until its owner has saved and calls `leave`.

    A second signal ends the process at once. Where several processes make the fit, what one hears
    counts when all know of it: the owner then sets `number`.

    Args:
        numbers: the signals to hear.
        together: whether several processes must agree.

    Attributes:
        number: the signal to act on, None before it came.
        heard: with several processes, the signal and when it came; to be told to the others.
    """

    def __init__(self, numbers: Iterable[int], together: bool) -> None:
        self.numbers, self.together = tuple(numbers), together
        self.number: Any = None
        self.heard: tuple[int, float] | None = None
        self._handlers: dict[int, Any] = {}

    def listen(self) -> None:
        """Take the signals over, in the main thread; others cannot hear them."""
        if threading.current_thread() is threading.main_thread():
            for number in self.numbers:
                if signal.getsignal(number) is not None:  # None is a handler outside Python
                    self._handlers[number] = signal.signal(number, partial(self._hear, os.getpid()))

    def give_back(self) -> None:
        """Give the signals back to whom they belonged."""
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def leave(self) -> None:
        """End as the signal wants it.

        Raises:
            KeyboardInterrupt: it was SIGINT.
            SystemExit: for all others, with what a shell reports of a program so ended.
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
        elif self.heard is None:
            self.heard = number, time.monotonic()
        elif time.monotonic() - self.heard[1] > PATIENCE:  # launchers hand on what all heard
            self.number = number
            self.leave()
