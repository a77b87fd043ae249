"""Values over time, smoothed for display: HistoryBuffer, MetricStorage.

Tensors stay on their device until a value is asked for.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Any

import torch
from torch import Tensor

from ..metrics.mean import Mean

SHOWN = {True: "avg", False: "latest", "median": "median"}


class HistoryBuffer:
    """The values of one name: the last `window_size` for `avg`, `median`, `latest`; sums of all.

    >>> losses = HistoryBuffer()
    >>> for loss in (1.0, 2.0, 6.0):
    ...     losses.update(loss)
    >>> losses.avg, losses.median, losses.latest
    (3.0, 2.0, 6.0)
    """

    def __init__(self, window_size: int = 20) -> None:
        self._window: deque[Any] = deque(maxlen=window_size)
        self._tensors, self._sum, self._count = Mean(), 0.0, 0

    def update(self, value: Any) -> None:
        """Add a number or a tensor with one element; nothing is read from its device."""
        if isinstance(value, Tensor):
            value = value.detach() if value.requires_grad else value
            value = value.reshape(()) if value.dim() else value
            self._tensors.update(value)
        else:
            value = value if type(value) in (int, float) else float(value)  # numpy's, say
            self._sum += value
        self._window.append(value)
        self._count += 1

    @property
    def window(self) -> list[float]:
        """The values in the window, the oldest first."""
        if tensors := [value for value in self._window if isinstance(value, Tensor)]:
            read = iter(torch.stack(tensors).tolist())  # one wait for all
            for i, value in enumerate(self._window):
                self._window[i] = next(read) if isinstance(value, Tensor) else value
        return list(self._window)

    @property
    def latest(self) -> float:
        """The last value."""
        return self.window[-1]

    @property
    def avg(self) -> float:
        """The mean of the window."""
        return statistics.fmean(self.window)

    @property
    def median(self) -> float:
        """The median of the window, which a single outlier does not move."""
        return statistics.median(self.window)

    @property
    def global_sum(self) -> float:
        """The sum of all values ever added."""
        if self._tensors.any:
            self._tensors.fold()
            self._sum += float(self._tensors.total + self._tensors.lost)
            self._tensors.reset()
        return self._sum

    @property
    def global_avg(self) -> float:
        """The mean of all values ever added."""
        return self.global_sum / self._count

    def state_dict(self) -> dict[str, Any]:
        """Return the window and the sums, as numbers."""
        return {"window": self.window, "sum": self.global_sum, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._window.clear()
        self._window.extend(state["window"])
        self._sum, self._count = state["sum"], state["count"]


class MetricStorage(dict):
    """A `HistoryBuffer` by name; whether a name is smoothed is fixed when it is first used.

    >>> storage = MetricStorage()
    >>> storage.update(iter=0, loss=0.25)
    >>> storage.update(iter=1, loss=0.75)
    >>> storage.update(iter=1, lr=0.001, smooth=False)
    >>> storage.values_maybe_smooth
    {'loss': (1, 0.5), 'lr': (1, 0.001)}
    """

    def __init__(self, window_size: int = 20) -> None:
        super().__init__()
        self.window_size = window_size
        self._smooth: dict[str, bool | str] = {}
        self._latest: dict[str, int] = {}

    def update(self, iter: int | None = None, smooth: bool | str = True, **values: Any) -> None:
        """Add a value to each name.

        Args:
            iter: when the values came; each name's must rise. None counts from 0 by itself.
            smooth: whether the mean of the window is shown, or the latest value; "median" for its
                median.
            values: numbers or tensors with one element, by name.

        Raises:
            ValueError: `iter` does not rise, or `smooth` is not as it was.
        """
        for name, value in values.items():
            self.add(name, value, smooth, iter)

    def add(
        self, name: str, value: Any, smooth: bool | str = True, iter: int | None = None
    ) -> None:
        """Add a value to one name, as `update` does."""
        last = self._latest.get(name, -1)
        now = last + 1 if iter is None else iter
        if now <= last:
            raise ValueError(f"iter of {name!r} must rise: it was {last}, and now is {now}")
        if self._smooth.setdefault(name, smooth) != smooth:
            was = self._smooth[name]
            raise ValueError(f"{name!r} began with smooth={was!r}, and keeps that")
        if name not in self:
            self[name] = HistoryBuffer(self.window_size)
        self[name].update(value)
        self._latest[name] = now

    @property
    def values_maybe_smooth(self) -> dict[str, tuple[int, float]]:
        """The last iteration and the value to show, by name."""
        return {
            name: (self._latest[name], getattr(buffer, SHOWN[self._smooth[name]]))
            for name, buffer in self.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return all buffers, by name."""
        return {n: [self._smooth[n], self._latest[n], b.state_dict()] for n, b in self.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.clear()
        for name, (self._smooth[name], self._latest[name], saved) in state.items():
            self[name] = HistoryBuffer(self.window_size)
            self[name].load_state_dict(saved)
