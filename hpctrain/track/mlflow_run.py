"""MLflow: one run of theirs for all attempts of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from hpctrain.config.trackers import MlflowConfig
from hpctrain.track.points import Point
from hpctrain.track.tracker import Ending, RunFacts

_METRICS_A_CALL = 1000
_PARAMS_A_CALL = 100
_LONGEST_VALUE = 500
"""Letters of a parameter. Source for all three: MLflow's REST API, «Log Batch», request limits."""
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""Retries of a call, and seconds. Its own 7 and 120 say nothing for minutes of a server that is not there; stated ones win."""
_STATUS = {"completed": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowRun:
    """Written through the tracking client, which tries a call again a few times."""

    def __init__(self, config: MlflowConfig, facts: RunFacts, run_id: str | None) -> None:
        """Begins the run, or goes on with it.

        Args:
            config: of ``track.mlflow``.
            facts: of the run.
            run_id: of an earlier attempt; None: there was none, or on another server.

        Raises:
            Exception: MLflow's own, such as that the server is not there.
        """
        if config.tracking_uri.startswith("file:"):
            # MLflow 3.17 takes a folder only where this says that it is meant.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        self._client = MlflowClient(tracking_uri=config.tracking_uri)
        self.run_id = run_id or self._create(config, facts)
        """To be kept for the next attempt."""
        self._client.update_run(self.run_id, status="RUNNING")
        self._client.set_tag(self.run_id, "hpctrain.attempt", facts.attempt)

    def write(self, points: Sequence[Point]) -> None:
        metrics = [
            Metric(name, value, int(1000 * point.time_s), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for start in range(0, len(metrics), _METRICS_A_CALL):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + _METRICS_A_CALL])

    def close(self, ending: Ending) -> None:
        self._client.set_terminated(self.run_id, _STATUS[ending])

    def _create(self, config: MlflowConfig, facts: RunFacts) -> str:
        experiment = self._client.get_experiment_by_name(config.experiment)
        experiment_id = (
            self._client.create_experiment(config.experiment) if experiment is None else experiment.experiment_id
        )
        tags = {"hpctrain.run": facts.name}
        run_id = str(self._client.create_run(experiment_id, run_name=facts.name, tags=tags).info.run_id)
        params = [Param(name, text[:_LONGEST_VALUE]) for name, text in _flat({**facts.config, "plan": facts.sizes})]
        for start in range(0, len(params), _PARAMS_A_CALL):
            self._client.log_batch(run_id, params=params[start : start + _PARAMS_A_CALL])
        return run_id


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and their values as text; what is null or empty is left out, as are keys that MLflow takes for none."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _flat(value, f"{key}.")
        elif value not in (None, "", [], ()) and all(sign.isalnum() or sign in "_-. /:" for sign in key):
            yield key, str(value)
