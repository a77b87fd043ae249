"""The setup of every test: one thread, no window, no network, the same random numbers."""

import gc
import logging
import os
import random
import signal

# Before anything imports matplotlib or datasets; subprocesses inherit it.
os.environ["MPLBACKEND"] = "Agg"
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import numpy as np
import pytest
import torch

# A suite in the background is started with Ctrl-C ignored, and would start its scripts so.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Sums on one thread do not depend on the machine, so equality to the bit can be asked for.
torch.set_num_threads(1)

# No deadline: the first example pays for imports, and CI machines are slow.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Start each test from one random state, whichever tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def same_logging():
    """Give the package's logger back as it was: `setup_logger` changes it for the whole process."""
    logger = logging.getLogger("minilearn")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def new_objects_alone():
    """Hide from the garbage collector what other tests left: objects are counted from here on."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
