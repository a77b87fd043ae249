"""Random states: set, kept and put back."""

import random
import sys

import numpy as np
import pytest
import torch

from minilearn.base.seed import (
    generator_state,
    is_generator,
    load_generator_state,
    preserved_random_states,
    random_states,
    restore_random_states,
    set_seed,
)
from minilearn.checkpoint.files import serialisable


def draws():
    return random.random(), np.random.rand(), torch.rand(2).tolist()


def test_a_seed_fixes_python_numpy_and_torch():
    set_seed(7)
    first = draws()
    set_seed(7)
    assert draws() == first
    set_seed(8)
    assert draws() != first


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_a_seed_is_that_of_each_library(seed):
    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
    theirs = draws()
    set_seed(seed)
    assert draws() == theirs


def test_a_seed_beyond_what_numpy_takes_is_fine():
    set_seed(2**40)
    first = draws()
    set_seed(2**40)
    assert draws() == first
    set_seed(2**40 + 1)
    assert draws() != first


def test_random_states_can_be_restored():
    states = random_states()
    first = draws()
    restore_random_states(states)
    assert draws() == first


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_block_leaves_the_random_states_as_it_met_them(error):
    states = random_states()
    expected = draws()
    restore_random_states(states)
    try:
        with preserved_random_states():
            draws()
            if error:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    assert draws() == expected


def test_deterministic_sets_the_flags_of_cudnn():
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    try:
        cudnn.deterministic, cudnn.benchmark = False, True
        set_seed(1)
        assert (cudnn.deterministic, cudnn.benchmark) == (False, True)
        set_seed(1, deterministic=True)
        assert (cudnn.deterministic, cudnn.benchmark) == (True, False)
    finally:
        cudnn.deterministic, cudnn.benchmark = before


def test_without_numpy_there_is_nothing_of_it_to_keep(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy")
    states = random_states()
    assert states.numpy is None
    set_seed(1)
    restore_random_states(states)


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_the_random_states_of_devices_are_put_back_too(kind, monkeypatch):
    states = {"cuda": ["of", "each"], "mps": "of one"}
    got = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: kind == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: kind == "mps")
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states["cuda"])
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: states["mps"])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda s: got.append(("cuda", s)))
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda s: got.append(("mps", s)))
    with preserved_random_states():
        pass
    assert got == [(kind, states[kind])]


GENERATORS = {
    "torch": lambda: torch.Generator().manual_seed(3),
    "python": lambda: random.Random(3),
    "numpy": lambda: np.random.default_rng(3),
    "numpy, Mersenne twister": lambda: np.random.Generator(np.random.MT19937(3)),
    "numpy, older": lambda: np.random.RandomState(3),
}


def drawn(generator):
    if isinstance(generator, torch.Generator):
        return torch.randn(3, generator=generator).tolist()
    draw = getattr(generator, "normal", None) or (lambda: generator.gauss(0, 1))
    return [float(draw()) for _ in range(3)]  # an odd number: one is kept for later


@pytest.mark.parametrize("name", GENERATORS)
def test_the_state_of_any_generator_is_plain_and_goes_on(name):
    generator = GENERATORS[name]()
    drawn(generator)
    state = serialisable(generator_state(generator))
    expected = drawn(generator) + drawn(generator)
    other = GENERATORS[name]()
    load_generator_state(other, state)
    assert drawn(other) + drawn(other) == expected
    assert is_generator(other) and not is_generator(state)
