"""The state of runs, from the best evidence at hand: end marker, then Slurm or the local process; none is UNKNOWN."""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpctrain.errors import HpctrainError, LaunchError, RecordError
from hpctrain.launch.slurm_states import FINISHED, SlurmAnswer, SlurmCluster, SlurmState, query_states
from hpctrain.record.close_attempt import close_attempt
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, read_attempts, read_plan, read_submission
from hpctrain.record.schema import AttemptRecord, SubmissionRecord

_RECENT_STEPS = 20
_CLOCK_STEP_S = 5.0
_CANCEL_GRACE_S = 10.0


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
    """States of all runs with one query to each Slurm; a damaged folder is a row of its own."""
    submissions: dict[Path, SubmissionRecord | HpctrainError] = {}
    scripts: dict[SlurmCluster, dict[str, str]] = defaultdict(dict)
    for run in runs:
        try:
            submission = read_submission(run)
        except RecordError as error:
            submissions[run.root] = error
            continue
        submissions[run.root] = submission
        if submission.cluster_kind == "slurm":
            scripts[slurm_of(submission)][submission.job_id] = submission.command[-1]
    answers = {cluster: query_states(cluster, jobs) for cluster, jobs in scripts.items()}
    return [_status_of(run, submissions[run.root], answers) for run in runs]


def slurm_of(submission: SubmissionRecord) -> SlurmCluster:
    """The cluster that a run was submitted to."""
    return SlurmCluster(submission.slurm_conf, submission.slurm_cluster)


def _status_of(
    run: RunPaths, submission: SubmissionRecord | HpctrainError, answers: Mapping[SlurmCluster, SlurmAnswer]
) -> RunStatus:
    try:
        plan, attempts = read_plan(run), read_attempts(run)
        steps = list(StepsFile(run.steps).new_records())
    except (RecordError, OSError) as error:
        return RunStatus(run.root.name, str(run.root), "", "UNKNOWN", str(error), 0, 0, 0, None, None, None)
    if isinstance(submission, SubmissionRecord):
        job_id = submission.job_id
        answer = answers.get(slurm_of(submission), SlurmAnswer({}))
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
        # Only the queue may overrule an end marker: accounting lags, and keeps runaway jobs as running for ever.
        is_queued = told is not None and told.is_active and (told.source == "squeue" or attempt is None)
        if told is not None and is_queued and (attempt is None or attempt.state != "completed"):
            return told.state, _pending_detail(told, attempt)
        if attempt is not None and attempt.state != "running":
            return _from_marker(attempt, told)
        if told is not None and told.state == "COMPLETED":
            return "UNKNOWN", f"{told.source} says COMPLETED, but no rank left an end marker; see logs"
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
        if process.status() == psutil.STATUS_ZOMBIE or _differs(process.create_time(), submission):
            return None
    except psutil.NoSuchProcess:
        return None
    return process


def _differs(create_time_s: float, submission: SubmissionRecord) -> bool:
    """Whether this is another process than the one submitted; its start is known as well as the system's clock is."""
    started = submission.process_started_at_s
    return started is None or abs(create_time_s - started) > _CLOCK_STEP_S


def cancel(run: RunPaths) -> str:
    """Ends the run's job; returns what was done.

    Raises:
        LaunchError: scancel refused, or the run belongs to another machine.
    """
    submission = read_submission(run)
    (status,) = collect_status([run])
    if status.state in FINISHED:
        return f"the run has ended already ({status.state})"
    if submission.cluster_kind == "slurm":
        return _cancel_slurm(run, submission, status)
    if submission.host != socket.gethostname():
        raise LaunchError(f"{run.root}: a local run of {submission.host}; cancel it there")
    process = local_process(submission)
    if process is None:
        return "the run has ended already"
    told = _end_local(process)
    attempts = read_attempts(run)
    close_attempt(run, attempts[-1].attempt if attempts else 1, None, submission.job_id, time.time())
    return told


def _cancel_slurm(run: RunPaths, submission: SubmissionRecord, status: RunStatus) -> str:
    if status.state == "UNKNOWN":
        raise LaunchError(f"{run.root}: job {submission.job_id} is not known to be this run: {status.detail}")
    try:
        answer = slurm_of(submission).run(["scancel", submission.job_id])
    except FileNotFoundError:
        raise LaunchError("there is no scancel on this machine's PATH; cancel where the run was submitted") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"scancel {submission.job_id}: Slurm gave no answer") from None
    if answer.returncode != 0:
        raise LaunchError(f"scancel {submission.job_id}: {answer.stderr.strip()}")
    return f"asked Slurm to cancel job {submission.job_id}"


def _end_local(controller: psutil.Process) -> str:
    """Asks the ranks to end after their step, and ends those that do not."""
    members = process_tree(controller)
    for process in members[:1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(members, timeout=_CANCEL_GRACE_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return f"ended process {controller.pid} and its {len(members) - 1} ranks"


def process_tree(root: psutil.Process) -> list[psutil.Process]:
    """The process and all below it, those that end meanwhile left out."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return [root]
