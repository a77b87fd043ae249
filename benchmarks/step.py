"""What a step costs compared with a loop by hand: tiny model, prepared batches.

    python benchmarks/step.py

One thread, CPU time. `minimal`: TrainCB alone against the shortest loop. `loss and bar`: these two.
`typical`: our accuracy too, against the shortest loop, and against one that keeps the same means.
`own function`: the accuracy as a user writes it, called on each batch. `metric object`: torcheval's
accuracy, updated later. `dispatch`: five callbacks that do nothing, microseconds a step. `clones`:
what those of a batch cost alone and in a loop, and what the garbage collector adds. The fixed cost
of a fit is a figure of its own, so the others are over a thousand steps.
"""

import contextlib
import gc
import io
import statistics
import sys
import time
from functools import partial

import torch
import torch.nn.functional as F
from harness import compare, cpu_seconds, report
from torch import nn
from torcheval.metrics import MulticlassAccuracy

from minilearn import Callback, Learner, MetricsCB, ProgressCB, TrainCB, accuracy

STEPS = 1000


class Idle(Callback):
    """Does nothing after each batch."""

    def after_batch(self, learn):
        pass


class Nothing(Callback):
    """Answers the actions, and does nothing."""

    def predict(self, learn):
        pass

    get_loss = backward = step = zero_grad = predict


def batches(steps: int = STEPS) -> list:
    torch.manual_seed(0)
    return [(torch.randn(8, 10), torch.randint(0, 10, (8,))) for _ in range(steps)]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(10, 10)


def raw_loop(data: list) -> nn.Module:
    net = model()
    opt = torch.optim.SGD(net.parameters(), 0.1)
    net.train()
    for xb, yb in data:
        loss = F.cross_entropy(net(xb), yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
    return net


def raw_loop_with_sums(data: list) -> nn.Module:
    net = model()
    opt = torch.optim.SGD(net.parameters(), 0.1)
    net.train()
    total, hits, count = torch.zeros(()), torch.zeros(()), 0
    for xb, yb in data:
        preds = net(xb)
        loss = F.cross_entropy(preds, yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
        with torch.no_grad():
            total += loss.detach() * len(xb)
            hits += (preds.argmax(1) == yb).sum()
            count += len(xb)
    print(f"{total.item() / count:.3f} {hits.item() / count:.3f}")
    return net


def ours(data: list, *cbs: object) -> nn.Module:
    net = model()
    with contextlib.redirect_stdout(io.StringIO()):
        Learner(net, (data,), F.cross_entropy, cbs=[TrainCB(), *cbs]).fit(1)
    return net


def quietly(f: object) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        f()


def hits(preds: torch.Tensor, targs: torch.Tensor) -> torch.Tensor:
    """Accuracy as a function, as a user writes it."""
    return (preds.argmax(1) == targs).float().mean()


def fixed_cost(rounds: int = 200) -> None:
    """Report the milliseconds that a fit of a single batch takes more than the loop by hand."""
    data = batches(1)
    net, net2 = model(), model()
    learn = Learner(net, (data,), F.cross_entropy, cbs=[TrainCB(), MetricsCB(), ProgressCB()])
    mine = min(cpu_seconds(lambda: quietly(lambda: learn.fit(1))) for _ in range(rounds))
    hand = min(cpu_seconds(lambda: raw_loop(data)) for _ in range(rounds))
    report("fixed cost of a fit", ms=1000 * (mine - hand))
    del net2


def dispatch(rounds: int = 60) -> None:
    """Report microseconds a step for five callbacks that do nothing; neither do the actions.

    Torch's own work, hundreds of microseconds, varies by more than the figure.
    """
    data, five = batches(), [Idle() for _ in range(5)]

    def fit(*cbs: Callback) -> float:
        return cpu_seconds(lambda: Learner(None, (data,), cbs=[Nothing(), *cbs], opt=[]).fit(1))

    costs = [(fit(*five) - fit()) / STEPS for _ in range(rounds)]
    report("dispatch, five callbacks", us=1e6 * statistics.median(costs))


def held_tensors(rounds: int = 60) -> None:
    """Report microseconds a batch for two clones: alone, and in a loop that trains, held or not.

    In the loop torch's own work takes the caches between two batches. Medians over batches leave
    out what other programs do meanwhile.
    """
    data = batches()

    def cost(keep: bool, trains: bool) -> float:
        net, kept, spent = model(), [], []
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for xb, yb in data:
            if trains:
                F.cross_entropy(net(xb), yb).backward()
                opt.step()
                opt.zero_grad()
            start = time.perf_counter()
            clones = xb.clone(), yb.clone()
            spent.append(time.perf_counter() - start)
            kept = [*kept[-600:], clones] if keep else kept
        return 1e6 * statistics.median(spent)

    def figures(**kinds: bool) -> float:
        return statistics.median(cost(**kinds) for _ in range(max(rounds // 10, 1)))

    report(
        "clones, dropped",
        alone=figures(keep=False, trains=False),
        in_loop=figures(keep=False, trains=True),
    )
    gc.disable()
    without = figures(keep=True, trains=True)
    gc.enable()
    report("clones, held", in_loop=figures(keep=True, trains=True), without_gc=without)


def main() -> None:
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    data = batches()
    assert torch.equal(ours(data).weight, raw_loop(data).weight)
    shortest, with_sums = (
        partial(raw_loop, data),
        partial(quietly, partial(raw_loop_with_sums, data)),
    )
    named, own, objects = accuracy, hits, MulticlassAccuracy()
    cases = {
        "minimal": ([], shortest),
        "loss and bar": ([MetricsCB(), ProgressCB()], shortest),
        "typical": ([MetricsCB(accuracy=named), ProgressCB()], shortest),
        "typical over same sums": ([MetricsCB(accuracy=named), ProgressCB()], with_sums),
        "own function": ([MetricsCB(accuracy=own), ProgressCB()], shortest),
        "own function over same sums": ([MetricsCB(accuracy=own), ProgressCB()], with_sums),
        "metric object": ([MetricsCB(accuracy=objects), ProgressCB()], shortest),
    }
    for name, (cbs, theirs) in cases.items():
        compare(f"step: {name}", partial(ours, data, *cbs), theirs, rounds, cpu_seconds)
    held_tensors(rounds)
    dispatch(rounds)
    fixed_cost()


if __name__ == "__main__":
    main()
