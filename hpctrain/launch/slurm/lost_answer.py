"""Whether a submission of an earlier process became a job, from what that process and the job left."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from collections.abc import Sequence

from hpctrain.errors import RecordError, UnclearSubmissionError
from hpctrain.launch.slurm.job_search import FoundJob
from hpctrain.launch.slurm.sbatch import SbatchAnswer, Submission, answer_text
from hpctrain.launch.slurm.states import array_base
from hpctrain.record.files import read_record, write_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts
from hpctrain.record.schema import SubmissionRecord
from hpctrain.text_table import printable

_KEY = re.compile(r"^#SBATCH --comment=(?P<key>hpctrain-[0-9a-f]{16})$", re.MULTILINE)
_FIRST_ATTEMPT = re.compile(r"^export HPCTRAIN_FIRST_ATTEMPT=(?P<number>[0-9]+)$", re.MULTILINE)
_LONGEST_WAIT_S = 120.0
_LOOK_EVERY_S = 0.2


def complete_record(run: RunPaths) -> None:
    """Writes ``submission.json`` of a run whose submitting process was killed before it could; says which job was found.

    Nothing happens while its sbatch still runs, where Slurm does not answer, or in a sweep, whose manifest is the record.
    """
    if run.submission.exists() or not Submission(run.submission_script, {}, "").answer_files[0].exists():
        return
    if (run.root.parent / "sweep.json").exists() or runs_with(str(run.submission_script)):
        return
    try:
        job_id = _record_found_job(run)
    except FileNotFoundError:  # the submitting process lives, and was quicker
        return
    except (UnclearSubmissionError, RecordError, OSError) as error:
        _tell(f"{run.root}: its submission was cut off, and its job cannot be recorded: {error}")
        return
    if job_id:
        _tell(f"{run.root}: its submission was cut off; it is job {job_id}")


def _tell(text: str) -> None:
    print(printable(f"hpctrain: {text}", kept=""), file=sys.stderr)


def _record_found_job(run: RunPaths) -> str:
    """The job's id; empty: there is none."""
    from hpctrain.launch.submit import slurm_record  # slow to import, and hardly ever needed

    text = run.submission_script.read_text(encoding="utf-8")
    key, first = _KEY.search(text), _FIRST_ATTEMPT.search(text)
    first_attempt = int(first["number"]) if first else 1
    paths = run.earlier_submissions.glob("*[0-9].json")
    earlier = frozenset(read_record(path, SubmissionRecord).job_id for path in paths)
    script = run.submission_script
    submission = Submission(script, os.environ, key["key"] if key else str(script), known_jobs=earlier)
    submitted_at_s = script.stat().st_mtime
    job = find_job(submission, [run], submitted_at_s, first_attempt)
    if job is None:
        return ""
    # The jobs of a chain share their script.
    jobs = submission.search(submitted_at_s).jobs or (job,)
    links = tuple(link.job_id for link in jobs[1:])
    record = slurm_record(submission, jobs[0], jobs[0].job_id, first_attempt)
    write_record(run.submission, dataclasses.replace(record, submitted_at_s=submitted_at_s, chain=links))
    submission.forget_answer()
    return jobs[0].job_id


def find_job(
    submission: Submission, runs: Sequence[RunPaths], since_s: float, first_attempt: int = 1
) -> FoundJob | None:
    """The job of a submission whose outcome was never recorded; None: there is none.

    The evidence, in this order: an sbatch that still runs here is waited for; what sbatch printed; attempts in the run
    folders from the submission's first one on; Slurm's queue and accounting.

    Raises:
        UnclearSubmissionError: there is no evidence, and Slurm does not answer.
    """
    out_path, err_path = submission.answer_files
    if not out_path.exists() or not submission.script.exists():
        return None  # sbatch was not called yet
    _wait_for_sbatch(str(submission.script))
    answer = SbatchAnswer(0, answer_text(out_path), answer_text(err_path) if err_path.exists() else "")
    if job := answer.job or _job_of_attempts(runs, first_attempt):
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
    while time.monotonic() < deadline and runs_with(script):
        time.sleep(_LOOK_EVERY_S)


def runs_with(word: str) -> bool:
    """Whether a process of this machine has the word in its command line."""
    import psutil  # slow to import, and hardly ever needed

    return any(word in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


def _job_of_attempts(runs: Sequence[RunPaths], first_attempt: int) -> FoundJob | None:
    for run in runs:
        try:
            attempts = read_attempts(run)
        except RecordError:  # told by status; it says nothing here
            continue
        for attempt in attempts:
            if attempt.job_id and attempt.attempt >= first_attempt:
                return FoundJob(array_base(attempt.job_id))
    return None
