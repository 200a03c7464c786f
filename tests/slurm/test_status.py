"""What follows a submission, on a real Slurm: states of waiting, preempted, failed, cancelled and lost runs, logs, diff."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from hpctrain.launch.status.rows import StatusBoard
from hpctrain.record.files import write_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_submission
from tests.slurm.conftest import DEADLINE_S

pytestmark = pytest.mark.slurm

SOURCE = Path(__file__).parents[2]
SANDBOX = SOURCE / "slurm" / "sandbox" / "sandbox.py"
LIGHT = ("model=tiny", "training=launch_check", "cluster=sandbox")
SLEEPS = "cluster.setup=['sleep 300']"


class Sandbox(Protocol):
    """What the fixture of conftest.py gives."""

    slurm_conf: Path
    env: dict[str, str]


class Runs:
    """The command line on the sandbox, with runs in a folder of their own."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.env = {**sandbox.env, "PYTHONPATH": str(SOURCE)}
        self.conf = sandbox.slurm_conf
        self.folder = folder
        self.root = folder / "my 'runs'"

    def call(self, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
        env = self.env | ({"PATH": path} if path else {})
        command = [sys.executable, "-m", "hpctrain", *words]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=self.folder, check=False)

    def submit(self, *words: str) -> RunPaths:
        before = set(self.root.glob("[!.]*"))
        answer = self.call(*LIGHT, f'run.root="{self.root}"', *words)
        assert answer.returncode == 0, answer.stderr
        (made,) = set(self.root.glob("[!.]*")) - before
        return RunPaths(made)

    def row(self, run: RunPaths, path: str = "") -> dict[str, Any]:
        answer = self.call("status", str(run.root), "--json", path=path)
        assert answer.returncode == 0, answer.stderr
        (row,) = json.loads(answer.stdout)
        assert isinstance(row, dict)
        return row

    def wait_for(self, run: RunPaths, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while not condition(row := self.row(run)):
            assert time.monotonic() < deadline, row
            time.sleep(0.5)
        return row

    def slurm(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, env=self.env, check=True).stdout

    def machine(self, verb: str, *words: str) -> None:
        command = [sys.executable, str(SANDBOX), verb, "--dir", str(self.conf.parent), *words]
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def runs(sandbox: Sandbox, tmp_path: Path) -> Iterator[Runs]:
    made = Runs(sandbox, tmp_path)
    yield made
    if made.root.exists():
        made.call("cancel", str(made.root))


def is_running(row: dict[str, Any]) -> bool:
    return bool(row["state"] == "RUNNING" and row["attempt"])


def test_a_preempted_run_waits_for_its_next_attempt_and_is_cancelled(runs: Runs) -> None:
    run = runs.submit("nodes=4", SLEEPS)
    row = runs.wait_for(run, is_running)
    job_id = row["job_id"]
    urgent = runs.slurm(
        "sbatch", "--parsable", "-p", "urgent", "-N4", "--exclusive", "-o/dev/null", "--wrap=sleep 2"
    ).strip()
    row = runs.wait_for(run, lambda row: row["state"] == "PENDING")
    assert row["detail"].startswith("waiting for attempt 2; ")
    assert (row["job_id"], row["is_over"], row["attempt"]) == (job_id, False, 1)
    assert row["gpu_hours"] > 0
    runs.slurm("scancel", urgent)
    answer = runs.call("cancel", str(run.root))
    assert f"asked Slurm to cancel job {job_id}" in answer.stdout
    row = runs.wait_for(run, lambda row: row["is_over"])
    assert (row["state"], row["end_reason"]) == ("CANCELLED", "cancelled")
    again = runs.call("cancel", str(run.root))
    assert "has ended already" in again.stdout


def test_the_launch_check_ends_with_logs_and_nothing_differs_from_its_twin(runs: Runs) -> None:
    twins = [runs.submit("nodes=2") for _ in range(2)]
    for run in twins:
        row = runs.wait_for(run, lambda row: row["is_over"])
        assert (row["state"], row["end_reason"], row["world_size"]) == ("COMPLETED", "completed", 4), row
    log = runs.call("logs", str(twins[0].root), "--rank", "all", "--grep", "launch check: rank")
    assert [line.split(":")[0] for line in log.stdout.splitlines()] == [f"rank {rank}" for rank in range(4)]
    differing = json.loads(runs.call("diff", *(str(run.root) for run in twins), "--json").stdout)["differences"]
    assert {one["section"] for one in differing} <= {"nodes", "code"}, differing  # code: edited meanwhile


def test_a_failing_line_before_the_ranks_is_told_with_its_log(runs: Runs) -> None:
    run = runs.submit("nodes=1", "cluster.setup=['no-such-module']")
    row = runs.wait_for(run, lambda row: row["is_over"])
    assert (row["state"], row["end_reason"], row["exit_code"]) == ("FAILED", "launch_failed", 127)
    assert "cluster.setup: no-such-module (exit code 127)" in row["detail"]
    assert not list(run.logs.glob("rank-*.log"))
    assert "no-such-module: command not found" in runs.call("logs", str(run.root)).stdout


def test_an_output_folder_that_is_gone_is_a_launch_failure(runs: Runs) -> None:
    run = runs.submit("nodes=1", "cluster.extra.hold=true")
    row = runs.row(run)
    assert (row["state"], row["detail"].partition(":")[0]) == ("PENDING", "JobHeldUser")
    shutil.rmtree(run.logs)
    runs.slurm("scontrol", "release", row["job_id"])
    row = runs.wait_for(run, lambda row: row["is_over"])
    assert (row["state"], row["end_reason"]) == ("FAILED", "launch_failed")
    assert row["detail"].startswith("launch failure: output path, exit code 0:53")


def test_a_sweep_is_told_as_a_group_and_cancelled_by_task_and_as_a_whole(runs: Runs) -> None:
    answer = runs.call(
        "-m", *LIGHT, "nodes=1", "cluster.extra.hold=true", "training.seed=1,2,3", f'run.root="{runs.root}"'
    )
    assert answer.returncode == 0, answer.stderr
    (manifest,) = runs.root.glob("*/sweep.json")
    rows = json.loads(runs.call("status", str(runs.root), "--json").stdout)
    assert len(rows) == 3
    assert {(row["state"], row["sweep"]) for row in rows} == {("PENDING", str(manifest.parent))}
    assert ": 3 waiting; " in runs.call("status", str(runs.root)).stdout
    assert "asked Slurm to cancel job" in runs.call("cancel", rows[1]["path"]).stdout
    states = [runs.row(RunPaths(Path(row["path"])))["state"] for row in rows]
    assert states == ["PENDING", "CANCELLED", "PENDING"]
    answer = runs.call("cancel", str(manifest.parent))
    assert answer.returncode == 0, answer.stderr
    assert "ended already (CANCELLED)" in answer.stdout
    rows = json.loads(runs.call("status", str(runs.root), "--state", "cancelled", "--json").stdout)
    assert [row["state"] for row in rows] == ["CANCELLED"] * 3


def test_the_controller_is_away_while_a_run_is_watched(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(runs.conf))
    run = runs.submit("nodes=1", SLEEPS)
    runs.wait_for(run, is_running)
    board, now_s = StatusBoard([run]), time.time()
    assert board.look(now_s)[0].state == "RUNNING"
    runs.machine("stop-controller")
    try:
        (row,) = board.look(now_s + 100)
        assert (row.state, row.stale_since_s, row.is_over) == ("RUNNING", now_s, False)
        assert "stale since" in row.detail
    finally:
        runs.machine("start-controller")
    (row,) = board.look(now_s + 1000)
    assert (row.state, row.stale_since_s, row.detail) == ("RUNNING", None, "")


def test_a_job_that_nobody_knows_with_and_without_accounting(runs: Runs) -> None:
    run = runs.submit("nodes=1", "cluster.extra.hold=true")
    submission = read_submission(run)
    runs.call("cancel", str(run.root))
    unknown = {**vars(submission), "job_id": "999999", "submitted_at_s": 1000.0}
    write_record(run.submission, type(submission)(**unknown))
    assert runs.row(run)["detail"].startswith("Slurm no longer knows job 999999, and it left no end marker")
    programs = runs.folder / "bin"
    programs.mkdir()
    (programs / "squeue").symlink_to(str(shutil.which("squeue")))
    row = runs.row(run, path=f"{programs}:{os.path.dirname(sys.executable)}")
    assert (row["state"], row["is_over"]) == ("UNKNOWN", True)
    assert "there is no sacct here" in row["detail"]
    answer = runs.call("cancel", str(run.root))
    assert answer.returncode == 4
    assert "job 999999 is not known to be this run" in answer.stderr
