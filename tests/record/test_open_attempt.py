"""The beginning of an attempt: its number, and the starts that are refused."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import LaunchError, RecordError
from hpctrain.record import open_attempt as open_attempt_module
from hpctrain.record.attempt_rules import Refusal, Start
from hpctrain.record.files import write_record
from hpctrain.record.open_attempt import open_attempt, open_local_attempt, with_opening
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts, read_each_attempt
from hpctrain.record.schema import AttemptRecord, NodeRecord
from tests.record.test_files import attempt

PREEMPTION = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T08:20:56 DUE TO PREEMPTION ***\n"


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "a b'c $d")
    paths.attempts.mkdir(parents=True)
    paths.logs.mkdir()
    return paths


def opened(run: RunPaths, job_id: str = "7", alive: tuple[str, ...] = (), **changes: Any) -> int | Refusal:
    start = Start(**{"job_id": job_id, "first_attempt": 1, "newest_step": 0, "max_attempts": 10, **changes})
    return open_attempt(run, start, "n1", 500.0, lambda record: record.job_id in alive)


def test_the_first_attempt_begins(run: RunPaths) -> None:
    run.batch_log.write_text("a site's banner\n", encoding="utf-8")
    assert opened(run, newest_step=0) == 1
    (record,) = read_attempts(run)
    assert (record.state, record.job_id, record.host, record.started_at_s) == ("running", "7", "n1", 500.0)
    assert (record.log_offset, record.nodes, record.world_size) == (16, (), None)


def test_a_second_job_of_the_same_run_is_refused_with_the_first_ones_id(run: RunPaths) -> None:
    opened(run, "7")
    with pytest.raises(LaunchError, match="attempt 1 of this run is running as job 7 on n1; two jobs must not write"):
        opened(run, "8", alive=("7",))
    assert [record.attempt for record in read_attempts(run)] == [1]


def test_of_jobs_that_start_at_once_one_gets_the_run(run: RunPaths) -> None:
    jobs = [str(number) for number in range(4)]
    with ProcessPoolExecutor(len(jobs), multiprocessing.get_context("forkserver")) as pool:
        numbers = list(pool.map(number_or_none, [run] * len(jobs), jobs))
    assert [number for number in numbers if number is not None] == [1]


def test_a_job_that_starts_between_the_look_and_the_creation_is_seen(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the number by then; the next number would give the run two jobs."""
    look = read_each_attempt

    def late(paths: RunPaths) -> Any:
        found = look(paths)
        monkeypatch.setattr(open_attempt_module, "read_each_attempt", look)
        assert opened(run, "other") == 1
        return found

    monkeypatch.setattr(open_attempt_module, "read_each_attempt", late)
    with pytest.raises(LaunchError, match="attempt 1 of this run is running as job other"):
        opened(run, "7", alive=("other",))
    assert [record.attempt for record in read_attempts(run)] == [1]


def number_or_none(run: RunPaths, job_id: str) -> int | Refusal | None:
    try:
        return opened(run, job_id, alive=tuple(map(str, range(4))))
    except LaunchError:
        return None


def test_a_lost_attempt_of_the_same_job_is_closed_by_what_slurm_wrote(run: RunPaths) -> None:
    run.batch_log.write_text("banner\n", encoding="utf-8")
    opened(run)
    with run.batch_log.open("a", encoding="utf-8") as stream:
        stream.write(PREEMPTION)
    assert opened(run) == 2
    first, second = read_attempts(run)
    assert (first.state, first.end_reason, first.ended_at_s) == ("failed", "preempted", 500.0)
    assert second.log_offset == len("banner\n" + PREEMPTION)
    # What was written before an attempt began says nothing of it.
    assert opened(run, newest_step=3) == 3
    assert read_attempts(run)[1].end_reason == "no_end_marker"
    assert "Slurm started the job again" in read_attempts(run)[1].message


def test_a_lost_attempt_of_a_job_that_is_gone_is_closed(run: RunPaths) -> None:
    opened(run, "7")
    assert opened(run, "8") == 2
    assert "job 7 is gone" in read_attempts(run)[0].message


def test_a_lost_attempt_keeps_what_a_rank_left(run: RunPaths) -> None:
    opened(run)
    write_record(run.failure(1), attempt(1, state="failed", end_reason="exception", message="boom", failed_rank=3))
    opened(run)
    first = read_attempts(run)[0]
    assert (first.end_reason, first.failed_rank, first.message) == ("exception", 3, "boom")


def test_attempts_without_progress_end_the_run(run: RunPaths) -> None:
    assert [opened(run), opened(run)] == [1, 2]
    refusal = opened(run)
    assert isinstance(refusal, Refusal)
    last = read_attempts(run)[-1]
    assert (last.attempt, last.state, last.end_reason, last.nodes) == (3, "failed", "no_progress", ())
    assert "no progress: attempts 1 (no_end_marker) and 2 (no_end_marker)" in last.message
    # Asked once more, it says the same and leaves no further record.
    again = opened(run)
    assert isinstance(again, Refusal)
    assert "no progress" in again.message
    assert len(read_attempts(run)) == 3


def test_a_damaged_record_keeps_nothing_but_where_it_is_the_last(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(run)
    opened(run, newest_step=1)
    run.attempt(1).write_text("{", encoding="utf-8")
    assert opened(run, newest_step=2) == 3
    assert "1.json" in capsys.readouterr().err
    run.attempt(3).write_text("{", encoding="utf-8")
    with pytest.raises(RecordError, match=r"3\.json: .*restore or remove the file"):
        opened(run, newest_step=3)


def test_a_completed_run_is_not_started_again(run: RunPaths) -> None:
    write_record(run.attempt(1), attempt(1, state="completed", end_reason="completed"))
    refusal = opened(run)
    assert isinstance(refusal, Refusal)
    assert (refusal.exit_code, len(read_attempts(run))) == (0, 1)


def test_a_local_run_takes_the_next_number(run: RunPaths) -> None:
    assert open_local_attempt(run, "here", 500.0) == 1
    assert open_local_attempt(run, "here", 501.0) == 2
    first, second = read_attempts(run)
    assert (first.state, first.message) == ("failed", "ended without a word: its process on here is gone")
    assert second.state == "running"


def test_ranks_keep_what_was_known_at_the_opening(run: RunPaths) -> None:
    opened(run, newest_step=40)
    ranks = AttemptRecord(1, 1, "7", "running", 510.0, nodes=(NodeRecord("n1", (0,), 2),), world_size=1)
    joined = with_opening(ranks, run.attempt(1))
    assert (joined.started_at_s, joined.start_step, joined.host, joined.world_size) == (500.0, 40, "n1", 1)
    assert with_opening(ranks, run.attempt(2)) == ranks


SCONTROL = """#!/bin/sh
case "$*" in
*"show job 7"*) echo "JobId=7 JobName=x JobState=$STATE Reason=None Requeue=1 Restarts=0 BatchFlag=1";;
*"show node"*) echo "NodeName=n1 State=DOWN* BootTime=None SlurmdStartTime=None";;
*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;;
esac
"""


def called(run: RunPaths, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The batch script's call, with a scontrol that knows one other job."""
    (folder / "bin").mkdir(exist_ok=True)
    fake = folder / "bin" / "scontrol"
    fake.write_text(SCONTROL, encoding="utf-8")
    fake.chmod(0o755)
    env = {**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1", **variables}
    command = [sys.executable, "-m", "hpctrain.record.open_attempt", str(run.root)]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_the_command_prints_the_number_or_says_why_not(run: RunPaths, tmp_path: Path) -> None:
    from hpctrain.config.compose import compose_points
    from hpctrain.record.frozen_config import config_text

    (point,) = compose_points(["model=tiny"], multirun=False)
    run.config.write_text(config_text(point.config), encoding="utf-8")
    first = called(run, tmp_path, SLURM_JOB_ID="7")
    assert (first.stdout, first.returncode) == ("1\n", 0), first.stderr
    other = called(run, tmp_path, SLURM_JOB_ID="8", STATE="RUNNING")
    assert (other.stdout, other.returncode) == ("", 4)
    assert "attempt 1 of this run is running as job 7" in other.stderr
    after = called(run, tmp_path, SLURM_JOB_ID="8", STATE="COMPLETED")
    assert (after.stdout, after.returncode) == ("2\n", 0)
    lost = read_attempts(run)[0]
    assert (lost.end_reason, lost.failed_node) == ("node_failure", "n1")
    write_record(run.attempt(2), attempt(2, state="completed", end_reason="completed", job_id="8"))
    done = called(run, tmp_path, SLURM_JOB_ID="8")
    assert (done.stdout, done.returncode) == ("", 0)
    assert "the run has completed" in done.stderr
    resumed = called(run, tmp_path, SLURM_JOB_ID="9", HPCTRAIN_FIRST_ATTEMPT="3")
    assert resumed.stdout == "3\n"
