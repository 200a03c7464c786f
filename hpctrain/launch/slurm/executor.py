"""submitit's Slurm executor around a batch script of ours: the door through which every job goes to Slurm.

submitit would pickle the function into a file that is named after the job, which nobody knows before sbatch has answered: a
submitter that is killed in between leaves a job without its task, and a thousand ranks would import submitit to read it. Here
the script starts ``run_rank`` with the path of its run, and a call of sbatch becomes one job whatever is lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from submitit.core.core import Job
from submitit.core.utils import DelayedSubmission
from submitit.slurm.slurm import SlurmExecutor, SlurmJob

from hpctrain.launch.rank_entry import run_rank
from hpctrain.launch.slurm.job_search import FoundJob


class ScriptExecutor(SlurmExecutor):
    """Makes a script a job, or an array with a task for each run."""

    def __init__(self, script: Path, call_sbatch: Callable[[], FoundJob]) -> None:
        """``call_sbatch`` submits ``script``, once."""
        super().__init__(script.parent)
        self._call_sbatch = call_sbatch
        self._found = FoundJob("", "")

    def submit_runs(self, runs: Sequence[Path]) -> FoundJob:
        """The job of the runs in these folders."""
        self.map_array(run_rank, list(map(str, runs)))
        return self._found

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[Job[Any]]:
        self._found = self._call_sbatch()
        job_id, count = self._found.job_id, len(delayed_submissions)
        ids = [job_id] if count == 1 else [f"{job_id}_{index}" for index in range(count)]
        return [SlurmJob(self.folder, name, [0]) for name in ids]
