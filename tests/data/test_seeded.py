"""Passes are fixed by (seed, epoch), whoever fetches the items."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from picklable import Draws
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler

from minilearn import LambdaCB, Learner, TrainCB
from minilearn.core.position import loader_state
from minilearn.data import ArrayLoader, SeededLoader, seeded


def states():
    numpy = np.random.get_state()
    return random.getstate(), tuple(numpy[1]), numpy[2], tuple(torch.get_rng_state().tolist())


def draws(loader) -> dict[int, tuple]:
    """Return the draws of one epoch by index."""
    rows = zip(*(torch.cat(column).tolist() for column in zip(*loader, strict=True)), strict=True)
    return {index: tuple(rest) for index, *rest in rows}


def numbers(batches) -> list[int]:
    return torch.cat([batch[0] for batch in batches]).tolist()


def in_memory(n=10, batch_size=4, **kwargs):
    return ArrayLoader({"x": torch.arange(n)}, batch_size, **kwargs)


def by_item(n=10, batch_size=4, **kwargs):
    return SeededLoader(TensorDataset(torch.arange(n)), batch_size, **kwargs)


both = pytest.mark.parametrize("make", [in_memory, by_item])


def check_draws_differ_and_repeat(make_loader):
    first, second = draws(make_loader()), draws(make_loader())
    assert sorted(first) == list(range(64))
    for column in zip(*first.values(), strict=True):
        assert len(set(column)) == 64
    assert first == second


@pytest.mark.case("C140")
def test_workers_draw_different_numbers_that_a_second_run_repeats():
    check_draws_differ_and_repeat(lambda: SeededLoader(Draws(), 8, True, seed=1, num_workers=4))


class ForkedStates(Draws):
    """The error: every worker goes on from one and the same state."""

    def __getitem__(self, i):
        info = torch.utils.data.get_worker_info()
        if info is not None and not hasattr(self, "begun"):
            self.begun = True
            seeded.seed_cpu(0)
        return super().__getitem__(i)


@pytest.mark.case("C140")
def test_check_of_the_draws_sees_workers_with_one_state():
    with pytest.raises(AssertionError):
        check_draws_differ_and_repeat(lambda: DataLoader(ForkedStates(), 8, num_workers=4))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_draws_do_not_depend_on_workers_and_change_with_the_epoch(workers, persistent):
    alone = SeededLoader(Draws(12), 4, True, seed=1)
    many = SeededLoader(
        Draws(12), 4, True, seed=1, num_workers=workers, persistent_workers=persistent
    )
    epochs = [(draws(alone), draws(many)) for _ in range(3)]
    assert all(ours == theirs for ours, theirs in epochs)
    assert len({ours[0] for ours, _ in epochs}) == 3


def test_spawned_workers_draw_the_same_numbers():
    spawned = SeededLoader(Draws(6), 2, seed=1, num_workers=1, multiprocessing_context="spawn")
    assert draws(spawned) == draws(SeededLoader(Draws(6), 2, seed=1))


def test_draws_of_an_item_do_not_depend_on_batch_size_or_order():
    assert draws(SeededLoader(Draws(9), 2, True, seed=1)) == draws(
        SeededLoader(Draws(9), 3, seed=1)
    )
    subset = Subset(Draws(9), range(9))
    assert draws(SeededLoader(subset, 4, seed=1)) == draws(SeededLoader(Draws(9), 9, seed=1))


def test_data_sets_that_fetch_batches_are_asked_for_batches():
    class Batches(Draws):
        asked = []

        def __getitems__(self, rows):
            self.asked.append(rows)
            return [(row, random.random()) for row in rows]

    ds = Batches(6)
    first = draws(SeededLoader(ds, 4, seed=1))
    assert ds.asked == [[0, 1, 2, 3], [4, 5]]
    assert draws(SeededLoader(ds, 4, seed=1)) == first


@pytest.mark.parametrize(
    "loader", [in_memory(shuffle=True, seed=1), SeededLoader(Draws(9), 4, seed=1)]
)
def test_an_epoch_leaves_the_global_random_states_alone(loader):
    before = states()
    list(loader)
    assert states() == before


def test_random_states_are_left_alone_when_an_item_fails():
    class Failing(Draws):
        def __getitem__(self, i):
            raise OSError("no such file")

    before = states()
    with pytest.raises(OSError, match="no such file"):
        list(SeededLoader(Failing(), 4, seed=1))
    assert states() == before


@both
def test_order_follows_seed_and_epoch(make):
    loader = make(shuffle=True, seed=5)
    orders = [numbers(loader) for _ in range(3)]
    assert [sorted(order) for order in orders] == [list(range(10))] * 3
    assert len({tuple(order) for order in orders}) == 3
    loader.set_epoch(1)
    assert numbers(loader) == orders[1]
    assert numbers(make(shuffle=True, seed=5)) == orders[0]
    assert numbers(make(shuffle=True, seed=6)) != orders[0]


def test_both_loaders_have_one_order():
    assert numbers(in_memory(shuffle=True, seed=3)) == numbers(by_item(shuffle=True, seed=3))


@both
def test_without_a_seed_torchs_global_generator_governs(make):
    torch.manual_seed(3)
    first = numbers(make(shuffle=True))
    torch.manual_seed(3)
    assert numbers(make(shuffle=True)) == first
    torch.manual_seed(4)
    assert numbers(make(shuffle=True)) != first


@both
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_those_of_torchs_loader(make, drop_last):
    theirs = DataLoader(TensorDataset(torch.arange(10)), 4, drop_last=drop_last)
    ours = make(drop_last=drop_last)
    assert len(ours) == len(theirs)
    assert [b[0].tolist() for b in ours] == [b[0].tolist() for b in theirs]
    assert (ours.batch_size, ours.drop_last) == (4, drop_last)


@both
@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_an_epoch_started_in_the_middle_gives_the_rest_of_the_whole_one(make, start):
    whole = [b[0].tolist() for b in make(shuffle=True, seed=1)]
    loader = make(shuffle=True, seed=1)
    assert [b[0].tolist() for b in loader.batches(start)] == whole[start:]
    assert [b[0].tolist() for b in loader] != whole  # the next epoch, from its beginning
    assert loader.epoch == 2


def test_batches_before_the_start_are_not_loaded():
    loaded = []

    class Noted(Draws):
        def __getitem__(self, i):
            loaded.append(i)
            return super().__getitem__(i)

    list(SeededLoader(Noted(10), 4, seed=1).batches(2))
    assert loaded == [8, 9]


@both
def test_two_open_epochs_do_not_disturb_each_other(make):
    loader, other = make(shuffle=True, seed=1), make(shuffle=True, seed=1)
    first, second = iter(loader), iter(loader)
    pairs = list(zip(first, second, strict=True))
    assert numbers(p[0] for p in pairs) == numbers(other)
    assert numbers(p[1] for p in pairs) == numbers(other)


@both
def test_loaders_can_be_copied_and_pickled_with_their_place(make):
    loader = make(shuffle=True, seed=1)
    list(loader)
    twins = pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)
    expected = numbers(loader)
    assert [numbers(twin) for twin in twins] == [expected] * 2


def test_loader_with_living_workers_can_be_pickled():
    loader = SeededLoader(Draws(4), 2, seed=1, num_workers=1, persistent_workers=True)
    list(loader)
    assert draws(pickle.loads(pickle.dumps(loader))) == draws(loader)


def test_a_users_own_sampler_is_kept():
    ds = TensorDataset(torch.arange(4))
    weighted = WeightedRandomSampler([0.0, 0.0, 1.0, 0.0], 8)
    loader = SeededLoader(ds, 4, sampler=weighted)
    assert (loader.dataset, loader.sampler, len(loader)) == (ds, weighted, 2)
    assert numbers(loader) == [2] * 8
    batches = SeededLoader(ds, batch_sampler=[[3, 1], [0]])
    assert [b[0].tolist() for b in batches] == [[3, 1], [0]]


def test_batches_from_memory_are_no_views_of_the_data():
    x = torch.zeros(6, 2)
    for (batch,) in ArrayLoader({"x": x}, 3):
        batch.add_(1)
    assert x.sum() == 0


def test_columns_that_are_lists_and_dict_batches():
    loader = ArrayLoader({"n": torch.arange(3), "text": ["a", "b", "c"]}, 2, as_tuple=False)
    first, second = loader
    assert (first["n"].tolist(), first["text"], second["text"]) == ([0, 1], ["a", "b"], ["c"])


def orders(learn, n_epochs=2):
    """Fit, and return the first column of every batch as it came."""
    seen = []
    watch = LambdaCB(before_batch=lambda learn: seen.append(learn.batch[0][:, 0].tolist()))
    learn.fit(n_epochs, cbs=watch)
    return seen


@pytest.mark.parametrize("kind", [DataLoader, SeededLoader, ArrayLoader])
def test_the_same_random_numbers_give_a_new_fit_on_the_same_loaders_the_same_order(kind):
    data = torch.arange(24.0).view(12, 2), torch.zeros(12, 1)
    source = dict(enumerate(data)) if kind is ArrayLoader else TensorDataset(*data)
    dl, found = kind(source, 4, shuffle=True), []  # torch's own loader shows what is expected
    for _ in range(2):
        torch.manual_seed(3)
        learn = Learner(nn.Linear(2, 1), (dl,), F.mse_loss, 1e-4, [TrainCB()])
        found.append(orders(learn))
    assert found[0] == found[1]
    before = loader_state(dl)
    learn.validate(dl)
    learn.fit(0)
    assert loader_state(dl) == before  # neither leaves a trace
    assert orders(learn) != found[0]  # the next fit has a new order
    assert found[0][:3] != found[0][3:]  # and so has each epoch


def test_a_seed_that_was_given_fixes_the_order_over_all_fits():
    data = torch.arange(24.0).view(12, 2), torch.zeros(12, 1)
    one, two = (ArrayLoader(dict(enumerate(data)), 4, shuffle=True, seed=5) for _ in range(2))
    learns = [Learner(nn.Linear(2, 1), (dl,), F.mse_loss, 1e-4, [TrainCB()]) for dl in (one, two)]
    torch.manual_seed(0)
    whole = orders(learns[0], 4)
    torch.manual_seed(1)
    assert orders(learns[1], 1) + orders(learns[1], 3) == whole
