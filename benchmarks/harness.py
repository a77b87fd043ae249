"""How every figure here is measured: two functions in turn, many times, in one process.

Machines are noisy, so only ratios count: each round times a hand-written loop and ours back to
back, in changing order, and the median of the rounds' ratios is the figure.
"""

import json
import statistics
import time
from collections.abc import Callable


def seconds(f: Callable[[], object]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def cpu_seconds(f: Callable[[], object]) -> float:
    """Return the CPU time of this process, which others on the machine disturb less."""
    start = time.process_time()
    f()
    return time.process_time() - start


def compare(
    name: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rounds: int = 60,
    seconds: Callable[[Callable[[], object]], float] = seconds,
) -> float:
    """Print and return the median of ours/theirs, with quartiles, also as a line of JSON."""
    ours(), theirs()  # first calls pay for imports and allocations
    ratios, raw = [], []
    for number in range(rounds):
        if number % 2:
            a, b = seconds(ours), seconds(theirs)
        else:
            b, a = seconds(theirs), seconds(ours)
        ratios.append(a / b)
        raw.append(b)
    low, median, high = statistics.quantiles(ratios, n=4)
    report(name, ratio=median, low=low, high=high, rounds=rounds, base_s=statistics.median(raw))
    return median


def report(name: str, **figures: float) -> None:
    """Print one figure for people and as JSON for programs."""
    text = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
    print(f"{name:28} {text}", flush=True)
    print(json.dumps({"figure": name} | figures), flush=True)
