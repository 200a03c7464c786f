"""The processes of a local run: whether they still run, and ending them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable

import psutil

from hpctrain.errors import LaunchError
from hpctrain.launch.status.verdict import Verdict, of_marker
from hpctrain.plan.job.own_variables import GUARD_MODULE
from hpctrain.record.close_attempt import Ending, close_attempt
from hpctrain.record.end_evidence import EndEvidence
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts
from hpctrain.record.schema import AttemptRecord, SubmissionRecord

_CLOCK_STEP_S = 5.0
_CANCEL_GRACE_S = 10.0


def judge_local(submission: SubmissionRecord, attempt: AttemptRecord | None) -> Verdict:
    """The state of a run of this machine, from its end marker or its processes."""
    if attempt is not None and attempt.state != "running":
        return of_marker(attempt, None)
    if submission.host != socket.gethostname():
        return Verdict("UNKNOWN", f"a local run of {submission.host}; ask there", job_id=submission.job_id)
    if local_process(submission) is not None:
        return Verdict("RUNNING", job_id=submission.job_id)
    detail = "the process is gone and left no end marker; see logs"
    return Verdict("FAILED", detail, True, "no_end_marker", job_id=submission.job_id)


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


def cancel_local(run: RunPaths, submission: SubmissionRecord) -> str:
    """Ends the processes of a local run and writes its end marker; returns what was done.

    Raises:
        LaunchError: the run belongs to another machine.
    """
    if submission.host != socket.gethostname():
        raise LaunchError(f"{run.root}: a local run of {submission.host}; cancel it there")
    process = local_process(submission)
    if process is None:
        return "the run has ended already"
    told = _end_processes(process, is_script=bool(submission.command))
    attempts = read_attempts(run)
    ending = Ending(None, submission.job_id, evidence=EndEvidence("cancelled", "cancelled"))
    close_attempt(run, attempts[-1].attempt if attempts else 1, ending, time.time())
    return told


def _end_processes(controller: psutil.Process, is_script: bool) -> str:
    """Asks the ranks to end after their step, and ends those that do not.

    submitit's controller hands the signal on; a script (launch.mode=here) waits for its srun, which has to be told itself.
    """
    members = process_tree(controller)
    for process in members if is_script else members[:1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(members, timeout=_CANCEL_GRACE_S)
    guards = [process for process in alive if _is_guard(process)]
    _kill(process for process in alive if process not in guards)
    # A guard removes what its killed rank leaves on disk, and ends by itself.
    _, stuck = psutil.wait_procs(guards, timeout=_CANCEL_GRACE_S)
    _kill(stuck)
    return f"ended process {controller.pid} and the {len(members) - 1} below it"


def _is_guard(process: psutil.Process) -> bool:
    try:
        return GUARD_MODULE in process.cmdline()
    except psutil.Error:
        return False


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def process_tree(root: psutil.Process) -> list[psutil.Process]:
    """The process and all below it, those that end meanwhile left out."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return [root]
