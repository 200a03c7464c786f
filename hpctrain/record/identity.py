"""Which job and which start of the run a process belongs to, from its variables."""

from __future__ import annotations

from collections.abc import Mapping

ATTEMPT_VARIABLE = "HPCTRAIN_ATTEMPT"
DATA_PATH_VARIABLE = "HPCTRAIN_DATA_PATH"
"""Where this process sees the text of ``data.path``, if not there; set by ``launch.azureml_entry``."""
FIRST_ATTEMPT_VARIABLE = "HPCTRAIN_FIRST_ATTEMPT"
"""In the script of a resumed run: number of the first start that its submission makes."""


def attempt_number(environment: Mapping[str, str]) -> int:
    """Which start of the run this is, as ``open_attempt`` counted; 1 for a process that no batch script or controller started.

    >>> attempt_number({"HPCTRAIN_ATTEMPT": "3"}), attempt_number({})
    (3, 1)
    """
    return int(environment.get(ATTEMPT_VARIABLE) or 1)


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
