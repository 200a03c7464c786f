"""A run on this machine, by submitit's local executor: the only contact with submitit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

import psutil
from submitit.local.local import LocalExecutor, LocalJob

from hpctrain.launch.rank_entry import run_rank
from hpctrain.launch.snapshot import python_path
from hpctrain.plan.job.own_variables import ATTEMPT_VARIABLE
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.open_attempt import open_local_attempt
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import SCHEMA_VERSION, SubmissionRecord

_NO_TIME_LIMIT_S = 365 * 24 * 3600


class _DetachedExecutor(LocalExecutor):
    """submitit's local executor with our environment, and a controller that holds no terminal or pipe of the submitter."""

    def __init__(self, run: RunPaths, environment: dict[str, str]) -> None:
        super().__init__(run.submitit)
        self._environment = environment
        self._log = run.controller_log

    def _submit_command(self, command: str) -> LocalJob[Any]:
        num_ranks = self.parameters["tasks_per_node"]
        variables = {
            "SUBMITIT_EXECUTOR": "local",
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_NTASKS": str(num_ranks),
            "SUBMITIT_LOCAL_NODEID": "0",
            "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
            "SUBMITIT_LOCAL_TIMEOUT_S": str(_NO_TIME_LIMIT_S),
            "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "0",
            "SUBMITIT_LOCAL_WITH_SHELL": "",
            "SUBMITIT_STDERR_TO_STDOUT": "1",
        }
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "submitit.local._local", str(self.folder)],
                env=self._environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return LocalJob(folder=self.folder, job_id=str(process.pid), process=process, tasks=list(range(num_ranks)))


def submit_local(run: RunPaths, plan: RunPlan, environment: dict[str, str]) -> SubmissionRecord:
    """submitit's local executor starts one process a rank under a controller that outlives this one."""
    fixed = {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        # In an allocation this list says which GPUs are ours.
        fixed["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    attempt = open_local_attempt(run, socket.gethostname(), time.time())
    started = {ATTEMPT_VARIABLE: str(attempt)}
    user_env = plan.slurm.environment
    user_env = user_env | python_path(environment["PYTHONPATH"], user_env.get("PYTHONPATH", ""))
    executor = _DetachedExecutor(run, environment | fixed | user_env | started)
    executor.update_parameters(tasks_per_node=plan.layout.gpus_per_node)
    job = executor.submit(run_rank, str(run.root))
    return SubmissionRecord(
        schema_version=SCHEMA_VERSION,
        cluster_kind="local",
        job_id=job.job_id,
        submitted_at_s=time.time(),
        host=socket.gethostname(),
        process_started_at_s=psutil.Process(int(job.job_id)).create_time(),
        first_attempt=attempt,
    )
