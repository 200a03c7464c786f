"""``trackers.json``: under which ids trackers know the run, so that its next attempt goes on there, and what went wrong."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import replace

from hpctrain.errors import RecordError
from hpctrain.record.files import read_record, write_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import SCHEMA_VERSION, TrackerProblem, TrackersRecord

_KEPT_PROBLEMS = 20


class KnownRuns:
    """Reads the file once, and replaces it at each change; for all threads."""

    def __init__(self, paths: RunPaths, attempt: int) -> None:
        self._path = paths.trackers
        self._attempt = attempt
        self._lock = threading.RLock()
        self._record = TrackersRecord(SCHEMA_VERSION)
        if self._path.exists():
            try:
                self._record = read_record(self._path, TrackersRecord)
            except RecordError as error:
                print(f"hpctrain: warning: {error}; trackers get new runs", flush=True)

    def wandb_id(self) -> str:
        """Of the run; made at the first call."""
        with self._lock:
            if self._record.wandb_id is None:
                self._keep(replace(self._record, wandb_id=secrets.token_hex(4)))
            assert self._record.wandb_id is not None
            return self._record.wandb_id

    def mlflow_run_id(self, tracking_uri: str) -> str | None:
        """Of the run on this server; None: it does not know it yet."""
        return self._record.mlflow_run_id if self._record.mlflow_uri == tracking_uri else None

    def set_mlflow_run(self, tracking_uri: str, run_id: str) -> None:
        with self._lock:
            self._keep(replace(self._record, mlflow_uri=tracking_uri, mlflow_run_id=run_id))

    def add_problem(self, tracker: str, text: str) -> None:
        problem = TrackerProblem(self._attempt, tracker, time.time(), text)
        with self._lock:
            self._keep(replace(self._record, problems=(*self._record.problems, problem)[-_KEPT_PROBLEMS:]))

    def _keep(self, record: TrackersRecord) -> None:
        self._record = record
        try:
            write_record(self._path, record)
        except OSError as error:  # the next attempt gets new runs; the log has the problem
            print(f"hpctrain: warning: {error.filename}: {error.strerror}; trackers.json is not kept", flush=True)
