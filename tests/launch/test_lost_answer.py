"""A run whose submitting process was killed during sbatch: the next look finds its job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctrain.cli import run
from hpctrain.launch.slurm.lost_answer import runs_with
from hpctrain.launch.status.rows import collect_status
from hpctrain.record.paths import RunPaths
from tests.launch.fake_slurm import FakeSlurm
from tests.launch.fake_slurm import slurm as slurm  # the fixture

WORDS = ("model=tiny", "cluster=sandbox")


def killed_run(slurm: FakeSlurm, *words: str) -> RunPaths:
    """A run whose submitting process is gone, its sbatch still at work."""
    slurm.act("slow")
    command = [sys.executable, "-m", "hpctrain", *WORDS, f"run.root={slurm.root}", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ))
    while slurm.num_calls == 0:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (folder,) = slurm.root.glob("tiny-*")
    return RunPaths(folder)


def wait_for_answer(paths: RunPaths) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and runs_with(str(paths.submission_script)):
        time.sleep(0.05)


@pytest.mark.parametrize("words", [(), ("cluster.comment=mine",)], ids=["key", "own-comment"])
def test_status_records_the_job_of_a_submission_that_was_cut_off(
    slurm: FakeSlurm, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    paths = killed_run(slurm, *words)
    assert run(["status", str(slurm.root)]) == 0
    assert not paths.submission.exists()  # its sbatch runs yet
    wait_for_answer(paths)
    assert run(["status", str(slurm.root)]) == 0
    assert f"hpctrain: {paths.root}: its submission was cut off; it is job 101" in capfd.readouterr().err
    record = json.loads(paths.submission.read_text(encoding="utf-8"))
    assert (record["job_id"], record["first_attempt"], record["chain"]) == ("101", 1, [])
    assert not list(paths.root.glob("*.sbatch-*"))
    assert run(["cancel", str(paths.root)]) == 0
    assert slurm.cancelled == ["101"]
    assert slurm.num_calls == 1


def test_the_job_is_found_in_the_queue_where_the_answer_is_gone(slurm: FakeSlurm) -> None:
    paths = killed_run(slurm)
    wait_for_answer(paths)
    (paths.root / "submission.sbatch-out").write_bytes(b"")
    (row,) = collect_status([paths])
    assert row.job_id == "101"


def test_a_point_of_a_sweep_is_left_to_its_manifest(slurm: FakeSlurm) -> None:
    paths = killed_run(slurm)
    wait_for_answer(paths)
    (slurm.root / "sweep.json").write_text("{}", encoding="utf-8")
    collect_status([paths])
    assert not paths.submission.exists()
    assert Path(paths.root / "submission.sbatch-out").exists()
