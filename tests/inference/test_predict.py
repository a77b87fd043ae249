"""Validate and predict: named results, every sample once and in order, nothing changed."""

import copy
import dataclasses
import gc
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import CancelBatchException, CancelEpochException, CancelFitException
from minilearn.data import ordered as ordered_module
from minilearn.data.loaders import DataLoaders
from minilearn.data.ordered import ordered
from minilearn.data.seeded import ArrayLoader, SeededLoader
from minilearn.inference import predict as predict_module
from minilearn.inference.predict import CapturePreds, Results
from minilearn.learner import Learner, TrainLearner
from minilearn.metrics.callback import MetricsCB
from minilearn.metrics.functions import accuracy


class Same(nn.Module):
    """A model that returns its input, in training and in evaluation."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        return x


def numbers(n):
    """Items i, with targets -i."""
    x = torch.arange(float(n))[:, None]
    return TensorDataset(x, -x)


def learner(dl=None, model=None, cbs=(), loss_func=F.mse_loss, **kwargs):
    dl = DataLoader(numbers(10), 4) if dl is None else dl
    return Learner(model or Same(), (None, dl), loss_func, cbs=[TrainCB(), *cbs], **kwargs)


# ---- order and completeness ----


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return ((torch.tensor([float(i)]), torch.tensor([-float(i)])) for i in range(self.n))


def make_loader(kind, n, bs, shuffle, drop_last):
    data = numbers(n)
    if kind == "array":
        columns = dict(enumerate(data.tensors))
        return ArrayLoader(columns, bs, dataset=data, shuffle=shuffle, drop_last=drop_last)
    if kind == "seeded":
        return SeededLoader(data, bs, shuffle, drop_last=drop_last)
    if kind == "torch":
        return DataLoader(data, bs, shuffle, drop_last=drop_last)
    if kind == "batches":
        sampler = RandomSampler(data) if shuffle else SequentialSampler(data)
        return DataLoader(data, batch_sampler=BatchSampler(sampler, bs, drop_last))
    if kind == "stream":
        return DataLoader(Stream(n), bs, drop_last=drop_last)
    if kind == "items":  # no batches are made: items are batches
        items = [(x[None], y[None]) for x, y in data]
        return DataLoader(items, batch_size=None, shuffle=shuffle)
    return list(DataLoader(data, bs))


KINDS = ["array", "seeded", "torch", "batches", "stream", "items", "list"]


def check_complete(dl, n):
    state = {k: v for k, v in vars(dl).items()} if hasattr(dl, "__dict__") else None
    learn = learner(dl)
    preds, targs = learn.get_preds()
    assert preds.flatten().tolist() == list(range(n))
    assert targs.flatten().tolist() == [-i for i in range(n)]
    if state is not None:
        assert vars(dl) == state
    parts = [p for p, _ in learn.iter_preds()]
    assert torch.cat(parts).equal(preds)


@pytest.mark.case("C121")
@pytest.mark.case("C122")
@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 30),
    bs=st.integers(1, 9),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_every_sample_is_predicted_once_in_the_order_of_the_data_set(
    kind, n, bs, shuffle, drop_last
):
    check_complete(make_loader(kind, n, bs, shuffle, drop_last), n)


@pytest.mark.case("C121")
def test_that_check_sees_a_shuffled_prediction(monkeypatch):
    monkeypatch.setattr(ordered_module, "_shuffles", lambda sampler: False)
    with pytest.raises(AssertionError):
        check_complete(DataLoader(numbers(100), 8, shuffle=True), 100)


@pytest.mark.case("C122")
def test_709_samples_are_709_predictions(monkeypatch):
    check_complete(DataLoader(numbers(709), 32, drop_last=True), 709)
    monkeypatch.setattr("minilearn.inference.predict.ordered", lambda dl: dl)
    with pytest.raises(AssertionError):
        check_complete(DataLoader(numbers(709), 32, drop_last=True), 709)


@settings(max_examples=20)
@given(n=st.integers(4, 20), bs=st.integers(1, 6), drop_last=st.booleans(), seeded=st.booleans())
def test_a_sampler_of_the_users_own_keeps_its_order_and_all_that_it_yields(
    n, bs, drop_last, seeded
):
    chosen = list(range(n - 1, 0, -2))
    kind = SeededLoader if seeded else DataLoader
    dl = kind(numbers(n), batch_size=bs, sampler=chosen, drop_last=drop_last)
    assert learner(dl).get_preds()[0].flatten().tolist() == chosen


@pytest.mark.parametrize(
    "sampler",
    [
        lambda g: SubsetRandomSampler([3, 5, 1, 0], generator=g),
        lambda g: WeightedRandomSampler([1.0, 5.0, 1.0], 9, generator=g),
    ],
)
def test_samplers_that_choose_at_random_are_not_undone(sampler):
    expected = list(sampler(torch.Generator().manual_seed(4)))
    generator = torch.Generator().manual_seed(4)
    dl = DataLoader(numbers(10), 3, sampler=sampler(generator), drop_last=True)
    assert learner(dl).get_preds()[0].flatten().tolist() == expected
    # and its generator is where it was
    assert learner(dl).get_preds()[0].flatten().tolist() == expected


def test_a_batch_sampler_of_the_users_own_is_followed():
    class Pairs(BatchSampler):
        def __init__(self):
            pass

        def __iter__(self):
            return iter([[4, 2], [0], [1, 3, 5]])

        def __len__(self):
            return 3

    for kind in (DataLoader, SeededLoader):
        dl = kind(numbers(6), batch_sampler=Pairs())
        assert learner(dl).get_preds()[0].flatten().tolist() == [4, 2, 0, 1, 3, 5]


@pytest.mark.parametrize("kind", [DataLoader, SeededLoader])
def test_workers_give_the_same_and_end_with_the_epoch(kind):
    dl = kind(numbers(13), 3, True, num_workers=2, persistent_workers=True, drop_last=True)
    preds, _ = learner(dl).get_preds()
    assert preds.flatten().tolist() == list(range(13))
    assert dl._iterator is None and getattr(dl, "_fetcher", None) is None


def test_a_loader_with_an_answer_of_its_own_is_asked():
    class Mine(list):
        def ordered(self):
            return sorted(self, key=lambda b: b[0].item())

    dl = Mine([(torch.ones(1, 1) * i, torch.zeros(1, 1)) for i in (3, 1, 2)])
    assert learner(dl).get_preds()[0].flatten().tolist() == [1, 2, 3]


def test_what_is_no_loader_is_refused():
    for data in (torch.zeros(4, 1), numbers(4)):
        with pytest.raises(TypeError, match="loader of batches"):
            learner().get_preds(data)
    with pytest.raises(ValueError, match="there is no validation loader"):
        Learner(Same(), (0,), cbs=TrainCB()).get_preds()
    with pytest.raises(ValueError, match="has no batches"):
        learner([]).get_preds()
    with pytest.raises(KeyError, match="no loader 'tset'"):
        Learner(Same(), DataLoaders(None, [1]), cbs=TrainCB()).get_preds("tset")


def test_a_loader_is_found_by_its_name():
    dls = DataLoaders(None, DataLoader(numbers(3), 2), far=DataLoader(numbers(5), 2))
    learn = Learner(Same(), dls, F.mse_loss, cbs=TrainCB())
    assert len(learn.get_preds("far")[0]) == 5 and len(learn.get_preds()[0]) == 3
    assert learn.validate("far").loss == pytest.approx(4 * (0 + 1 + 4 + 9 + 16) / 5)


# ---- what is returned ----


@pytest.mark.case("C029")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_predictions_are_float32_also_under_autocast(dtype):
    learn = learner(model=nn.Linear(1, 2))

    def check():
        with torch.autocast("cpu", dtype):
            assert learn.model(torch.ones(1, 1)).dtype == dtype
            preds = learn.get_preds(with_targs=False)
        assert preds.dtype == torch.float32 and preds.numpy().dtype == np.float32
        assert not preds.requires_grad

    check()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict_module, "kept", lambda x, device=None: x)
        with pytest.raises((AssertionError, TypeError)):
            check()


def test_all_that_can_be_asked_for_comes_in_its_order():
    model = nn.Linear(1, 3)
    data = TensorDataset(torch.randn(10, 1), torch.arange(10) % 3)
    learn = learner(DataLoader(data, 4), model, loss_func=F.cross_entropy)
    inputs, preds, targs, losses, decoded = learn.get_preds(
        with_inputs=True, with_loss=True, decoded=True, act=partial(F.softmax, dim=1)
    )
    with torch.no_grad():
        logits = model(data.tensors[0])
    assert inputs.equal(data.tensors[0]) and targs.equal(data.tensors[1])
    torch.testing.assert_close(preds, logits.softmax(1))
    torch.testing.assert_close(losses, F.cross_entropy(logits, targs, reduction="none"))
    assert decoded.equal(logits.argmax(1))
    preds, decoded = learn.get_preds(with_targs=False, decoded=lambda p: p > 0)
    assert decoded.equal(preds > 0)
    assert isinstance(learn.get_preds(with_targs=False), torch.Tensor)


def test_predictions_are_the_logits_of_a_dict_with_or_without_its_loss():
    class Logits(nn.Linear):
        def forward(self, x, y=None):
            logits = super().forward(x)
            loss = {} if y is None else {"loss": F.cross_entropy(logits, y)}
            return {"logits": logits, "hidden": x} | loss

    x, y = torch.randn(6, 2), torch.arange(6) % 3
    learn = Learner(Logits(2, 3), (None, [{"x": x, "y": y}]), None, cbs=TrainCB(targets="y"))
    expected = learn.model(x)["logits"].detach()
    assert learn.get_preds()[0].equal(expected)
    assert learn.get_preds([{"x": x}])[0].equal(expected)


def test_losses_by_sample_average_over_all_other_dimensions():
    x, y = torch.randn(6, 3, 4), torch.randn(6, 3, 4)
    learn = learner(DataLoader(TensorDataset(x, y), 4), loss_func=nn.L1Loss())
    losses = learn.get_preds(with_loss=True)[2]
    torch.testing.assert_close(losses, (x - y).abs().mean((1, 2)))
    assert learn.loss_func.reduction == "mean"


def test_what_cannot_be_done_says_so():
    learn = learner(loss_func=lambda preds, targs: (preds - targs).mean())
    with pytest.raises(ValueError, match="reduction"):
        learn.get_preds(with_loss=True)
    with pytest.raises(ValueError, match=r"decoded=lambda"):
        learn.get_preds(decoded=True)
    with pytest.raises(TypeError, match="unexpected keyword"):
        learn.iter_preds(out="x.npy")


@dataclasses.dataclass
class Output:
    double: torch.Tensor
    name: str = "a"


def test_structures_come_back_as_the_same_structures():
    class Model(Same):
        def forward(self, x):
            return {"two": (x, [x + 1, x + 2]), "none": None, "data": Output(2 * x)}

    preds, targs = learner(model=Model()).get_preds()
    x = torch.arange(10.0)[:, None]
    assert type(preds["two"]) is tuple and type(preds["two"][1]) is list
    assert preds["two"][0].equal(x) and preds["two"][1][1].equal(x + 2)
    assert preds["none"] is None and preds["data"].double.equal(2 * x)
    assert targs.equal(-x)


def test_several_inputs_and_targets_come_as_tuples():
    a, b, y, z = (torch.randn(5, 1) for _ in range(4))
    dl = DataLoader(TensorDataset(a, b, y, z), 2)
    learn = Learner(lambda p, q: p + q, (None, dl), cbs=TrainCB(n_inp=2))
    inputs, preds, targs = learn.get_preds(with_inputs=True)
    assert inputs[0].equal(a) and inputs[1].equal(b) and targs[0].equal(y) and targs[1].equal(z)
    assert preds.equal(a + b)


def test_dicts_and_texts_are_joined():
    rows = [
        {"x": torch.ones(2, 1) * i, "id": [f"a{i}", f"b{i}"], "y": torch.ones(2)} for i in (0, 1)
    ]
    learn = Learner(lambda x: x, (None, rows), cbs=TrainCB(inputs="x", targets=["y", "id"]))
    preds, (y, ids) = learn.get_preds()
    assert preds.flatten().tolist() == [0, 0, 1, 1]
    assert ids == ["a0", "b0", "a1", "b1"] and y.equal(torch.ones(4))


def test_sequences_of_different_lengths_come_as_a_list_of_samples():
    batches = [(torch.ones(2, 3, 1), torch.zeros(2)), (torch.ones(1, 5, 1) * 2, torch.zeros(1))]
    preds, targs = learner(batches).get_preds()
    assert [p.shape for p in preds] == [(3, 1), (3, 1), (5, 1)]
    assert targs.shape == (3,)


def test_batches_without_targets_have_none():
    for batches in ([(torch.ones(2, 1),)] * 2, [torch.ones(2, 1)] * 2):
        preds, targs = learner(batches).get_preds()
        assert preds.shape == (4, 1) and targs is None


def test_a_train_learner_predicts_too():
    learn = TrainLearner(Same(), (None, DataLoader(numbers(5), 2)), F.mse_loss)
    preds, targs = learn.get_preds()
    assert preds.equal(-targs)


@pytest.mark.parametrize("with_labels", [True, False])
def test_models_that_compute_their_loss_give_their_predictions(with_labels):
    def model(x, y=None):
        loss = None if y is None else F.mse_loss(x, y)
        return SimpleNamespace(loss=loss, logits=x * 2)

    rows = [{"x": torch.ones(2, 1)} | ({"y": torch.ones(2, 1)} if with_labels else {})] * 2
    learn = Learner(model, (None, rows), None, cbs=TrainCB())
    inputs, preds, targs = learn.get_preds(with_inputs=True)
    assert preds.equal(torch.full((4, 1), 2.0)) and targs is None
    assert inputs["x"].shape == (4, 1)


def test_a_loader_may_refill_its_buffers():
    buffer = torch.zeros(2, 1)

    class Refills:
        def __iter__(self):
            for i in range(3):
                yield buffer.fill_(i), buffer

    preds, targs = learner(Refills()).get_preds()
    assert preds.equal(targs) and preds.flatten().tolist() == [0, 0, 1, 1, 2, 2]


# ---- files ----


def test_predictions_stream_to_files(tmp_path):
    learn = learner(DataLoader(numbers(1003), 10, shuffle=True), nn.Linear(1, 3))
    preds, targs = learn.get_preds(out=tmp_path / "new" / "preds.npy")
    expected = learn.get_preds()
    assert isinstance(preds, np.memmap) and preds.dtype == np.float32
    assert (np.asarray(preds) == expected[0].numpy()).all()
    assert (np.load(tmp_path / "new" / "preds_targs.npy") == expected[1].numpy()).all()
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["preds.npy", "preds_targs.npy"]


def test_memory_does_not_grow_while_predictions_go_to_a_file(tmp_path):
    alive = []

    class Counts(Callback):
        def after_predict(self, learn):
            if learn.iter in (10, 90):
                alive.append(sum(type(o) is torch.Tensor for o in gc.get_objects()))

    learn = learner(DataLoader(numbers(400), 4))
    learn.get_preds(out=tmp_path / "p.npy", cbs=Counts())
    assert alive[0] == alive[1]
    learn.get_preds(cbs=Counts())
    assert alive[3] > alive[2] + 100  # what is kept in memory is seen by this measure


def test_an_error_leaves_the_older_file(tmp_path):
    path = tmp_path / "preds.npy"
    learn = learner(model=nn.Linear(1, 2))
    learn.get_preds(out=path, with_targs=False)
    before = path.read_bytes()

    class Fails(Callback):
        def after_predict(self, learn):
            if learn.iter == 1:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        learn.get_preds(out=path, with_targs=False, cbs=Fails())
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_what_does_not_fit_in_a_file_is_refused(tmp_path):
    class Two(Same):
        def forward(self, x):
            return x, x

    with pytest.raises(TypeError, match="one tensor"):
        learner(model=Two()).get_preds(out=tmp_path / "p.npy")
    with pytest.raises(ValueError, match="pad in the collate"):
        learner([(torch.ones(2, n),) for n in (3, 4)]).get_preds(
            out=tmp_path / "p.npy", with_targs=False
        )
    with pytest.raises(ValueError, match="path of a .npy file"):
        learner().get_preds(out=tmp_path / "p.csv")
    assert not list(tmp_path.iterdir())


# ---- batch by batch ----


def test_between_two_batches_the_learner_is_free():
    learn = learner(DataLoader(numbers(6), 2), nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)))
    learn.model.train()
    state = torch.get_rng_state()
    for _ in learn.iter_preds():
        assert learn.model.training and learn.depth == 0 and learn.levels == ()
        assert torch.is_grad_enabled() and torch.equal(torch.get_rng_state(), state)
        learn.validate()
    next(learn.iter_preds())  # and may be left in the middle
    assert learn.model.training


def test_random_numbers_of_an_epoch_are_the_same_batch_by_batch():
    class AlwaysDrops(nn.Dropout):
        def forward(self, x):
            return F.dropout(x, 0.5, training=True)

    dl = DataLoader(TensorDataset(torch.ones(40, 8), torch.ones(40)), 4)
    learn = learner(dl, AlwaysDrops())
    whole, parts = learn.get_preds()[0], torch.cat([p for p, _ in learn.iter_preds()])
    assert whole.equal(parts)
    assert not parts[:4].equal(parts[4:8])


# ---- validate ----


def test_validation_gives_what_the_fit_gives():
    data = TensorDataset(torch.randn(10, 1), torch.arange(10) % 3)
    dl = DataLoader(data, 4)
    metrics = MetricsCB(accuracy=accuracy)
    learn = learner(dl, nn.Linear(1, 3), [metrics], F.cross_entropy)
    learn.fit(1, train=False)
    rows, history = copy.deepcopy(metrics.rows), list(learn.history)
    result = learn.validate()
    with torch.no_grad():
        expected = F.cross_entropy(learn.model(data.tensors[0]), data.tensors[1]).item()
    assert result.loss == pytest.approx(expected) and result["loss"] == rows[0]["loss"]
    assert result.accuracy == rows[0]["accuracy"]
    assert metrics.rows == rows and list(learn.history) == history


def test_validation_takes_other_data_metrics_and_callbacks(capsys):
    learn = learner(cbs=[MetricsCB()])
    other = DataLoader(numbers(3), 2)
    result = learn.validate(other, cbs=MetricsCB(largest=lambda preds, targs: preds.max()))
    assert list(result) == ["largest", "loss"]
    assert result.loss == pytest.approx(4 * (0 + 1 + 4) / 3)
    assert capsys.readouterr().out == ""
    assert dict(learner().validate(other)) == dict(loss=result.loss)


def test_several_metrics_callbacks_are_all_asked():
    def largest(preds, targs):
        return preds.max()

    def least(preds, targs):
        return preds.min()

    learn = learner(cbs=[MetricsCB(largest), MetricsCB(least)])
    assert set(learn.validate()) == {"largest", "least", "loss"}


def test_results_are_a_dict_with_attributes_to_read():
    result = Results({"loss": 0.51234567, "accuracy": 1.0})
    assert repr(result) == "Results(loss=0.5123, accuracy=1.0000)"
    assert dict(result) == {"loss": 0.51234567, "accuracy": 1.0} and len(result) == 2
    assert copy.deepcopy(result) == result
    with pytest.raises(AttributeError, match="no result 'f1'; there are loss, accuracy"):
        _ = result.f1
    with pytest.raises(AttributeError):
        result.loss = 0.0


# ---- the seed's spellings ----


def test_capture_preds_returns_predictions_targets_and_then_inputs():
    learn = learner()
    preds, targs = learn.capture_preds()
    assert preds.equal(-targs)
    preds, targs, inputs = learn.capture_preds(inps=True)
    assert inputs.equal(preds)


def test_the_capture_callback_holds_the_last_epoch():
    cp = CapturePreds()
    learn = learner()
    learn.fit(1, train=False, cbs=cp)
    assert cp.all_preds.equal(-cp.all_targs) and cp.all_inps.equal(cp.all_preds)
    learn.fit(1, train=False, cbs=cp)
    assert len(cp.all_preds) == 10


@pytest.mark.parametrize("cancel", [CancelFitException, CancelEpochException, CancelBatchException])
@pytest.mark.parametrize("out", [None, "preds.npy"])
def test_an_epoch_that_is_cancelled_whole_says_that_nothing_was_predicted(cancel, out, tmp_path):
    def strike(learn):
        raise cancel

    learn = learner()
    learn.on("before_batch", strike)
    with pytest.raises(RuntimeError, match="nothing was predicted: a callback cancelled"):
        learn.get_preds(out=out and tmp_path / out)
    assert not list(tmp_path.iterdir())


def test_the_capture_callback_joins_what_a_cancelled_epoch_gave():
    cp = CapturePreds(inps=False)
    learn = learner(cbs=[cp])

    @learn.on("after_batch", when=lambda learn: learn.iter == 1, order=95)
    def stop(learn):
        raise CancelFitException

    learn.fit(1, train=False)
    assert len(cp.all_preds) == 8 and cp.all_inps is None


def test_ordered_leaves_a_users_class_of_loader_as_it_is():
    class Mine(DataLoader):
        extra = 3

    own = ordered(Mine(numbers(5), 2, shuffle=True))
    assert type(own) is Mine and own.extra == 3 and not own.drop_last
