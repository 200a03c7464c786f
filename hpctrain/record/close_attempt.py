"""``python -m hpctrain.record.close_attempt RUN_DIR EXIT_CODE [DOING]``: the end marker of an attempt, after the ranks are gone.

The batch script runs it on the first node. It keeps what the ranks wrote themselves, and fills in the end where they could
not: killed from outside, out of memory, or never started. Light: neither torch nor pandas.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

from hpctrain.errors import HpctrainError, LaunchError, RecordError
from hpctrain.plan.job.own_variables import BATCH_SIGNAL_VARIABLE
from hpctrain.record.attempt_files import attempt_numbers
from hpctrain.record.attempt_rules import STARTS_AGAIN
from hpctrain.record.end_evidence import EndEvidence, end_evidence
from hpctrain.record.files import open_regular, read_record, write_record
from hpctrain.record.identity import attempt_number, job_id_of
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import with_failure
from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord, EndReason
from hpctrain.record.slurm_job import job_facts, nodes_down_since

_SIGNAL_BASE = 128
_SIGKILL, _SIGTERM = 9, 15
_MAX_LOG_BYTES = 4 << 20
_BY_SLURM = frozenset({"cancelled", "time_limit", "preempted", "requeued", "node_failure"})
_RESTARTED_BY_SLURM = frozenset({"preempted", "requeued", "node_failure"})


@dataclasses.dataclass(frozen=True)
class Ending:
    """What is known at the end besides the ranks' own records."""

    exit_code: int | None
    """Of srun or the setup line; None: unknown (nobody was there to see it)."""
    job_id: str = ""
    """For an attempt that nobody has recorded."""
    launch_message: str = ""
    """What kept the ranks from being started, where that is known."""
    evidence: EndEvidence | None = None
    """What Slurm wrote into the batch log."""
    batch_got_term: bool | None = None
    """Whether the batch script got SIGTERM; None: there was none, or it is gone."""
    lost: str = ""
    """Said of an attempt whose batch script did not come to its end."""


def close_attempt(run: RunPaths, number: int, ending: Ending, now_s: float) -> AttemptRecord:
    """Writes and returns the final record of attempt ``number``; one that is closed already stays as it is."""
    started = _read_if_there(run.attempt(number)) or AttemptRecord(
        SCHEMA_VERSION,
        number,
        ending.job_id,
        "running",
        started_at_s=now_s,
        message="no rank reached the first collective",
    )
    if started.state != "running":
        return started
    failure = _read_if_there(run.failure(number))
    final = _of_failure(started, failure, ending) if failure is not None else _of_silence(started, ending, now_s)
    write_record(run.attempt(number), final)
    return final


def unclosed_attempts(run: RunPaths) -> list[AttemptRecord]:
    """Attempts that never got their end marker, whatever a rank of theirs left behind; damaged older ones are told.

    Raises:
        RecordError: the last one cannot be read, so that nobody knows whether it runs.
    """
    numbers, found = attempt_numbers(run), []
    for number in numbers:
        try:
            record = _read_if_there(run.attempt(number))
            if record is None or record.state == "running":
                found.append(record or read_record(run.failure(number), AttemptRecord))
        except RecordError as error:
            if number == numbers[-1]:
                raise RecordError(f"{error}; restore or remove the file") from error
            print(f"hpctrain: {error}; this attempt is left out", file=sys.stderr)
    return found


def slurm_evidence(run: RunPaths, attempt: AttemptRecord | None) -> EndEvidence | None:
    """What Slurm wrote into the batch log since the attempt began."""
    return end_evidence(_log_since(run, attempt.log_offset if attempt else 0))


def _log_since(run: RunPaths, offset: int) -> str:
    try:
        with open_regular(run.batch_log) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(min(offset, size), size - _MAX_LOG_BYTES))
            return stream.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _of_failure(started: AttemptRecord, failure: AttemptRecord, ending: Ending) -> AttemptRecord:
    """A rank left its reason. Where that is a signal or a lost rank, Slurm may know what was behind it."""
    final, evidence = with_failure(started, failure), ending.evidence
    if failure.end_reason == "signal":
        if evidence is not None and evidence.reason in _BY_SLURM:
            return _explained(final, evidence)
        if ending.batch_got_term is False and "SIGTERM" not in failure.message:
            # Cancellation and preemption reach the batch script too; the warning before the time limit (USR1) does not.
            return dataclasses.replace(final, end_reason="time_limit")
    if failure.end_reason == "killed" and evidence is not None:
        return _explained(final, evidence)
    return final


def _explained(final: AttemptRecord, evidence: EndEvidence) -> AttemptRecord:
    return dataclasses.replace(
        final,
        end_reason=evidence.reason,
        message=f"{evidence.message}; {final.message}",
        failed_rank=evidence.failed_rank,
        failed_node=evidence.failed_node,
        exit_code=final.exit_code if evidence.exit_code is None else evidence.exit_code,
    )


def _of_silence(started: AttemptRecord, ending: Ending, now_s: float) -> AttemptRecord:
    """No rank left a word."""
    final = dataclasses.replace(started, state="failed", ended_at_s=now_s, exit_code=ending.exit_code)
    evidence = ending.evidence
    if ending.launch_message and evidence is None and ending.batch_got_term:
        message = f"ended by SIGTERM during {ending.launch_message}"
        return dataclasses.replace(final, end_reason="signal", message=message)
    if ending.launch_message and (evidence is None or evidence.reason not in _BY_SLURM):
        message = f"{ending.launch_message} (exit code {ending.exit_code})"
        return dataclasses.replace(final, end_reason="launch_failed", message=message)
    if evidence is not None:
        during = f" during {ending.launch_message}" if ending.launch_message else ""
        # srun ends with 143 when it has ended the others, and not with the code of the task that failed.
        return dataclasses.replace(
            final,
            end_reason=evidence.reason,
            message=f"{evidence.message}{during}",
            failed_rank=evidence.failed_rank,
            failed_node=evidence.failed_node,
            exit_code=ending.exit_code if evidence.exit_code is None else evidence.exit_code,
        )
    if ending.lost:
        return dataclasses.replace(final, end_reason="no_end_marker", message=ending.lost)
    reason, message = _reason_of(ending.exit_code, bool(started.nodes))
    return dataclasses.replace(final, end_reason=reason, message=message)


def _reason_of(exit_code: int | None, ranks_met: bool) -> tuple[EndReason, str]:
    """What an exit code says when neither a rank nor Slurm left a word."""
    told = "" if exit_code is None else f" (exit code {exit_code})"
    if exit_code == _SIGNAL_BASE + _SIGKILL:
        return "killed", "killed (9), probably out of memory: see the node's memory and --mem"
    if exit_code == _SIGNAL_BASE + _SIGTERM:
        return "signal", "ended by SIGTERM: cancelled, time limit, preemption, or a rank that left no word; see logs"
    if not ranks_met:
        return "launch_failed", f"the ranks did not come up{told}; see logs"
    return "no_end_marker", f"no rank left a reason{told}; see logs"


def _read_if_there(path: Path) -> AttemptRecord | None:
    return read_record(path, AttemptRecord) if path.exists() else None


def _asked_slurm(final: AttemptRecord) -> AttemptRecord:
    """With what only the controller knows: which node failed, and whether the job starts again."""
    told = _restart_told(final.job_id, int(os.environ.get("SLURM_RESTART_COUNT") or 0))
    final = dataclasses.replace(final, continuation=told)
    nodelist = os.environ.get("SLURM_JOB_NODELIST")
    if final.end_reason != "node_failure" or final.failed_node or not nodelist:
        return final
    try:
        failed = nodes_down_since([nodelist], final.started_at_s)
    except LaunchError as error:
        return dataclasses.replace(final, message=f"{final.message}; which one is not known ({error})")
    return dataclasses.replace(final, failed_node=",".join(failed) or None)


def _restart_told(job_id: str, restarts_before: int) -> str:
    """Whether Slurm has put the job into its queue again."""
    try:
        facts = job_facts(job_id)
    except LaunchError as error:
        return f"whether Slurm starts it again is not known ({error})"
    if facts is not None and facts.restarts > restarts_before:
        return STARTS_AGAIN
    return (
        "Slurm does not start it again (cluster.requeue, the partition's PreemptMode and JobRequeue decide); resume RUN"
    )


def main() -> None:
    run, exit_code = RunPaths(Path(sys.argv[1])), int(sys.argv[2])
    number, job_id = attempt_number(os.environ), job_id_of(os.environ)
    try:
        ending = Ending(
            exit_code,
            job_id,
            launch_message=sys.argv[3] if len(sys.argv) > 3 else "",
            evidence=slurm_evidence(run, _read_if_there(run.attempt(number))),
            batch_got_term=BATCH_SIGNAL_VARIABLE in os.environ,
        )
        final = close_attempt(run, number, ending, time.time())
        if final.end_reason in _RESTARTED_BY_SLURM and final.job_id == job_id:
            # The end is written first: Slurm may leave little time.
            final = _asked_slurm(final)
            write_record(run.attempt(number), final)
    except (HpctrainError, OSError) as error:
        sys.exit(f"hpctrain: no end marker of attempt {number}: {error}")
    told = f"; {final.continuation}" if final.continuation else ""
    print(
        f"hpctrain: attempt {final.attempt} {final.state} ({final.end_reason}, exit code {final.exit_code}):"
        f" {final.message}{told}"
    )


if __name__ == "__main__":
    main()
