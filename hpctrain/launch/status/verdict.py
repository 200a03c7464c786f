"""The state of a run from all evidence at hand, in the order end marker, squeue, scontrol, sacct; pure.

No evidence is UNKNOWN, with an explanation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from hpctrain.launch.slurm.states import FINISHED, WAITING, SlurmState
from hpctrain.launch.status.waiting_reasons import waiting_detail
from hpctrain.record.attempt_rules import may_start_again, own_attempts
from hpctrain.record.schema import AttemptRecord, CancelRecord, EndReason
from hpctrain.units import duration_in_words

FRESH_S = 60.0
"""So long a new job may be unknown to all, and so long an end marker may need over a shared file system."""

END_STATES: dict[EndReason, str] = {
    "completed": "COMPLETED",
    "time_limit": "TIMEOUT",
    "cancelled": "CANCELLED",
    "preempted": "PREEMPTED",
    "node_failure": "NODE_FAIL",
    "out_of_memory": "OUT_OF_MEMORY",
}
"""Slurm's word for ends that have one; the others are FAILED."""
_END_REASONS: dict[str, EndReason] = {word: reason for reason, word in END_STATES.items()} | {
    "BOOT_FAIL": "node_failure",
    "DEADLINE": "time_limit",
    "REVOKED": "cancelled",
}
VAGUE_ENDS = frozenset(
    {"signal", "killed", "no_end_marker", "launch_failed", "preempted", "node_failure", "requeued", None}
)
"""Ends that were seen without their cause, or that Slurm follows with a new start, which may have been cancelled."""
_LAUNCH_EXIT_CODE = "0:53"
"""Slurm's own failure before the script: mostly that it could not open the output file."""


@dataclass(frozen=True)
class Evidence:
    """All that is known of one run on Slurm."""

    job_ids: tuple[str, ...]
    """Of its newest submission: the job, then the links of its chain."""
    told: tuple[SlurmState | None, ...]
    """What Slurm says of each; None: it does not know it."""
    attempts: tuple[AttemptRecord, ...]
    first_attempt: int
    """Of the newest submission; earlier attempts say nothing about it."""
    submitted_at_s: float
    now_s: float
    trouble: str = ""
    """Why nothing is known from Slurm; empty: it has answered, or the job is too new."""
    is_stale: bool = False
    """The controller has not answered the last question."""
    accounting: str = ""
    """Why accounting could not tell of a job that the controller forgot; empty: it could."""
    foreign: bool = False
    """The job's number belongs to another job now."""
    log: str = "logs/batch.log"
    last_sign_s: float | None = None
    """Moment of the newest step."""
    is_shared: bool = False
    """The job runs other points of a sweep too, one after the other."""
    asked_at_s: float | None = None
    """When Slurm said it; what the files tell since then is newer. None: now."""
    cancelled: CancelRecord | None = None
    """A user cancelled the job through us."""
    down_nodes: tuple[str, ...] = ()
    """Nodes of the last attempt that Slurm calls down."""


@dataclass(frozen=True)
class Verdict:
    """What a run does, and why."""

    state: str
    """A word of Slurm's, or SUBMITTED, LAUNCH_FAILED, UNKNOWN."""
    detail: str = ""
    is_over: bool = False
    """Nothing waits or runs any more, as far as is known."""
    end_reason: str = ""
    exit_code: int | None = None
    failed_rank: int | None = None
    failed_node: str = ""
    job_id: str = ""
    """The job that the state is of."""


def judge(evidence: Evidence) -> Verdict:
    """The state of a run that was handed to Slurm."""
    own = own_attempts(evidence.attempts, evidence.first_attempt)
    last = own[-1] if own else None
    if last is not None and last.state == "completed":
        return Verdict("COMPLETED", "", True, "completed", 0, job_id=last.job_id)
    active = _active_job(evidence, last)
    if active is not None:
        return _of_active(evidence, last, *active)
    told, job_id = _told_of(evidence, last)
    if told is not None and told.is_active:
        told = None  # accounting is late
    if last is not None and last.state != "running":
        by_us = _told_by_us(evidence, last)
        if (
            by_us is None
            and may_start_again(last)
            and (_has_just_ended(evidence, last) or (told is None and evidence.is_stale))
        ):
            detail = f"waiting for attempt {last.attempt + 1}, by its own record: {of_marker(last, None).detail}"
            return Verdict("PENDING", detail, job_id=last.job_id)
        return of_marker(last, told or by_us)
    if told is not None:
        return _of_ended_job(evidence, told, job_id)
    return _of_nothing(evidence, last)


def _active_job(evidence: Evidence, last: AttemptRecord | None) -> tuple[str, SlurmState] | None:
    """The job that runs, else the first that waits.

    Only the controller may overrule an end marker: accounting lags, and keeps runaway jobs as running for ever.
    """
    has_marker = last is not None and last.state != "running"
    if has_marker and evidence.is_shared:
        return None
    is_sacct_late = has_marker or evidence.cancelled is not None
    jobs = [
        (job_id, told)
        for job_id, told in zip(evidence.job_ids, evidence.told, strict=True)
        if told is not None and told.is_active and not (told.source == "sacct" and is_sacct_late)
    ]
    return next((job for job in jobs if job[1].state not in WAITING), jobs[0] if jobs else None)


def _of_active(evidence: Evidence, last: AttemptRecord | None, job_id: str, told: SlurmState) -> Verdict:
    if evidence.trouble:
        return Verdict(told.state, f"{told.source}; {evidence.trouble}", job_id=job_id)
    asked_at_s = evidence.now_s if evidence.asked_at_s is None else evidence.asked_at_s
    if told.state in WAITING and last is not None and last.state == "running" and last.started_at_s > asked_at_s:
        return Verdict("RUNNING", job_id=last.job_id)
    if told.state not in WAITING:
        if evidence.is_shared and last is None:
            return Verdict("PENDING", f"waits for its turn in job {job_id}", job_id=job_id)
        ended = ""
        if last is not None and last.state != "running" and last.job_id == job_id:
            ended = f"attempt {last.attempt} ended: {of_marker(last, None).detail}"
        return Verdict(told.state, ended, job_id=job_id)
    return _of_waiting(evidence, job_id, told)


def _of_waiting(evidence: Evidence, job_id: str, told: SlurmState) -> Verdict:
    """A job in the queue: for its first start, or again."""
    state, detail = waiting_detail(told, job_id, evidence.now_s)
    end_reason = "launch_failed" if state == "LAUNCH_FAILED" else ""
    if not evidence.attempts:
        return Verdict(state, detail, job_id=job_id, end_reason=end_reason)
    before = evidence.attempts[-1]
    nodes = before.failed_node or ", ".join(evidence.down_nodes)
    why = ""
    if before.state == "failed":
        why = f"; attempt {before.attempt} ended: {of_marker(before, None).detail}"
    elif nodes:
        why = f"; attempt {before.attempt} lost node {nodes}"
    detail = f"waiting for attempt {before.attempt + 1}; {detail}{why}"
    return Verdict(state, detail, end_reason=end_reason, failed_node=nodes, job_id=job_id)


def _told_of(evidence: Evidence, last: AttemptRecord | None) -> tuple[SlurmState | None, str]:
    """What Slurm says of the job of the last attempt; without one, of the newest job that it knows."""
    known = dict(zip(evidence.job_ids, evidence.told, strict=True))
    if last is not None and known.get(last.job_id) is not None:
        return known[last.job_id], last.job_id
    for job_id in reversed(evidence.job_ids):
        told = known[job_id]
        # A link that found the run over, or was cancelled while it waited, says nothing.
        if told is not None and (job_id == evidence.job_ids[0] or told.state not in ("COMPLETED", "CANCELLED")):
            return told, job_id
    return None, evidence.job_ids[0]


def _has_just_ended(evidence: Evidence, last: AttemptRecord) -> bool:
    """While Slurm puts a job into its queue again it says for a moment that the job has ended, or nothing of it."""
    return last.ended_at_s is not None and 0 <= evidence.now_s - last.ended_at_s < FRESH_S


def _told_by_us(evidence: Evidence, last: AttemptRecord) -> SlurmState | None:
    """What Slurm would say, had it not forgotten the job: that it was cancelled."""
    if evidence.cancelled is None or last.started_at_s > evidence.cancelled.cancelled_at_s:
        return None
    return SlurmState("CANCELLED", "", "squeue")


def of_marker(attempt: AttemptRecord, told: SlurmState | None) -> Verdict:
    """The end as the run's own files tell it; where they only saw that it was ended, Slurm may know why."""
    if attempt.state == "completed":
        return Verdict("COMPLETED", "", True, "completed", 0, job_id=attempt.job_id)
    reason = attempt.end_reason
    state = END_STATES.get(reason, "FAILED") if reason else "FAILED"
    known_end = told.state if told is not None and told.state in FINISHED - {"COMPLETED", "FAILED"} else ""
    if known_end and reason in VAGUE_ENDS:
        state = known_end
    codes = [] if attempt.exit_code is None else [f"exit code {attempt.exit_code}"]
    if attempt.failed_rank is not None:
        codes.append(f"rank {attempt.failed_rank}")
    place = f" ({', '.join(codes)}{f' on {attempt.failed_node}' if attempt.failed_node else ''})" if codes else ""
    if not place and attempt.failed_node:
        place = f" (on {attempt.failed_node})"
    detail = f"{reason or 'no end marker'}{place}: {attempt.message}"
    if attempt.continuation:
        detail += f"; {attempt.continuation}"
    return Verdict(
        state,
        detail,
        True,
        _END_REASONS.get(state, reason or "no_end_marker") if state == known_end else reason or "no_end_marker",
        attempt.exit_code,
        attempt.failed_rank,
        attempt.failed_node or "",
        attempt.job_id,
    )


def _of_ended_job(evidence: Evidence, told: SlurmState, job_id: str) -> Verdict:
    """Slurm says that the job is over, and no end marker is there."""
    since_s = None if told.ended_at_s is None else evidence.now_s - told.ended_at_s
    if evidence.is_shared and not evidence.attempts:
        state = "FAILED" if told.state == "COMPLETED" else told.state
        detail = f"job {job_id} of its sweep ended ({told.state}) before its turn; continue the sweep by its name"
        return Verdict(state, detail, True, "launch_failed", job_id=job_id)
    if told.state == "COMPLETED":
        if since_s is not None and since_s < FRESH_S:
            detail = (
                f"{told.source} says COMPLETED; its end marker is not here yet (shared file systems show files late)"
            )
            return Verdict("COMPLETING", detail, job_id=job_id)
        detail = f"{told.source} says COMPLETED, but no rank left an end marker; see logs"
        return Verdict("UNKNOWN", detail, True, "no_end_marker", job_id=job_id)
    if told.state not in FINISHED:
        return Verdict("UNKNOWN", f"{told.source}: {told.state}, a word that is not known here", True, job_id=job_id)
    is_launch_failure = told.exit_code == _LAUNCH_EXIT_CODE or "LaunchFail" in told.reason
    code = f", exit code {told.exit_code}" if told.exit_code not in ("", "0:0") else ""
    where = f" on {told.nodes}" if told.nodes else ""
    has_begun = bool(own_attempts(evidence.attempts, evidence.first_attempt))
    if is_launch_failure and told.state == "FAILED" and not has_begun:
        detail = f"launch failure: output path{code}: Slurm could not start the script{where}; can {evidence.log} be made there?"
        return Verdict("FAILED", detail, True, "launch_failed", job_id=job_id)
    reason = f": {told.reason}" if told.reason and told.reason not in ("NonZeroExitCode",) else ""
    if told.state == "CANCELLED" and not told.nodes and not evidence.attempts:
        # squeue's reason is still what it waited for.
        reason = f"{reason if told.source == 'sacct' else ''} before it started"
    hint = "; see logs" if told.state == "FAILED" else ""
    detail = f"{told.source} says {told.state}{code}{reason}{where}; no end marker{hint}"
    if told.state == "PREEMPTED":
        detail += "; Slurm does not start it again"
    failed_node = told.nodes if told.state in ("NODE_FAIL", "BOOT_FAIL") and told.nodes.isprintable() else ""
    return Verdict(
        told.state, detail, True, _END_REASONS.get(told.state, "no_end_marker"), failed_node=failed_node, job_id=job_id
    )


def _of_nothing(evidence: Evidence, last: AttemptRecord | None) -> Verdict:
    """No end marker, and Slurm tells nothing."""
    job_id = evidence.job_ids[0]
    if evidence.cancelled is not None and not evidence.trouble:
        at = time.strftime("%d %b %H:%M", time.localtime(evidence.cancelled.cancelled_at_s))
        detail = f"cancelled by {evidence.cancelled.user} at {at}"
        return Verdict("CANCELLED", detail, True, "cancelled", job_id=job_id)
    age_s = evidence.now_s - evidence.submitted_at_s
    sign = ""
    if evidence.last_sign_s is not None and evidence.last_sign_s <= evidence.now_s:
        sign = f"; last step {duration_in_words(evidence.now_s - evidence.last_sign_s)} ago"
    if evidence.trouble:
        return Verdict("UNKNOWN", f"{evidence.trouble}{sign}", job_id=job_id)
    if evidence.foreign:
        detail = (
            f"job {job_id} is another one now (its script and submission differ); this run left no end marker{sign}"
        )
        return Verdict("UNKNOWN", detail, True, job_id=job_id)
    if last is None and age_s < FRESH_S:
        return Verdict(
            "SUBMITTED", f"waiting to be seen by Slurm, submitted {max(0, round(age_s))} s ago", job_id=job_id
        )
    accounting = f" ({evidence.accounting})" if evidence.accounting else ""
    detail = f"Slurm no longer knows job {job_id}{accounting}, and it left no end marker{sign}; see logs"
    return Verdict("UNKNOWN", detail, True, job_id=job_id)
