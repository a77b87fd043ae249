"""Start a program on several processes, as a user would, and read what each of them found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

PROGRAMS = Path(__file__).parent / "programs"


def torchrun(program, folder, *args, n=2, timeout=600, check=True):
    """Run `programs/<program>.py` with torchrun; return the finished run.

    The program gets `folder` and `args`; what it writes there with `tell` is read with `told`.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(n), str(PROGRAMS / f"{program}.py"), str(folder), *args]
    root = Path(__file__).parent.parent
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root}{os.pathsep}{root.parent}"}
    env |= {"MINILEARN_DEVICE": "cpu"}
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
    if check and run.returncode:
        raise AssertionError(f"exit status {run.returncode}\n{run.stdout}\n{run.stderr}")
    return run


def told(folder, n=2):
    """What each of `n` processes wrote, in their order."""
    return [torch.load(Path(folder) / f"told{rank}.pt", weights_only=False) for rank in range(n)]


def tell(folder, **found):
    """Write down what this process found."""
    torch.save(found, Path(folder) / f"told{os.environ['RANK']}.pt")


def as_json(x):
    """A form to compare by."""
    return json.dumps(x, sort_keys=True)
