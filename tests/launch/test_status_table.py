"""The table of status: columns that fit, sweeps with their summary, filters."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from hpctrain.cli import run as run_command
from hpctrain.errors import ConfigError
from hpctrain.launch.status.filter import filtered, group_of
from hpctrain.launch.status.rows import RunStatus
from hpctrain.launch.status.table import status_table
from tests.analysis.make_runs import Attempt
from tests.launch.status_runs import submitted_run

ROW = RunStatus(
    run="mt-nlg-530b-128n-zero3-20261130-080000-ab12",
    path="/runs/a",
    sweep="",
    job_id="12345678_123",
    state="RUNNING",
    detail="",
    is_over=False,
    end_reason="",
    exit_code=None,
    failed_rank=None,
    failed_node="",
    payload="train",
    attempt=2,
    step=12345,
    num_steps=500000,
    num_nodes=128,
    world_size=1024,
    loss=2.34567,
    step_time_s=60.1,
    model_tflops_per_gpu=126.04,
    predicted_step_time_s=57.2,
    measured_over_predicted=1.0507,
    eta_s=200000.0,
    gpu_hours=123456.7,
    queue_time_s=7300.0,
    expected_start_s=None,
    submitted_at_s=1000.0,
    last_step_at_s=2000.0,
    stale_since_s=None,
)
WAITING = dataclasses.replace(
    ROW,
    run="tiny-1n",
    path="/runs/b",
    state="PENDING",
    detail="JobHeldUser: held by its user; scontrol release 7",
    attempt=0,
    step=0,
    loss=None,
    step_time_s=None,
    model_tflops_per_gpu=None,
    measured_over_predicted=None,
    eta_s=None,
    gpu_hours=0.0,
    expected_start_s=90_000.0,
)
FAILED = dataclasses.replace(ROW, path="/runs/c", state="OUT_OF_MEMORY", is_over=True, detail="x\ny" + "z" * 300)


def test_without_a_terminal_all_columns_are_there() -> None:
    header, first, second = status_table([ROW, WAITING]).splitlines()
    words = ["run", "job", "state", "try", "step", "loss", "ms/step", "of plan", "TFLOPs/GPU", "ETA", "GPU-h", "queued"]
    assert all(word in header for word in [*words, "starts", "detail"])
    for value in ("12345678_123", "12345/500000", "2.3457", "60100.0", "1.05", "126", "2d7h", "123,456.7", "2h1min"):
        assert value in first
    assert second.endswith("JobHeldUser: held by its user; scontrol release 7")


@pytest.mark.parametrize("width", [200, 160, 132, 120, 100, 80, 60, 40, 20, 1])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    table = status_table([ROW, WAITING, FAILED], width, {"/runs/sweep-with-a-long-name-20261130": 7})
    assert all(len(line) <= width for line in table.splitlines())
    assert len(table.splitlines()) == 5


def test_eighty_columns_keep_name_state_step_and_reason() -> None:
    table = status_table([ROW, WAITING], 80)
    header, first, second = table.splitlines()
    assert [word for word in ("run", "state", "step", "detail") if word in header.split()] == [
        "run", "state", "step", "detail",
    ]  # fmt: skip
    assert first.startswith("mt-nlg-")
    assert "-ab12" in first
    assert "RUNNING" in first
    assert "JobHeldUser: held by" in second


def test_stale_states_are_marked() -> None:
    assert "RUNNING?" in status_table([dataclasses.replace(ROW, stale_since_s=1.0)])


def test_signs_that_a_terminal_obeys_are_spelled_out() -> None:
    table = status_table([dataclasses.replace(ROW, detail="\x1b[2Jboo")])
    assert "\\x1b[2Jboo" in table


def test_a_sweep_is_a_group_with_a_summary() -> None:
    points = [
        dataclasses.replace(row, sweep="/runs/s1", run=f"run-0-000{number}")
        for number, row in enumerate((ROW, WAITING, FAILED))
    ]
    alone = dataclasses.replace(ROW, path="/runs/d", run="alone")
    lines = status_table([points[0], alone, *points[1:]], None, {"/runs/s1": 2, "/runs/s2": 4}).splitlines()
    assert lines[1].startswith("sweep s1: 1 running, 1 waiting, 1 out_of_memory, 2 not submitted; 246,913.4 GPU-h")
    assert [line.split()[0] for line in lines[2:5]] == ["run-0-0000", "run-0-0001", "run-0-0002"]
    assert lines[5].startswith("alone")
    assert lines[6] == "sweep s2: 4 not submitted; 0.0 GPU-h"


def test_points_are_told_by_what_differs() -> None:
    points = [
        dataclasses.replace(ROW, sweep="/runs/s1", run=f"run-0-000{number}", path=f"/{number}", point=f"nodes={number}")
        for number in (1, 2)
    ]
    assert "  run-0-0002 nodes=2 " in status_table(points)
    assert all("nodes=" in line for line in status_table(points, 80).splitlines()[2:])


def test_no_runs() -> None:
    assert status_table([]) == "no runs"


@pytest.mark.parametrize(
    ("state", "is_over", "group"),
    [
        ("RUNNING", False, "running"),
        ("COMPLETING", False, "running"),
        ("NEWSTATE", False, "running"),
        ("SUBMITTED", False, "waiting"),
        ("REQUEUE_HOLD", False, "waiting"),
        ("LAUNCH_FAILED", False, "launch_failed"),
        ("COMPLETED", True, "done"),
        ("TIMEOUT", True, "timeout"),
        ("FAILED", True, "failed"),
        ("CANCELLED", True, "cancelled"),
        ("UNKNOWN", True, "unknown"),
        ("UNKNOWN", False, "unknown"),
    ],
)
def test_groups(state: str, is_over: bool, group: str) -> None:
    assert group_of(dataclasses.replace(ROW, state=state, is_over=is_over)) == group


def test_filters() -> None:
    rows = [ROW, WAITING, FAILED]
    assert filtered(rows, ["running"], None) == [ROW]
    ended = [dataclasses.replace(FAILED, state=state) for state in ("FAILED", "CANCELLED", "TIMEOUT")]
    assert [row.state for row in filtered([*rows, *ended], ["failed"], None)] == ["FAILED"]
    assert [row.state for row in filtered([*rows, *ended], ["Cancelled", "timeout"], None)] == ["CANCELLED", "TIMEOUT"]
    assert filtered(rows, ["out_of_memory", "pending"], None) == [WAITING, FAILED]
    assert filtered(rows, ["active"], None) == [ROW, WAITING]
    assert filtered(rows, [], 2) == [WAITING, FAILED]
    assert filtered(rows, ["active"], 1) == [WAITING]
    with pytest.raises(ConfigError, match="--state=runing: is no state; nearest: running") as caught:
        filtered(rows, ["runing"], None)
    listed = str(caught.value).partition("known: ")[2].split(", ")
    assert len(listed) == len(set(listed)) > 20


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--last", "0"], "--last=0: must be 1 or above"),
        (["--watch", "--json"], "--watch: prints text"),
        (["--state", "nosuch"], "--state=nosuch: is no state"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_command(["status", str(tmp_path), *words])
    assert expected in str(caught.value)


def test_json_keeps_its_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submitted_run(tmp_path / "run", "7", [Attempt([1.0] * 10)])
    assert run_command(["status", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert list(row) == [field.name for field in dataclasses.fields(RunStatus)]
    assert (row["state"], row["detail"], row["step"]) == ("COMPLETED", "", 10)
    # The interface of scripts: names may be added, not taken away.
    assert {"run", "path", "job_id", "state", "detail", "attempt", "step", "num_steps", "loss", "step_time_s"} <= set(
        row
    )


def test_a_choice_of_points_says_of_how_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "sweep-1"
    points = []
    for number in range(3):
        submitted_run(sweep / f"run-0-000{number}", f"7_{number}", [Attempt([1.0] * 10)], 900.0 + number)
        points.append({"job_id": f"7_{number}", "run": f"run-0-000{number}", "overrides": ["a=1", f"nodes={number}"]})
    points.append({"job_id": "", "run": "run-1-0000", "overrides": ["a=1", "nodes=9"]})
    (sweep / "sweep.json").write_text(json.dumps({"points": points}), encoding="utf-8")
    run_command(["status", str(tmp_path), "--last", "2"])
    told = capsys.readouterr().out
    assert "sweep sweep-1: 2 of 4 points: 2 done; " in told
    assert "  run-0-0002 nodes=2 " in told
    run_command(["status", str(tmp_path), "--json"])
    assert [row["point"] for row in json.loads(capsys.readouterr().out)] == ["nodes=0", "nodes=1", "nodes=2"]
    run_command(["status", str(tmp_path)])
    assert "sweep sweep-1: 3 done, 1 not submitted; " in capsys.readouterr().out


def test_points_without_a_job_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "sweep-1"
    submitted_run(sweep / "run-0-0000", "7_0", [Attempt([1.0] * 10)])
    names = [("7_0", "run-0-0000"), ("", "run-0-0001"), ("", "run-0-0002")]
    points = [{"job_id": job_id, "run": name} for job_id, name in names]
    (sweep / "sweep.json").write_text(json.dumps({"points": points}), encoding="utf-8")
    run_command(["status", str(tmp_path)])
    assert "sweep sweep-1: 1 done, 2 not submitted" in capsys.readouterr().out
    (sweep / "sweep.json").write_text("{", encoding="utf-8")
    run_command(["status", str(tmp_path)])
    assert "sweep sweep-1: 1 done; " in capsys.readouterr().out
    (tmp_path / "loop").symlink_to("loop")
    run_command(["status", str(tmp_path)])
    assert "sweep sweep-1: 1 done; " in capsys.readouterr().out
