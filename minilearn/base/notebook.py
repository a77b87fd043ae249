"""Whether a notebook runs this process; show something in it, and free what it holds."""

from __future__ import annotations

import gc
import sys
import traceback
from contextlib import suppress
from typing import Any

import torch


def show(text: Any) -> None:
    """Display `text` in a notebook, print it elsewhere."""
    if in_notebook():
        from IPython.display import display

        display(text)
    else:
        print(text)


def in_notebook() -> bool:
    """Return whether a front end that shows HTML runs this process: Jupyter, VS Code, Colab."""
    return hasattr(_shell(), "kernel")


def _shell() -> Any:
    """Return IPython's shell, None where there is none."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def clean_mem() -> None:
    """Free what the last error and the outputs of a notebook hold, also on the GPU.

    Delete your own names first, such as `del learn`.

    >>> clean_mem()
    """
    clean_tb()
    clean_ipython_hist()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def clean_tb() -> None:
    """Let go of the last error, whose traceback holds the variables of every function in it.

    >>> clean_tb()
    """
    error = getattr(sys, "last_value", None)
    while error is not None:  # also those in whose handling it was raised
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        with suppress(AttributeError):
            delattr(sys, name)


def clean_ipython_hist() -> None:
    """Let go of the outputs that IPython keeps in `Out` and `_`.

    >>> clean_ipython_hist()
    """
    if (shell := _shell()) is not None:
        shell.displayhook.flush()
        shell.push({"_": "", "__": "", "___": ""}, interactive=False)  # IPython keeps them twice
        shell.last_execution_result = None
