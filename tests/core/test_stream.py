"""Where batches come from: any iterable, empty ones, streams of workers, filtered batches."""

import contextlib
import gc
import warnings
import weakref
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
)
from toys import At, batches, linear, toy_learner

from minilearn import EMACB, LogCB, MetricsCB, ProgressCB, TimerCB
from minilearn.base.batch import describe, tensors
from minilearn.callbacks.training import TrainCB
from minilearn.checkpoint.callback import CheckpointCB
from minilearn.core import fit as fit_module
from minilearn.core import plan as plan_module
from minilearn.core import stream as stream_module
from minilearn.core.events import CancelEpochException, CancelFitException
from minilearn.core.stream import Stream, no_batches, pick_loader
from minilearn.data import SeededLoader, get_dls
from minilearn.learner import Learner


def count_batches(training=True):
    counter = At("after_batch", lambda learn: None, lambda learn: learn.training is training, 10**6)
    counter.count = lambda: 10**6 - counter.times
    return counter


class NoLength(IterableDataset):
    """11 samples, as a stream that does not know it."""

    def __iter__(self):
        return iter(zip(torch.randn(11, 3), torch.randn(11, 1), strict=True))


@pytest.mark.parametrize("valid", [True, False])
def test_a_stream_without_a_length_can_be_trained_and_validated(valid):
    counter = count_batches()
    loader = DataLoader(NoLength(), 3)
    learn = toy_learner([counter], dls=(loader, loader) if valid else (loader,))
    learn.fit(2)
    assert counter.count() == 2 * 4 and learn.n_steps is None and len(learn.history) == 2


def test_any_iterable_of_batches_is_a_loader():
    class Loader:
        def __iter__(self):
            yield from batches(3)

    for loader in (batches(3), tuple(batches(3)), Loader()):
        counter = count_batches()
        toy_learner([counter], dls={"train": loader}).fit(2)
        assert counter.count() == 6


def test_a_generator_that_is_used_up_says_so_at_its_second_epoch():
    counter = count_batches()
    learn = toy_learner([counter], dls=((b for b in batches(3)),))
    with pytest.raises(ValueError, match=r"training loader has no batches \(generator\)"):
        learn.fit(2)
    assert counter.count() == 3


def test_loaders_are_picked_by_name_key_or_place():
    train, valid = ["t"], ["v"]
    for dls in ((train, valid), [train, valid], {"train": train, "valid": valid}):
        assert pick_loader(dls, True) is train and pick_loader(dls, False) is valid
    assert pick_loader((train,), False) is pick_loader((0,), True) is None
    assert pick_loader(loader := iter([1]), True) is loader


def test_missing_loaders_are_errors_that_say_what_to_give():
    with pytest.raises(ValueError, match="no training loader: give the Learner dls="):
        Learner(linear(), cbs=TrainCB()).fit(1)
    with pytest.raises(ValueError, match="no validation loader"):
        toy_learner(dls=(batches(1),)).fit(1, train=False)
    toy_learner(dls=(None, batches(1))).fit(1, train=False)


# ---- C086: nothing to train on ----


def small_loader(n=3):
    return DataLoader(TensorDataset(torch.ones(n, 3), torch.ones(n, 1)), 8, drop_last=True)


def check_empty_loaders():
    full = small_loader(16)
    for phase, dls in (
        ("training", (small_loader(), full)),
        ("validation", (full, small_loader())),
    ):
        learn = toy_learner([started := At("before_round", lambda learn: None)], dls=dls)
        with pytest.raises(ValueError) as caught:
            learn.fit(1)
        for part in (f"the {phase} loader has no batches", "3 samples", "batch_size=8"):
            assert part in str(caught.value)
        assert "drop_last=True" in str(caught.value)
        assert started.times == 1  # it was never called: nothing had begun
    empty_stream = type("Empty", (), {"__iter__": lambda self: iter([])})()
    for phase, dls in (("training", (empty_stream, full)), ("validation", (full, empty_stream))):
        with pytest.raises(ValueError, match=f"the {phase} loader has no batches"):
            toy_learner(dls=dls).fit(1)


@pytest.mark.case("C086")
def test_a_loader_without_batches_raises_before_the_first_epoch_or_at_its_end():
    check_empty_loaders()


@pytest.mark.case("C086")
@pytest.mark.parametrize("fault", ["check_loader", "no check at the end"])
def test_the_check_of_empty_loaders_notices_a_fit_of_nothing(monkeypatch, fault):
    if fault == "check_loader":
        monkeypatch.setattr("minilearn.core.fit.check_loader", lambda *args: None)
    else:
        monkeypatch.setattr(Stream, "_finish", lambda self: setattr(self, "_batches", None))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_empty_loaders()


def test_the_advice_on_an_empty_loader_follows_from_what_it_has():
    said = "the training loader has no batches"
    known = SimpleNamespace(dataset=[1, 2, 3])
    assert no_batches(known, "training") == f"{said} (3 samples): check its data"
    known.drop_last = True
    assert no_batches(known, "training").endswith("lower batch_size or set drop_last=False")
    known.dataset = []
    assert no_batches(known, "training").endswith("drop_last=True): check its data")
    assert no_batches([], "training") == f"{said} (list): check its data"


# ---- C087: streams that every worker reads ----


class NotSharedOut(IterableDataset):
    """100 samples for each worker."""

    def __iter__(self):
        return iter([(torch.ones(3), torch.ones(1))] * 100)

    def __len__(self):
        return 100


def check_repeated_stream(batch_size=8, given=26, declared=13):
    counter = count_batches()
    loader = DataLoader(NotSharedOut(), batch_size, num_workers=2)
    learn = toy_learner([counter], dls=(loader,))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learn.fit(2)
    assert counter.count() == 2 * given
    messages = [str(w.message) for w in caught if "IterableDataset" in str(w.message)]
    assert len(messages) == 1, messages
    assert f"gave {given} batches and declares {declared}" in messages[0]
    assert "worker" in messages[0]


@pytest.mark.case("C087")
def test_a_stream_longer_than_declared_is_trained_whole_with_one_warning_that_says_why():
    check_repeated_stream()
    check_repeated_stream(batch_size=None, given=200, declared=100)


@pytest.mark.case("C087")
def test_the_check_of_repeated_streams_notices_a_loop_that_stops_at_the_length(monkeypatch):
    whole = Stream._draw

    def faulty(self):
        for _, batch in zip(range(len(self.dl)), whole(self), strict=False):
            yield batch

    monkeypatch.setattr(Stream, "_draw", faulty)
    with pytest.raises(AssertionError):
        check_repeated_stream()


@pytest.mark.case("C087")
def test_the_check_of_repeated_streams_notices_a_warning_a_batch(monkeypatch):
    monkeypatch.setattr(stream_module, "_draw_quietly", next)
    with pytest.raises(AssertionError):
        check_repeated_stream(batch_size=None, given=200, declared=100)


@pytest.mark.parametrize(("given", "declared"), [(3, 5), (5, 3)])
def test_a_loader_with_a_wrong_length_is_named_once_a_fit(given, declared):
    class Loader(list):
        def __len__(self):
            return declared

    learn = toy_learner(dls=(Loader(batches(given)), Loader(batches(given))))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learn.fit(3)
    said = [str(w.message).partition(":")[0] for w in caught]
    assert said == [
        f"the {phase} loader gave {given} batches and declares {declared}"
        for phase in ("training", "validation")
    ]


# ---- C089: batches from which all samples were filtered ----


def check_filtered_batches(nothing):
    data = batches(6)
    data[2] = nothing
    losses = []
    watch = At("after_batch", lambda learn: losses.append(learn.loss.item()), times=99)
    learn = toy_learner([watch], dls=(data,), lr=0.0)
    with pytest.warns(UserWarning, match="1 empty batch of the training loader") as caught:
        learn.fit(1)
    assert len([w for w in caught if "empty" in str(w.message)]) == 1
    kept = [b for i, b in enumerate(data) if i != 2]
    expected = [torch.nn.functional.mse_loss(learn.model(x), y).item() for x, y in kept]
    assert losses == expected and learn.steps_done == 5


@pytest.mark.case("C089")
@pytest.mark.parametrize(
    "nothing",
    [None, [], (), {}, OrderedDict(), (None, None), [[], []], {"x": torch.zeros(0, 3), "y": []}]
    + [(torch.zeros(0, 3), torch.zeros(0, 1)), torch.zeros(0)],
    ids=describe,
)
def test_empty_batches_are_skipped_with_one_warning(nothing):
    check_filtered_batches(nothing)


@pytest.mark.case("C089")
def test_the_check_of_filtered_batches_notices_an_epoch_that_ends_at_the_first(monkeypatch):
    whole = Stream._draw

    def faulty(self):
        before = self._empty
        for batch in whole(self):
            if self._empty > before:
                return
            yield batch

    monkeypatch.setattr(Stream, "_draw", faulty)
    with pytest.raises(AssertionError):
        check_filtered_batches(None)


class BadSample(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return (torch.ones(3), None if i == 4 else torch.ones(1))


@pytest.mark.case("C089")
def test_a_none_inside_a_sample_keeps_torch_s_error_with_a_note_of_phase_and_batch():
    loader = DataLoader(BadSample(), 2)
    with pytest.raises(TypeError, match="default_collate|NoneType") as theirs:
        list(loader)
    with pytest.raises(TypeError) as ours:
        toy_learner(dls=(loader,)).fit(1)
    assert ours.value.args == theirs.value.args
    assert ours.value.__notes__ == ["in the training loader, batch 2"]


def test_a_loader_that_gives_only_empty_batches_has_none():
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="no batches"):
        toy_learner(dls=([None, None],)).fit(1)


# ---- loaders are let go ----


@pytest.mark.parametrize("valid_every", [None, (1, "step")])
@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_iterator_of_a_loader_is_let_go_however_the_epoch_ends(error, valid_every):
    alive = []

    class Iterator:
        def __init__(self):
            self.batches = iter(batches(3))
            alive.append(weakref.ref(self))

        def __iter__(self):
            return self

        def __next__(self):
            return next(self.batches)

    class Loader:
        def __iter__(self):
            return Iterator()

    cbs = [At("after_loss", error)] if error else []
    learn = toy_learner(cbs, dls=(Loader(), Loader()))
    try:
        learn.fit(n_steps=2, valid_every=valid_every)
    except (ValueError, KeyboardInterrupt):
        pass
    gc.collect()
    assert alive and not any(ref() for ref in alive)


def test_a_loader_may_be_read_anew_while_another_iterator_reads_it():
    data = batches(3)
    loader = DataLoader([(x[0], y[0]) for x, y in data], 1)
    seen = []
    look = At("after_loss", lambda learn: seen.append(len(list(loader))), times=9)
    toy_learner([look], dls=(loader, loader)).fit(1)
    assert seen == [3] * 6


def test_the_number_of_items_is_the_batch_size_or_what_count_says():
    seen = []
    watch = At("after_loss", lambda learn: seen.append(learn.n_items), times=9)
    toy_learner([watch], dls=(batches(1, 5),)).fit(1)
    learn = toy_learner([watch], dls=(batches(1, 5),), count=lambda batch: batch[0].numel())
    learn.fit(1)
    assert seen == [5, 15]


def test_a_list_of_batches_is_a_training_loader():
    data, ours, theirs = batches(3), linear(), linear()
    Learner(ours, data, cbs=[TrainCB()]).fit(2)
    Learner(theirs, (data,), cbs=[TrainCB()]).fit(2)
    assert torch.equal(ours.weight, theirs.weight)


class BeginsAgain(IterableDataset):
    """Eleven numbers; its state is its position, which is the start again after the last."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 11:
            self.at += 1
            yield float(self.at)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("size", [1, 3, 11])
def test_a_stream_that_begins_again_goes_on_from_each_position_before_its_end(size):
    stream, whole, states = Stream(DataLoader(BeginsAgain(), size), "training"), [], []
    for batch in stream:
        whole.append(batch.tolist())
        states.append(stream.state_dict())
    for taken, state in enumerate(states[:-1], 1):
        for _ in range(2):  # the state of a position that was come back to is as good
            again = Stream(DataLoader(BeginsAgain(), size), "training")
            again.load_state_dict(state)
            state = again.state_dict()
        assert [batch.tolist() for batch in again] == whole[taken:]
        assert [batch.tolist() for batch in again] == whole


class Closable:
    """An iterator with files or threads of its own, which `close` ends."""

    def __init__(self, data):
        self.data, self.closed = iter(data), 0

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.data)

    def close(self):
        self.closed += 1


def check_closed(end, kept=None):
    """A loader that gives one iterator; it is closed where a fit ends before its data do."""
    iterator = Closable(batches(4)) if kept is None else kept
    loader = type("Loader", (), {"__iter__": lambda self: iterator})()
    stop = At("after_batch", end, when=lambda learn: learn.iter == 1)
    learn = toy_learner([stop] if end else [], dls=(loader, None))
    with contextlib.suppress(ZeroDivisionError, KeyboardInterrupt):
        learn.fit(1)
    return iterator


@pytest.mark.case("F47")
@pytest.mark.parametrize(
    "end", [CancelEpochException, CancelFitException, ZeroDivisionError, KeyboardInterrupt]
)
def test_an_iterator_with_close_is_closed_where_a_fit_ends_before_it(end):
    assert check_closed(end).closed == 1


@pytest.mark.case("F47")
def test_a_generator_that_the_loader_keeps_is_closed_too_and_one_that_ended_is_left_alone():
    ended = []

    def generator():
        try:
            yield from batches(4)
        finally:
            ended.append(True)

    kept = generator()
    check_closed(CancelFitException, kept)
    assert ended == [True]
    assert check_closed(None).closed == 0


@pytest.mark.case("F47")
def test_the_check_of_closing_notices_an_iterator_that_is_left_open(monkeypatch):
    monkeypatch.setattr(Stream, "close", lambda self: None)
    assert check_closed(CancelFitException).closed == 0


# ---- F32: data sets that follow the epoch ----


class Epochs(Dataset):
    """Each item is the epoch that the data set knows."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.full((3,), float(self.epoch)), torch.zeros(1)


def test_a_sampler_hears_of_each_epoch_once():
    heard = []

    class Heard(SequentialSampler):
        def set_epoch(self, epoch):
            heard.append(epoch)

    ds = TensorDataset(torch.randn(4, 3), torch.zeros(4, 1))
    toy_learner(dls=(DataLoader(ds, 2, sampler=Heard(ds)),)).fit(2)
    assert heard == [0, 1]


class EpochStream(IterableDataset):
    epoch = 0
    set_epoch = Epochs.set_epoch

    def __iter__(self):
        return (Epochs.__getitem__(self, i) for i in range(6))


class Circular(Dataset):
    def __init__(self, inside):
        self.dataset, self.datasets = inside, [self]

    __len__ = Epochs.__len__

    def __getitem__(self, i):
        return self.dataset[i]


class Stacked(StackDataset):
    def __getitems__(self, rows):
        return [row["a"] for row in super().__getitems__(rows)]


DATA = {
    "map": Epochs,
    "subset": lambda: Subset(Epochs(), range(6)),
    "nested": lambda: Subset(ConcatDataset([Subset(Epochs(), [0, 1, 2]), Epochs()]), range(6)),
    "stack": lambda: Stacked(a=Epochs()),
    "wrapper": lambda: Circular(Epochs()),
    "stream": EpochStream,
}
WORKERS = {"num_workers": 1, "persistent_workers": True}


def seen_epochs(loader, n=3, **fit):
    """Return the epoch that each training batch of a fit was made in."""
    seen = []
    note = At("after_batch", lambda learn: seen.append(learn.batch[0].unique().tolist()), times=99)
    toy_learner([note], dls=(loader,)).fit(n, **fit)
    return seen


def check_epochs_reach_the_data(loader):
    assert seen_epochs(loader) == [[float(epoch)] for epoch in range(3) for _ in range(2)]


@pytest.mark.case("F32")
@pytest.mark.parametrize("workers", [{}, WORKERS], ids=["here", "workers"])
@pytest.mark.parametrize("make", DATA.values(), ids=DATA)
def test_the_epoch_reaches_every_data_set_in_its_workers_too(make, workers):
    check_epochs_reach_the_data(DataLoader(make(), 3, **workers))


@pytest.mark.case("F32")
@pytest.mark.parametrize("make", [Epochs, EpochStream, DATA["nested"]])
def test_the_epoch_reaches_the_workers_of_our_loaders(make):
    check_epochs_reach_the_data(get_dls(make(), None, 3, num_workers=1)[0])
    if make is not EpochStream:
        check_epochs_reach_the_data(SeededLoader(make(), 3, **WORKERS))


@pytest.mark.case("F32")
def test_the_check_notices_workers_that_keep_the_first_epoch(monkeypatch):
    def keep(dl, epoch):
        dl.dataset.set_epoch(epoch)

    monkeypatch.setattr(plan_module, "set_epoch", keep)
    with pytest.raises(AssertionError):
        check_epochs_reach_the_data(DataLoader(Epochs(), 3, **WORKERS))


@pytest.mark.case("F32")
def test_workers_of_a_resumed_fit_see_its_epoch(tmp_path):
    loader = DataLoader(Subset(Epochs(), range(6)), 3, **WORKERS)
    toy_learner([CheckpointCB(tmp_path)], dls=(loader,)).fit(2)
    again = DataLoader(Subset(Epochs(), range(6)), 3, **WORKERS)
    assert seen_epochs(again, 4, resume=str(tmp_path)) == [[2.0], [2.0], [3.0], [3.0]]


def test_a_sampler_inside_a_batch_sampler_follows_the_epoch():
    class InOrder(SequentialSampler):
        told = []

        def set_epoch(self, epoch):
            self.told.append(epoch)

    data = TensorDataset(torch.randn(6, 3), torch.randn(6, 1))
    loader = DataLoader(data, batch_sampler=BatchSampler(InOrder(data), 3, False))
    toy_learner(dls=(loader,)).fit(2)
    assert InOrder.told == [0, 1]


def test_workers_stay_alive_where_no_data_set_follows_the_epoch():
    loader = DataLoader(TensorDataset(torch.randn(6, 3), torch.randn(6, 1)), 3, **WORKERS)
    alive = []
    note = At("before_round", lambda learn: alive.append(loader._iterator), times=3)
    toy_learner([note], dls=(loader,)).fit(3)
    assert alive[1] is alive[2] is not None
    loader._iterator = alive[:] = ()  # ends the workers


# ---- lists of batches, and lengths that are no length ----

Pair = namedtuple("Pair", "x y")
FORMS = {
    "lists, as of list(loader)": lambda x, y: [x, y],
    "tuples": lambda x, y: (x, y),
    "named tuples": Pair,
    "dicts": lambda x, y: {"x": x, "y": y},
    "inputs by name": lambda x, y: ({"input": x}, y),
    "items": lambda x, y: [{"x": a, "y": b, "id": 3} for a, b in zip(x, y, strict=True)],
}


class Any(TrainCB):
    """Takes batches of any form."""

    def predict(self, learn):
        x = next(tensors(learn.batch))
        learn.preds = learn.model(x if x.dim() > 1 else x[None])

    def get_loss(self, learn):
        learn.loss = learn.preds.square().mean()


def count_updates(form):
    learn = Learner(linear(), [FORMS[form](x, y) for x, y in batches(5)], None, 0.1, [Any()])
    learn.fit(1)
    return learn.steps_done


@pytest.mark.case("F18")
@pytest.mark.parametrize("form", FORMS)
def test_a_list_of_batches_of_any_form_is_a_training_loader(form):
    assert count_updates(form) == 5


@pytest.mark.case("F18")
@pytest.mark.parametrize("form", ["lists, as of list(loader)", "dicts"])
def test_the_check_notices_batches_that_are_taken_for_loaders(form, monkeypatch):
    monkeypatch.setattr(stream_module, "_is_loader", lambda dls: False)
    with pytest.raises((AssertionError, StopIteration, RuntimeError)):
        assert count_updates(form) == 5


class Odd(list):
    """Batches whose number is asked for in vain."""

    answer = None

    def __len__(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


ANSWERS = [RuntimeError("lazy"), ValueError("?"), OSError("no server"), AttributeError("n"), -1]
ANSWERS += [10**30, 2.5, None, "many", KeyError("len")]


def check_odd_length(answer):
    data = Odd(batches(5))
    data.answer = answer
    cbs = [TrainCB(), MetricsCB(quiet=True), ProgressCB(), LogCB(1), EMACB(), TimerCB()]
    learn, plain = Learner(linear(), (data, data), cbs=cbs), linear()
    learn.fit(2)
    assert learn.steps_done == 10
    Learner(plain, (batches(5), None), cbs=[TrainCB()]).fit(2)
    assert torch.equal(learn.model.weight, plain.weight)


@pytest.mark.case("F01")
@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
def test_a_loader_that_cannot_say_its_length_is_a_stream(answer):
    check_odd_length(answer)


@pytest.mark.case("F01")
def test_the_check_notices_a_length_that_ends_the_fit(monkeypatch):
    monkeypatch.setattr(fit_module, "n_batches", len)
    with pytest.raises((AssertionError, RuntimeError)):
        check_odd_length(ANSWERS[0])
