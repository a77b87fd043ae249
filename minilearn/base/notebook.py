"""Whether a notebook runs this process, and how to show something in it."""

from __future__ import annotations

import sys
from typing import Any


def show(text: Any) -> None:
    """Display `text` in a notebook, print it elsewhere."""
    if in_notebook():
        from IPython.display import display

        display(text)
    else:
        print(text)


def in_notebook() -> bool:
    """Return whether a front end that shows HTML runs this process: Jupyter, VS Code, Colab."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
