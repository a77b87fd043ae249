"""A small convolutional network on images of clothes, as in the first script of every course.

Run it with `python examples/mnist.py`. Adadelta, a rate that falls by 0.7 an epoch, dropout, the
accuracy on the test images after each epoch, and the weights in a file at the end.
"""

from minilearn.all import *


def network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.ReLU()),  # (B, 1, 28, 28) -> (B, 16, 26, 26)
        *(nn.Conv2d(16, 32, 3), nn.ReLU()),  # -> (B, 32, 24, 24)
        *(nn.MaxPool2d(2), nn.Dropout2d(0.25), nn.Flatten()),  # -> (B, 4608)
        *(nn.Linear(4608, 128), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(128, 10),
    )


def main(epochs: int = 3, batches: int | None = None, save: str | Path | None = None) -> Learner:
    """Train on at most `batches` batches an epoch; `save` names a file for the weights."""
    set_seed(1)
    dls = DataLoaders.from_dd(fashion_mnist(), 64)
    sched = EpochSchedCB(partial(lr_scheduler.StepLR, step_size=1, gamma=0.7))
    cbs = [TrainCB(), DeviceCB(), MetricsCB(accuracy=accuracy), sched, ProgressCB()]
    cbs.append(LimitBatchesCB(train=batches, valid=batches))
    learn = Learner(network(), dls, F.cross_entropy, 1.0, cbs, optim.Adadelta)
    learn.fit(epochs)
    if save is not None:
        learn.save(save)
    return learn


if __name__ == "__main__":
    main(save="mnist.safetensors")
