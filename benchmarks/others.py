"""What a step costs in other frameworks, measured as in step.py: tiny model, prepared batches.

    python benchmarks/others.py [rounds]

`minimal` only trains: bars, loggers, checkpoints and metrics are off. `typical` keeps the loss and
the accuracy and shows a bar, as the framework's own documents do it. What is not installed is left
out; none of these is a dependency.
"""

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from harness import compare
from step import batches, hits, model, ours, raw_loop

from minilearn import MetricsCB, ProgressCB

ROUNDS = 20


class Loader(list):
    """Prepared batches, with the attributes that fastai needs of a loader."""

    device, after_batch, bs = torch.device("cpu"), None, 8

    @property
    def n(self) -> int:
        return self.bs * len(self)


def with_minilearn(data: list, typical: bool) -> None:
    ours(data, *([MetricsCB(accuracy=hits), ProgressCB()] if typical else []))


def with_accelerate(data: list, typical: bool) -> None:
    from accelerate import Accelerator
    from tqdm import tqdm

    accelerator, net = Accelerator(cpu=True), model()
    net, opt = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    total = right = torch.zeros(())
    for xb, yb in (bar := tqdm(data)) if typical else data:
        preds = net(xb)
        loss = F.cross_entropy(preds, yb)
        accelerator.backward(loss)
        opt.step()
        opt.zero_grad()
        if typical:
            total, right = total + loss.detach(), right + (preds.argmax(1) == yb).sum()
            bar.set_postfix(loss=loss.item())


def with_ignite(data: list, typical: bool) -> None:
    from ignite.contrib.handlers import ProgressBar
    from ignite.engine import create_supervised_trainer
    from ignite.metrics import Accuracy, RunningAverage

    net = model()
    engine = create_supervised_trainer(
        net,
        torch.optim.SGD(net.parameters(), 0.1),
        F.cross_entropy,
        output_transform=lambda x, y, preds, loss: (preds, y, loss.item()) if typical else None,
    )
    if typical:
        Accuracy(output_transform=lambda out: out[:2]).attach(engine, "accuracy")
        RunningAverage(output_transform=lambda out: out[2]).attach(engine, "loss")
        ProgressBar().attach(engine, ["loss"])
    engine.run(data, max_epochs=1)


def with_skorch(data: list, typical: bool) -> None:
    from skorch import NeuralNetClassifier
    from skorch.callbacks import EpochScoring, ProgressBar

    shown = [EpochScoring("accuracy", on_train=True), ProgressBar()]
    net = NeuralNetClassifier(
        model,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        lr=0.1,
        max_epochs=1,
        train_split=None,
        iterator_train=lambda dataset, **kw: data,
        callbacks=shown if typical else None,
        callbacks__print_log=None,
        verbose=0,
    )
    xs, ys = (torch.cat(part) for part in zip(*data, strict=True))
    net.fit(xs, ys)


def with_lightning(data: list, typical: bool) -> None:
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: tuple, _: int) -> torch.Tensor:
            preds = self.net(batch[0])
            loss = F.cross_entropy(preds, batch[1])
            if typical:
                self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
                self.log("accuracy", hits(preds, batch[1]), on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=typical,
    ).fit(Module(), Loader(data))


def with_fastai(data: list, typical: bool) -> None:
    from fastai.basics import DataLoaders, Learner, OptimWrapper
    from fastai.callback.progress import ProgressCallback
    from fastai.metrics import accuracy

    learn = Learner(
        DataLoaders(Loader(data), Loader(data[:1])),
        model(),
        loss_func=torch.nn.CrossEntropyLoss(),
        opt_func=lambda params, lr: OptimWrapper(params, torch.optim.SGD, lr=lr),
        lr=0.1,
        metrics=[accuracy] if typical else None,
    )
    if not typical:
        learn.remove_cbs(ProgressCallback)
    learn.fit(1)


def with_keras(data: list, typical: bool) -> None:
    import keras

    net = keras.Sequential([keras.layers.Input((data[0][0].shape[1],)), keras.layers.Dense(10)])
    net.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"] if typical else None,
    )
    net.fit(torch.utils.data.DataLoader(data, batch_size=None), verbose="auto" if typical else 0)


FRAMEWORKS: dict[str, tuple[str, Callable[[list, bool], None]]] = {
    "minilearn": ("minilearn", with_minilearn),
    "accelerate": ("accelerate", with_accelerate),
    "ignite": ("ignite", with_ignite),
    "skorch": ("skorch", with_skorch),
    "Lightning": ("pytorch_lightning", with_lightning),
    "fastai": ("fastai", with_fastai),
    "Keras": ("keras", with_keras),
}


@contextmanager
def silence() -> Iterator[None]:
    """Hide what they print: a screen would slow them down more than a file does."""
    logging.disable(logging.WARNING)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def measure(name: str, fit: Callable[[list, bool], None], data: list, rounds: int) -> None:
    def quietly(typical: bool) -> None:
        with silence():
            fit(data, typical)

    for kind in ("minimal", "typical"):
        try:
            quietly(kind == "typical")
        except Exception as e:  # another version of it, perhaps
            print(f"{name}, {kind}: left out, {type(e).__name__}: {e}")
            continue
        run = lambda typical=kind == "typical": quietly(typical)  # noqa: E731
        compare(f"{name}: {kind}", run, lambda: raw_loop(data), rounds)


def main() -> None:
    torch.set_num_threads(1)
    os.environ["KERAS_BACKEND"] = "torch"
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    data = batches(300)
    for name, (module, fit) in FRAMEWORKS.items():
        if find_spec(module):
            measure(name, fit, data, rounds)


if __name__ == "__main__":
    main()
