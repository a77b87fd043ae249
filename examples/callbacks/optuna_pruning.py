"""Search for options with Optuna, and stop early what will not win.

`study.optimize(objective)`, whose fit has `cbs=OptunaPruningCB(trial, "accuracy")`
"""

import optuna

from minilearn import Callback, Learner, Order


class OptunaPruningCB(Callback):
    """Report a column of each round to a trial; end the fit, and the trial, where it is pruned.

    Args:
        trial: what Optuna gives the objective.
        monitor: the column of the history, "valid_loss" or the name of a metric.

    Events: after_round
    Order:  STOP
    Reads:  row, epoch
    Writes:
    """

    order = Order.STOP

    def __init__(self, trial: optuna.Trial, monitor: str = "valid_loss") -> None:
        self.trial, self.monitor = trial, monitor

    def after_round(self, learn: Learner) -> None:
        """Report, and ask whether to go on."""
        self.trial.report(learn.row[self.monitor], step=learn.epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned(f"{self.monitor} is {learn.row[self.monitor]:.4g}")
