"""``launch.mode=here``: a run on the nodes of the allocation that this shell is in (salloc), by the same script as a job's."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping

from hpctrain.config.schema import Config
from hpctrain.errors import Problem
from hpctrain.plan.job.slurm_request import SlurmRequest
from hpctrain.plan.layout import Layout
from hpctrain.record.paths import RunPaths
from hpctrain.record.submission_schema import SCHEMA_VERSION, SubmissionRecord

_OF_THE_ALLOCATION = (
    *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    *("SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_CLUSTER_NAME", "SLURM_JOB_PARTITION"),
    *("SLURM_JOB_ACCOUNT", "SLURM_JOB_QOS", "SLURM_JOB_NAME", "SLURM_JOB_END_TIME", "SLURM_JOB_START_TIME"),
    *("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_JOB_GPUS", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST"),
)
"""What srun needs to find the allocation. Not those of a task in it: a shell under ``srun --pty`` is task 0 of a step."""


def here_problems(config: Config, request: SlurmRequest, shell: Mapping[str, str]) -> tuple[Problem, ...]:
    """What keeps a run out of the allocation that the shell is in; empty for other modes."""
    if config.launch.mode != "here":
        return ()
    if config.cluster.kind != "slurm":
        rule = f"is a Slurm allocation, and this is cluster={config.cluster.name}"
        return (Problem("launch.mode", "here", rule, "leave launch.mode out"),)
    if not shell.get("SLURM_JOB_ID"):
        rule = "needs an allocation, and SLURM_JOB_ID is not in this shell"
        return (
            Problem("launch.mode", "here", rule, f"{_salloc(request)} first, or leave launch.mode out to submit a job"),
        )
    job = shell["SLURM_JOB_ID"]
    allocated = int(shell.get("SLURM_JOB_NUM_NODES") or shell.get("SLURM_NNODES") or 1)
    if request.num_nodes > allocated:
        rule = f"is more than the {allocated} of the allocation, job {job}"
        return (Problem("nodes", str(request.num_nodes), rule, f"nearest: {allocated}"),)
    cpus = min(_per_node(shell.get("SLURM_JOB_CPUS_PER_NODE", "")), default=None)
    needed = request.tasks_per_node * (request.cpus_per_task or 1)
    if cpus is not None and needed > cpus:
        rule = f"{request.tasks_per_node} ranks a node need {needed} CPUs, and the allocation, job {job}, has {cpus} on a node"
        return (Problem("launch.mode", "here", rule, f"ask for more: {_salloc(request)}"),)
    return ()


def _salloc(request: SlurmRequest) -> str:
    """An allocation that the run fits into."""
    words = ["salloc", f"--nodes={request.num_nodes}", f"--ntasks-per-node={request.tasks_per_node}"]
    if request.cpus_per_task:
        words.append(f"--cpus-per-task={request.cpus_per_task}")
    gpus = [f"--{name}={request.options[name]}" for name in ("gpus-per-node", "gres") if name in request.options]
    return " ".join([*words, *gpus])


def _per_node(text: str) -> list[int]:
    """The numbers in Slurm's list of CPUs by node.

    >>> _per_node("8(x3),4")
    [8, 4]
    """
    return [int(part.partition("(")[0]) for part in text.split(",") if part]


def submit_here(run: RunPaths, layout: Layout, environment: Mapping[str, str], first_attempt: int) -> SubmissionRecord:
    """Starts the run's script in a session of its own; it runs until the run or the allocation ends.

    Two runs in one allocation have folders of their own, and share its nodes.
    """
    import psutil  # slow to import, and every submission asks here_problems

    allocation = {name: os.environ[name] for name in _OF_THE_ALLOCATION if name in os.environ}
    num_tasks = str(layout.world_size)
    of_this_run = {
        "SLURM_JOB_NUM_NODES": str(layout.num_nodes),
        "SLURM_NNODES": str(layout.num_nodes),
        "SLURM_NTASKS": num_tasks,
        "SLURM_NPROCS": num_tasks,
        "SLURM_NTASKS_PER_NODE": str(layout.gpus_per_node),
    }
    with run.batch_log.open("ab") as log:
        process = subprocess.Popen(
            ["bash", str(run.submission_script)],
            env={**environment, **allocation, **of_this_run},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return SubmissionRecord(
        schema_version=SCHEMA_VERSION,
        cluster_kind="local",
        job_id=str(process.pid),
        submitted_at_s=time.time(),
        host=socket.gethostname(),
        command=("bash", str(run.submission_script)),
        process_started_at_s=psutil.Process(process.pid).create_time(),
        first_attempt=first_attempt,
    )
