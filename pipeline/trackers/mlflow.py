"""MLflow: a run in the store or on the server that MLFLOW_TRACKING_URI names."""

import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from ...storage.errors import install as installation
from .base import Axis, Tracked, Tracker

BATCH = 100
"""Parameters that one request takes."""
LONGEST = 500
"""Characters of a parameter that every version of a server takes."""
STATUS = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    """Logs into the experiment MLFLOW_EXPERIMENT_NAME, ``millrace`` by default."""

    name = "mlflow"
    package = "mlflow"
    install = installation("mlflow")

    def start(self, run: Tracked) -> Any:
        entities: Any = import_module("mlflow.entities")
        self._client, self._metric = import_module("mlflow.tracking").MlflowClient(), entities.Metric
        if run.before is not None:
            self._run = str(run.before)
            self._client.update_run(self._run, status="RUNNING")
            return self._run
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "millrace")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(name)
        self._run = self._client.create_run(experiment, run_name=run.name).info.run_id
        params = [entities.Param(key, str(value)[:LONGEST]) for key, value in run.config.items()]
        for first in range(0, len(params), BATCH):
            self._client.log_batch(self._run, params=params[first : first + BATCH])
        return self._run

    def log(self, values: Mapping[str, float], axis: Axis, at: int) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[self._metric(k, v, now, at) for k, v in values.items()])

    def end(self, status: Literal["done", "stopped", "failed"], files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self._run, str(file))
        self._client.set_terminated(self._run, STATUS[status])


TRACKER = MLflow
