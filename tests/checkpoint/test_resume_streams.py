"""Loaders with a state and streams without one go on after a stop."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from minilearn import CheckpointCB, Learner, LimitBatchesCB, TrainCB, set_seed
from minilearn.checkpoint.files import read
from minilearn.core import stream as stream_module


def seen_ids(folder, loader, resume=None, cbs=()):
    """Return the numbers that are trained on, in order, and the checkpoints by updates."""
    ids = []
    set_seed(5 if resume is None else 77)
    saver = CheckpointCB(folder, every=(1, "step"), keep=None)
    cbs = [TrainCB(), saver, *cbs]
    learn = Learner(nn.Linear(1, 1), (loader(),), F.mse_loss, cbs=cbs, lr=1e-9)
    learn.on("after_step", lambda learn: ids.extend(learn.batch[0].flatten().int().tolist()))
    learn.fit(2, resume=resume)
    return ids, {read(f)["steps"]: f for f in folder.glob("*.ckpt")}


def check_goes_on(folder, loader, size=4, warns=None, cbs=tuple):
    """After each update of a run another one goes on from there with the rest of the numbers."""
    whole, files = seen_ids(folder / "a", loader, cbs=cbs())
    for steps, file in files.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rest, _ = seen_ids(folder / f"b{steps}", loader, file, cbs())
        assert rest == whole[size * steps :], steps
        inside = read(file)["position"] == "training"
        told = [w for w in caught if "has no state" in str(w.message)]
        assert bool(told) == bool(warns and inside)


def pairs(numbers):
    return [(torch.tensor([float(i)]), torch.tensor([0.0])) for i in numbers]


class Numbers:
    """A data set of 24 numbers."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        return pairs([i])[0]


class Stream(IterableDataset):
    """A stream of 24 numbers."""

    def __iter__(self):
        return iter(pairs(range(24)))


def test_a_stream_without_a_state_is_skipped_with_a_warning(tmp_path):
    check_goes_on(tmp_path, lambda: DataLoader(Stream(), 4), warns=True)


class Generated:
    """Any iterable, without a length."""

    def __iter__(self):
        for start in range(0, 24, 4):
            x, y = zip(*pairs(range(start, start + 4)), strict=True)
            yield torch.stack(x), torch.stack(y)


def test_any_iterable_is_skipped_with_a_warning(tmp_path):
    check_goes_on(tmp_path, Generated, warns=True)


def test_a_stream_of_hugging_face_reports_its_position(tmp_path):
    datasets = pytest.importorskip("datasets")

    def loader():
        rows = datasets.Dataset.from_dict({"x": [float(i) for i in range(24)]})
        stream = rows.to_iterable_dataset(num_shards=3)
        collate = lambda rows: tuple(map(torch.stack, zip(*pairs(r["x"] for r in rows))))  # noqa: B905, E731
        return DataLoader(stream, 4, collate_fn=collate)

    check_goes_on(tmp_path, loader)


def test_samples_in_a_shuffle_buffer_are_warned_of(tmp_path):
    datasets = pytest.importorskip("datasets")

    def loader():
        rows = datasets.Dataset.from_dict({"x": [float(i) for i in range(24)]})
        stream = rows.to_iterable_dataset(num_shards=3).shuffle(seed=3, buffer_size=6)
        collate = lambda rows: tuple(map(torch.stack, zip(*pairs(r["x"] for r in rows))))  # noqa: B905, E731
        return DataLoader(stream, 4, collate_fn=collate)

    _, files = seen_ids(tmp_path / "a", loader)
    with pytest.warns(UserWarning, match="samples in a shuffle buffer of datasets are not kept"):
        seen_ids(tmp_path / "b", loader, files[2])


def test_a_stateful_dataloader_reports_its_position(tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    for workers in (0, 2):
        make = lambda n=workers: stateful.StatefulDataLoader(  # noqa: E731
            Numbers(), 4, shuffle=True, num_workers=n
        )
        check_goes_on(tmp_path / str(workers), make)


def check_generator_of_a_stateful_dataloader(folder, n):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make():
        generator = torch.Generator().manual_seed(3)
        return stateful.StatefulDataLoader(
            Numbers(), 4, shuffle=True, generator=generator, num_workers=n
        )

    check_goes_on(folder, make)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_stateful_dataloader_with_a_generator_goes_on_with_the_next_order(n_workers, tmp_path):
    check_generator_of_a_stateful_dataloader(tmp_path, n_workers)


def test_that_check_sees_a_generator_that_torchdata_leaves_elsewhere(tmp_path, monkeypatch):
    tell = stream_module.own_state
    forgetful = lambda dl: (tell(dl) or {}) | {"generator": None}  # noqa: E731
    monkeypatch.setattr(stream_module, "own_state", forgetful)
    with pytest.raises(AssertionError):
        check_generator_of_a_stateful_dataloader(tmp_path, 0)


def test_a_shortened_loader_goes_on_shortened(tmp_path):
    make = lambda: DataLoader(Numbers(), 4, shuffle=True)  # noqa: E731
    check_goes_on(tmp_path, make, cbs=lambda: [LimitBatchesCB(train=4)])


class Starting(IterableDataset):
    """Reports its position; each epoch starts over, or at the position that it was given before."""

    def __init__(self, n):
        self.n, self.i, self.given = n, 0, None

    def __iter__(self):
        self.i, self.given = self.given or 0, None
        while self.i < self.n:
            self.i += 1
            yield pairs([self.i - 1])[0]

    def state_dict(self):
        return {"i": self.i}

    def load_state_dict(self, state):
        self.given = state["i"]


class Shown(Starting):
    """Likewise; its state shows what it was given."""

    def state_dict(self):
        return {"i": self.i if self.given is None else self.given}


class GoingOn(Starting):
    """Each epoch begins where the one before was left, and after the end at the start."""

    def __iter__(self):
        while self.i < self.n:
            self.i += 1
            yield pairs([self.i - 1])[0]
        self.i = 0

    def load_state_dict(self, state):
        self.i = state["i"]


class Endless(GoingOn):
    """The same without an end; a position is kept until the epoch."""

    def __iter__(self):
        self.i, self.given = self.i if self.given is None else self.given, None
        while True:
            self.i += 1
            yield pairs([self.i - 1])[0]

    def load_state_dict(self, state):
        self.given = state["i"]


@pytest.mark.parametrize("limit", [1, 3, 6])
@pytest.mark.parametrize("stream", (Starting, Shown))
def test_a_stream_that_starts_over_goes_on_after_a_limit(stream, limit, tmp_path):
    make = lambda: DataLoader(stream(24), 4)  # noqa: E731
    check_goes_on(tmp_path, make, cbs=lambda: [LimitBatchesCB(train=limit)])


@pytest.mark.parametrize("stream", (GoingOn, Endless))
def test_a_stream_that_goes_on_where_it_was_left_is_warned_of_at_its_limit(stream, tmp_path):
    make = lambda: DataLoader(stream(24), 4)  # noqa: E731
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*batches and declares")
        _, files = seen_ids(tmp_path / "a", make, cbs=[LimitBatchesCB(train=3)])
        with pytest.warns(UserWarning, match="at the end of the data: the .* starts anew"):
            seen_ids(tmp_path / "b", make, files[3], [LimitBatchesCB(train=3)])


@pytest.mark.parametrize("stream", (Starting, Shown))
def test_a_stream_whose_last_batch_was_smaller_goes_on_with_its_next_epoch(stream, tmp_path):
    whole, files = seen_ids(tmp_path / "a", lambda: DataLoader(stream(22), 4))
    for steps, file in files.items():
        rest, _ = seen_ids(tmp_path / f"b{steps}", lambda: DataLoader(stream(22), 4), file)
        assert rest == whole[4 * steps - 2 * (steps >= 6) - 2 * (steps >= 12) :], steps


def test_a_loader_without_automatic_batches_counts_too(tmp_path):
    batches = [torch.arange(4.0)[:, None] + 4 * i for i in range(6)]
    data = [(x, torch.zeros(4, 1)) for x in batches]
    check_goes_on(tmp_path, lambda: DataLoader(data, batch_size=None, shuffle=True))


def with_replacement(replacement):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    generator = torch.Generator().manual_seed(3)
    sampler = torch.utils.data.RandomSampler(Numbers(), replacement, generator=generator)
    return stateful.StatefulDataLoader(Numbers(), 4, sampler=sampler, generator=generator)


@pytest.mark.case("F50")
def test_a_sampler_with_replacement_in_a_stateful_dataloader_is_warned_of(tmp_path):
    _, files = seen_ids(tmp_path / "a", lambda: with_replacement(True))
    with pytest.warns(UserWarning, match="draws with replacement, .* is not exact"):
        seen_ids(tmp_path / "b", lambda: with_replacement(True), files[2])


@pytest.mark.case("F50")
def test_the_check_notices_that_a_sampler_without_replacement_needs_no_warning(tmp_path):
    _, files = seen_ids(tmp_path / "a", lambda: with_replacement(False))
    with pytest.raises(pytest.fail.Exception), pytest.warns(UserWarning, match="replacement"):
        seen_ids(tmp_path / "b", lambda: with_replacement(False), files[2])
