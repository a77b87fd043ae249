"""The OptunaPruningCB of examples/callbacks/optuna_pruning.py, in a real study."""

import pytest
import torch.nn.functional as F
from torch import optim

from minilearn import Learner, MetricsCB, TrainCB
from tests.toys import batches, linear, train_by_hand

optuna = pytest.importorskip("optuna")

RATES = [0.1, 0.2, 1e-4, 0.3]


def study(pruner, epochs=4):
    """Search the rates one by one; return the study, and the Learner of each trial."""
    from examples.callbacks.optuna_pruning import OptunaPruningCB

    learners = []

    def objective(trial):
        lr = trial.suggest_categorical("lr", RATES)
        cbs = [TrainCB(), MetricsCB(), OptunaPruningCB(trial)]
        learn = Learner(linear(), (batches(4, 8), batches(2, 8, seed=1)), F.mse_loss, lr, cbs)
        learners.append(learn)
        learn.fit(epochs)
        return learn.history[-1]["valid_loss"]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = optuna.create_study(pruner=pruner)
    for lr in RATES:
        found.enqueue_trial({"lr": lr})
    found.optimize(objective, n_trials=len(RATES))
    return found, learners


def test_each_round_is_reported_and_the_best_trial_is_that_of_loops_by_hand():
    found, learners = study(optuna.pruners.NopPruner())
    ends = []
    for lr, trial, learn in zip(RATES, found.trials, learners, strict=True):
        assert trial.intermediate_values == dict(enumerate(learn.history["valid_loss"]))
        model = linear()
        train_by_hand(model, (batches(4, 8), []), optim.SGD(model.parameters(), lr), 4)
        ends.append(sum(F.mse_loss(model(x), y).item() for x, y in batches(2, 8, seed=1)) / 2)
        assert trial.value == pytest.approx(ends[-1], rel=1e-6)
    assert found.best_params["lr"] == RATES[ends.index(min(ends))]


def test_a_trial_that_will_not_win_is_pruned_and_its_fit_ends_there():
    found, learners = study(optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1))
    states = [trial.state.name for trial in found.trials]
    assert states[:3] == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert len(learners[2].history) == 2 == len(found.trials[2].intermediate_values)
    assert learners[2].levels == ()
