"""Runs on this machine, as a user starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_submission
from tests.cli.test_cli import hpctrain

pytestmark = pytest.mark.train

TINY = ("model=tiny", "parallelism=zero3", "cluster=local", "model.num_layers=1")
SHORT = (*TINY, "training.num_steps=4", "training.warmup_steps=1")
FOR_EVER = (*TINY, "training.num_steps=1000000", "training.log_interval=1", "training.micro_batch_size=1")


def only_run(folder: Path) -> RunPaths:
    (root,) = (folder / "runs").glob("[!.]*")
    return RunPaths(root)


def state(folder: Path) -> tuple[str, str]:
    (row,) = json.loads(hpctrain("status", "--json", cwd=folder).stdout)
    return row["state"], row["detail"]


def wait_for_first_step(folder: Path, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not only_run(folder).steps.exists():
        assert time.monotonic() < deadline, "no step was recorded"
        time.sleep(0.2)


def test_a_run_ends_with_a_table_and_a_picture(tmp_path: Path) -> None:
    answer = hpctrain(*SHORT, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    for part in ("4/4", "final loss", "median step time", "TFLOP/s per rank, megatron", "peak memory", "summary.png"):
        assert part in answer.stdout
    run = only_run(tmp_path)
    assert run.summary_figure.read_bytes().startswith(b"\x89PNG")
    assert state(tmp_path) == ("COMPLETED", "")
    assert json.loads(run.code.read_text(encoding="utf-8"))["interpreter"] == sys.executable


def test_a_failed_run_gives_its_reason_and_its_own_exit_code(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short", encoding="utf-8")
    answer = hpctrain(*SHORT, "data=text", "data.path=short.txt", cwd=tmp_path)
    assert answer.returncode not in (0, 1, 2, 3, 4)
    assert "bad_data" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert state(tmp_path)[0] == "FAILED"


def test_a_model_that_this_machine_cannot_hold_is_refused(tmp_path: Path) -> None:
    answer = hpctrain("model=175b", "cluster=local", cwd=tmp_path)
    assert answer.returncode == 3
    assert "short by" in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_the_background_is_seen_and_cancelled(tmp_path: Path) -> None:
    assert hpctrain(*FOR_EVER, "cluster.wait=false", cwd=tmp_path).returncode == 0
    wait_for_first_step(tmp_path)
    assert state(tmp_path) == ("RUNNING", "")
    assert "ended process" in hpctrain("cancel", str(only_run(tmp_path).root), cwd=tmp_path).stdout
    assert state(tmp_path)[0] == "CANCELLED"
    assert "ended already" in hpctrain("cancel", str(only_run(tmp_path).root), cwd=tmp_path).stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupt_leaves_no_process(number: int, code: int, tmp_path: Path) -> None:
    source = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-m", "hpctrain", *FOR_EVER],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": source},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("[!.]*")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    wait_for_first_step(tmp_path)
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    assert processes_of(only_run(tmp_path)) == ""
    assert state(tmp_path)[0] == "CANCELLED"


def processes_of(run: RunPaths) -> str:
    """The ranks carry the run folder's path on their command line."""
    return subprocess.run(["pgrep", "-f", str(run.root)], capture_output=True, text=True, check=False).stdout


def test_ranks_do_not_outlive_a_killed_controller(tmp_path: Path) -> None:
    assert hpctrain(*FOR_EVER, "cluster.wait=false", cwd=tmp_path).returncode == 0
    wait_for_first_step(tmp_path)
    run = only_run(tmp_path)
    os.kill(int(read_submission(run).job_id), signal.SIGKILL)
    deadline = time.monotonic() + 60
    while processes_of(run):
        assert time.monotonic() < deadline, "ranks are left"
        time.sleep(0.2)
    assert state(tmp_path)[0] in ("CANCELLED", "FAILED")
