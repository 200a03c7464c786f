"""Submission and sweeps on a real Slurm: arrays, a task requeued, a sweep killed, a controller away for a while."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts, read_submission
from hpctrain.record.schema import AttemptRecord
from tests.slurm.conftest import DEADLINE_S, SANDBOX, Sandbox, start_now

pytestmark = pytest.mark.slurm

T = TypeVar("T")

SOURCE = Path(__file__).parents[2]
WORDS = ("cluster=sandbox", "model=tiny", "training=launch_check")
HELD = "cluster.extra.hold=true"
ODD_NAME = "my run (1) é|x"


def start(env: dict[str, str], root: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hpctrain", *words, *WORDS, f'run.root="{root}"'],
        env={**env, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def call(env: dict[str, str], root: Path, *words: str) -> str:
    process = start(env, root, *words)
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stderr
    return stdout


def slurm(env: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout


def wait_until(condition: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {DEADLINE_S} s: {what}")


def scripts_in_queue(env: dict[str, str], root: Path) -> list[str]:
    """Of all jobs of the runs below ``root``, an array counted once."""
    listing = slurm(env, "squeue", "-h", "-a", "-t", "all", "-o", "%F|%o")
    return sorted(line.split("|")[1] for line in set(listing.splitlines()) if str(root) in line)


def manifest_points(root: Path) -> list[dict[str, Any]]:
    paths = list(root.glob("*/sweep.json"))
    points: list[dict[str, Any]] = json.loads(paths[0].read_text(encoding="utf-8"))["points"] if paths else []
    return points


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a b'c $d"


def runs_of(sweep: Path) -> list[RunPaths]:
    points = json.loads((sweep / "sweep.json").read_text(encoding="utf-8"))["points"]
    return [RunPaths(sweep / point["run"]) for point in points]


def ended_attempts(run: RunPaths, count: int) -> list[AttemptRecord]:
    """All attempts when the last of them has ended."""

    def found() -> list[AttemptRecord]:
        attempts = read_attempts(run)
        return attempts if len(attempts) >= count and attempts[count - 1].state != "running" else []

    return wait_until(found, f"attempt {count} of {run.root}")


def test_what_is_requeued_starts_again_alone_in_its_own_folder(sandbox: Sandbox, root: Path) -> None:
    # The second point of each waits in its setup, where it is caught.
    setup = "cluster.setup=['case $run_dir in *-0001) sleep 4 ;; esac']"
    array, allocation = root / "array", root / "allocation"
    told = call(
        sandbox.env,
        root,
        *("-m", "nodes=1", "training.seed=1,2,3", f'run.name="{ODD_NAME}"', setup, "launch.sweep_name=array"),
    )
    assert "3 of 3 points submitted, as 1 job\n" in told
    in_one = ("launch.sweep=one_allocation", "launch.sweep_name=allocation")
    told = call(sandbox.env, root, "-m", "nodes=1,2", setup, *in_one)
    assert "2 of 2 points submitted, as 1 job\n" in told
    tasks, points = runs_of(array), runs_of(allocation)
    array_job = read_submission(tasks[0]).job_id.partition("_")[0]
    assert [read_submission(run).job_id for run in tasks] == [f"{array_job}_{task}" for task in range(3)]
    (allocation_job,) = {read_submission(run).job_id for run in points}
    job = slurm(sandbox.env, "scontrol", "show", "job", f"{array_job}_1")
    assert "JobName=my-run-1-x\n" in job
    assert f"Comment={read_submission(tasks[0]).key}" in job
    for run, job_id in ((tasks[1], f"{array_job}_1"), (points[1], allocation_job)):
        wait_until(lambda run=run: read_attempts(run), f"{run.root} started")  # type: ignore[misc]
        slurm(sandbox.env, "scontrol", "requeue", job_id)
        start_now(partial(slurm, sandbox.env), job_id)
    for run, count in zip([*tasks, *points], (1, 2, 1, 1, 2), strict=True):
        attempts = ended_attempts(run, count)
        assert [attempt.attempt for attempt in attempts] == list(range(1, count + 1))
        assert attempts[-1].state == "completed", attempts
        assert {attempt.job_id for attempt in attempts} == {read_submission(run).job_id}
    assert [read_attempts(run)[-1].world_size for run in points] == [2, 4]


def test_a_sweep_killed_in_the_middle_is_continued_without_a_point_twice(sandbox: Sandbox, root: Path) -> None:
    words = ("-m", "nodes=1,2,3,4", "cluster.time='5','6','7','8','9','10'", "launch.sweep_name=killed", HELD)
    process = start(sandbox.env, root, *words)
    wait_until(lambda: sum(point["state"] == "submitted" for point in manifest_points(root)) >= 2, "two submissions")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(scripts_in_queue(sandbox.env, root)) < 24
    told = call(sandbox.env, root, *words)
    assert "24 of 24 points submitted, as 24 jobs; " in told
    scripts = scripts_in_queue(sandbox.env, root)
    assert scripts == sorted(str(root / "killed" / f"run-{group}-0000" / "submission.sh") for group in range(24))
    assert {point["state"] for point in manifest_points(root)} == {"submitted"}
    slurm(sandbox.env, "scancel", *(point["job_id"] for point in manifest_points(root)))


def test_the_published_scaling_sweep_is_planned_and_refused_by_a_cluster_that_is_too_small(
    sandbox: Sandbox, root: Path
) -> None:
    process = start(sandbox.env, root, "-m", "experiment=azure_fig6", "nodes=64,128")
    _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "8 of 8 points are wrong; nothing was submitted" in stderr
    assert not root.exists()


def test_a_controller_that_is_away_during_submission_gets_the_job_once(sandbox: Sandbox, root: Path) -> None:
    env, folder = sandbox.env, sandbox.slurm_conf.parent
    subprocess.run([sys.executable, SANDBOX, "stop-controller", "--dir", folder], check=True, capture_output=True)
    try:
        process = start(env, root, "nodes=1", HELD)
        assert process.stderr is not None
        told = ""
        for line in process.stderr:
            told += line
            if "asks Slurm for the job" in line:
                break
        assert "Unable to contact slurm controller" in told
    finally:
        subprocess.run([sys.executable, SANDBOX, "start-controller", "--dir", folder], check=True, capture_output=True)
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, told + stderr
    (script,) = scripts_in_queue(env, root)
    submission = read_submission(RunPaths(Path(script).parent))
    assert f"job {submission.job_id}\n" in stdout
    listed = slurm(env, "squeue", "-h", "-a", "-j", submission.job_id, "-o", "%i %k")
    assert listed == f"{submission.job_id} {submission.key}\n"
    slurm(env, "scancel", submission.job_id)
