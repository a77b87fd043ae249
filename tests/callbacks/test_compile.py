"""Compiled models: the same fit, and everything is put back."""

import copy
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys import batches, linear, toy_dls

from minilearn import CompileCB, DeviceCB, Learner, TrainCB
from minilearn.callbacks.device import Prefetched


def test_a_compiled_fit_gives_the_same_weights_under_the_same_names():
    plain, compiled = linear(), linear()
    Learner(plain, toy_dls(), F.mse_loss, cbs=[TrainCB()]).fit(2)
    learn = Learner(compiled, toy_dls(), F.mse_loss, cbs=[TrainCB(), CompileCB(backend="eager")])
    learn.fit(2)
    assert learn.model is compiled and list(compiled.state_dict()) == ["weight", "bias"]
    torch.testing.assert_close(compiled.weight, plain.weight)


def test_a_sequential_model_is_compiled_whole():
    graphs = []

    def backend(graph, inputs):
        graphs.append([node.op for node in graph.graph.nodes])
        return graph.forward

    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    cbs = [TrainCB(), CompileCB(backend=backend)]
    Learner(model, toy_dls(), F.mse_loss, cbs=cbs).fit(1, valid=False)
    assert len(graphs) == 1 and graphs[0].count("call_function") == 3


def test_hooks_of_a_compiled_model_are_called():
    heard, model = [], linear()
    model.register_forward_hook(lambda module, args, output: heard.append(output.shape))
    cbs = [TrainCB(), CompileCB(backend="eager")]
    Learner(model, toy_dls(), F.mse_loss, cbs=cbs).fit(1, valid=False)
    assert heard == [(2, 1)] * 2


def test_the_model_is_compiled_during_the_fit_and_never_after():
    learn = Learner(linear(), toy_dls(), cbs=[TrainCB(), CompileCB(backend="eager")])
    seen = []
    learn.on("after_batch", lambda learn: seen.append(learn.model._compiled_call_impl is not None))
    learn.on("after_epoch", lambda learn: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        learn.fit(1)
    assert seen == [True, True]
    assert learn.model._compiled_call_impl is None
    copy.deepcopy(learn.model)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_inductor_compiles_and_trains():
    plain, compiled = linear(), linear()
    Learner(plain, toy_dls(), cbs=[TrainCB()]).fit(1)
    Learner(compiled, toy_dls(), cbs=[TrainCB(), CompileCB()]).fit(1)
    torch.testing.assert_close(compiled.weight, plain.weight)


def test_prefetch_on_the_cpu_changes_nothing():
    data = batches(3)
    learn, seen = Learner(linear(), (data,), cbs=[TrainCB(), DeviceCB("cpu", prefetch=True)]), []
    learn.on("before_epoch", lambda learn: seen.append(learn.dl is data))
    learn.fit(1)
    assert seen == [True]


@pytest.mark.gpu
def test_prefetched_batches_are_the_loaders_own_in_order():
    data = batches(5)
    ahead = Prefetched(data, torch.device("cuda"))
    assert len(ahead) == 5
    for (x, _), (y, _) in zip(data, ahead, strict=True):
        assert y.is_cuda and torch.equal(x, y.cpu())
