"""What must happen when something goes wrong in a fit: an interpreter of the rules.

The rules: a level fires `before_X`, its body, `after_X`, then always `cleanup_X`; what is raised
skips the rest; a cancel ends at its own level; a cancel of a level that is not running is an error;
the step level needs a backward that ran, and `zero_grad` follows every `step` that ran.
"""

from collections import Counter

from toys import LEVELS, At, LateTrace, Trace, TracedTrainCB, linear, toy_dls

from minilearn.core import events
from minilearn.core.events import ACTIONS
from minilearn.learner import Learner

CANCELS = {level: getattr(events, f"Cancel{level.title()}Exception") for level in LEVELS}


class Story:
    """Tells the events of a fit in which `error` is raised at the `nth` time that `point` comes.

    Attributes:
        trace: events and actions in order.
        raised: the class of what leaves the fit, None where it ends normally.
    """

    def __init__(self, point=None, nth=1, error=None, epochs=2, n_train=2, n_valid=1):
        self.point, self.nth, self.error = point, nth, error
        self.n_train, self.n_valid = n_train, n_valid
        self.trace, self.running, self.seen, self.raised = [], [], Counter(), None
        try:
            self.level("fit", lambda: [self.round() for _ in range(epochs)])
        except BaseException as e:
            self.raised = type(e)

    def at(self, point):
        self.trace.append(point)
        self.seen[point] += 1
        if (point, self.seen[point]) == (self.point, self.nth):
            level = next((x for x, c in CANCELS.items() if c is type(self.error)), None)
            if level and level not in self.running and point != f"cleanup_{level}":
                raise RuntimeError
            raise self.error

    def level(self, name, body, after=True):
        ended = None
        self.running.append(name)
        try:
            self.at(f"before_{name}")
            body()
            if after:
                self.at(f"after_{name}")
        except BaseException as e:
            ended = e
        self.running.pop()
        try:
            self.at(f"cleanup_{name}")
        except (
            BaseException
        ) as e:  # only one thing is raised in a story, so nothing else is pending
            ended = e
        if ended is not None and type(ended) is not CANCELS[name]:
            raise ended

    def round(self):
        def body():
            self.level("epoch", lambda: [self.batch(True) for _ in range(self.n_train)])
            if self.n_valid:
                self.level("epoch", lambda: [self.batch(False) for _ in range(self.n_valid)])

        self.level("round", body)

    def batch(self, training):
        def body():
            for point in ("predict", "after_predict", "get_loss", "after_loss"):
                self.at(point)
            if training:
                self.update()

        self.level("batch", body)

    def update(self):
        ran = []

        def backward():
            self.at("backward")
            ran.append(True)

        self.level("backward", backward)
        if ran:
            self.level("step", self.step, after=False)

    def step(self):
        self.at("step")
        try:
            self.at("after_step")
        finally:
            self.at("zero_grad")


def disturbed_learner(point, nth, error, model=None):
    """Return a Learner in which `error` is raised at a point, with two traces.

    The first is written by the first callback and the owner of the actions, the second by the last.
    """
    count = Counter()

    def when(learn):
        count[point] += 1
        return count[point] == nth

    trace, late = Trace(), LateTrace()
    train = TracedTrainCB(trace.events, point, error, when)
    cbs = [trace, train, late]
    if point not in ACTIONS:
        cbs.append(At(point, error, when))
    learn = Learner(model or linear(), toy_dls(), cbs=cbs)
    return learn, trace.events, late.events


def occurrences(point):
    """Return how often a point comes in an undisturbed story."""
    return Story().trace.count(point)
