"""What Slurm said last of many runs: asked at most every 30 s, less often while nothing changes, kept while it is away."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpctrain.launch.slurm.query import SlurmAnswer, down_nodes, query_states
from hpctrain.launch.slurm.states import WAITING, SlurmCluster, SlurmJob, SlurmState
from hpctrain.launch.status.glance import RunGlance
from hpctrain.launch.status.verdict import FRESH_S, VAGUE_ENDS, Evidence, Verdict
from hpctrain.record.schema import AttemptRecord, CancelRecord, SubmissionRecord

MIN_INTERVAL_S = 30.0
_MAX_INTERVAL_S = 300.0
_GROWTH = 1.5


def slurm_of(submission: SubmissionRecord) -> SlurmCluster:
    """The cluster that a run was submitted to."""
    return SlurmCluster(submission.slurm_conf, submission.slurm_cluster)


def jobs_of(submission: SubmissionRecord) -> tuple[SlurmJob, ...]:
    """The job of a submission and the links of its chain, which share script and key."""
    script = submission.command[-1] if submission.command else ""
    ids = (submission.job_id, *submission.chain)
    return tuple(SlurmJob(job_id, script, submission.key, submission.submitted_at_s) for job_id in ids)


@dataclass
class _Last:
    """The newest answer of one cluster."""

    answer: SlurmAnswer = field(default_factory=SlurmAnswer)
    states: dict[SlurmJob, SlurmState] = field(default_factory=dict)
    asked: frozenset[SlurmJob] = frozenset()
    answered_at_s: float | None = None
    stale_since_s: float | None = None


class SlurmBoard:
    """One question for all runs of a cluster, and how long to wait for the next."""

    def __init__(self) -> None:
        self._last: dict[SlurmCluster, _Last] = {}
        self._interval_s = MIN_INTERVAL_S
        self.next_question_s = 0.0
        """Unix time, unless the files tell of a start or an end before."""
        self._earliest_question_s = 0.0
        self._known: dict[Path, tuple[str, int, str]] = {}
        self._lost_since_s: dict[Path, tuple[float, Verdict]] = {}
        self._verdicts: dict[Path, Verdict] = {}
        self._down: dict[tuple[Path, int], frozenset[str]] = {}

    def ask(self, glances: Sequence[RunGlance], now_s: float) -> None:
        """Asks each cluster about these runs if it is time; runs with a certain end are left out.

        Every call of a command adds 30 s to the time before the next question: the rate is the same whatever an answer takes.
        """
        news = {glance.run.root: _news(glance) for glance in glances}
        has_news = any(self._known.get(root) != what for root, what in news.items())
        if now_s < (self._earliest_question_s if has_news else self.next_question_s):
            return
        self._known = news
        wanted, queue_only = _questions(glances)
        num_calls, has_changed = 0, False
        for cluster, cluster_jobs in wanted.items():
            answer = query_states(cluster, cluster_jobs, queue_only)
            num_calls += answer.num_calls
            has_changed |= self._keep(cluster, answer, now_s)
            self._last[cluster].asked |= frozenset(cluster_jobs)
        num_calls += self._ask_for_nodes(glances)
        self._interval_s = MIN_INTERVAL_S if has_changed else min(_MAX_INTERVAL_S, self._interval_s * _GROWTH)
        if wanted:
            self._earliest_question_s = now_s + MIN_INTERVAL_S * num_calls
            self.next_question_s = max(self._earliest_question_s, now_s + self._interval_s)

    def _keep(self, cluster: SlurmCluster, answer: SlurmAnswer, now_s: float) -> bool:
        """Notes an answer; whether it differs from the last. While the controller is away, what it said before stays."""
        last = self._last.setdefault(cluster, _Last())
        before, last.answer = last.states, answer
        if not answer.trouble:
            last.states, last.answered_at_s, last.stale_since_s = answer.states, now_s, None
        else:
            last.states = answer.states | before
            if last.stale_since_s is None:
                last.stale_since_s = now_s if last.answered_at_s is None else last.answered_at_s
        return {job: told.state for job, told in before.items()} != {
            job: told.state for job, told in last.states.items()
        }

    def _ask_for_nodes(self, glances: Iterable[RunGlance]) -> int:
        """Which nodes of an attempt that was cut off are down: once for each such attempt."""
        nodes: dict[SlurmCluster, dict[tuple[Path, int], set[str]]] = {}
        for glance in glances:
            submission = glance.submission
            last = _last(glance)
            if submission is None or last is None or not last.nodes or last.state != "running":
                continue
            key = (glance.run.root, last.attempt)
            if key not in self._down and any(told.state in WAITING for told in self._told(submission) if told):
                nodes.setdefault(slurm_of(submission), {})[key] = {node.name for node in last.nodes}
        for cluster, wanted in nodes.items():
            down = down_nodes(cluster, set().union(*wanted.values()))
            self._down |= {key: down & names for key, names in wanted.items()}
        return len(nodes)

    def _told(self, submission: SubmissionRecord) -> tuple[SlurmState | None, ...]:
        last = self._last.get(slurm_of(submission), _Last())
        return tuple(last.states.get(job) for job in jobs_of(submission))

    def evidence(self, glance: RunGlance, submission: SubmissionRecord, now_s: float) -> Evidence:
        """All that is known of a run."""
        last = self._last.get(slurm_of(submission), _Last())
        jobs, told = jobs_of(submission), self._told(submission)
        own = _last_own(glance.attempts, submission)
        if last.stale_since_s is not None and own is not None and own.state != "running":
            told = (None,) * len(jobs)  # the marker is newer than what Slurm said before it went away
        last_step = glance.steps.last
        script_folder = Path(jobs[0].script).parent
        return Evidence(
            job_ids=tuple(job.job_id for job in jobs),
            told=told,
            attempts=glance.attempts,
            first_attempt=submission.first_attempt,
            submitted_at_s=submission.submitted_at_s,
            now_s=now_s,
            trouble=_trouble(last, jobs[0], now_s),
            is_stale=last.stale_since_s is not None,
            accounting=last.answer.accounting,
            foreign=jobs[0] in last.answer.foreign,
            log=str(glance.run.batch_log),
            last_sign_s=last_step.time_s if last_step is not None else None,
            is_shared="_" not in jobs[0].job_id and script_folder.name != glance.run.root.name,
            cancelled=_cancelled(glance, jobs),
            down_nodes=tuple(sorted(self._down.get((glance.run.root, own.attempt if own else 0), ()))),
            asked_at_s=last.answered_at_s,
        )

    def settled(self, glance: RunGlance, verdict: Verdict, now_s: float) -> Verdict:
        """The verdict, but for a run that was seen alive and is gone: its end marker may show up late, so it is waited for."""
        root = glance.run.root
        before = self._verdicts.get(root)
        is_lost = verdict.state == "UNKNOWN" and verdict.is_over and not glance.problem
        if is_lost and (root in self._lost_since_s or (before is not None and not before.is_over)):
            since_s, alive = self._lost_since_s.setdefault(root, (now_s, before or verdict))
            if now_s - since_s < FRESH_S:
                detail = f"Slurm has forgotten the job; waiting up to {FRESH_S:.0f} s for its end marker"
                return replace(alive, state="COMPLETING", detail=detail, is_over=False)
        elif not is_lost:
            self._lost_since_s.pop(root, None)
        self._verdicts[root] = verdict
        return verdict

    def stale_since_s(self, cluster: SlurmCluster) -> float | None:
        last = self._last.get(cluster)
        return None if last is None else last.stale_since_s

    def with_age(self, verdict: Verdict, cluster: SlurmCluster) -> Verdict:
        """The verdict with since when it has not been confirmed."""
        last = self._last[cluster]
        if last.answered_at_s is None:
            return verdict
        since = time.strftime("%H:%M:%S", time.localtime(last.answered_at_s))
        reason = " ".join(last.answer.trouble.split())
        detail = f"{verdict.detail}; " if verdict.detail else ""
        return replace(verdict, detail=f"{detail}stale since {since}: {reason}")


def _trouble(last: _Last, job: SlurmJob, now_s: float) -> str:
    """Why nothing is known from Slurm; empty: it has answered about this job, or the job is so new that it may come yet."""
    if job not in last.asked:
        return "Slurm has not been asked about this job yet" if now_s - job.submitted_at_s >= FRESH_S else ""
    return last.answer.trouble if last.answered_at_s is None else ""


def _cancelled(glance: RunGlance, jobs: Sequence[SlurmJob]) -> CancelRecord | None:
    """The note of a cancel that meant the job of this submission."""
    note = glance.cancelled
    return note if note is not None and jobs[0].job_id in note.job_ids else None


def _news(glance: RunGlance) -> tuple[str, int, str]:
    """What of a run's files makes a new question worth while when it changes: job, attempt and how that stands."""
    last = _last(glance)
    job_id = glance.submission.job_id if glance.submission is not None else ""
    return (job_id, 0, "") if last is None else (job_id, last.attempt, last.state)


def _questions(glances: Iterable[RunGlance]) -> tuple[dict[SlurmCluster, list[SlurmJob]], set[SlurmJob]]:
    """Which jobs each cluster is asked about, and which of them only by its queue, since their end is known."""
    wanted: dict[SlurmCluster, list[SlurmJob]] = {}
    queue_only: set[SlurmJob] = set()
    for glance in glances:
        submission = glance.submission
        if submission is None or submission.cluster_kind != "slurm":
            continue
        last = _last_own(glance.attempts, submission)
        if last is not None and last.state == "completed":
            continue
        jobs = jobs_of(submission)
        wanted.setdefault(slurm_of(submission), []).extend(jobs)
        if last is not None and last.state == "failed" and last.end_reason not in VAGUE_ENDS:
            queue_only.update(jobs)
    return wanted, queue_only


def _last(glance: RunGlance) -> AttemptRecord | None:
    return glance.attempts[-1] if glance.attempts else None


def _last_own(attempts: Sequence[AttemptRecord], submission: SubmissionRecord) -> AttemptRecord | None:
    """The newest attempt of this submission."""
    return attempts[-1] if attempts and attempts[-1].attempt >= submission.first_attempt else None
