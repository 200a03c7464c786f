"""Handing a prepared run folder to Slurm or to this machine: the only contact with submitit."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from submitit.local.local import LocalExecutor
from submitit.slurm.slurm import SlurmExecutor, SlurmJob

import hpctrain
from hpctrain.config.schema import ClusterConfig
from hpctrain.errors import LaunchError, UnclearSubmissionError
from hpctrain.launch.environment import job_environment
from hpctrain.launch.rank_entry import run_rank
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.files import write_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import SCHEMA_VERSION, SubmissionRecord

_PARSABLE_ANSWER = re.compile(r"^(?P<id>\d+)(;(?P<cluster>\w+))?$")
_NO_TIME_LIMIT_MIN = 60 * 24 * 365


def submit(run: RunPaths, plan: RunPlan, cluster: ClusterConfig) -> SubmissionRecord:
    """Submits the run and writes ``submission.json``.

    Raises:
        LaunchError: sbatch refused (its own words and the whole command are in the message), or its answer is unclear.
    """
    environment = job_environment(os.environ, cluster.inherit_env) | source_path_variable()
    record = _submit_slurm(run, environment) if plan.cluster_kind == "slurm" else _submit_local(run, plan, environment)
    write_record(run.submission, record)
    return record


class _ScriptExecutor(SlurmExecutor):
    """submitit's Slurm executor with our batch script, our environment and a strict reading of sbatch's answer."""

    def __init__(self, run: RunPaths, environment: dict[str, str]) -> None:
        super().__init__(run.submitit)
        self._script = run.submission_script
        self._environment = environment
        self.command: tuple[str, ...] = ("sbatch", "--parsable", str(self._script))
        self.slurm_cluster = ""

    def _submit_command(self, command: str) -> SlurmJob[Any]:
        del command  # the script has it
        answer = subprocess.run(
            self.command, env=self._environment, capture_output=True, text=True, errors="replace", check=False
        )
        told = f"$ {shlex.join(self.command)}\n{answer.stdout}{answer.stderr}".rstrip()
        if answer.returncode != 0:
            raise LaunchError(
                f"Slurm refused the job (exit code {answer.returncode}):\n{told}{_valid_names(answer.stderr)}"
            )
        matches = [match for line in answer.stdout.splitlines() if (match := _PARSABLE_ANSWER.match(line.strip()))]
        if not matches:
            raise UnclearSubmissionError(
                f"a job may have been submitted, but sbatch's answer holds no job id; the run folder stays:\n{told}"
            )
        self.slurm_cluster = matches[-1]["cluster"] or ""
        return SlurmJob(folder=self.folder, job_id=matches[-1]["id"])


def _valid_names(stderr: str) -> str:
    """The site's partitions, where the partition was the trouble."""
    if "partition" not in stderr.lower():
        return ""
    answer = subprocess.run(["sinfo", "-h", "-o", "%R"], capture_output=True, text=True, check=False)
    names = sorted(set(answer.stdout.split()))
    return f"\nknown partitions: {', '.join(names)}" if names else ""


def _submit_slurm(run: RunPaths, environment: dict[str, str]) -> SubmissionRecord:
    executor = _ScriptExecutor(run, environment)
    job = executor.submit(run_rank, str(run.root))
    return SubmissionRecord(
        schema_version=SCHEMA_VERSION,
        cluster_kind="slurm",
        job_id=job.job_id,
        submitted_at_s=time.time(),
        host=socket.gethostname(),
        slurm_cluster=executor.slurm_cluster,
        slurm_conf=os.environ.get("SLURM_CONF", ""),
        command=executor.command,
    )


def _submit_local(run: RunPaths, plan: RunPlan, environment: dict[str, str]) -> SubmissionRecord:
    """submitit's local executor starts one process a rank under a controller that outlives this one."""
    num_ranks = plan.layout.gpus_per_node
    executor = LocalExecutor(run.submitit)
    executor.update_parameters(
        tasks_per_node=num_ranks,
        gpus_per_node=num_ranks if plan.device == "cuda" else 0,
        timeout_min=_NO_TIME_LIMIT_MIN,
        stderr_to_stdout=True,
    )
    environment |= {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", **plan.slurm.environment}
    with _replaced_environment(environment):
        job = executor.submit(run_rank, str(run.root))
    return SubmissionRecord(
        schema_version=SCHEMA_VERSION,
        cluster_kind="local",
        job_id=job.job_id,
        submitted_at_s=time.time(),
        host=socket.gethostname(),
        process_started_at_s=psutil.Process(int(job.job_id)).create_time(),
    )


def source_path_variable() -> dict[str, str]:
    """PYTHONPATH for the ranks where the package is not installed but run from its source folder."""
    parent = Path(hpctrain.__file__).resolve().parent.parent
    return {} if parent.name in ("site-packages", "dist-packages") else {"PYTHONPATH": str(parent)}


@contextmanager
def _replaced_environment(environment: dict[str, str]) -> Iterator[None]:
    """submitit's controller takes the environment of the submitting process."""
    saved = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)
