"""Optimizers, accumulation, clipping and half precision, on a CUDA device."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.amp import GradScaler
from toys import Before

from minilearn import (
    Callback,
    ClipGradCB,
    DeviceCB,
    GradAccumCB,
    Learner,
    MetricsCB,
    MixedPrecision,
    Order,
    TrainCB,
)

pytestmark = pytest.mark.gpu


def data(n=6, size=16):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, size, 8, generator=generator)
    return list(zip(x, x.sum(-1, keepdim=True), strict=True))


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


def learner(*cbs, opt_func="sgd", lr=0.01, n=6):
    batches = data(n)
    return Learner(mlp(), (batches, batches[:2]), F.mse_loss, lr, cbs, opt_func)


# ---- C100 ----


def check_follows(cbs, opt_func, lr):
    learn = learner(*cbs, opt_func=opt_func, lr=lr, n=3)
    learn.fit(1)
    held = [p for group in learn.opt.param_groups for p in group["params"]]
    assert all(a is b for a, b in zip(held, learn.model.parameters(), strict=True))
    for p, state in learn.opt.state.items():
        assert p.is_cuda
        assert all(v.device == p.device for v in state.values() if v.shape == p.shape)
    before = learn.history["train_loss"][0]
    learn.fit(3, reset_opt=False)
    assert learn.history["train_loss"][-1] < before


@pytest.mark.case("C100")
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    "opt_func, lr", [(partial(optim.SGD, momentum=0.9), 0.01), ("adam", 0.01), ("adagrad", 0.05)]
)
def test_the_optimizer_follows_its_parameters(opt_func, lr, place):
    cbs = [TrainCB(), MetricsCB()]
    cbs.insert(place, DeviceCB("cuda"))
    check_follows(cbs, opt_func, lr)


@pytest.mark.case("C100")
def test_the_check_notices_state_that_stays(monkeypatch):
    monkeypatch.setattr("minilearn.callbacks.device._follow_parameters", lambda opt: None)
    with pytest.raises((AssertionError, RuntimeError)):
        check_follows([TrainCB(), MetricsCB(), DeviceCB("cuda")], "adagrad", 0.05)


# ---- recipes ----


def by_hand(model, batches, dtype, n):
    opt = torch.optim.SGD(model.parameters(), 0.01)
    scaler = GradScaler("cuda", 1024.0, enabled=dtype == torch.float16)
    for start in range(0, len(batches), n):
        for x, y in batches[start : start + n]:
            with torch.autocast("cuda", dtype):
                loss = F.mse_loss(model(x.cuda()), y.cuda())
            scaler.scale(loss / n).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_with_clipping_and_accumulation_equals_a_loop_by_hand(dtype):
    # a scale that does not overflow: by hand the group is divided before, here after
    kwargs = {"scaler": GradScaler("cuda", 1024.0)} if dtype == "fp16" else {}
    cbs = [TrainCB(), DeviceCB("cuda"), MixedPrecision(dtype, **kwargs)]
    learn = learner(*cbs, ClipGradCB(0.5), GradAccumCB(2))
    before = Before(learn)
    learn.fit(1)
    before.assert_fit_left_nothing()
    theirs = mlp().cuda()
    by_hand(theirs, data(), {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype], 2)
    for a, b in zip(learn.model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert learn.get_preds()[0].dtype == torch.float32


class NoSync(Callback):
    """Makes every read of a device value within a batch an error."""

    order = Order.PLACE + 1

    def before_batch(self, learn):
        torch.cuda.set_sync_debug_mode("error")

    def cleanup_batch(self, learn):
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("count", [None, lambda batch: (batch[1] > 0).sum()])
def test_accumulation_and_bf16_read_nothing_from_the_device(count):
    cbs = [TrainCB(), DeviceCB("cuda"), GradAccumCB(3), MixedPrecision("bf16"), NoSync()]
    learn = learner(*cbs)
    learn.count = count
    learn.fit(2)


def test_the_check_of_reads_notices_one():
    with pytest.raises(RuntimeError, match="synchron"):
        learner(TrainCB(), DeviceCB("cuda"), ClipGradCB(1.0), NoSync()).fit(1)
