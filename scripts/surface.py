"""What a user can name: public names with their parameters, methods, events, options of commands.

    python scripts/surface.py REVISION

prints what this tree has lost, and what is new, since a revision of the repository. What is lost
belongs in CHANGELOG.md.
"""

import inspect
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("train", "lr-find", "predict", "eval", "inspect")


def parameters(f):
    """Yield the names of a function's parameters."""
    try:
        yield from (p for p in inspect.signature(f).parameters if p not in ("self", "args"))
    except (TypeError, ValueError):  # it is written in C
        return


def names():
    """Yield every public name, and after it its parameters, methods and their parameters."""
    import minilearn

    for name in minilearn.__all__:
        yield name
        found = getattr(minilearn, name)
        if not callable(found):
            continue
        yield from (f"{name}({p}=)" for p in parameters(found))
        if not isinstance(found, type) or not found.__module__.startswith("minilearn"):
            continue
        ours = [c for c in found.__mro__ if c.__module__.startswith("minilearn")]
        declared = {m for c in ours for m in (*vars(c), *vars(c).get("__annotations__", ()))}
        for member in sorted(m for m in declared if not m.startswith("_")):
            yield f"{name}.{member}"
            if callable(method := getattr(found, member, None)):
                yield from (f"{name}.{member}({p}=)" for p in parameters(method))


def events():
    """Yield the events and actions."""
    from importlib import import_module

    for module in ("core.events", "core.actions"):
        try:
            found = import_module(f"minilearn.{module}")
        except ImportError:
            continue
        for kind in ("EVENTS", "ACTIONS"):
            yield from (f"event {name}" for name in getattr(found, kind, ()))


def options():
    """Yield the options of each command, from its help."""
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "minilearn", command, "--help"],
            capture_output=True,
            text=True,
            env=os.environ | {"COLUMNS": "1000"},
            check=False,
        )
        yield f"minilearn {command}" if done.returncode == 0 else f"minilearn {command}: no help"
        found = re.findall(r"(?<![\w-])--[a-z][a-z0-9_.-]*", done.stdout)
        yield from (f"minilearn {command} {o.replace('_', '-').rstrip('.-')}" for o in found)


def surface(tree):
    """Return what the package in a folder offers, asked in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--list"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tree)},
        cwd=tree,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return set(json.loads(done.stdout))


def compare(revision):
    """Print the names that came and went since a revision; members of a lost name are left out."""
    packed = subprocess.run(
        ["git", "-C", ROOT, "archive", revision, "minilearn", "settings.ini"],
        capture_output=True,
        check=True,
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        tarfile.open(fileobj=BytesIO(packed)).extractall(folder, filter="data")
        before = surface(folder)
    now = surface(ROOT)
    for title, some, other in (("lost", before, now), ("new", now, before)):
        print(f"{title}:")
        gone = some - other
        for name in sorted(gone):
            owners = {name[:i] for i, c in enumerate(name) if c in ".(" and i}
            if not owners & gone:
                print(f"  {name}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print(json.dumps([*names(), *events(), *options()]))
    elif len(sys.argv) == 2:
        compare(sys.argv[1])
    else:
        sys.exit(__doc__)
