"""Fits on two processes that disturb each other; see test_cases."""

import sys
import warnings
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from distributed.fits import data, net
from distributed.launch import tell
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from minilearn import (
    EMACB,
    AccelerateCB,
    BatchSchedCB,
    Callback,
    CancelBatchException,
    CancelFitException,
    ClipGradCB,
    DataLoaders,
    GradAccumCB,
    Learner,
    LimitBatchesCB,
    MetricsCB,
    ProgressCB,
    accuracy,
    set_seed,
)
from minilearn.base.rank import rank

torch.set_num_threads(1)
folder = Path(sys.argv[1])
FOUND = {}


class Do(Callback):
    """Does something at an event of training, in one process or all."""

    def __init__(self, event, do, rank=None, when=lambda learn: True):
        self.do, self.rank, self.when = do, rank, when
        setattr(self, event, self.act)

    def act(self, learn):
        if self.rank in (None, rank()) and learn.training and self.when(learn):
            if isinstance(self.do, type):
                raise self.do
            self.do(learn)


class Seen(Callback):
    """Notes which samples each training epoch had, and how many updates were made."""

    def __init__(self):
        self.passes, self.ended, self.lrs = [], None, []

    def before_epoch(self, learn):
        if learn.training:
            self.passes.append([])

    def before_batch(self, learn):
        if learn.training:
            self.passes[-1].append(learn.batch[0][:, 0].tolist())

    def before_step(self, learn):
        self.lrs.append(learn.opt.param_groups[0]["lr"])

    def cleanup_fit(self, learn):
        self.ended = (learn.epoch, learn.iter, learn.steps_done, len(learn.history))


def numbered(n):
    return TensorDataset(torch.arange(n).float()[:, None].repeat(1, 4), data(n)[1])


def learner(dls, *cbs, model=None, loss=F.cross_entropy):
    set_seed(3)
    seen = Seen()
    made = [AccelerateCB(), MetricsCB(accuracy), ProgressCB(), seen, *cbs]
    learn = Learner(net() if model is None else model, dls, loss, 0.1, cbs=made)
    return learn, seen


def arrays(n, n_valid=8, bs=2):
    return DataLoaders.from_dsets(numbered(n), TensorDataset(*data(n_valid, 1)), bs=bs, seed=5)


def weights(learn):
    return [p.detach().clone() for p in learn.model.parameters()]


# C130: eleven samples, batches of two
learn, _ = learner(arrays(8, 11, bs=1))
learn.fit(1)
preds, targs = learn.get_preds()
FOUND["C130"] = {
    "preds": preds,
    "targs": targs,
    "direct": learn.model(data(11, 1)[0]).detach(),
    "accuracy": learn.history[-1]["accuracy"],
    "loss": learn.history[-1]["valid_loss"],
    "out": torch.from_numpy(learn.get_preds(out=folder / "preds.npy", with_targs=False).copy()),
    "iterated": torch.cat([p for p, _ in learn.iter_preds()]),
}
one = TensorDataset(*data(1, 1))  # fewer samples than processes
FOUND["C130 one"] = learn.validate(DataLoader(one, 2)).loss, learn.get_preds(DataLoader(one))[1]

# C131: stops of one process
for name, event, when in (
    ("round", "after_round", lambda learn: learn.epoch == 1),
    ("batch", "after_batch", lambda learn: (learn.epoch, learn.iter) == (1, 2)),
    ("before", "before_batch", lambda learn: (learn.epoch, learn.iter) == (1, 2)),
):
    stop = Do(event, CancelFitException, rank=1, when=when)
    stop.act = stop.act
    learn, seen = learner(arrays(24))
    if event == "after_round":  # learn.training is False there

        class Stop(Callback):
            def after_round(self, learn):
                if rank() == 1 and learn.epoch == 1:
                    raise CancelFitException

        stop = Stop()
    learn.fit(4, cbs=stop)
    FOUND[f"C131 {name}"] = seen.ended, weights(learn)

for event in ("before_batch", "after_loss", "after_batch", "cleanup_batch"):
    learn, seen = learner(arrays(24))
    when = lambda learn: (learn.epoch, learn.iter) == (1, 2)  # noqa: E731
    learn.fit(4, cbs=Do(event, lambda learn: learn.stop(), 1, when))
    FOUND[f"stop {event}"] = seen.ended, weights(learn)

# C132: saving by all, and by the first alone
learn, _ = learner(arrays(8))


class Save(Callback):
    def after_batch(self, learn):
        if learn.training and learn.iter == 0:
            learn.save_checkpoint(folder / "all.ckpt")
            learn.save(folder / "all.safetensors")
            if rank() == 0:
                learn.save_checkpoint(folder / "first.ckpt")
                learn.save(folder / "first.safetensors")


learn.fit(1, cbs=Save())

# C133: schedules step once an update
sched = BatchSchedCB(lambda opt: lr_scheduler.ExponentialLR(opt, 0.9))
learn, seen = learner(arrays(40), sched)
learn.fit(1)
FOUND["C133"] = {"lrs": seen.lrs, "updates": seen.ended[2], "steps": sched.steps}


class Pairs(list):
    """Batches of two in a new order each time, drawn from torch's global generator."""

    def __iter__(self):
        return iter(torch.randperm(2 * len(self)).view(-1, 2).tolist())


# C134: another order in each epoch, for loaders of ours and torch's
batches = BatchSampler(RandomSampler(numbered(21)), 3, drop_last=False)
for name, dls in (
    ("batch sampler", (DataLoader(numbered(21), batch_sampler=batches),)),
    ("own batches", (DataLoader(numbered(20), batch_sampler=Pairs([0] * 10)),)),
    ("arrays", arrays(20)),
    ("torch", (DataLoader(numbered(20), 2, shuffle=True),)),
    (
        "distributed",
        (
            DataLoader(
                numbered(21),
                3,
                sampler=torch.utils.data.DistributedSampler(numbered(21), seed=4),
            ),
        ),
    ),
):
    learn, seen = learner(dls)
    learn.fit(3)
    FOUND[f"C134 {name}"] = seen.passes

# a batch that one process cancels: the others' update is made by all
for name, event in (("before", "before_batch"), ("after", "after_loss")):
    learn, seen = learner(arrays(16))
    learn.fit(1, cbs=Do(event, CancelBatchException, 1, lambda learn: learn.iter in (1, 2)))
    FOUND[f"cancelled {name}"] = weights(learn), seen.ended
learn, seen = learner(arrays(24), GradAccumCB(3))
learn.fit(1, cbs=Do("before_batch", CancelBatchException, 1, lambda learn: learn.iter in (1, 2)))
FOUND["cancelled accumulated"] = weights(learn), seen.ended, seen.passes


# streams of different lengths end with the shortest
class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(zip(*data(self.n), strict=True))


learn, seen = learner((DataLoader(Stream(30 + 6 * rank()), 3),))
learn.fit(2)
FOUND["streams"] = seen.ended

# noise differs, weights begin equal even where they were made differently
torch.manual_seed(rank())
odd = net()
noises = []
learn, _ = learner(arrays(8), model=odd)
torch.manual_seed(3)
learn.fit(1, cbs=Do("before_batch", lambda learn: noises.append(torch.rand(2))))
FOUND["noise"], FOUND["odd"] = noises, weights(learn)

# a search in all processes is one search, in mid-fit too
learn, _ = learner(arrays(40))
before = weights(learn)
found = learn.lr_find(plot=False, num_it=12, suggest="valley")
FOUND["search"] = (
    found.lrs,
    found.losses,
    [torch.equal(a, b) for a, b in zip(before, weights(learn), strict=True)],
)
values = []
learn.fit(1, cbs=Do("after_batch", lambda learn: values.append(learn.validate().loss)))
FOUND["validate inside"] = values


# weights without a gradient are named
class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x)


learn, _ = learner(arrays(8), model=Partly())
try:
    learn.fit(1)
except RuntimeError as e:
    FOUND["unused"] = str(e)
learn.cbs[0] = AccelerateCB(find_unused_parameters=True)
learn.fit(1)


# a branch that is not used in a later batch
class Branches(Partly):
    def forward(self, x):
        self.n = getattr(self, "n", 0) + 1
        return self.used(x) + (self.idle(x) if self.n < 3 else 0)


learn, _ = learner(arrays(16), model=Branches())
try:
    learn.fit(1)
except RuntimeError as e:
    FOUND["unused later"] = str(e)


# loaders that give each process its own part
class Own(IterableDataset):
    def __iter__(self):
        numbers = range(rank(), 8, 2)
        return ((torch.full((4,), float(i)), torch.tensor(i % 3)) for i in numbers)


for name, cb in (("own", AccelerateCB(shard_data=False)), ("shared twice", AccelerateCB())):
    learn, seen = learner((DataLoader(Own(), 1),))
    learn.cbs[0] = cb
    learn.fit(1)
    FOUND[name] = seen.ended[2], seen.passes

# a validation loader that drops its incomplete batch drops nothing else
FOUND["dropped"] = []
for n in (12, 11, 13, 16, 5):
    loader = DataLoader(TensorDataset(*data(n, 1)), 4, drop_last=True)
    learn, _ = learner(arrays(8))
    learn.fit(1)
    learn.dls = (learn.dls.train, loader)
    learn.fit(1, train=False)
    kept = n // 4 * 4
    x, y = data(n, 1)
    right = (learn.model(x[:kept]).argmax(1) == y[:kept]).float().mean().item()
    FOUND["dropped"].append((learn.history[-1]["accuracy"], right))

# fits that differ from process to process
FOUND["differs"] = {}


def said(*cbs, train=8, valid=8, lr=0.1):
    learn, _ = learner(arrays(train, valid), *cbs)
    learn.lr = lr
    with warnings.catch_warnings(record=True) as caught, suppress(RuntimeError):
        warnings.simplefilter("always")
        learn.fit(1)  # some of them end in "the processes went different ways"
    return [str(w.message) for w in caught if "is not that of process 0" in str(w.message)]


first = rank() == 0
FOUND["differs"] = {
    "nothing": said(ClipGradCB(1.0), EMACB(0.9)),
    "a callback that watches": said(*[Do("before_step", lambda learn: None)] * rank()),
    "ClipGradCB": said(*[ClipGradCB(0.1)] * rank()),
    "max_norm=0.1": said(ClipGradCB(0.1 if first else 1.0)),
    "LimitBatchesCB": said(*[LimitBatchesCB(2)] * (not first)),
    "EMACB(0.8": said(EMACB(0.8 if first else 0.9)),
    "'lr': 0.2": said(lr=0.1 * (rank() + 1)),
    "batches for training: 4, and 6 there": said(train=8 + 4 * rank()),
    "batches for validation: 2, and 3 there": said(valid=8 + 2 * rank()),
}

# batch norm: statistics of the first process for all, at the end of each epoch
bn = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
learn, _ = learner(arrays(16), model=bn)
learn.fit(1, cbs=Do("before_batch", CancelBatchException, 1, lambda learn: learn.iter == 1))
FOUND["buffers"] = [b.clone() for b in bn.buffers()]
FOUND["wrapped"] = learn.model is bn and not set(vars(bn)) - set(vars(nn.Sequential()))


# an epoch that one process starts alone is an error that says so
def alone(learn):
    learn.validate()


learn, _ = learner(arrays(8))
try:
    learn.fit(1, cbs=Do("after_batch", alone, rank=1))
except RuntimeError as e:
    FOUND["different ways"] = str(e)
tell(folder, **FOUND)
