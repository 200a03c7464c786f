"""The end marker that is written after the ranks are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain.record.close_attempt import close_attempt
from hpctrain.record.files import write_record
from hpctrain.record.identity import attempt_number
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts
from hpctrain.record.schema import NodeRecord
from tests.record.test_files import attempt


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.attempts.mkdir()
    return paths


MET: dict[str, Any] = {"nodes": (NodeRecord("n1", (0, 1), 2),), "world_size": 2}


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
    final = close_attempt(run, 1, exit_code, "7", now_s=200.0)
    assert (final.state, final.end_reason, final.exit_code, final.ended_at_s) == ("failed", reason, exit_code, 200.0)
    assert words in final.message
    assert read_attempts(run) == [final]


def test_a_failed_setup_line_is_named(run: RunPaths) -> None:
    final = close_attempt(run, 1, 127, "7", now_s=200.0, launch_message="cluster.setup: module load cuda")
    assert (final.end_reason, final.message) == ("launch_failed", "cluster.setup: module load cuda (exit code 127)")


def test_no_rank_came_up_at_all(run: RunPaths) -> None:
    final = close_attempt(run, 1, 1, "7", now_s=200.0)
    assert (final.end_reason, final.job_id) == ("launch_failed", "7")


def test_what_a_rank_wrote_is_kept(run: RunPaths) -> None:
    done = attempt(state="completed", end_reason="completed", exit_code=0, ended_at_s=150.0)
    write_record(run.attempt(1), done)
    assert close_attempt(run, 1, 143, "7", now_s=200.0) == done


def test_the_first_failing_rank_speaks_and_not_sruns_code(run: RunPaths) -> None:
    write_record(run.attempt(1), attempt(**MET))
    failure = attempt(
        state="failed", end_reason="exception", exit_code=3, failed_rank=1, failed_node="n1", message="boom"
    )
    write_record(run.failure(1), failure)
    final = close_attempt(run, 1, 143, "7", now_s=200.0)
    assert (final.exit_code, final.failed_rank, final.failed_node, final.message) == (3, 1, "n1", "boom")
    assert final.world_size == 2


def test_attempts_are_counted_from_slurms_restarts() -> None:
    assert attempt_number({}) == 1
    assert attempt_number({"SLURM_RESTART_COUNT": "2"}) == 3
