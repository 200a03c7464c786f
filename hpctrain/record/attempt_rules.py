"""When a run starts again, and when it does not; pure.

Only what Slurm or the chain restarts is counted: ``resume`` begins a new submission with a new allowance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.record.schema import AttemptRecord, EndReason

MAX_WITHOUT_PROGRESS = 2
"""Attempts in a row that may end without a newer complete checkpoint."""
RESTARTABLE: frozenset[EndReason] = frozenset({"time_limit", "preempted", "node_failure", "requeued", "no_end_marker"})
"""Ends that say nothing against the run itself. Memory, data, environment, loss and exceptions would come again."""
REFUSED: frozenset[EndReason] = frozenset({"no_progress", "out_of_attempts"})
"""Ends of an attempt that was not allowed to begin, or to be followed by another."""

STARTS_AGAIN = "Slurm starts the job again"
"""What ``close_attempt`` notes of a job that Slurm has put into its queue again."""
GOES_ON = "goes on from step"
"""What a chain notes, first words."""
_FOLLOWED_BY_SLURM: frozenset[EndReason] = frozenset({"preempted", "node_failure", "requeued"})


@dataclass(frozen=True)
class Start:
    """A start that is asked for."""

    job_id: str
    first_attempt: int
    """Of the submission that this start belongs to; earlier attempts do not count."""
    newest_step: int
    """Of the newest complete checkpoint; 0: there is none."""
    max_attempts: int
    is_chained: bool = False
    """The job may be a link that was submitted in advance."""


@dataclass(frozen=True)
class Refusal:
    """Why the start is not made."""

    message: str
    exit_code: int
    """Of the batch script."""
    reason: EndReason | None = None
    """Recorded as the end of the run; None: the run's own end stands."""


def refusal_of(start: Start, attempts: Sequence[AttemptRecord]) -> Refusal | None:
    """Why a run does not start again; None: it does.

    Args:
        start: what is asked for.
        attempts: of the run, in order, none of them running.
    """
    own = own_attempts(attempts, start.first_attempt)
    if not own:
        return None
    if any(attempt.state == "completed" for attempt in own):
        return Refusal("the run has completed; nothing is started", 0)
    last = own[-1]
    if last.end_reason in REFUSED:
        return Refusal(f"the run ended: {last.message}", 1)
    if start.is_chained and last.job_id != start.job_id and last.end_reason not in RESTARTABLE:
        return Refusal(
            f"attempt {last.attempt} (job {last.job_id}) ended with {last.end_reason}, which is not tried again by itself:"
            f" {last.message}",
            0,
        )
    if len(own) >= start.max_attempts:
        return Refusal(
            f"launch.max_attempts={start.max_attempts} starts were made, the last: {_listed(own[-3:])}; resume RUN allows as"
            " many again",
            1,
            "out_of_attempts",
        )
    fruitless = without_progress(own, start.newest_step)
    if len(fruitless) >= MAX_WITHOUT_PROGRESS:
        return Refusal(no_progress_message(fruitless, start.newest_step), 1, "no_progress")
    return None


def may_start_again(attempt: AttemptRecord) -> bool:
    """Whether a job waits to go on after this attempt, as far as its own record tells."""
    if attempt.continuation:
        return attempt.continuation.startswith((STARTS_AGAIN, GOES_ON))
    return attempt.end_reason in _FOLLOWED_BY_SLURM


def own_attempts(attempts: Sequence[AttemptRecord], first_attempt: int) -> list[AttemptRecord]:
    """Those of one submission."""
    return [attempt for attempt in attempts if attempt.attempt >= first_attempt]


def without_progress(attempts: Sequence[AttemptRecord], newest_step: int) -> list[AttemptRecord]:
    """The last attempts since whose start no newer checkpoint was completed."""
    return [attempt for attempt in attempts if attempt.start_step >= newest_step]


def no_progress_message(fruitless: Sequence[AttemptRecord], newest_step: int) -> str:
    """Why the run ends, and what helps."""
    newest = f"newer than step {newest_step}" if newest_step else "at all"
    return (
        f"no progress: {_listed(fruitless)} ended without a complete checkpoint {newest}; checkpoint more often"
        " (training.checkpoint_interval) or ask for more time (cluster.time), then resume RUN"
    )


def _listed(attempts: Sequence[AttemptRecord]) -> str:
    ends = [f"{attempt.attempt} ({attempt.end_reason or 'running'})" for attempt in attempts]
    return f"attempt {ends[0]}" if len(ends) == 1 else f"attempts {', '.join(ends[:-1])} and {ends[-1]}"
