"""``launch.mode=here``: runs inside an allocation, on the real Slurm."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts, read_submission
from tests.slurm.conftest import DEADLINE_S, Sandbox

pytestmark = pytest.mark.slurm

SOURCE = Path(__file__).parents[2]
HPCTRAIN = shlex.join([sys.executable, "-m", "hpctrain"])
RUN = f"{HPCTRAIN} cluster=sandbox model=tiny parallelism=zero3 launch.mode=here run.root=runs"
SCRIPT = f"""
{RUN} training=launch_check nodes=4; echo "four nodes: $?"
{RUN} training=launch_check nodes=2 && {RUN} training=launch_check nodes=1
echo "two runs: $?"
{RUN} training=benchmark nodes=1 training.num_steps=100000 run.name=long &
until ls runs/long-*/steps.jsonl 2>/dev/null; do sleep 0.5; done
{HPCTRAIN} cancel runs/long-*
wait $!
echo "cancelled: $?"
"""


def in_allocation(sandbox: Sandbox, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["salloc", "--nodes=3", "--ntasks-per-node=2", "--gpus-per-node=2", "bash", "-c", script],
        env={**sandbox.env, "PYTHONPATH": str(SOURCE)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@pytest.mark.train
def test_runs_share_an_allocation_in_folders_of_their_own(sandbox: Sandbox, tmp_path: Path) -> None:
    answer = in_allocation(sandbox, tmp_path, SCRIPT)
    told = answer.stdout + answer.stderr
    assert "nodes=4: is more than the 3 of the allocation" in told
    assert "four nodes: 2" in told
    assert "two runs: 0" in told
    runs = [RunPaths(only(tmp_path / "runs", pattern)) for pattern in ("tiny-2n-*", "tiny-1n-*", "long-*")]
    (two,), (one,), (long,) = map(read_attempts, runs)
    assert (two.state, two.world_size, len(two.nodes)) == ("completed", 4, 2)
    assert (one.state, one.world_size, len(one.nodes)) == ("completed", 2, 1)
    # The identity of a run is its folder: all three ran in one job.
    assert len({start.job_id for start in (two, one, long)}) == 1
    assert len({read_submission(run).job_id for run in runs}) == 3
    assert "cancelled: 0" not in told
    assert (long.state, long.end_reason) == ("failed", "cancelled"), told
    rows = subprocess.run(
        [sys.executable, "-m", "hpctrain", "status", "runs", "--json"],
        env={**sandbox.env, "PYTHONPATH": str(SOURCE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    states = [row["state"] for row in json.loads(rows.stdout)]
    assert sorted(states) == ["CANCELLED", "COMPLETED", "COMPLETED"]


def test_a_shell_outside_an_allocation_is_told_so(sandbox: Sandbox, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hpctrain", "cluster=sandbox", "model=tiny", "nodes=2", "launch.mode=here"]
    answer = subprocess.run(
        words, env={**sandbox.env, "PYTHONPATH": str(SOURCE)}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert "launch.mode=here: needs an allocation" in answer.stderr
    assert "salloc --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --gpus-per-node=2 first" in answer.stderr
    assert not (tmp_path / "runs").exists()
