"""What a run was made of: RunCB.

Stands on rows.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from minilearn.core.callback import Callback
from minilearn.core.events import Order

from .rows import rank

if TYPE_CHECKING:
    from minilearn.core.learner import Learner

PACKAGES = ("minilearn", "torch", "numpy", "fastcore", "torcheval", "datasets", "safetensors")


class RunCB(Callback):
    """Write to a folder's `run.json` how each fit there was started, and how it ended.

    An entry has the command line, the arguments of the fit, the seed of torch, the versions, the
    machine, and the git commit of the working directory and whether files differ from it.

    Args:
        dir: the folder.
        settings: what else belongs to the record, such as your own options.

    Events: before_fit, cleanup_fit
    Order:  REPORT
    Reads:  scratch, plan, opt, model, error, epoch, steps_done
    Writes:
    """

    order = Order.REPORT

    def __init__(self, dir: str | Path, **settings: Any) -> None:
        self.dir, self.settings = Path(dir), settings

    def before_fit(self, learn: Learner) -> None:
        """Add an entry to the file."""
        self._file = (learn.scratch or self.dir) / "run.json"
        self._runs = json.loads(self._file.read_text()) if self._file.exists() else []
        opt = {k: v for k, v in getattr(learn.opt, "defaults", {}).items()}
        fit = {"plan": vars(learn.plan), "opt": type(learn.opt).__name__, "opt_settings": opt}
        about = {"began": _now(), "arguments": sys.argv, "settings": self.settings, "fit": fit}
        about |= {"model": str(learn.model), "seed": torch.initial_seed()}
        self._runs.append({**about, "git": git_state(), "environment": environment()})
        self._write()

    def cleanup_fit(self, learn: Learner) -> None:
        """Say how the fit ended."""
        ended = {"ended": _now(), "epoch": learn.epoch, "steps": learn.steps_done}
        self._runs[-1] |= {**ended, "error": learn.error and repr(learn.error)}
        self._write()

    def _write(self) -> None:
        if rank() == 0:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(self._runs, indent=1, default=str))


def environment() -> dict[str, Any]:
    """Return what the results may depend on: versions, system, devices."""
    cuda = torch.cuda.is_available()
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count() * cuda)]
    return {
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in PACKAGES},
        "system": platform.platform(),
        "cuda": torch.version.cuda,
        "devices": devices,
        "threads": torch.get_num_threads(),
    }


def git_state() -> dict[str, Any] | None:
    """Return the commit of the working directory and whether files differ; None without git."""
    try:
        return {"commit": _git("rev-parse", "HEAD"), "changed": bool(_git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*args: str) -> str:
    command = ["git", *args]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
