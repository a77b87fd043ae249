"""Tiny things for several tests: models, batches, a trace of a fit, a loop written by hand."""

import torch
import torch.nn.functional as F
from torch import nn

from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import ACTIONS
from minilearn.learner import Learner

PASS = ("before_epoch", "after_epoch", "cleanup_epoch")
LEVELS = ("fit", "round", "epoch", "batch", "backward", "step")
POINTS = tuple(f"{prefix}_{level}" for prefix in ("before", "after", "cleanup") for level in LEVELS)
POINTS = (*POINTS, "after_predict", "after_loss")  # written out, not taken from the package


def linear(seed=0, n_in=3, n_out=1):
    """A linear layer whose weights depend on the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(n_in, n_out)


def batches(n=4, size=2, seed=0, n_in=3, n_out=1):
    """`n` batches (x, y) of random numbers, x (size, n_in) and y (size, n_out)."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, n_in, generator=generator),
            torch.randn(size, n_out, generator=generator),
        )
        for _ in range(n)
    ]


def toy_dls(n_train=2, n_valid=1):
    """A training and a validation loader, plain lists of batches."""
    return batches(n_train, seed=1), batches(n_valid, seed=2)


class Trace(Callback):
    """Writes down every event, before all others."""

    order = -100

    def __init__(self, events=None):
        self.events = [] if events is None else events


def _note(event):
    return lambda self, learn: self.events.append(event)


for _event in POINTS:
    setattr(Trace, _event, _note(_event))


class LateTrace(Trace):
    """Writes down what reaches the last callback in the line."""

    order = 100


class TracedTrainCB(TrainCB):
    """Trains as TrainCB does and writes down every action that it is asked for.

    `at` may name an action at which to raise `error`, before it does anything, once.
    """

    def __init__(self, events, at=None, error=None, when=lambda learn: True):
        super().__init__()
        self.events, self.at, self.error, self.when = events, at, error, when


def _act(action):
    def act(self, learn):
        self.events.append(action)
        if self.at == action and self.when(learn):
            self.at = None
            raise self.error
        getattr(TrainCB, action)(self, learn)

    act.__name__ = action
    return act


for _action in ACTIONS:
    setattr(TracedTrainCB, _action, _act(_action))


class At(Callback):
    """Does `do` at one event, `times` times at most: an exception, or a function of learn."""

    def __init__(self, event, do, when=lambda learn: True, times=1):
        self.do, self.when, self.times = do, when, times
        setattr(self, event, self._act)

    def _act(self, learn):
        if self.times and self.when(learn):
            self.times -= 1
            if callable(self.do) and not isinstance(self.do, type):
                return self.do(learn)
            raise self.do
        return None


def toy_learner(cbs=(), dls=None, model=None, **kwargs):
    """A Learner on toy data that trains with TrainCB and the callbacks `cbs`."""
    dls = toy_dls() if dls is None else dls
    cbs = [TrainCB(), *cbs]
    return Learner(linear() if model is None else model, dls, F.mse_loss, cbs=cbs, **kwargs)


def plain_trace(epochs=1, n_train=2, n_valid=1):
    """The events and actions of a fit that nothing disturbs, written by hand."""
    forward = ["before_batch", "predict", "after_predict", "get_loss", "after_loss"]
    backward = ["before_backward", "backward", "after_backward", "cleanup_backward"]
    step = ["before_step", "step", "after_step", "zero_grad", "cleanup_step"]
    ends = ["after_batch", "cleanup_batch"]
    opens, *closes = PASS
    train = [opens, *(forward + backward + step + ends) * n_train, *closes]
    valid = [opens, *(forward + ends) * n_valid, *closes] if n_valid else []
    rounds = ["before_round", *train, *valid, "after_round", "cleanup_round"] * epochs
    return ["before_fit", *rounds, "after_fit", "cleanup_fit"]


def train_by_hand(model, dls, opt, epochs=1, loss_func=F.mse_loss, valid=True):
    """Train as one would without a framework; validation leaves the random numbers alone."""
    for _ in range(epochs):
        model.train()
        for xb, yb in dls[0]:
            loss_func(model(xb), yb).backward()
            opt.step()
            opt.zero_grad()
        if valid:
            with torch.random.fork_rng(), torch.no_grad():
                model.eval()
                for xb, yb in dls[1]:
                    loss_func(model(xb), yb)


def assert_same_weights(ours, theirs):
    """Compare two models bit by bit."""
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.equal(a, b), f"{name} differs"


class Before:
    """What a Learner looked like, to compare with what a fit leaves."""

    def __init__(self, learn):
        self.learn = learn
        self.cbs, self.list = list(learn.cbs), learn.cbs
        self.modes = [m.training for m in learn.model.modules()]
        self.hooks = self._hooks()

    def _hooks(self):
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
        return [len(getattr(m, kind)) for m in self.learn.model.modules() for kind in kinds]

    def assert_nothing_left(self):
        """No hook, temporary callback, gradient, bound action, mode or running level remains."""
        assert [m.training for m in self.learn.model.modules()] == self.modes
        self._assert_nothing_but_a_mode()

    def assert_fit_left_nothing(self):
        """The same after a fit, which leaves the mode of its last epoch, and what is frozen."""
        now, was = self.learn.model.training, self.modes[0]
        expected = [now and (mode or not was) for mode in self.modes]
        assert [m.training for m in self.learn.model.modules()] == expected
        self._assert_nothing_but_a_mode()

    def _assert_nothing_but_a_mode(self):
        learn = self.learn
        assert learn.cbs is self.list
        assert len(learn.cbs) == len(self.cbs)
        assert all(a is b for a, b in zip(learn.cbs, self.cbs, strict=True))
        assert self._hooks() == self.hooks
        assert all(p.grad is None for p in learn.model.parameters())
        assert not set(ACTIONS) & set(vars(learn))
        assert (learn.levels, learn.error, learn.depth, learn.training) == ((), None, 0, False)
        assert torch.is_grad_enabled()
