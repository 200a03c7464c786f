"""What a submission writes into a run folder, apart from the other records of ``schema``: each costs its import time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA_VERSION = 1
"""Of every file of a run folder."""


@dataclass(frozen=True)
class SubmissionRecord:
    """How the run was handed over: ``submission.json``."""

    schema_version: int
    cluster_kind: Literal["slurm", "local", "azureml"]
    job_id: str
    """Slurm's job id (``123`` or ``123_4``), the process id of the local controller, or AzureML's job name."""
    submitted_at_s: float
    host: str
    slurm_cluster: str = ""
    slurm_conf: str = ""
    command: tuple[str, ...] = ()
    process_started_at_s: float | None = None
    """Local: start time of the controller process, since process ids come back."""
    first_attempt: int = 1
    """Number of the first start that this submission makes; above 1 for a resumed run."""
    key: str = ""
    """Unique text given to Slurm as the job's comment where the user set none, to find a job whose answer was lost."""
    chain: tuple[str, ...] = ()
    """Job ids of the dependent jobs that follow, in order."""
