"""How a fit is asked to end: by Ctrl-C, which waits until an update is complete, or by a call."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """Holds SIGINT back while an update is made, for the handler that was there before the fit.

    A second one within an update breaks through, and says so.

    Attributes:
        stopped: whether the last fit was ended by Ctrl-C.
        reason: why the last fit ended early, where something asked for that, else None.
        agreed: whether several processes agree first on what that ends.
    """

    def __init__(self) -> None:
        self.begin()
        self._updating = 0
        self._held: tuple[int, Any] | None = None
        self._handler: Any = None

    def begin(self) -> None:
        """Forget how the last fit ended."""
        self.stopped = self.agreed = False
        self.reason: str | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGINT for a fit, in the main thread only; nested fits share one handler."""
        before = signal.getsignal(signal.SIGINT)
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or not callable(before) or before == self._handle:
            yield
            return
        self._handler = before
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) == self._handle:  # else somebody put another there
                signal.signal(signal.SIGINT, before)
            self._handler = None

    def __enter__(self) -> None:
        """Begin an update."""
        self._updating += 1

    def __exit__(self, *_: Any) -> None:
        """End an update, and let an interrupt that was held back take effect."""
        self._updating -= 1
        if self._held is not None and not self._updating:
            held, self._held = self._held, None
            self._handler(*held)

    def _handle(self, number: int, frame: Any) -> None:
        if self._updating and self._held is None:
            self._held = number, frame
            return
        if self._held is not None:
            self._held = None
            text = "interrupted within an update: the weights may be those of half a step"
            print(text, file=sys.stderr)
        self._handler(number, frame)
