"""A residual network trained as on ImageNet, on the sample of images that ships with minilearn.

Run it with `python examples/imagenet.py`. SGD with momentum and weight decay, a rate that falls in
steps, random crops and flips, top-1 and top-5 accuracy, a checkpoint after each epoch, the best
beside the last; called again, it goes on where it was stopped.
"""

from minilearn.all import *


def main(folder: str | Path, epochs: int = 5, batches: int | None = None) -> Learner:
    """Train up to `epochs` epochs, from the checkpoint that an earlier call left in `folder`."""
    set_seed(0)
    dls = DataLoaders.from_dd(fashion_mnist(), 64)
    cbs = [
        *(TrainCB(), DeviceCB(), ProgressCB(), LimitBatchesCB(train=batches, valid=batches)),
        AugmentCB(RandomCrop(padding=2), RandomFlip()),
        MetricsCB(top1=accuracy, top5=partial(accuracy, topk=5)),
        EpochSchedCB(partial(lr_scheduler.StepLR, step_size=3, gamma=0.1)),
        CheckpointCB(folder, monitor="top1", mode="max"),
    ]
    opt_func = partial(optim.SGD, momentum=0.9, weight_decay=1e-4)
    learn = Learner(resnet(1, 10), dls, F.cross_entropy, 0.05, cbs, opt_func)
    learn.fit(epochs, resume=True)
    return learn


if __name__ == "__main__":
    learn = main("runs/imagenet")
    print(learn.history, learn.find(CheckpointCB).best, sep="\n")
