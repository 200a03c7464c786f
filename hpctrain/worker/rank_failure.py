"""What a failing rank leaves behind: the record of the first failure of an attempt."""

from __future__ import annotations

import os
import time

from hpctrain.record.files import create_record
from hpctrain.record.identity import attempt_number, job_id_of, node_name
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord
from hpctrain.worker.end_reasons import EXIT_CODES, HangError, end_reason_of, failure_message


def record_failure(paths: RunPaths, error: BaseException, started_at_s: float) -> int:
    """Leaves the failure record unless another rank was first; returns the exit code."""
    reason = end_reason_of(error)
    exit_code = EXIT_CODES[reason]
    # A signal comes from outside and a lost rank is another one: neither is this rank's failure.
    is_ours = reason not in ("signal", "time_limit", "killed")
    failed_rank, failed_node = _place_of(error) if is_ours else (None, None)
    record = AttemptRecord(
        schema_version=SCHEMA_VERSION,
        attempt=attempt_number(os.environ),
        job_id=job_id_of(os.environ),
        state="failed",
        started_at_s=started_at_s,
        ended_at_s=time.time(),
        end_reason=reason,
        exit_code=exit_code,
        message=failure_message(error),
        failed_rank=failed_rank,
        failed_node=failed_node,
    )
    try:
        is_first = create_record(paths.failure(record.attempt), record)
    except OSError as write_error:
        print(f"hpctrain: {paths.failure(record.attempt)}: {write_error}; no failure record", flush=True)
        return exit_code
    place = "recorded as the first failure" if is_first else "another rank failed first"
    print(f"hpctrain: {reason}, exit code {exit_code} ({place}): {record.message}", flush=True)
    return exit_code


def _place_of(error: BaseException) -> tuple[int | None, str | None]:
    """The rank that failed and its node: this one, or the one that the others wait for."""
    if isinstance(error, HangError):
        return error.rank, error.node
    # The failure may be that RANK could not be computed.
    rank = os.environ.get("SUBMITIT_LOCAL_GLOBALID") or os.environ.get("SLURM_PROCID") or os.environ.get("RANK")
    return int(rank) if rank and rank.isdigit() else None, node_name(os.environ)
