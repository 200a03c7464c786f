"""Which job and which start of it a process belongs to, from the variables of Slurm or submitit."""

from __future__ import annotations

from collections.abc import Mapping


def attempt_number(environment: Mapping[str, str]) -> int:
    """1 for the first start of a job, one more each time Slurm requeued it."""
    return 1 + int(environment.get("SLURM_RESTART_COUNT") or 0)


def job_id_of(environment: Mapping[str, str]) -> str:
    """The job's id: submitit's for a local run, ``array_task`` for a task of a Slurm array; empty if there is none.

    >>> job_id_of({"SLURM_JOB_ID": "84", "SLURM_ARRAY_JOB_ID": "83", "SLURM_ARRAY_TASK_ID": "1"})
    '83_1'
    """
    if "SUBMITIT_LOCAL_JOB_ID" in environment:
        return environment["SUBMITIT_LOCAL_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in environment and "SLURM_ARRAY_TASK_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID", "")
