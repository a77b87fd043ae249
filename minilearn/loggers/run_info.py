"""How a run was made: RunCB."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from ..base.files import free, replaced, user_path, version_of
from ..base.rank import rank
from ..core.callback import Callback
from ..core.events import Order
from ..core.learner import Loop

PACKAGES = ("minilearn", "torch", "numpy", "fastcore", "torcheval", "datasets", "safetensors")


class RunCB(Callback):
    """Write to a folder's `run.json` how each fit there was started, and how it ended.

    An entry has the command line, the plan of the fit, the optimizer and its settings, the model,
    how `dls.pipeline` reads images, torch's seed, versions and devices, the git commit of the
    working directory and whether files differ from it. Where it cannot write, a warning says so.

    >>> learn.fit(1, cbs=RunCB("runs/a", note="a first try"))

    Args:
        dir: the folder.
        settings: what else to write, such as your own options.

    Events: before_fit, cleanup_fit
    Order:  REPORT
    Reads:  scratch, plan, opt, model, dls, error, epoch, steps_done
    Writes:
    """

    order = Order.REPORT

    def __init__(self, dir: str | Path, **settings: Any) -> None:
        self.dir, self.settings = user_path(dir), settings

    def before_fit(self, learn: Loop) -> None:
        """Add an entry to the file."""
        self._file = (learn.scratch or self.dir).absolute() / "run.json"
        entry = {"began": _now(), "arguments": sys.argv, "settings": self.settings}
        entry |= {"plan": learn.plan.settings, "model": str(learn.model)}
        if (pipeline := getattr(learn.dls, "pipeline", None)) is not None:
            entry["images"] = pipeline.reading
        entry |= {"opt": {"name": type(learn.opt).__name__, **getattr(learn.opt, "defaults", {})}}
        entry["seed"] = torch.initial_seed()
        self._entry: dict[str, Any] = {"id": os.urandom(6).hex(), **entry, "git": git_state()}
        self._entry["environment"] = environment()
        self._write()

    def cleanup_fit(self, learn: Loop) -> None:
        """Add how the fit ended."""
        ended = {"ended": _now(), "epoch": learn.epoch, "steps": learn.steps_done}
        self._entry |= {**ended, "error": learn.error and repr(learn.error)}
        self._write()

    def _write(self) -> None:
        if rank():
            return
        try:
            # read again each time: another run may have written, too
            others = [run for run in self._read() if run.get("id") != self._entry["id"]]
            with replaced(self._file) as file:
                file.write(json.dumps([*others, self._entry], indent=1, default=str).encode())
        except OSError as e:
            warnings.warn(f"RunCB cannot write: {e}. The fit goes on.", stacklevel=2)

    def _read(self) -> list[dict[str, Any]]:
        """Return the entries in the file; one of another program gets a number."""
        if not self._file.is_file():
            return []
        try:
            runs = json.loads(self._file.read_text())
            if isinstance(runs, list) and all(isinstance(run, dict) for run in runs):
                return runs
        except ValueError:
            pass
        self._file.rename(free(self._file))
        return []


def environment() -> dict[str, Any]:
    """Return what results may depend on: versions, system, devices."""
    n_devices = torch.cuda.device_count()
    return {
        "python": platform.python_version(),
        "packages": {name: version_of(name, None) for name in PACKAGES},
        "system": platform.platform(),
        "devices": [torch.cuda.get_device_name(i) for i in range(n_devices)],
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
    }


def git_state() -> dict[str, Any] | None:
    """Return the commit of the working directory and whether files differ; None without git."""
    ask = {"capture_output": True, "text": True, "check": True, "timeout": 10}
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], **ask).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain"], **ask).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": bool(changed)}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
