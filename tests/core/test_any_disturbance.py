"""Random callbacks that raise, cancel, come and go, on random batches: clean-up is always right."""

from collections import Counter, namedtuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from story import CANCELS
from toys import ACTIONS, LEVELS, POINTS, Before, plain_trace

from minilearn.base.batch import tensors
from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.learner import Learner

DOINGS = ("error", "interrupt", "add", "remove", "remove itself", *CANCELS)
Named = namedtuple("Named", "first second")


class Careful(Callback):
    """Keeps account of the levels that it has seen to begin and to end."""

    def __init__(self):
        self.begun, self.ended, self.heard = Counter(), Counter(), []


def _careful(event):
    prefix, _, level = event.partition("_")

    def hear(self, learn):
        self.heard.append(event)
        if prefix == "before":
            self.begun[level] += 1
        if prefix == "cleanup":
            self.ended[level] += 1

    return hear


for _event in POINTS:
    setattr(Careful, _event, _careful(_event))


class Disturbing(Careful):
    """Does something at the nth time that an event comes, besides keeping its account."""

    def __init__(self, event, nth, doing, order, others):
        super().__init__()
        self.order, self.left, self.doing, self.others = order, nth, doing, others
        account = getattr(self, event)

        def disturb(learn):
            account(learn)
            self.left -= 1
            if self.left == 0:
                self.disturb(learn)

        setattr(self, event, disturb)

    def disturb(self, learn):
        if self.doing == "error":
            raise ValueError("disturbed")
        if self.doing == "interrupt":
            raise KeyboardInterrupt
        if self.doing == "add":
            self.others.append(learn.add_cb(Careful()))
        elif self.doing == "remove":
            learn.remove_cb(self.others[0])
        elif self.doing == "remove itself":
            learn.remove_cb(self)
        else:
            raise CANCELS[self.doing]


class Trains(TrainCB):
    """Trains on batches of any structure: the model sees the sum of all that is in them."""

    def predict(self, learn):
        total = sum((t.sum() for t in tensors(learn.batch)), torch.zeros(()))
        learn.preds = learn.model(total.reshape(1, 1))

    def get_loss(self, learn):
        learn.loss = learn.preds.pow(2).mean()


leaf = st.integers(1, 3).map(torch.ones) | st.sampled_from(["text", 3])
structure = st.recursive(
    leaf,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3)
        | st.tuples(inner, inner).map(lambda pair: Named(*pair))
    ),
    max_leaves=5,
)
disturbance = st.tuples(
    st.sampled_from(POINTS), st.integers(1, 3), st.sampled_from(DOINGS), st.integers(-20, 95)
)


@settings(max_examples=150)
@given(
    st.lists(disturbance, min_size=1, max_size=4),
    st.lists(structure, min_size=1, max_size=3),
    st.sampled_from([{"n_epochs": 2}, {"n_steps": 3}, {"n_epochs": 2, "valid_every": (2, "step")}]),
)
def test_whatever_callbacks_do_all_that_began_is_cleaned_up_and_the_next_fit_works(
    disturbances, data, length
):
    accounts = [Careful()]
    disturbing = [Disturbing(*d, accounts) for d in disturbances]
    accounts += disturbing
    learn = Learner(torch.nn.Linear(1, 1), (data, data[:1]), cbs=[Trains()], lr=1e-3)
    before = Before(learn)
    error = None
    try:
        learn.fit(**length, cbs=accounts[:1] + disturbing)
    except (ValueError, KeyboardInterrupt, RuntimeError) as e:
        error = e
    assert_known(error, disturbances)
    for account in accounts:
        for level in LEVELS:  # all that began ended; where a begin did not get through, an end may
            spare = account.ended[level] - account.begun[level]
            assert 0 <= spare <= len(disturbances)
        assert account.ended["fit"] <= 1
    for account in list(learn.cbs):
        if account is not before.cbs[0]:
            learn.remove_cb(account)  # those that were added stay, as promised
    before.assert_fit_left_nothing()

    trace = Careful()
    learn.fit(1, cbs=trace)
    events = [e for e in plain_trace(1, len(data), 1) if e not in ACTIONS]
    assert trace.heard == events
    assert trace.begun == trace.ended


def assert_known(error, disturbances):
    """Only what was raised leaves the fit, or a cancel of a level that did not run there."""
    doings = {doing for _, _, doing, _ in disturbances}
    if isinstance(error, ValueError):
        assert "error" in doings and str(error) == "disturbed"
    if isinstance(error, KeyboardInterrupt):
        assert "interrupt" in doings
    if isinstance(error, RuntimeError):
        assert doings & set(CANCELS)
        assert "is running there" in str(error) or "made no update" in str(error)
