"""``python -m hpctrain.record.close_attempt RUN_DIR EXIT_CODE``: the end marker of an attempt, written after the ranks are gone.

The batch script runs it on the first node. It keeps what the ranks wrote themselves, and fills in the end where they could
not: killed from outside, out of memory, or never started. Light: neither torch nor pandas.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

from hpctrain.record.files import read_record, write_record
from hpctrain.record.identity import attempt_number, job_id_of
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import with_failure
from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord, EndReason

_SIGNAL_BASE = 128
_SIGKILL, _SIGTERM = 9, 15


def close_attempt(
    run: RunPaths, number: int, exit_code: int | None, job_id: str, now_s: float, launch_message: str = ""
) -> AttemptRecord:
    """Writes and returns the final record of attempt ``number``.

    Args:
        run: the run folder.
        number: which start of the job.
        exit_code: of srun or the setup line; None: unknown (a local run whose controller is gone).
        job_id: for an attempt that no rank has recorded.
        now_s: Unix time.
        launch_message: what kept the ranks from being started, where that is known.
    """
    started = _read_if_there(run.attempt(number)) or AttemptRecord(
        SCHEMA_VERSION, number, job_id, "running", started_at_s=now_s, message="no rank reached the first collective"
    )
    failure = _read_if_there(run.failure(number))
    if started.state != "running":
        return started
    if failure is not None:
        final = with_failure(started, failure)
    else:
        reason, message = _reason_of(exit_code, bool(started.nodes))
        if launch_message:
            reason, message = "launch_failed", f"{launch_message} (exit code {exit_code})"
        final = dataclasses.replace(
            started, state="failed", ended_at_s=now_s, end_reason=reason, exit_code=exit_code, message=message
        )
    write_record(run.attempt(number), final)
    return final


def _reason_of(exit_code: int | None, ranks_met: bool) -> tuple[EndReason, str]:
    """What an exit code says when no rank left a word."""
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


def main() -> None:
    run_dir, exit_code = sys.argv[1], int(sys.argv[2])
    number, job_id = attempt_number(os.environ), job_id_of(os.environ)
    launch_message = sys.argv[3] if len(sys.argv) > 3 else ""
    final = close_attempt(RunPaths(Path(run_dir)), number, exit_code, job_id, time.time(), launch_message)
    print(
        f"hpctrain: attempt {final.attempt} {final.state} ({final.end_reason}, exit code {final.exit_code}): {final.message}"
    )


if __name__ == "__main__":
    main()
