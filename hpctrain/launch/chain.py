"""Chains. ``python -m hpctrain.launch.chain RUN_DIR``, the batch script's last line: requeue, or let later links go.

The links of ``launch.chain=dependency`` share script and comment with the first job, and wait for one another. What was done,
or why nothing, stands in the attempt's record.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hpctrain.errors import HpctrainError, LaunchError
from hpctrain.record.attempt_rules import (
    GOES_ON,
    RESTARTABLE,
    Refusal,
    Start,
    no_progress_message,
    own_attempts,
    refusal_of,
)
from hpctrain.record.files import write_record
from hpctrain.record.identity import first_attempt_number, job_id_of
from hpctrain.record.open_attempt import newest_step
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, read_attempts, read_config, read_submission
from hpctrain.record.schema import AttemptRecord
from hpctrain.record.slurm_command import ask_slurm

if TYPE_CHECKING:
    from hpctrain.launch.slurm.sbatch import Submission
    from hpctrain.plan.run_plan import RunPlan

_TIMEOUT_S = 60
_RECENT_STEPS = 100


def submit_links(
    submission: Submission, first_job: str, count: int, submit: Callable[[Submission], str]
) -> tuple[str, ...]:
    """Submits the later jobs of a chain, each after the one before it; returns their ids.

    Raises:
        ChainBrokenError: Slurm took some of them only; the ids are in it.
    """
    ids: list[str] = []
    for _ in range(count):
        previous = ids[-1] if ids else first_job
        link = dataclasses.replace(submission, after=previous, known_jobs=frozenset((first_job, *ids)))
        try:
            ids.append(submit(link))
        except LaunchError as error:
            raise ChainBrokenError(tuple(ids), count, error) from error
    return tuple(ids)


def step_seconds(run: RunPaths, plan: RunPlan) -> float | None:
    """One step as measured by an earlier attempt, else as predicted; None: nobody knows."""
    measured = [record.step_time_s for record in StepsFile(run.steps).new_records()][-_RECENT_STEPS:]
    if measured:
        return statistics.median(measured)
    return plan.prediction.step_time_s if plan.prediction else None


class ChainBrokenError(LaunchError):
    """The first job is submitted, and not all of the later ones."""

    def __init__(self, ids: tuple[str, ...], count: int, cause: LaunchError) -> None:
        super().__init__(f"{len(ids)} of {count} later links of the chain were submitted: {cause}")
        self.ids = ids


@dataclasses.dataclass(frozen=True)
class NextStart:
    """What follows an attempt."""

    action: Literal["none", "requeue", "leave_links", "cancel_links"]
    told: str = ""
    refusal: Refusal | None = None
    """The run ends here, for this reason."""


def next_start(chain: str, attempts: Sequence[AttemptRecord], start: Start) -> NextStart:
    """What the chain does after the last of the attempts; pure.

    Args:
        chain: ``requeue`` or ``dependency``.
        attempts: of the run, all of them closed.
        start: the one that would follow.
    """
    own = own_attempts(attempts, start.first_attempt)
    if not own:
        return NextStart("none")
    last = own[-1]
    stop: Literal["none", "cancel_links"] = "none" if chain == "requeue" else "cancel_links"
    if last.state == "completed":
        return NextStart(stop)
    if last.end_reason not in RESTARTABLE:
        return NextStart(stop, f"not started again: {last.end_reason} is not tried again by itself")
    if chain == "requeue" and last.end_reason != "time_limit":
        return NextStart("none")  # Slurm requeues it
    refusal = refusal_of(start, attempts)
    if refusal is None and chain == "requeue" and start.newest_step <= last.start_step:
        # This start is ours to make: unlike Slurm's own, it is made only with something to go on from.
        refusal = Refusal(no_progress_message([last], start.newest_step), 1, "no_progress")
    if refusal is not None:
        return NextStart(stop, f"not started again: {refusal.message}", refusal)
    if chain == "requeue":
        return NextStart("requeue", f"{GOES_ON} {start.newest_step}: requeued by its batch script")
    return NextStart("leave_links", f"{GOES_ON} {start.newest_step} in the next job of the chain")


def continue_chain(run: RunPaths, job_id: str, first_attempt: int) -> str:
    """Does what follows the attempt that just ended; returns what was done.

    Raises:
        HpctrainError: the run folder cannot be read or written, or Slurm refused.
    """
    launch = read_config(run).launch
    start = Start(job_id, first_attempt, newest_step(run), launch.max_attempts)
    attempts = read_attempts(run)
    following = next_start(launch.chain, attempts, start)
    own = own_attempts(attempts, first_attempt)
    # Written before Slurm is asked: a requeue ends this script.
    if own and following.told and own[-1].job_id == job_id:
        write_record(run.attempt(own[-1].attempt), _told_in(own[-1], following))
    told = following.told
    if following.action == "requeue" and (trouble := ask_slurm(["scontrol", "requeue", job_id], _TIMEOUT_S)[1]):
        told = f"not requeued: {trouble}"
        write_record(run.attempt(own[-1].attempt), dataclasses.replace(own[-1], continuation=told))
    if following.action == "cancel_links":
        told = "; ".join(filter(None, (told, _cancel_links(run, job_id))))
    return told


def _told_in(last: AttemptRecord, following: NextStart) -> AttemptRecord:
    if following.refusal is None or following.refusal.reason is None:
        return dataclasses.replace(last, continuation=following.told)
    return dataclasses.replace(
        last,
        end_reason=following.refusal.reason,
        exit_code=following.refusal.exit_code,
        message=f"{last.end_reason}: {last.message}",
        continuation=following.told,
    )


def _cancel_links(run: RunPaths, job_id: str) -> str:
    """Takes the jobs out of the queue that would find nothing to do."""
    if not run.submission.exists():
        return ""
    submission = read_submission(run)
    ids = (submission.job_id, *submission.chain)
    later = ids[ids.index(job_id) + 1 :] if job_id in ids else ()
    if not later:
        return ""
    # The last one first: none must start meanwhile.
    _, trouble = ask_slurm(["scancel", *reversed(later)], _TIMEOUT_S)
    return f"scancel {' '.join(later)}: {trouble}" if trouble else f"cancelled the later links: {', '.join(later)}"


def main() -> None:
    job_id, first_attempt = job_id_of(os.environ), first_attempt_number(os.environ)
    try:
        told = continue_chain(RunPaths(Path(sys.argv[1])), job_id, first_attempt)
    except HpctrainError as error:
        told = f"the chain ends here: {error}"
    if told:
        print(f"hpctrain: {told}")


if __name__ == "__main__":
    main()
