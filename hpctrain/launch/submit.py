"""Handing a prepared run folder to Slurm or to this machine: the only contact with submitit."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from submitit.local.local import LocalExecutor, LocalJob
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

_PARSABLE_ANSWER = re.compile(r"^(?P<id>\d+)(;(?P<cluster>[\w.-]+))?$")
_LOST_ANSWERS = ("timed out", "Unable to contact", "Zero Bytes", "onnection refused", "onnection reset")
"""What sbatch says when its request may or may not have arrived."""
_NO_TIME_LIMIT_S = 365 * 24 * 3600


def submit(run: RunPaths, plan: RunPlan, cluster: ClusterConfig) -> SubmissionRecord:
    """Submits the run and writes ``submission.json``.

    Raises:
        LaunchError: sbatch refused (its own words and the whole command are in the message), or its answer is unclear.
    """
    environment = job_environment(os.environ, cluster.inherit_env) | source_path_variable()
    record = _submit_slurm(run, environment) if plan.cluster_kind == "slurm" else _submit_local(run, plan, environment)
    try:
        write_record(run.submission, record)
    except OSError as error:
        raise UnclearSubmissionError(
            f"job {record.job_id} was submitted, but {run.submission} cannot be written ({error.strerror}): status and"
            " cancel will not know it"
        ) from None
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
        if answer.returncode != 0 and any(words in answer.stderr for words in _LOST_ANSWERS):
            raise UnclearSubmissionError(
                f"the controller did not answer, so a job may have been submitted; the run folder stays. Look with squeue"
                f" before you submit again:\n{told}"
            )
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
    if shutil.which("sinfo") is None:
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


class _DetachedExecutor(LocalExecutor):
    """submitit's local executor with our environment, and a controller that holds no terminal or pipe of the submitter."""

    def __init__(self, run: RunPaths, environment: dict[str, str]) -> None:
        super().__init__(run.submitit)
        self._environment = environment
        self._log = run.logs / "controller.log"

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


def _submit_local(run: RunPaths, plan: RunPlan, environment: dict[str, str]) -> SubmissionRecord:
    """submitit's local executor starts one process a rank under a controller that outlives this one."""
    fixed = {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        # In an allocation this list says which GPUs are ours.
        fixed["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    executor = _DetachedExecutor(run, environment | fixed | plan.slurm.environment)
    executor.update_parameters(tasks_per_node=plan.layout.gpus_per_node)
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
