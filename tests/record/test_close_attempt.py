"""The end marker that is written after the ranks are gone."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.record.close_attempt import Ending, close_attempt, slurm_evidence, unclosed_attempts
from hpctrain.record.end_evidence import EndEvidence
from hpctrain.record.files import write_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts
from hpctrain.record.schema import AttemptRecord, NodeRecord
from tests.record.test_files import attempt


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.attempts.mkdir()
    paths.logs.mkdir()
    return paths


MET: dict[str, Any] = {"nodes": (NodeRecord("n1", (0, 1), 2),), "world_size": 2}
OUT_OF_MEMORY = EndEvidence("out_of_memory", "rank 1 on n1 was killed: out of memory", None, 1, "n1")
NODE = EndEvidence("node_failure", "node failure on n2", failed_node="n2")
CANCELLED = EndEvidence("cancelled", "cancelled (scancel)")
LIMIT = EndEvidence("time_limit", "Slurm's time limit was reached")
CODE_3 = EndEvidence("exception", "rank 2 on n1 ended without a word", 3, 2, "n1")


def closed(run: RunPaths, exit_code: int | None, **known: Any) -> AttemptRecord:
    return close_attempt(run, 1, Ending(exit_code, "7", **known), now_s=200.0)


def failure(reason: str, **changes: Any) -> AttemptRecord:
    values: dict[str, Any] = {"exit_code": 16, "message": "stopped", "ended_at_s": 150.0, **changes}
    return attempt(state="failed", end_reason=reason, **values)


@pytest.mark.parametrize(
    ("exit_code", "met", "reason", "words"),
    [
        (137, True, "killed", "killed (9), probably out of memory"),
        (143, True, "signal", "SIGTERM"),
        (1, False, "launch_failed", "did not come up (exit code 1)"),
        (1, True, "no_end_marker", "no rank left a reason"),
        (0, True, "no_end_marker", "exit code 0"),
    ],
)
def test_reasons_from_the_exit_code(run: RunPaths, exit_code: int, met: bool, reason: str, words: str) -> None:
    write_record(run.attempt(1), attempt(**(MET if met else {})))
    final = closed(run, exit_code)
    assert (final.state, final.end_reason, final.exit_code, final.ended_at_s) == ("failed", reason, exit_code, 200.0)
    assert words in final.message
    assert read_attempts(run) == [final]


@pytest.mark.parametrize(
    ("evidence", "exit_code", "reason", "code", "rank", "node"),
    [
        (CODE_3, 143, "exception", 3, 2, "n1"),
        (OUT_OF_MEMORY, 137, "out_of_memory", 137, 1, "n1"),
        (NODE, 143, "node_failure", 143, None, "n2"),
        (CANCELLED, 143, "cancelled", 143, None, None),
        (LIMIT, 143, "time_limit", 143, None, None),
    ],
)
def test_what_slurm_says_where_no_rank_left_a_word(
    run: RunPaths, evidence: EndEvidence, exit_code: int, reason: str, code: int, rank: int | None, node: str | None
) -> None:
    write_record(run.attempt(1), attempt(**MET))
    final = closed(run, exit_code, evidence=evidence)
    assert (final.end_reason, final.exit_code, final.failed_rank, final.failed_node) == (reason, code, rank, node)
    assert final.message == evidence.message


@pytest.mark.parametrize(
    ("left", "known", "reason", "node", "message"),
    [
        ("signal", {"evidence": CANCELLED}, "cancelled", None, "cancelled (scancel); stopped"),
        ("signal", {"evidence": LIMIT}, "time_limit", None, "Slurm's time limit was reached; stopped"),
        ("signal", {"batch_got_term": True}, "signal", None, "stopped"),
        # Only the warning before the time limit comes to the ranks alone.
        ("signal", {"batch_got_term": False}, "time_limit", None, "stopped"),
        ("time_limit", {"batch_got_term": False}, "time_limit", None, "stopped"),
        ("killed", {"evidence": NODE}, "node_failure", "n2", "node failure on n2; stopped"),
        ("killed", {"evidence": CODE_3}, "exception", "n1", "rank 2 on n1 ended without a word; stopped"),
        ("killed", {}, "killed", None, "stopped"),
        # A rank that failed by itself knows best.
        ("bad_data", {"evidence": CANCELLED}, "bad_data", None, "stopped"),
        ("exception", {"evidence": NODE}, "exception", None, "stopped"),
    ],
)
def test_what_is_behind_a_ranks_record(
    run: RunPaths, left: str, known: dict[str, Any], reason: str, node: str | None, message: str
) -> None:
    write_record(run.attempt(1), attempt(**MET))
    write_record(run.failure(1), failure(left))
    final = closed(run, 16, **known)
    assert (final.state, final.end_reason, final.failed_node, final.message) == ("failed", reason, node, message)
    assert (final.ended_at_s, final.world_size) == (150.0, 2)


def test_a_term_to_the_ranks_alone_is_no_time_limit(run: RunPaths) -> None:
    """Their launcher (slurmstepd) was killed, or ``scancel --signal=TERM`` was for them."""
    write_record(run.attempt(1), attempt(**MET))
    write_record(run.failure(1), dataclasses.replace(failure("signal"), message="stopped after step 9 by SIGTERM"))
    assert closed(run, 16, batch_got_term=False).end_reason == "signal"


def test_a_failed_setup_line_is_named(run: RunPaths) -> None:
    final = closed(run, 127, launch_message="cluster.setup: module load cuda")
    assert (final.end_reason, final.message) == ("launch_failed", "cluster.setup: module load cuda (exit code 127)")


def test_a_setup_line_that_slurm_ended_did_not_fail(run: RunPaths) -> None:
    final = closed(run, 143, launch_message="cluster.setup: sleep 300", evidence=CANCELLED)
    assert (final.end_reason, final.message) == ("cancelled", "cancelled (scancel) during cluster.setup: sleep 300")


def test_a_setup_line_that_was_told_to_end_did_not_fail(run: RunPaths) -> None:
    """Ctrl-C of a run inside an allocation, of which Slurm tells nothing."""
    final = closed(run, 143, launch_message="cluster.setup: sleep 300", batch_got_term=True)
    assert (final.end_reason, final.message) == ("signal", "ended by SIGTERM during cluster.setup: sleep 300")


def test_no_rank_came_up_at_all(run: RunPaths) -> None:
    final = closed(run, 1)
    assert (final.end_reason, final.job_id) == ("launch_failed", "7")


def test_what_a_rank_wrote_is_kept(run: RunPaths) -> None:
    done = attempt(state="completed", end_reason="completed", exit_code=0, ended_at_s=150.0)
    write_record(run.attempt(1), done)
    assert closed(run, 143, evidence=CANCELLED) == done


def test_the_first_failing_rank_speaks_and_not_sruns_code(run: RunPaths) -> None:
    write_record(run.attempt(1), attempt(**MET))
    write_record(run.failure(1), failure("exception", exit_code=3, failed_rank=1, failed_node="n1", message="boom"))
    final = closed(run, 143)
    assert (final.exit_code, final.failed_rank, final.failed_node, final.message) == (3, 1, "n1", "boom")
    assert final.world_size == 2


def test_attempts_without_an_end_marker_are_found(run: RunPaths) -> None:
    write_record(run.attempt(1), attempt(1, state="failed", end_reason="exception"))
    write_record(run.attempt(2), attempt(2))
    write_record(run.failure(2), attempt(2, state="failed", end_reason="killed"))
    write_record(run.failure(3), attempt(3, state="failed", end_reason="bad_environment"))
    assert [record.attempt for record in unclosed_attempts(run)] == [2, 3]


def test_only_what_was_written_since_the_attempt_began_is_evidence(run: RunPaths) -> None:
    old = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T08:20:56 DUE TO PREEMPTION ***\n"
    assert slurm_evidence(run, attempt()) is None
    run.batch_log.write_bytes(old.encode() + b"\xff\xe9 odd bytes\n")
    evidence = slurm_evidence(run, attempt())
    assert evidence is not None
    assert evidence.reason == "preempted"
    assert slurm_evidence(run, attempt(log_offset=len(old))) is None
    assert slurm_evidence(run, attempt(log_offset=10**9)) is None


@pytest.mark.parametrize(
    ("restarts", "told"), [("1", "Slurm starts the job again"), ("0", "Slurm does not start it again")]
)
def test_the_command_tells_whether_slurm_starts_it_again(
    run: RunPaths, tmp_path: Path, restarts: str, told: str
) -> None:
    fake = tmp_path / "bin" / "scontrol"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho 'JobId=7 JobState=COMPLETING Restarts={restarts} '\n", encoding="utf-8")
    fake.chmod(0o755)
    write_record(run.attempt(1), attempt(**MET))
    run.batch_log.write_text(
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T08:20:56 DUE TO PREEMPTION ***\n", encoding="utf-8"
    )
    env = {
        **os.environ,
        "PATH": f"{fake.parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "HPCTRAIN_ATTEMPT": "1",
    }
    command = [sys.executable, "-m", "hpctrain.record.close_attempt", str(run.root), "143", ""]
    answer = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert (
        f"attempt 1 failed (preempted, exit code 143): preempted by a job of higher priority; {told}" in answer.stdout
    )
    assert read_attempts(run)[0].continuation.startswith(told)
