"""Random states: set them, keep them, put them back.

numpy is touched only where somebody imported it.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

SEED_RANGE = 2**32  # numpy takes no larger seed


class RandomStates(NamedTuple):
    """The states of Python, numpy (None where not imported), torch, and the CUDA or MPS devices."""

    python: tuple
    numpy: Any
    torch: torch.Tensor
    device: Any


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed Python, numpy and torch on every device.

    >>> set_seed(42)

    Args:
        seed: any non-negative integer.
        deterministic: also make cuDNN deterministic for the rest of the process; `DeterministicCB`
            does so for one fit only and puts the flags back.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % SEED_RANGE)
    if deterministic:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def random_states(device: bool = True) -> RandomStates:
    """Return a snapshot of the global random states; without `device`, of those on the CPU."""
    numpy = sys.modules.get("numpy")
    return RandomStates(
        random.getstate(),
        numpy.random.get_state() if numpy is not None else None,
        torch.get_rng_state(),
        _device_states() if device else None,
    )


def restore_random_states(states: RandomStates) -> None:
    """Put all global random states back to a snapshot of `random_states`."""
    random.setstate(states.python)
    torch.set_rng_state(states.torch)
    if states.numpy is not None:
        import numpy

        numpy.random.set_state(states.numpy)
    if states.device is None:
        return
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states.device)
    else:
        torch.mps.set_rng_state(states.device)


@contextmanager
def preserved_random_states(device: bool = True) -> Iterator[None]:
    """Leave the global random states as they were met, whatever the block draws or raises."""
    states = random_states(device)
    try:
        yield
    finally:
        restore_random_states(states)


def _device_states() -> Any:
    # asking an uninitialised CUDA context would create one on every device
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        return torch.mps.get_rng_state()
    return None


# ---- generators that somebody owns ----


def is_generator(x: Any) -> bool:
    """Return whether `x` draws random numbers: a generator of torch, numpy or Python."""
    numpy = sys.modules.get("numpy")
    kinds: tuple = (torch.Generator, random.Random)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    return isinstance(x, kinds)


def generator_state(generator: Any) -> Any:
    """Return the state of such a generator, as a tensor or in plain types."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        kind, numbers, normal = generator.getstate()
        return [kind, list(numbers), normal]
    if hasattr(generator, "bit_generator"):
        return _lists(generator.bit_generator.state)
    return _lists(generator.get_state(legacy=False))


def load_generator_state(generator: Any, state: Any) -> None:
    """Put back what `generator_state` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        kind, numbers, normal = state
        generator.setstate((kind, tuple(numbers), normal))
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _lists(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _lists(value) for name, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state
