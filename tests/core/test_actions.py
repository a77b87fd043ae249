"""Who answers an action: defaults give way, two specific owners are an error, so is none."""

import pytest
import torch
import torch.nn.functional as F
from toys import ACTIONS, At, Before, Trace, assert_same_weights, batches, linear, toy_dls

from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import ActionConflictError, MissingActionError
from minilearn.learner import Learner, MomentumLearner, TrainLearner


class HalfPrecision(Callback):
    """Like a mixed precision: its own backward and step."""

    def __init__(self):
        self.calls = []

    def backward(self, learn):
        self.calls.append("backward")
        learn.loss.backward()

    def step(self, learn):
        self.calls.append("step")
        learn.opt.step()


class DoublesInputs(TrainCB):
    """Like a DDPMCB: its own predict, the rest inherited."""

    def predict(self, learn):
        learn.preds = learn.model(2 * learn.batch[0])


def learner(cbs, kind=Learner, dls=None, **kwargs):
    return kind(linear(), dls or toy_dls(), F.mse_loss, cbs=cbs, lr=0.1, **kwargs)


def test_a_specific_owner_wins_over_a_default_beside_it():
    half, train = HalfPrecision(), TrainCB()
    learn = learner([train, half])
    learn.fit(1)
    assert half.calls == ["backward", "step"] * 2
    owners = [learn.owner(action) for action in ACTIONS]
    assert owners == [train, train, half, half, train]


def test_a_specific_owner_wins_over_a_train_learner():
    half = HalfPrecision()
    learn = learner(half, TrainLearner)
    learn.fit(1)
    assert half.calls == ["backward", "step"] * 2
    assert [learn.owner(action) for action in ACTIONS] == [learn, learn, half, half, learn]


def test_a_subclass_of_train_cb_owns_what_it_defines_itself():
    own, half, plain = DoublesInputs(), HalfPrecision(), TrainCB()
    learn = learner([plain, own, half])
    assert learn.owner("predict") is own
    assert learn.owner("backward") is half
    assert not isinstance(learn.owner("zero_grad"), HalfPrecision)
    learn.fit(1)


def test_a_callback_beats_what_train_learner_answers_but_not_what_a_subclass_of_it_answers():
    class Mine(TrainLearner):
        def predict(self):
            self.preds = self.model(self.batch[0])

    with pytest.raises(ActionConflictError, match="Mine and DoublesInputs both answer 'predict'"):
        learner(DoublesInputs(), Mine).fit(1)


def test_a_momentum_learner_keeps_its_own_zero_grad_beside_a_train_cb_and_a_precision():
    half = HalfPrecision()
    learn = learner([TrainCB(), half], MomentumLearner)
    assert learn.owner("zero_grad") is learn
    theirs = linear()
    opt = torch.optim.SGD(theirs.parameters(), 0.1)
    learn.fit(1, valid=False)
    for xb, yb in learn.dls[0]:
        F.mse_loss(theirs(xb), yb).backward()
        opt.step()
        for p in theirs.parameters():
            p.grad *= 0.85
    assert_same_weights(learn.model, theirs)
    assert half.calls == ["backward", "step"] * 2


def test_the_default_answers_of_a_train_learner_and_of_a_train_cb_do_the_same():
    models = []
    for kind, cbs in ((TrainLearner, None), (Learner, [TrainCB]), (TrainLearner, [TrainCB()])):
        learn = learner(cbs, kind)
        learn.fit(2)
        models.append(learn.model)
    assert_same_weights(models[0], models[1])
    assert_same_weights(models[0], models[2])


# ---- settings of defaults ----


def three_part_batches():
    return [(x, x, y) for x, y in batches(2)]


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, a, b):
        return self.layer(a) + self.layer(b)


@pytest.mark.parametrize("given_first", [True, False])
def test_inherited_defaults_take_their_settings_from_the_owner_that_was_given_one(given_first):
    class OwnStep(TrainCB):
        def step(self, learn):
            learn.opt.step()

    given, own = TrainCB(n_inp=2), OwnStep()
    cbs = [given, own] if given_first else [own, given]
    learn = Learner(Twice(), (three_part_batches(),), cbs=cbs)
    learn.fit(1)
    assert learn.owner("predict") is learn.owner("get_loss") is given
    assert learn.owner("step") is own


def test_a_setting_given_to_a_train_cb_counts_on_a_train_learner_too():
    learn = TrainLearner(Twice(), (three_part_batches(),), F.mse_loss, 0.1, TrainCB(n_inp=2))
    learn.fit(1)
    assert learn.owner("predict") is learn.cbs[0]


def test_two_defaults_with_different_settings_are_an_error():
    learn = learner([TrainCB(n_inp=1), TrainCB(n_inp=2)])
    with pytest.raises(ActionConflictError, match=r"TrainCB\(n_inp=1\) and TrainCB\(n_inp=2\)"):
        learn.fit(1)


@pytest.mark.parametrize("pair", [(None, None), (None, 1), (1, 1), (1, None)])
def test_equal_settings_and_settings_not_given_do_not_conflict(pair):
    ours, alone = learner([TrainCB(n_inp=n) for n in pair]), learner([TrainCB()])
    ours.fit(1)
    alone.fit(1)
    assert_same_weights(ours.model, alone.model)


# ---- mistakes ----


def test_two_specific_owners_are_named_before_anything_runs():
    class Other(HalfPrecision): ...

    trace = Trace()
    learn = learner([trace, TrainCB(), HalfPrecision(), Other()])
    before = Before(learn)
    with pytest.raises(ActionConflictError, match="HalfPrecision and Other both answer 'backward'"):
        learn.fit(1)
    assert trace.events == []
    before.assert_fit_left_nothing()


def test_nobody_who_predicts_is_an_error_that_says_what_to_add():
    trace = Trace()
    learn = learner([trace])
    with pytest.raises(MissingActionError, match=r"'predict'; callbacks are: Trace\. Add TrainCB"):
        learn.fit(1)
    assert trace.events == []
    with pytest.raises(MissingActionError, match="'predict'; callbacks are: none"):
        learner([]).fit(1)
    with pytest.raises(MissingActionError, match="'predict'"):
        learner(None).predict()


def test_a_fit_that_only_validates_needs_no_owner_of_backward():
    class Forward(Callback):
        def predict(self, learn):
            learn.preds = learn.model(learn.batch[0])

        def get_loss(self, learn):
            learn.loss = learn.preds.mean()

    learner([Forward()]).fit(1, train=False)
    with pytest.raises(MissingActionError, match="'backward'"):
        learner([Forward()]).fit(1)


def test_a_wrong_signature_is_found_before_the_fit_and_shown_as_it_should_be():
    class NoLearn(Callback):
        def predict(self): ...

    class TooMany(TrainLearner):
        def predict(self, batch): ...

    trace = Trace()
    with pytest.raises(ActionConflictError, match=r"NoLearn\.predict .*predict\(self, learn\)"):
        learner([trace, TrainCB(), NoLearn()]).fit(1)
    with pytest.raises(ActionConflictError, match=r"TooMany\.predict .*predict\(self\)"):
        learner([trace], TooMany).fit(1)
    assert trace.events == []


def test_actions_can_be_asked_for_outside_a_fit():
    learn = learner(TrainCB())
    learn.batch = learn.dls[0][0]
    learn.predict()
    learn.get_loss()
    x, y = learn.batch
    assert torch.equal(learn.loss, F.mse_loss(learn.model(x), y))
    learn.backward()
    assert learn.model.weight.grad is not None
    learn.opt, theirs = torch.optim.SGD(learn.model.parameters(), 0.1), linear()
    learn.step()
    F.mse_loss(theirs(x), y).backward()
    torch.optim.SGD(theirs.parameters(), 0.1).step()
    assert_same_weights(learn.model, theirs)
    learn.zero_grad()
    assert learn.model.weight.grad is None


def test_a_subclass_may_extend_an_action_with_super():
    class Scaled(TrainLearner):
        def get_loss(self):
            super().get_loss()
            self.loss = 3 * self.loss

    learn = learner(None, Scaled)
    losses = []
    learn.fit(1, cbs=At("after_loss", lambda learn: losses.append(learn.loss.item())))
    x, y = learn.dls[0][0]
    assert losses[0] == (3 * F.mse_loss(linear()(x), y)).item()


def test_a_plain_function_on_a_callback_can_own_an_action():
    cb = Callback()
    cb.step = lambda learn: calls.append(1)
    calls = []
    learner([TrainCB(), cb]).fit(1)
    assert calls == [1, 1]


def test_owners_are_found_anew_when_callbacks_change_in_mid_fit():
    half = HalfPrecision()
    add = At("before_epoch", lambda learn: learn.add_cb(half), when=lambda learn: learn.epoch == 1)
    learn = learner([TrainCB(), add])
    learn.fit(2, valid=False)
    assert half.calls == ["backward", "step"] * 2
    remove = At("before_epoch", lambda learn: learn.remove_cb(TrainCB))
    with pytest.raises(MissingActionError, match="'predict'"):
        learn.fit(1, cbs=remove)


def test_an_owner_that_would_conflict_cannot_be_added_in_mid_fit():
    class Other(HalfPrecision): ...

    learn = learner([TrainCB(), HalfPrecision()])
    cbs = list(learn.cbs)
    with pytest.raises(ActionConflictError, match="both answer"):
        learn.fit(1, cbs=At("after_batch", lambda learn: learn.add_cb(Other())))
    assert learn.cbs == cbs
    learn.fit(1)


def test_an_owner_that_hides_its_signature_is_called_as_any_other():
    keeps = TrainCB()
    keeps.zero_grad = vars  # a builtin, which clears nothing
    ours, theirs, data = linear(), linear(), batches()
    Learner(ours, (data,), F.mse_loss, 0.1, [keeps]).fit(1)
    opt = torch.optim.SGD(theirs.parameters(), 0.1)
    for x, y in data:
        F.mse_loss(theirs(x), y).backward()
        opt.step()
    assert_same_weights(ours, theirs)
