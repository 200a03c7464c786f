"""Whether a submission of an earlier process became a job, from what that process and the job left."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpctrain.errors import RecordError, UnclearSubmissionError
from hpctrain.launch.job_search import FoundJob
from hpctrain.launch.sbatch import SbatchAnswer, Submission, answer_text
from hpctrain.launch.slurm_states import array_base
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts

_LONGEST_WAIT_S = 120.0
_LOOK_EVERY_S = 0.2


def find_job(submission: Submission, runs: Sequence[RunPaths], since_s: float) -> FoundJob | None:
    """The job of a submission whose outcome was never recorded; None: there is none.

    The evidence, in this order: an sbatch that still runs here is waited for; what sbatch printed; attempts in the run
    folders; Slurm's queue and accounting.

    Raises:
        UnclearSubmissionError: there is no evidence, and Slurm does not answer.
    """
    out_path, err_path = submission.answer_files
    if not out_path.exists() or not submission.script.exists():
        return None  # sbatch was not called yet
    _wait_for_sbatch(str(submission.script))
    answer = SbatchAnswer(0, answer_text(out_path), answer_text(err_path) if err_path.exists() else "")
    if job := answer.job or _job_of_attempts(runs):
        return job
    if answer.stderr.strip() and SbatchAnswer(1, "", answer.stderr).verdict in ("refused", "limit"):
        return None
    search = submission.search(since_s)
    if search.jobs:
        return search.jobs[0]
    if search.trouble:
        raise UnclearSubmissionError(
            f"{submission.script}: an earlier call may have submitted it, and Slurm does not say whether it did"
            f" ({search.trouble}); repeat the command when Slurm answers"
        )
    return None


def _wait_for_sbatch(script: str) -> None:
    """sbatch has a session of its own and outlives the process that called it."""
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while time.monotonic() < deadline and _runs_with(script):
        time.sleep(_LOOK_EVERY_S)


def _runs_with(word: str) -> bool:
    import psutil  # slow to import, and hardly ever needed

    return any(word in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


def _job_of_attempts(runs: Sequence[RunPaths]) -> FoundJob | None:
    for run in runs:
        try:
            attempts = read_attempts(run)
        except RecordError:  # told by status; it says nothing here
            continue
        for attempt in attempts:
            if attempt.job_id:
                return FoundJob(array_base(attempt.job_id))
    return None
