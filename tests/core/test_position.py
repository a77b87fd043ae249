"""An epoch begun after its first batches equals the rest of the whole epoch."""

import random
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from minilearn.callbacks.training import TrainCB
from minilearn.checkpoint.callback import CheckpointCB
from minilearn.core import position
from minilearn.core.position import (
    generators,
    load_loader_state,
    loader_state,
    own_state,
    skip_batches,
)
from minilearn.learner import Learner

NUMBERS = list(range(22))


def shuffled(**kwargs):
    generator = torch.Generator().manual_seed(3)
    return DataLoader(NUMBERS, 4, shuffle=True, generator=generator, **kwargs)


def by_batch_sampler():
    sampler = RandomSampler(NUMBERS, generator=torch.Generator().manual_seed(3))
    return DataLoader(NUMBERS, batch_sampler=BatchSampler(sampler, 4, drop_last=True))


def rest_and_whole(loader, n, **kwargs):
    state = loader_state(loader)
    whole = [batch.tolist() for batch in loader]
    load_loader_state(loader, state)
    return [batch.tolist() for batch in skip_batches(loader, n, own_state(loader), **kwargs)], whole


@pytest.mark.parametrize("n", [0, 1, 5, 6])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("make", [shuffled, by_batch_sampler, lambda: shuffled(drop_last=True)])
def test_the_rest_of_a_shuffled_epoch_is_that_of_the_whole_one_and_nothing_is_said(make, exact, n):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rest, whole = rest_and_whole(make(), n, exact=exact)
    assert rest == whole[n:]


def test_indices_are_left_out_without_loading_their_samples_unless_it_is_to_be_exact():
    class Counted(list):
        asked = 0

        def __getitem__(self, i):
            self.asked += 1
            return super().__getitem__(i)

    for exact, asked in ((False, 2), (True, 22)):
        numbers = Counted(NUMBERS)
        assert len(list(skip_batches(DataLoader(numbers, 4), 5, None, exact))) == 1
        assert numbers.asked == asked


def test_workers_of_torch_are_warned_of_and_the_order_is_kept():
    with pytest.warns(UserWarning, match="workers of torch's DataLoader are not repeated"):
        rest, whole = rest_and_whole(shuffled(num_workers=1), 2)
    assert rest == whole[2:]


def test_a_list_is_counted_and_an_iterable_without_a_state_is_read_with_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(skip_batches(NUMBERS, 20, None)) == [20, 21]
    with pytest.warns(UserWarning, match="the set of .* has no state: 20 b"):
        assert len(list(skip_batches(set(NUMBERS), 20, None))) == 2


def test_a_shortened_loader_ends_where_it_would_have_ended():
    short = SimpleNamespace(dl=NUMBERS, shortened_to=3)
    assert list(skip_batches(short, 1, None)) == [1, 2]
    assert list(skip_batches(short, 3, None)) == list(skip_batches(short, 4, None)) == []


def test_seed_epoch_and_generators_are_those_of_the_loader_inside():
    inner = shuffled()
    inner.seed, inner.epoch = 1, 2
    outer = SimpleNamespace(dl=SimpleNamespace(dl=inner))
    state = loader_state(outer)
    assert (state["seed"], state["epoch"]) == (1, 2) and len(state["generators"]) == 1
    first = [batch.tolist() for batch in inner]
    inner.seed, inner.epoch = 7, 8
    load_loader_state(outer, state)
    assert (inner.seed, inner.epoch) == (1, 2)
    assert [batch.tolist() for batch in inner] == first
    bare = SimpleNamespace()
    load_loader_state(bare, state)
    assert vars(bare) == {} and loader_state(bare) == {"generators": []}


class Fixed:
    """A loader of a user's own, whose numbers nobody may set."""

    seed, epoch = property(lambda self: 3), property(lambda self: 1)


def test_numbers_that_a_loader_computes_are_left_alone():
    state = loader_state(Fixed())
    load_loader_state(Fixed(), state | {"seed": 1, "epoch": 2})
    assert state == {"generators": []}


def test_each_generator_of_a_loader_is_found_once():
    assert len(generators(shuffled())) == len(generators(by_batch_sampler())) == 1
    assert generators(DataLoader(NUMBERS, 4)) == generators(NUMBERS) == []


class Told(IterableDataset):
    """A stream that reports its position."""

    place = 0

    def __iter__(self):
        while self.place < 6:
            self.place += 1
            yield self.place

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def test_a_stream_with_a_state_is_asked_for_it_and_none_that_workers_copy():
    data = Told()
    own = {"position": {"place": 0}, "generator": None}
    assert own_state(DataLoader(data, 2)) == own_state(data) == own
    assert own_state(SimpleNamespace(dl=data, shortened_to=3)) == own
    assert own_state(DataLoader(data, 2, num_workers=1)) is None is own_state(NUMBERS)
    assert own_state(SimpleNamespace(dataset=data, num_workers=0)) is None  # may read it anyhow
    batches = skip_batches(DataLoader(data, 2), 99, own | {"position": {"place": 2}})
    assert [batch.tolist() for batch in batches] == [[3, 4], [5, 6]]


class Owning:
    """A sampler, or sampler of batches, that draws from a generator of its own."""

    def __init__(self, make, batches):
        self.rng, self.batches = make(), batches

    def __len__(self):
        return 4 if self.batches else 8

    def __iter__(self):
        if isinstance(self.rng, torch.Generator):
            order = torch.randperm(8, generator=self.rng).tolist()
        else:
            order = list(range(8))
            self.rng.shuffle(order)
        yield from [order[i : i + 2] for i in range(0, 8, 2)] if self.batches else order


def orders(make, batches, folder, resume=None, every=1):
    """The inputs of each training batch of three epochs, and the checkpoints."""
    sampler = Owning(make, batches)
    how = {"batch_sampler": sampler} if batches else {"sampler": sampler, "batch_size": 2}
    x = torch.arange(8.0)[:, None]
    seen = []
    cbs = [TrainCB(), CheckpointCB(folder, every=every, keep=None, save_last=False)]
    learn = Learner(nn.Linear(1, 1), (DataLoader(TensorDataset(x, x), **how), None), cbs=cbs)
    learn.on("after_step", lambda learn: seen.append(learn.batch[0].flatten().tolist()))
    learn.fit(3, resume=resume)
    return seen, sorted(folder.glob("*.ckpt"))


MAKERS = {
    "torch": lambda: torch.Generator().manual_seed(0),
    "python": lambda: random.Random(0),
    "numpy": lambda: np.random.default_rng(0),
    "older numpy": lambda: np.random.RandomState(0),
}


def check_order(tmp_path, kind, batches, every):
    whole, files = orders(MAKERS[kind], batches, tmp_path / "a", every=every)
    for number, file in enumerate(files):
        rest, _ = orders(MAKERS[kind], batches, tmp_path / f"b{number}", file, every)
        assert rest == whole[-len(rest) :] if rest else number == len(files) - 1
        assert len(rest) == len(whole) - int(file.stem.split("step")[1])


@pytest.mark.case("F30")
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("every", [1, (3, "step")])
def test_a_sampler_with_a_generator_of_its_own_goes_on_in_its_order(tmp_path, kind, batches, every):
    check_order(tmp_path, kind, batches, every)


@pytest.mark.case("F30")
def test_the_check_of_orders_notices_a_generator_that_nobody_finds(tmp_path, monkeypatch):
    monkeypatch.setattr(position, "generators", lambda dl: [])
    with pytest.raises(AssertionError):
        check_order(tmp_path, "numpy", False, 1)
