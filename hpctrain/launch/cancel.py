"""Ending the jobs of runs: one scancel for all of a cluster, an array in one word, the links of a chain last first."""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.errors import HpctrainError, LaunchError
from hpctrain.launch.slurm.query import query_states
from hpctrain.launch.slurm.states import SlurmCluster, array_base
from hpctrain.launch.status.board import jobs_of, slurm_of
from hpctrain.launch.status.local_run import cancel_local
from hpctrain.launch.status.rows import RunStatus, collect_status
from hpctrain.record.files import write_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_submission
from hpctrain.record.schema import SCHEMA_VERSION, CancelRecord, SubmissionRecord
from hpctrain.units import counted, number_ranges

_MAX_WORDS_BYTES = 100_000
_GONE = ("already completing or completed", "Invalid job id")
"""What scancel says of a job that ended meanwhile."""
_NUMBER = re.compile(r"\d+(_\d+)?")


@dataclass(frozen=True)
class Cancelled:
    """What became of one run."""

    run: str
    done: bool
    """False: it may still run; ``text`` says why."""
    text: str


def cancel(run: RunPaths) -> str:
    """Ends the run's jobs; returns what was done.

    Raises:
        LaunchError: it could not be done.
    """
    (answer,) = cancel_runs([run])
    if not answer.done:
        raise LaunchError(f"{run.root}: {answer.text}")
    return answer.text


def cancel_runs(runs: Sequence[RunPaths]) -> list[Cancelled]:
    """Ends what still waits or runs of these; one answer a run, in their order."""
    rows = {row.path: row for row in collect_status(runs)}
    answers: dict[str, Cancelled] = {}
    to_slurm: dict[SlurmCluster, dict[str, list[str]]] = {}
    for run in runs:
        row = rows[str(run.root)]
        try:
            submission = read_submission(run)
            if submission.cluster_kind == "slurm":
                ids = _ids_to_cancel(submission, row)
                if ids:
                    to_slurm.setdefault(slurm_of(submission), {})[row.path] = ids
                    continue
                text = f"the run has ended already ({row.state})"
            elif row.is_over:
                text = f"the run has ended already ({row.state})"
            elif submission.cluster_kind == "local":
                text = cancel_local(run, submission)
            else:
                raise LaunchError(f"cancel it in AzureML: az ml job cancel --name {submission.job_id}")
            answers[row.path] = Cancelled(row.run, True, text)
        except HpctrainError as error:
            answers[row.path] = Cancelled(row.run, False, str(error))
    for cluster, jobs in to_slurm.items():
        answers |= _cancel_slurm(cluster, jobs, rows)
    return [answers[str(run.root)] for run in runs]


def _ids_to_cancel(submission: SubmissionRecord, row: RunStatus) -> list[str]:
    """The last link first, so that none starts when the one before it ends; empty: all is over.

    Raises:
        LaunchError: Slurm does not know the job as this run's.
    """
    if row.state == "UNKNOWN":
        raise LaunchError(f"job {submission.job_id} is not known to be this run: {row.detail}")
    jobs = jobs_of(submission)
    if row.is_over:
        # A chain's later links may wait on. They are asked for: an old number may be somebody else's by now.
        answer = query_states(slurm_of(submission), jobs[1:], queue_only=jobs)
        jobs = tuple(job for job in jobs if job in answer.states and answer.states[job].is_active)
    return [job.job_id for job in reversed(jobs)]


def _cancel_slurm(
    cluster: SlurmCluster, jobs: dict[str, list[str]], rows: dict[str, RunStatus]
) -> dict[str, Cancelled]:
    ids = list(dict.fromkeys(job_id for of_run in jobs.values() for job_id in of_run))
    refused: dict[str, str] = {}
    for words in _words(ids):
        refused |= _scancel(cluster, words)
    answers = {}
    for path, of_run in jobs.items():
        row = rows[path]
        trouble = [refused[key] for job_id in of_run if (key := _refused_key(job_id, refused))]
        shared = [other.run for other in rows.values() if other.path != path and other.job_id == row.job_id]
        also = f", which runs {counted(len(shared), 'other point')} too" if shared and "_" not in row.job_id else ""
        if trouble:
            answers[path] = Cancelled(row.run, False, trouble[0])
        else:
            numbers = ", ".join(reversed(of_run))
            jobs_word = "jobs" if len(of_run) > 1 else "job"
            also += _note_cancel(RunPaths(Path(path)), of_run)
            answers[path] = Cancelled(row.run, True, f"asked Slurm to cancel {jobs_word} {numbers}{also}")
    return answers


def _note_cancel(run: RunPaths, job_ids: Sequence[str]) -> str:
    """Leaves ``cancelled.json``; text if that fails, since the job is cancelled all the same."""
    try:
        note = CancelRecord(SCHEMA_VERSION, tuple(job_ids), time.time(), getpass.getuser())
        write_record(run.cancelled, note)
    except OSError as error:
        return f"; {run.cancelled} cannot be written ({error.strerror})"
    return ""


def _words(ids: Sequence[str]) -> Iterable[list[str]]:
    """The words of each scancel: tasks of an array share one, ``123_[1-3,7]``.

    >>> list(_words(["123_1", "9", "123_2", "123_3", "123_7"]))
    [['123_[1-3,7]', '9']]
    """
    tasks: dict[str, list[int]] = {}
    for job_id in ids:
        base, _, task = job_id.partition("_")
        tasks.setdefault(base, []).extend([int(task)] if task else [])
    words: list[str] = []
    for base, indexes in tasks.items():
        words.append(f"{base}_[{number_ranges(sorted(indexes))}]" if len(indexes) > 1 else _one(base, indexes))
    chunk: list[str] = []
    for word in words:
        if chunk and sum(map(len, chunk)) + len(word) > _MAX_WORDS_BYTES:
            yield chunk
            chunk = []
        chunk.append(word)
    if chunk:
        yield chunk


def _one(base: str, indexes: Sequence[int]) -> str:
    return f"{base}_{indexes[0]}" if indexes else base


def _scancel(cluster: SlurmCluster, words: Sequence[str]) -> dict[str, str]:
    """Asks; returns what was refused, by the job id that Slurm named, or ``*`` where it named none."""
    try:
        answer = cluster.call(["scancel", *words])
    except LaunchError as error:
        return {"*": str(error)}
    refused: dict[str, str] = {}
    for line in answer.stderr.splitlines():
        if not line.strip() or any(words_of_end in line for words_of_end in _GONE):
            continue
        number = _NUMBER.search(line.partition("job id")[2])
        refused[number[0] if number else "*"] = f"scancel: {line.strip()}"
    return refused if answer.returncode != 0 else {}


def _refused_key(job_id: str, refused: dict[str, str]) -> str:
    return next((key for key in (job_id, array_base(job_id), "*") if key in refused), "")
