"""Following a run by its records, with a progress bar, till it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hpctrain.launch.status.local_run import local_process, process_tree
from hpctrain.launch.status.rows import StatusBoard
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.close_attempt import Ending, close_attempt
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, read_attempts
from hpctrain.record.schema import AttemptRecord, SubmissionRecord

_POLL_S = 0.2
_LOOK_S = 2.0
_GRACE_AFTER_FAILURE_S = 30.0
"""A rank that failed takes the others with it through their next collective; after this time they are ended."""


def follow(run: RunPaths, plan: RunPlan, submission: SubmissionRecord, console: Console) -> AttemptRecord | None:
    """Shows the run's progress till it is over; returns its last attempt, None if no rank ever started."""
    is_local = submission.cluster_kind == "local"
    _show_progress(run, plan, console, _local_watch(run, submission) if is_local else _slurm_watch(run))
    attempts = read_attempts(run)
    if is_local and (not attempts or attempts[-1].state == "running"):
        # On Slurm the batch script does this.
        ending = Ending(None, submission.job_id)
        close_attempt(run, attempts[-1].attempt if attempts else 1, ending, time.time())
        attempts = read_attempts(run)
    return attempts[-1] if attempts else None


def _show_progress(run: RunPaths, plan: RunPlan, console: Console, is_over: Callable[[], bool]) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
    )
    steps = StepsFile(run.steps)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=plan.num_steps, numbers="")
        while True:
            over = is_over()
            for record in steps.new_records():
                loss = "loss -" if record.loss is None else f"loss {record.loss:.3f}"
                tokens_per_s = record.tokens / record.step_time_s
                numbers = f"{loss}, {record.step_time_s * 1e3:.0f} ms/step, {tokens_per_s:,.0f} tokens/s"
                progress.update(task, description="training", completed=record.step, numbers=numbers)
            if over:
                return
            time.sleep(_POLL_S)


def _local_watch(run: RunPaths, submission: SubmissionRecord) -> Callable[[], bool]:
    """Tells when the local controller is gone, and ends ranks that outlive another's failure."""
    failed_at: float | None = None

    def is_over() -> bool:
        nonlocal failed_at
        controller = local_process(submission)
        if controller is None:
            return True
        if failed_at is None and run.failure(submission.first_attempt).exists():
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > _GRACE_AFTER_FAILURE_S:
            for process in process_tree(controller):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            return True
        return False

    return is_over


def _slurm_watch(run: RunPaths) -> Callable[[], bool]:
    """Tells when the job is over: by the end marker, or where there is none by Slurm, asked seldom (see ``SlurmBoard``)."""
    board = StatusBoard([run])
    looked_at = -_LOOK_S

    def is_over() -> bool:
        nonlocal looked_at
        if time.monotonic() - looked_at < _LOOK_S:
            return False
        looked_at = time.monotonic()
        return board.look(time.time())[0].is_over

    return is_over
