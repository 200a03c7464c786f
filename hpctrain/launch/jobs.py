"""The state of runs, from the best evidence at hand: end marker, then Slurm or the local process; none is UNKNOWN."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpctrain.errors import HpctrainError, LaunchError, RecordError
from hpctrain.launch.slurm_states import SlurmAnswer, SlurmState, query_states
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, read_attempts, read_plan, read_submission
from hpctrain.record.schema import AttemptRecord, SubmissionRecord

_RECENT_STEPS = 20


@dataclass(frozen=True)
class RunStatus:
    """One row of ``status``."""

    run: str
    path: str
    job_id: str
    state: str
    """A word of Slurm's, or UNKNOWN; local runs use the same words."""
    detail: str
    """Why: end reason, pending reason, or what evidence is missing."""
    attempt: int
    step: int
    num_steps: int
    loss: float | None
    step_time_s: float | None
    """Median of the last steps."""
    model_tflops_per_gpu: float | None


def collect_status(runs: Sequence[RunPaths]) -> list[RunStatus]:
    """States of all runs with one query to Slurm; a damaged folder is a row of its own."""
    submissions: dict[Path, SubmissionRecord | HpctrainError] = {}
    for run in runs:
        try:
            submissions[run.root] = read_submission(run)
        except RecordError as error:
            submissions[run.root] = error
    known = [record for record in submissions.values() if isinstance(record, SubmissionRecord)]
    answer = query_states([record.job_id for record in known if record.cluster_kind == "slurm"])
    return [_status_of(run, submissions[run.root], answer) for run in runs]


def _status_of(run: RunPaths, submission: SubmissionRecord | HpctrainError, answer: SlurmAnswer) -> RunStatus:
    try:
        plan, attempts = read_plan(run), read_attempts(run)
        steps = list(StepsFile(run.steps).new_records())
    except RecordError as error:
        return RunStatus(run.root.name, str(run.root), "", "UNKNOWN", str(error), 0, 0, 0, None, None, None)
    if isinstance(submission, SubmissionRecord):
        job_id = submission.job_id
        state, detail = _state(submission, attempts[-1] if attempts else None, answer)
    else:
        job_id, state, detail = "", "UNKNOWN", f"never submitted, or the record is damaged: {submission}"
    recent = [record.step_time_s for record in steps[-_RECENT_STEPS:]]
    step_time_s = statistics.median(recent) if recent else None
    rates = plan.flops_per_step.per_gpu_tflops(step_time_s, plan.layout.world_size) if step_time_s else {}
    return RunStatus(
        run=run.root.name,
        path=str(run.root),
        job_id=job_id,
        state=state,
        detail=detail,
        attempt=attempts[-1].attempt if attempts else 0,
        step=steps[-1].step if steps else 0,
        num_steps=plan.num_steps,
        loss=steps[-1].loss if steps else None,
        step_time_s=step_time_s,
        model_tflops_per_gpu=rates.get("model"),
    )


def _state(submission: SubmissionRecord, attempt: AttemptRecord | None, answer: SlurmAnswer) -> tuple[str, str]:
    """State and its reason. A job that Slurm still has in its queue is not over, whatever an earlier attempt left."""
    if submission.cluster_kind == "slurm":
        told = answer.states.get(submission.job_id)
        if told is not None and told.is_active and (attempt is None or attempt.state != "completed"):
            return told.state, _pending_detail(told, attempt)
        if attempt is not None and attempt.state != "running":
            return _from_marker(attempt, told)
        if told is not None:
            return told.state, f"{told.source}: {told.reason}; no end marker"
        return "UNKNOWN", answer.trouble or "Slurm no longer knows the job, and it left no end marker"
    if attempt is not None and attempt.state != "running":
        return _from_marker(attempt, None)
    if submission.host != socket.gethostname():
        return "UNKNOWN", f"a local run of {submission.host}; ask there"
    if local_process(submission) is not None:
        return "RUNNING", ""
    return "FAILED", "the process is gone and left no end marker; see logs/submitit"


def _from_marker(attempt: AttemptRecord, told: SlurmState | None) -> tuple[str, str]:
    if attempt.state == "completed":
        return "COMPLETED", ""
    if told is not None and told.state in ("CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED"):
        return told.state, f"{attempt.end_reason}: {attempt.message}"
    where = f", rank {attempt.failed_rank} on {attempt.failed_node}" if attempt.failed_rank is not None else ""
    return "FAILED", f"{attempt.end_reason} (exit code {attempt.exit_code}{where}): {attempt.message}"


def _pending_detail(told: SlurmState, attempt: AttemptRecord | None) -> str:
    if told.state != "PENDING":
        return ""
    waiting = f"waiting for attempt {attempt.attempt + 1}; " if attempt is not None else ""
    return f"{waiting}{told.reason}"


def local_process(submission: SubmissionRecord) -> psutil.Process | None:
    """The controller of a local run if it still runs; a process id that came back is told by its start time."""
    try:
        process = psutil.Process(int(submission.job_id))
        if process.status() == psutil.STATUS_ZOMBIE or process.create_time() != submission.process_started_at_s:
            return None
    except psutil.NoSuchProcess:
        return None
    return process


def cancel(run: RunPaths) -> str:
    """Ends the run's job; returns what was done.

    Raises:
        LaunchError: scancel refused, or the run belongs to another machine.
    """
    submission = read_submission(run)
    if submission.cluster_kind == "slurm":
        answer = subprocess.run(["scancel", submission.job_id], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise LaunchError(f"scancel {submission.job_id}: {answer.stderr.strip()}")
        return f"asked Slurm to cancel job {submission.job_id}"
    if submission.host != socket.gethostname():
        raise LaunchError(f"{run.root}: a local run of {submission.host}; cancel it there")
    process = local_process(submission)
    if process is None:
        return "the run has ended already"
    ranks = process.children(recursive=True)
    os.kill(process.pid, signal.SIGTERM)
    _, alive = psutil.wait_procs([process, *ranks], timeout=10)
    for left in alive:
        left.kill()
    return f"ended process {submission.job_id} and its {len(ranks)} ranks"
