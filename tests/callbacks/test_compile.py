"""Models that are compiled or checkpointed: the same fit, and everything is put back."""

import copy
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys import assert_same_weights, batches, linear, toy_dls

from minilearn import (
    ActivationCheckpointCB,
    CompileCB,
    DeviceCB,
    GradAccumCB,
    Learner,
    MixedPrecision,
    TrainCB,
)
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


# ---- activations that are computed twice ----


class Block(nn.Module):
    """A layer with batch norm and dropout, beside its input."""

    def __init__(self, n):
        super().__init__()
        self.lin, self.norm, self.drop = nn.Linear(n, n), nn.BatchNorm1d(n), nn.Dropout(0.3)
        self.mean = nn.BatchNorm1d(n, momentum=None)

    def forward(self, x):
        return x + self.drop(F.gelu(self.mean(self.norm(self.lin(x)))))


class Deep(nn.Module):
    """Four blocks and a layer: 3 features to 1."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(3, 8), nn.Linear(8, 1)
        self.blocks = nn.ModuleList(Block(8) for _ in range(4))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def deep_fit(*cbs):
    """Return a fitted model, the gradients of each update, and the elements kept for backward."""
    torch.manual_seed(0)
    model, grads, kept = Deep(), [], []

    def pack(x):
        kept.append(x.numel())
        return x

    dls = (batches(3, 16), batches(1, 16))
    learn = Learner(model, dls, F.mse_loss, cbs=[TrainCB(), *cbs], opt_func=torch.optim.AdamW)
    forward = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
    learn.on("before_batch", lambda learn: forward.__enter__())
    learn.on("after_loss", lambda learn: forward.__exit__())
    learn.on(
        "after_backward", lambda learn: grads.append([p.grad.clone() for p in model.parameters()])
    )
    learn.fit(2)
    return model, grads, sum(kept)  # for the validation nothing is kept


@pytest.mark.parametrize("patterns", [("blocks.*",), ("blocks.0", "blocks.[23]"), ("*",)])
def test_checkpointed_modules_give_the_same_bits_and_keep_less(patterns):
    plain, theirs, kept = deep_fit()
    ours, grads, fewer = deep_fit(cb := ActivationCheckpointCB(*patterns))
    assert_same_weights(ours, plain)  # running statistics and their counters, too
    for a, b in zip(grads, theirs, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert fewer < 0.6 * kept
    assert repr(cb) == f"ActivationCheckpointCB({', '.join(map(repr, patterns))})"


@pytest.mark.parametrize("make", [lambda: MixedPrecision("bf16"), lambda: GradAccumCB(2)])
def test_checkpointed_modules_go_with_other_callbacks_to_the_bit(make):
    plain, _, _ = deep_fit(make())
    ours, _, _ = deep_fit(make(), ActivationCheckpointCB("blocks.*"))
    assert_same_weights(ours, plain)


def test_checkpointed_modules_can_be_compiled():
    def trained(*cbs):
        torch.manual_seed(0)
        layer = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.GELU())
        model = nn.Sequential(layer, nn.Linear(3, 1))
        Learner(model, (batches(3, 8), batches(1, 8)), F.mse_loss, cbs=[TrainCB(), *cbs]).fit(2)
        return model.state_dict()

    ours = trained(CompileCB(backend="aot_eager"), ActivationCheckpointCB("0"))
    for (name, a), b in zip(trained().items(), ours.values(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_a_module_inside_a_checkpointed_one_follows_it():
    runs = []

    class Spy(nn.Linear):
        def forward(self, x):
            runs.append(torch.is_grad_enabled())
            return super().forward(x)

    model = nn.Sequential(nn.Sequential(Spy(3, 3), nn.Tanh()), nn.Linear(3, 1))
    cbs = [TrainCB(), ActivationCheckpointCB("*")]
    Learner(model, (batches(1), batches(1)), F.mse_loss, cbs=cbs).fit(1)
    assert runs == [True, True, False]  # twice for the update, once in the validation


def test_the_model_is_as_before_after_an_error_and_may_have_had_a_forward_of_its_own():
    torch.manual_seed(0)
    model = Deep()
    own = model.blocks[1].forward = lambda x: x + 1
    cbs = [TrainCB(), ActivationCheckpointCB("blocks.*")]
    learn = Learner(model, toy_dls(), F.mse_loss, cbs=cbs)
    learn.on("after_loss", lambda learn: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        learn.fit(1)
    assert model.blocks[1].forward is own
    assert [name for name, m in model.named_modules() if "forward" in vars(m)] == ["blocks.1"]
    assert model.blocks[0].norm.momentum == 0.1


def test_a_module_that_is_not_there_is_named_before_the_first_batch():
    learn = Learner(Deep(), toy_dls(), F.mse_loss, cbs=[TrainCB(), ActivationCheckpointCB("block")])
    with pytest.raises(
        ValueError, match="no module is named like 'block'; did you mean.*'blocks.1'"
    ):
        learn.fit(1)
