"""Rows of status from run folders and a fake Slurm: numbers, one query for all, seldom, and nothing lost while it is away."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.launch.status.rows import StatusBoard, collect_status
from hpctrain.record.paths import RunPaths
from tests.analysis.make_runs import Attempt, make_run
from tests.launch.status_runs import FakeSlurm, start_attempt, submit_record, submitted_run

CUT_OFF = Attempt([2.0, 1.0, 1.0], end={"state": "running", "ended_at_s": None, "end_reason": None, "exit_code": None})
BROKEN: dict[str, Any] = {
    "end_reason": "exception",
    "exit_code": 1,
    "message": "boom",
    "failed_rank": 3,
    "failed_node": "n2",
}
FAILED = Attempt([1.0, 1.0], end={"state": "failed", **BROKEN})


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return FakeSlurm(tmp_path / "bin")


def test_one_row_has_all_numbers(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [FAILED, CUT_OFF])
    slurm.queue((run, "7", "RUNNING"))
    (row,) = StatusBoard([run]).look(now_s=1100.0)
    assert (row.state, row.attempt, row.step, row.num_steps) == ("RUNNING", 2, 3, 10)
    assert (row.step_time_s, row.loss) == (1.0, 4.0 / 3)
    assert row.model_tflops_per_gpu == pytest.approx(693633024.0 / 8 / 1e12)
    assert row.eta_s == 7.0
    # Attempt 1 took 12 s; attempt 2 runs since 1,012 s; 8 GPUs.
    assert row.gpu_hours == pytest.approx((12 + 88) * 8 / 3600)
    assert row.queue_time_s == 100.0
    assert not row.is_over


def test_the_time_of_a_step_is_the_newest_attempts(slurm: FakeSlurm, tmp_path: Path) -> None:
    """It may have been resumed on other ranks."""
    slow = Attempt([30.0] * 15, end={"state": "failed", **BROKEN})
    run = submitted_run(tmp_path / "run", "7", [slow, Attempt([2.0, 1.0, 1.0], first_step=16, end=CUT_OFF.end)])
    slurm.queue((run, "7", "RUNNING"))
    (row,) = StatusBoard([run]).look(now_s=2000.0)
    assert (row.step, row.step_time_s) == (18, 1.0)


def test_an_end_marker_written_after_the_files_were_read_counts(slurm: FakeSlurm, tmp_path: Path) -> None:
    """A job may end between the look at its files and Slurm's answer."""
    run = submitted_run(tmp_path / "run", "7", [CUT_OFF])
    slurm.queue((run, "7", "FAILED"))
    board = StatusBoard([run])
    start_attempt(run, 1, "7", state="failed", ended_at_s=1010.0, **BROKEN)
    (row,) = board.look(now_s=1100.0)
    assert (row.state, row.end_reason, row.exit_code, row.failed_rank) == ("FAILED", "exception", 1, 3)


def test_the_failed_rank_its_node_and_its_code_are_fields(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [FAILED])
    (row,) = collect_status([run])
    assert (row.state, row.end_reason, row.exit_code) == ("FAILED", "exception", 1)
    assert (row.failed_rank, row.failed_node) == (3, "n2")
    assert row.detail == "exception (exit code 1, rank 3 on n2): boom"
    assert row.gpu_hours == pytest.approx(12 * 8 / 3600)


def test_runs_that_ended_well_ask_nobody(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [Attempt([1.0] * 10)])
    assert collect_status([run])[0].state == "COMPLETED"
    assert slurm.calls == []


def test_old_failures_with_a_known_cause_are_not_asked_of_accounting(slurm: FakeSlurm, tmp_path: Path) -> None:
    runs = [submitted_run(tmp_path / f"run{number}", str(number), [FAILED]) for number in range(1, 30)]
    assert {row.state for row in collect_status(runs)} == {"FAILED"}
    assert [call.split()[0] for call in slurm.calls] == ["squeue"]


def test_a_damaged_folder_is_a_row_of_its_own(slurm: FakeSlurm, tmp_path: Path) -> None:
    good = submitted_run(tmp_path / "good", "7", [Attempt([1.0] * 10)])
    no_plan, no_submission = submitted_run(tmp_path / "a", "8"), make_run(tmp_path / "b")
    no_plan.plan.write_text('{"layout": 3}', encoding="utf-8")
    rows = {row.run: row for row in collect_status([good, no_plan, no_submission])}
    assert rows["good"].state == "COMPLETED"
    assert "is no plan of this version" in rows["a"].detail
    assert rows["a"].state == rows["b"].state == "UNKNOWN"
    assert "never submitted" in rows["b"].detail


def test_a_damaged_plan_hides_neither_the_end_nor_a_job_that_runs(slurm: FakeSlurm, tmp_path: Path) -> None:
    ended, runs = submitted_run(tmp_path / "a", "7", [FAILED]), submitted_run(tmp_path / "b", "8")
    for run in (ended, runs):
        run.plan.write_text("{", encoding="utf-8")
    slurm.queue((runs, "8", "RUNNING"))
    rows = collect_status([ended, runs])
    assert [row.state for row in rows] == ["FAILED", "RUNNING"]
    assert all("plan.json" in row.detail for row in rows)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"name": 1}', "[[" * 5000, '{"layout": null}'])
def test_any_damage_of_a_plan_is_told(slurm: FakeSlurm, tmp_path: Path, text: str) -> None:
    run = submitted_run(tmp_path / "a", "8")
    run.plan.write_text(text, encoding="utf-8")
    assert str(run.plan) in collect_status([run])[0].detail


def test_damaged_lines_of_steps_are_passed_over(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [Attempt([1.0] * 400)])
    with run.steps.open("ab") as stream:
        stream.write(b"\xff\xfe not json\n" + b'{"half')
    assert collect_status([run])[0].step == 400


def test_the_order_is_that_of_submission(slurm: FakeSlurm, tmp_path: Path) -> None:
    late = submitted_run(tmp_path / "a", "7", [FAILED], submitted_at_s=990.0)
    early = submitted_run(tmp_path / "z", "8", [FAILED], submitted_at_s=800.0)
    assert [row.run for row in collect_status([late, early])] == ["z", "a"]


def board_over(runs: list[RunPaths], board: StatusBoard, seconds: int, start_s: float = 10_000.0) -> None:
    for second in range(0, seconds, 2):
        board.look(start_s + second)


def test_fifty_jobs_followed_for_two_minutes_cost_at_most_five_queries(slurm: FakeSlurm, tmp_path: Path) -> None:
    runs = [submitted_run(tmp_path / f"run{number}", str(number)) for number in range(50)]
    slurm.queue(*((run, str(number), "RUNNING") for number, run in enumerate(runs)))
    board_over(runs, StatusBoard(runs), 120)
    assert 1 <= len(slurm.calls) <= 5


def test_also_where_squeue_knows_nothing_and_states_change(slurm: FakeSlurm, tmp_path: Path) -> None:
    runs = [submitted_run(tmp_path / f"run{number}", str(number)) for number in range(50)]
    board = StatusBoard(runs)
    for second in range(0, 120, 2):
        state = ("PENDING", "RUNNING")[second // 2 % 2]
        slurm.answer("sacct", *(f"{number}|{state}|0:0|900|Unknown|n1||" for number in range(50)))
        board.look(10_000.0 + second)
    assert 1 <= len(slurm.calls) <= 5


def test_questions_get_rarer_up_to_five_minutes_and_frequent_again(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    slurm.queue((run, "7", "PENDING", "Priority"))
    board = StatusBoard([run])
    moments: list[float] = []
    now_s = 10_000.0
    while len(moments) < 10:
        before = len(slurm.calls)
        board.look(now_s)
        moments += [now_s] if len(slurm.calls) > before else []
        now_s += 1.0
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert gaps[0] >= 30
    assert sorted(gaps) == gaps
    assert gaps[-1] == 300
    slurm.queue((run, "7", "RUNNING"))
    board.look(now_s + 300)
    assert board.next_question_s - (now_s + 300) == 30


def test_an_end_that_the_files_tell_is_asked_about_soon(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    start_attempt(run, 1, "7")
    slurm.queue((run, "7", "RUNNING"))
    board = StatusBoard([run])
    for second in range(0, 1000, 10):
        board.look(10_000.0 + second)
    assert board.next_question_s > 11_100
    start_attempt(run, 1, "7", state="failed", **BROKEN)
    slurm.queue((run, "7", "FAILED", "NonZeroExitCode"))
    assert board.look(11_000.0)[0].is_over


def test_a_run_that_comes_later_is_not_lost_before_slurm_was_asked(slurm: FakeSlurm, tmp_path: Path) -> None:
    first, later = submitted_run(tmp_path / "first", "7"), submitted_run(tmp_path / "later", "8", submitted_at_s=950.0)
    slurm.queue((first, "7", "RUNNING"), (later, "8", "PENDING", "Priority"))
    board = StatusBoard([first])
    board.look(10_000.0)
    board.add([later])
    row = board.look(10_010.0)[1]
    assert (row.state, row.is_over, row.detail) == ("UNKNOWN", False, "Slurm has not been asked about this job yet")
    assert board.look(10_030.0)[1].state == "PENDING"


def test_a_controller_that_is_away_keeps_the_last_state(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    start_attempt(run, 1, "7")
    slurm.queue((run, "7", "RUNNING"))
    board = StatusBoard([run])
    assert board.look(10_000.0)[0].stale_since_s is None
    slurm.away()
    slurm.fail("sacct", "sacct: error: Problem talking to the database")
    (row,) = board.look(10_100.0)
    assert (row.state, row.stale_since_s, row.is_over) == ("RUNNING", 10_000.0, False)
    assert "stale since" in row.detail
    assert "Unable to contact slurm controller" in row.detail
    slurm.back()
    slurm.queue((run, "7", "COMPLETING"))
    (row,) = board.look(10_900.0)
    assert (row.state, row.stale_since_s, row.detail) == ("COMPLETING", None, "")


def test_an_end_marker_counts_while_the_controller_is_away(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    slurm.queue((run, "7", "RUNNING"))
    board = StatusBoard([run])
    board.look(10_000.0)
    slurm.away()
    board.look(10_100.0)
    start_attempt(run, 1, "7", state="failed", end_reason="hang", exit_code=18, message="no step for 5 min")
    (row,) = board.look(10_102.0)
    assert (row.state, row.end_reason) == ("FAILED", "hang")


def test_a_controller_that_never_answered_is_unknown_and_not_failed(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [CUT_OFF])
    slurm.away()
    (row,) = StatusBoard([run]).look(1_100.0)
    assert (row.state, row.is_over) == ("UNKNOWN", False)
    assert "Unable to contact" in row.detail
    assert "last step" in row.detail


def test_an_end_marker_that_comes_late_is_waited_for(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    start_attempt(run, 1, "7")
    slurm.queue((run, "7", "RUNNING"))
    board = StatusBoard([run])
    board.look(10_000.0)
    slurm.queue()
    (row,) = board.look(10_060.0)
    assert (row.state, row.is_over) == ("COMPLETING", False)
    assert "waiting up to 60 s for its end marker" in row.detail
    start_attempt(run, 1, "7", state="completed", end_reason="completed", exit_code=0, ended_at_s=1010.0)
    assert board.look(10_080.0)[0].state == "COMPLETED"


def test_an_end_marker_that_never_comes_is_unknown(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    start_attempt(run, 1, "7")
    slurm.queue((run, "7", "RUNNING"))
    board = StatusBoard([run])
    board.look(10_000.0)
    slurm.queue()
    board.look(10_060.0)
    (row,) = board.look(10_121.0)
    assert (row.state, row.is_over) == ("UNKNOWN", True)
    assert "no longer knows job 7" in row.detail


def test_a_lost_node_is_named_while_the_job_waits(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    start_attempt(run, 1, "7")
    slurm.queue((run, "7", "PENDING", "BeginTime"))
    slurm.answer("sinfo", "n1|idle", "n2|down*")
    (row,) = StatusBoard([run]).look(10_000.0)
    assert row.failed_node == "n2"
    assert row.detail.startswith("waiting for attempt 2; BeginTime")
    assert row.detail.endswith("attempt 1 lost node n2")


def test_a_start_after_the_last_question_shows_at_once(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    slurm.queue((run, "7", "PENDING", "Priority"))
    board = StatusBoard([run])
    assert board.look(10_000.0)[0].state == "PENDING"
    start_attempt(run, 1, "7", started_at_s=10_003.0)
    assert board.look(10_004.0)[0].state == "RUNNING"
    assert len(slurm.calls) == 1


def test_a_run_that_is_over_and_is_resumed_is_looked_at_again(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [FAILED])
    board = StatusBoard([run])
    assert board.look(10_000.0)[0].state == "FAILED"
    submit_record(run, "8", 10_001.0, first_attempt=2)
    os.utime(run.submission, (10_001, 10_001))
    slurm.queue((run, "8", "PENDING", "Priority"))
    (row,) = board.look(10_100.0)
    assert (row.state, row.job_id) == ("PENDING", "8")
    assert row.detail.startswith("waiting for attempt 2; Priority")


def test_all_jobs_of_a_chain_are_asked_for(slurm: FakeSlurm, tmp_path: Path) -> None:
    limit = {"state": "failed", "end_reason": "time_limit", "message": "limit"}
    run = submitted_run(tmp_path / "run", "7", [Attempt([1.0], end=limit)], chain=("8", "9"))
    slurm.queue((run, "8", "PENDING", "Priority"), (run, "9", "PENDING", "Dependency"))
    (row,) = collect_status([run])
    assert (row.state, row.job_id) == ("PENDING", "8")
    assert "-j 7,8,9" in slurm.calls[0]


def test_clusters_are_asked_apart(slurm: FakeSlurm, tmp_path: Path) -> None:
    runs = [
        submitted_run(tmp_path / name, "7", slurm_conf=f"/etc/{name}.conf", slurm_cluster=name) for name in ("c1", "c2")
    ]
    slurm.queue((runs[0], "7", "RUNNING"))
    rows = {row.run: row for row in collect_status(runs)}
    assert (rows["c1"].state, rows["c2"].state) == ("RUNNING", "UNKNOWN")
    assert {call.split()[2] for call in slurm.calls if call.startswith("squeue")} == {"c1", "c2"}
    assert "another one now" in rows["c2"].detail


def test_a_damaged_attempt_hides_no_job_that_runs(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [FAILED])
    run.attempt(1).write_text("{", encoding="utf-8")
    assert collect_status([run])[0].state == "UNKNOWN"
    slurm.queue((run, "7", "RUNNING"))
    (row,) = collect_status([run])
    assert row.state == "RUNNING"
    assert str(run.attempt(1)) in row.detail


@pytest.mark.parametrize(
    "variables", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["utf-8", "c"]
)
def test_odd_names_are_shown_in_any_locale(slurm: FakeSlurm, tmp_path: Path, variables: dict[str, str]) -> None:
    run = submitted_run(tmp_path / "runs" / "my run (1) é|x \u4e2d", "7")
    slurm.queue((run, "7", "PENDING", "Priority"))
    command = [sys.executable, "-m", "hpctrain", "status", str(tmp_path / "runs")]
    answer = subprocess.run(command, capture_output=True, env=dict(os.environ) | variables, check=False)
    assert answer.returncode == 0, answer.stderr
    assert b"my run (1) " in answer.stdout
    assert b"PENDING" in answer.stdout
