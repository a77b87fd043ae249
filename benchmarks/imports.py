"""What importing costs over torch: seconds of CPU and resident memory, in fresh processes, in turn.

python benchmarks/imports.py

The package is compiled to bytecode first, as an installation or a first import does.
"""

import compileall
import importlib.util
import statistics
import subprocess
import sys

from harness import report

CODE = """
import resource, sys, time
import torch, torch.utils.data
t, m = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{statement}
print(time.process_time() - t, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - m) / 1024)
"""


def measure(statement: str, rounds: int = 11) -> tuple[float, float]:
    """Return the medians of seconds and MB that `statement` takes beyond torch."""
    runs = []
    for _ in range(rounds):
        code = CODE.format(statement=statement)
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        runs.append([float(v) for v in out.stdout.split()])
    seconds, megabytes = zip(*runs, strict=True)
    return statistics.median(seconds), statistics.median(megabytes)


def main() -> None:
    # not imported here, since a child process inherits the peak memory
    package = importlib.util.find_spec("minilearn")
    compileall.compile_dir(package.submodule_search_locations[0], quiet=1)
    usual = "from minilearn import Learner, MetricsCB, ProgressCB, TrainCB"
    for statement in ("import minilearn", usual, "from minilearn.all import *"):
        seconds, megabytes = measure(statement)
        report(statement, s=seconds, mb=megabytes)


if __name__ == "__main__":
    main()
