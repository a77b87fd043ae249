"""What a switch makes faster: the speed-up of an epoch with it over the same without.

    python benchmarks/switches.py [rounds [names…]]

Random images in memory, one thread, batches of 256. How much bf16 gives depends on the processor
(AMX, AVX-512), and is printed with its name; what compiling gives, on how much of a step is not
convolution. Compilation itself is not counted: the first fit of each pays for it.
"""

import platform
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import compare, report
from torch import nn

from minilearn import (
    Callback,
    ChannelsLastCB,
    CompileCB,
    Learner,
    MixedPrecision,
    TrainCB,
    act_gr,
    get_model,
    resnet,
)

BS = 256
UPDATES = {
    "CNN": 40,
    "ResNet": 4,
}  # many, so that wrapping a compiled model costs nothing


def small_cnn() -> nn.Module:
    return get_model(act_gr, norm=nn.BatchNorm2d)


def large_resnet() -> nn.Module:
    """1.2 million parameters."""
    return resnet(nfs=(16, 32, 64, 128, 256))


# name: the model, and the callbacks; MixedPrecision answers the actions instead of TrainCB
SWITCHES: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[Callback]]]] = {
    "CNN, channels last": (small_cnn, lambda: [TrainCB(), ChannelsLastCB()]),
    "CNN, compiled": (small_cnn, lambda: [TrainCB(), CompileCB()]),
    "CNN, both": (small_cnn, lambda: [TrainCB(), ChannelsLastCB(), CompileCB()]),
    "ResNet, channels last": (large_resnet, lambda: [TrainCB(), ChannelsLastCB()]),
    "ResNet, and bf16": (large_resnet, lambda: [ChannelsLastCB(), MixedPrecision("bf16")]),
}


def training(
    make: Callable[[], nn.Module], cbs: list[Callback], updates: int
) -> Callable[[], None]:
    """Return a function that trains for an epoch, the model staying what it is."""
    torch.manual_seed(0)
    x, y = torch.randn(updates, BS, 1, 28, 28), torch.randint(0, 10, (updates, BS))
    learn = Learner(make(), (list(zip(x, y, strict=True)),), F.cross_entropy, 0.01, cbs=cbs)
    return lambda: learn.fit(1, valid=False)


def processor() -> str:
    """The processor's name, and what of AMX and AVX it can do."""
    info = Path("/proc/cpuinfo")
    words = set(info.read_text().split()) if info.exists() else set()
    has = sorted(w for w in words if w.startswith(("amx_bf16", "avx512_bf16", "avx512f", "avx2")))
    return f"{platform.processor() or platform.machine()}, {' '.join(has) or 'no AVX known'}"


def main() -> None:
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    print(f"on {processor()}")
    for name, (make, cbs) in SWITCHES.items():
        if name in sys.argv[2:] or not sys.argv[2:]:
            n = UPDATES[name.partition(",")[0]]
            ratio = compare(name, training(make, cbs(), n), training(make, [TrainCB()], n), rounds)
            report(f"{name}: speed-up", times=1 / ratio)


if __name__ == "__main__":
    main()
