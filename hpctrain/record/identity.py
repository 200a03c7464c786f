"""Which job, which start of the run and which node a process belongs to, from its variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hpctrain.plan.job.own_variables import ATTEMPT_VARIABLE, FIRST_ATTEMPT_VARIABLE


def attempt_number(environment: Mapping[str, str]) -> int:
    """Which start of the run this is, as ``open_attempt`` counted; 1 for a process that no batch script or controller started.

    >>> attempt_number({"HPCTRAIN_ATTEMPT": "3"}), attempt_number({})
    (3, 1)
    """
    return int(environment.get(ATTEMPT_VARIABLE) or 1)


def first_attempt_number(environment: Mapping[str, str]) -> int:
    """Number of the first start that this process's submission makes.

    >>> first_attempt_number({"HPCTRAIN_FIRST_ATTEMPT": "4"}), first_attempt_number({})
    (4, 1)
    """
    return int(environment.get(FIRST_ATTEMPT_VARIABLE) or 1)


def node_name(environment: Mapping[str, str]) -> str:
    """Slurm's name of this node, else the host's.

    >>> node_name({"SLURMD_NODENAME": "gpu-7"})
    'gpu-7'
    """
    return environment.get("SLURMD_NODENAME") or os.uname().nodename


def job_id_of(environment: Mapping[str, str]) -> str:
    """The job's id: submitit's for a local run, ``array_task`` for a task of a Slurm array, AzureML's; empty if there is none.

    >>> job_id_of({"SLURM_JOB_ID": "84", "SLURM_ARRAY_JOB_ID": "83", "SLURM_ARRAY_TASK_ID": "1"})
    '83_1'
    """
    if "SUBMITIT_LOCAL_JOB_ID" in environment:
        return environment["SUBMITIT_LOCAL_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in environment and "SLURM_ARRAY_TASK_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID") or environment.get("AZUREML_RUN_ID", "")
