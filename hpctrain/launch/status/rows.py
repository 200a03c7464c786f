"""The rows of ``status``: what runs do now, from their files, and from one query to each Slurm for all of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpctrain.launch.point_labels import labels_in
from hpctrain.launch.slurm.lost_answer import complete_record
from hpctrain.launch.slurm.states import WAITING
from hpctrain.launch.status.board import SlurmBoard, slurm_of
from hpctrain.launch.status.glance import PlanNumbers, RunGlance, StepsTail, read_glance
from hpctrain.launch.status.local_run import judge_local
from hpctrain.launch.status.verdict import Verdict, judge, of_marker
from hpctrain.record.attempt_rules import own_attempts
from hpctrain.record.paths import SWEEP_MANIFEST, RunPaths
from hpctrain.record.schema import AttemptRecord, SubmissionRecord

_STARTING = frozenset({"SUBMITTED", "LAUNCH_FAILED", *WAITING})


@dataclass(frozen=True)
class RunStatus:
    """One row of ``status``; ``--json`` prints these names."""

    run: str
    path: str
    sweep: str
    """Path of the sweep folder that holds the run; empty: none does."""
    job_id: str
    state: str
    """A word of Slurm's, SUBMITTED, LAUNCH_FAILED or UNKNOWN; local runs use the same words."""
    detail: str
    """Why: end reason, pending reason, or what evidence is missing."""
    is_over: bool
    """Nothing waits or runs any more, as far as is known."""
    end_reason: str
    """Why it ended, a word of ``record.schema.EndReason``; empty: it has not, or nobody knows."""
    exit_code: int | None
    failed_rank: int | None
    failed_node: str
    payload: str
    """``train`` or ``launch_check``, which has no steps."""
    attempt: int
    step: int
    num_steps: int
    num_nodes: int
    world_size: int
    loss: float | None
    step_time_s: float | None
    """Median of the last steps."""
    model_tflops_per_gpu: float | None
    predicted_step_time_s: float | None
    """Of the plan."""
    measured_over_predicted: float | None
    """Step time as a multiple of the predicted one."""
    eta_s: float | None
    """Time that the steps still to come take at the measured step time, else at the predicted one."""
    gpu_hours: float
    """Of all attempts, from start to end, GPUs of the whole world."""
    queue_time_s: float | None
    """From the submission to the first start, or till now."""
    expected_start_s: float | None
    """Unix time, where Slurm says."""
    submitted_at_s: float | None
    last_step_at_s: float | None
    stale_since_s: float | None
    """Unix time since when Slurm has not answered; None: it has."""
    point: str = ""
    """Of a sweep's point the overrides that not all points share; empty: it is none."""
    validation_loss: float | None = None
    """Of the last validation on held-out data."""
    forced: tuple[str, ...] = ()
    """Keys of the plan's problems that --force let pass."""


def collect_status(runs: Sequence[RunPaths]) -> list[RunStatus]:
    """States of all runs, oldest first, with one query to each Slurm; a damaged folder is a row of its own.

    A run whose submission was cut off gets its record first.
    """
    for run in runs:
        complete_record(run)
    return StatusBoard(runs).look(time.time())


class StatusBoard:
    """Looks at the same runs again and again: files each time, Slurm seldom, see ``SlurmBoard``."""

    def __init__(self, runs: Sequence[RunPaths]) -> None:
        self._slurm = SlurmBoard()
        self._glances: dict[Path, RunGlance] = {run.root: read_glance(run) for run in runs}
        self._rows: dict[Path, tuple[int, RunStatus]] = {}
        self._sweeps: dict[Path, dict[str, str] | None] = {}
        """Labels of the points by the names of their runs; None: the folder is no sweep."""
        self._is_first = True

    def add(self, runs: Sequence[RunPaths]) -> None:
        """Runs that came later; those that are known stay as they are."""
        for run in runs:
            if run.root not in self._glances:
                self._glances[run.root] = read_glance(run)

    @property
    def sweep_sizes(self) -> Counter[str]:
        """How many of the runs each sweep has, by its folder, after a look."""
        return Counter(str(root.parent) for root in self._glances if self._sweeps.get(root.parent) is not None)

    @property
    def next_question_s(self) -> float:
        """Unix time before which Slurm is not asked again."""
        return self._slurm.next_question_s

    def look(self, now_s: float) -> list[RunStatus]:
        """The rows as they are now. Runs that are over are not read again unless they were submitted anew."""
        current = [root for root, glance in self._glances.items() if not self._is_settled(root, glance)]
        if not self._is_first:
            for root in current:
                self._glances[root] = read_glance(RunPaths(root), self._glances[root])
        self._is_first = False
        self._slurm.ask([self._glances[root] for root in current], now_s)
        for root in current:
            self._rows.pop(root, None)
            row = self._row(self._glances[root], now_s)
            attempts = self._glances[root].attempts
            if row.is_over and (not attempts or attempts[-1].state == "running"):
                # Its end marker may have been written between the look at its files and Slurm's answer.
                self._glances[root] = read_glance(RunPaths(root), self._glances[root])
                row = self._row(self._glances[root], now_s)
            if row.is_over and row.state != "UNKNOWN":
                self._rows[root] = (_submission_mark(root), row)
            else:
                self._rows[root] = (-1, row)
        rows = [row for _, row in self._rows.values()]
        return sorted(rows, key=lambda row: (row.submitted_at_s or 0.0, row.path))

    def _is_settled(self, root: Path, glance: RunGlance) -> bool:
        mark, _ = self._rows.get(root, (-1, None))
        return mark != -1 and not glance.problem and mark == _submission_mark(root)

    def _row(self, glance: RunGlance, now_s: float) -> RunStatus:
        submission, attempts = glance.submission, glance.attempts
        last, step_time_s = glance.steps.last, glance.steps.step_time_s
        verdict, stale_since_s, expected_start_s = self._judged(glance, now_s)
        plan = glance.plan or PlanNumbers("train", 0, 0, 0, 0.0, None)
        step = last.step if last is not None else 0
        predicted_s = plan.predicted_step_time_s
        is_running = verdict.state == "RUNNING"
        pace_s = step_time_s or predicted_s
        labels = self._labels_in(glance.run.root.parent)
        return RunStatus(
            run=glance.run.root.name,
            path=str(glance.run.root),
            sweep=str(glance.run.root.parent) if labels is not None else "",
            job_id=verdict.job_id or (submission.job_id if submission is not None else ""),
            state=verdict.state,
            detail="; ".join(filter(None, (verdict.detail, _forced_text(plan.forced)))),
            is_over=verdict.is_over,
            end_reason=verdict.end_reason,
            exit_code=verdict.exit_code,
            failed_rank=verdict.failed_rank,
            failed_node=verdict.failed_node,
            payload=plan.payload,
            attempt=attempts[-1].attempt if attempts else 0,
            step=step,
            num_steps=plan.num_steps,
            num_nodes=plan.num_nodes,
            world_size=plan.world_size,
            loss=last.loss if last is not None else None,
            step_time_s=step_time_s,
            model_tflops_per_gpu=plan.tflops_per_gpu(step_time_s, step) if step_time_s and plan.world_size else None,
            predicted_step_time_s=predicted_s,
            # The prediction is of the full batch.
            measured_over_predicted=(
                step_time_s / predicted_s if step_time_s and predicted_s and plan.batch_share(step) == 1 else None
            ),
            eta_s=plan.steps_left(step) * pace_s if is_running and pace_s and plan.payload == "train" else None,
            gpu_hours=_gpu_hours(attempts, glance.steps, plan, now_s if is_running else None),
            queue_time_s=_queue_time_s(submission, attempts, now_s if verdict.state in _STARTING else None),
            expected_start_s=expected_start_s,
            submitted_at_s=submission.submitted_at_s if submission is not None else None,
            last_step_at_s=last.time_s if last is not None else None,
            stale_since_s=stale_since_s,
            point=(labels or {}).get(glance.run.root.name, ""),
            validation_loss=glance.validation_loss,
            forced=plan.forced,
        )

    def _judged(self, glance: RunGlance, now_s: float) -> tuple[Verdict, float | None, float | None]:
        """The state, since when it is stale, and when Slurm expects a start."""
        submission = glance.submission
        if submission is None:
            return Verdict("UNKNOWN", glance.problem, True), None, None
        if submission.cluster_kind != "slurm":
            return _with_problem(_elsewhere(submission, glance.attempts), glance), None, None
        cluster = slurm_of(submission)
        evidence = self._slurm.evidence(glance, submission, now_s)
        verdict = _with_problem(self._slurm.settled(glance, judge(evidence), now_s), glance)
        if verdict.is_over:
            return verdict, None, None
        stale_since_s = self._slurm.stale_since_s(cluster)
        if stale_since_s is not None:
            verdict = self._slurm.with_age(verdict, cluster)
        starts = [told.start_at_s for told in evidence.told if told is not None and told.state in WAITING]
        expected_s = next((start_s for start_s in starts if start_s is not None), None)
        return verdict, stale_since_s, expected_s if verdict.state in WAITING else None

    def _labels_in(self, parent: Path) -> dict[str, str] | None:
        if parent not in self._sweeps:
            self._sweeps[parent] = labels_in(parent) if (parent / SWEEP_MANIFEST).is_file() else None
        return self._sweeps[parent]


def _forced_text(keys: Sequence[str]) -> str:
    return f"submitted with --force past {', '.join(keys)}" if keys else ""


def _submission_mark(root: Path) -> int:
    """Changes when the run is submitted again."""
    try:
        return RunPaths(root).submission.stat().st_mtime_ns
    except OSError:
        return 0


def _with_problem(verdict: Verdict, glance: RunGlance) -> Verdict:
    """With what is wrong in the folder. An end that only Slurm tells of a damaged run is none: its marker may say more."""
    if not glance.problem:
        return verdict
    if verdict.state == "UNKNOWN" or (verdict.is_over and not glance.attempts):
        return Verdict("UNKNOWN", glance.problem, True)
    return replace(verdict, detail="; ".join(filter(None, (verdict.detail, glance.problem))))


def _elsewhere(submission: SubmissionRecord, attempts: Sequence[AttemptRecord]) -> Verdict:
    own = own_attempts(attempts, submission.first_attempt)
    if submission.cluster_kind == "local":
        return judge_local(submission, own[-1] if own else None)
    if own and own[-1].state != "running":
        return of_marker(own[-1], None)
    detail = f"ask AzureML: az ml job show --name {submission.job_id}"
    return Verdict("UNKNOWN", detail, job_id=submission.job_id)


def _gpu_hours(
    attempts: Sequence[AttemptRecord], steps: StepsTail, plan: PlanNumbers, running_till_s: float | None
) -> float:
    """What all attempts took; one without an end counts to its last known step, the last one of a running run till now."""
    total_s = 0.0
    for index, attempt in enumerate(attempts):
        end_s = attempt.ended_at_s
        if end_s is None:
            is_last = index == len(attempts) - 1
            end_s = running_till_s if is_last and running_till_s is not None else steps.ended_at_s.get(attempt.attempt)
        if end_s is not None:
            total_s += max(0.0, end_s - attempt.started_at_s) * (attempt.world_size or plan.world_size)
    return total_s / 3600


def _queue_time_s(
    submission: SubmissionRecord | None, attempts: Sequence[AttemptRecord], waiting_till_s: float | None
) -> float | None:
    if submission is None or submission.cluster_kind != "slurm":
        return None
    first = next((attempt for attempt in attempts if attempt.attempt >= submission.first_attempt), None)
    till_s = first.started_at_s if first is not None else waiting_till_s
    return None if till_s is None else max(0.0, till_s - submission.submitted_at_s)
