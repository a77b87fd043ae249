"""Records of a run on trackers: Weights & Biases, MLflow.

Their libraries are imported when a fit first writes.
"""

from __future__ import annotations

import time
from typing import Any

from .base import LoggerCB, failed, need, numbers


class WandbCB(LoggerCB):
    """Send the records, figures and histograms to a run of Weights & Biases.

    A run that you began with `wandb.init` is used and left open; else one is begun and finished.

    >>> learn.fit(2, cbs=WandbCB(project="digits"))  # doctest: +SKIP

    Args:
        every: updates between two records; None for the rows of the history alone.
        init: for `wandb.init`: project, name, config, mode="offline", …

    Attributes:
        run_id: of the run; a resumed fit goes on with it.

    Raises:
        ImportError: wandb is not installed.

    Events: before_fit, before_round, before_step, after_batch, after_round, cleanup_fit
    Order:  REPORT
    Reads:  scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history, levels,
            error
    Writes:
    Syncs: once in `every` updates
    """

    is_local = False

    def __init__(self, every: int | None = 50, **init: Any) -> None:
        super().__init__(every)
        self.init = init
        need("wandb")

    def _open(self) -> None:
        import wandb

        same: dict[str, Any] = {"id": self.run_id, "resume": "allow"} if self.run_id else {}
        self._own = wandb.run is None
        self.run = wandb.init(**self.init | same)
        self.run_id = self.run.id

    def _write(self, record: dict[str, Any]) -> None:
        self.run.log(record, step=record["steps"])

    def _media(self, name: str, value: Any, step: int) -> None:
        import wandb

        kind = wandb.Image if hasattr(value, "savefig") else wandb.Histogram
        self.run.log({name: kind(value)}, step=step)

    def _close(self, error: BaseException | None) -> None:
        if self._own:
            self.run.finish(exit_code=int(failed(error)))


class MLflowCB(LoggerCB):
    """Send the records and figures to an MLflow server or store.

    >>> learn.fit(2, cbs=MLflowCB("sqlite:///mlflow.db", experiment="digits"))  # doctest: +SKIP

    Args:
        uri: such as "sqlite:///mlflow.db"; by default what MLflow is set to.
        experiment: made if it is not there.
        every: updates between two records; None for the rows of the history alone.
        tags: of the run.

    Attributes:
        run_id: of the run; a resumed fit goes on with it.

    Raises:
        ImportError: mlflow is not installed.

    Events: before_fit, before_round, before_step, after_batch, after_round, cleanup_fit
    Order:  REPORT
    Reads:  scratch, opt, training, steps_done, loss, loss_parts, loss_func, epoch, history, levels,
            error
    Writes:
    Syncs: once in `every` updates
    """

    is_local = False

    def __init__(
        self,
        uri: str | None = None,
        experiment: str = "minilearn",
        every: int | None = 50,
        tags: dict[str, str] | None = None,
    ) -> None:
        super().__init__(every)
        self.uri, self.experiment, self.tags = uri, experiment, tags
        need("mlflow")

    def _open(self) -> None:
        from mlflow import MlflowClient

        self.client, self._there = MlflowClient(self.uri), set()
        if self.run_id is None:
            known = self.client.get_experiment_by_name(self.experiment)
            where = known.experiment_id if known else self.client.create_experiment(self.experiment)
            self.run_id = self.client.create_run(where, tags=self.tags).info.run_id
        else:
            self.client.update_run(self.run_id, status="RUNNING")
            for name in self.client.get_run(self.run_id).data.metrics:
                past = self.client.get_metric_history(self.run_id, name)
                self._there |= {(name, metric.step) for metric in past}

    def _write(self, record: dict[str, Any]) -> None:
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), record["steps"]
        new = [(k, x) for k, x in numbers(record) if (k, step) not in self._there]
        self.client.log_batch(self.run_id, [Metric(k, x, now, step) for k, x in new])

    def _media(self, name: str, value: Any, step: int) -> None:
        if hasattr(value, "savefig"):
            self.client.log_figure(self.run_id, value, f"{name}_{step}.png")

    def _close(self, error: BaseException | None) -> None:
        self.client.set_terminated(self.run_id, "FAILED" if failed(error) else "FINISHED")
