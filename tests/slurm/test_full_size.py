"""1,024 ranks on 128 nodes of a real Slurm: accepted, started, met, counted, recorded."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.errors import EXIT_DOES_NOT_FIT
from hpctrain.record.files import read_record
from hpctrain.record.launch_check import LaunchCheck
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts, read_submission
from tests.slurm.conftest import DEADLINE_S, SANDBOX, Sandbox, environment

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

NODES, GPUS = 128, 8


@pytest.fixture
def full_size(tmp_path: Path) -> Iterator[Sandbox]:
    """Nodes as those of the published runs, by Slurm's books."""
    folder = tmp_path / "sandbox"
    size = ["--nodes", NODES, "--gpus", GPUS, "--cpus", 96, "--memory-mib", 1_700_000, "--no-accounting"]
    command = [sys.executable, str(SANDBOX), "up", "--dir", str(folder), "--name", f"f{os.getpid()}", *map(str, size)]
    try:
        up = subprocess.run(command, capture_output=True, text=True, check=False)
        if up.returncode:
            pytest.fail(f"no sandbox: {up.stderr}", pytrace=False)
        (assignment,) = shlex.split(up.stdout)[1:]
        slurm_conf = Path(assignment.removeprefix("SLURM_CONF="))
        yield Sandbox(slurm_conf, environment(slurm_conf))
    finally:
        subprocess.run([sys.executable, str(SANDBOX), "down", "--dir", str(folder)], check=True)


def test_530b_on_128_nodes_is_accepted_and_all_its_ranks_meet(full_size: Sandbox, tmp_path: Path) -> None:
    words = ["model=530b", f"nodes={NODES}", "training=launch_check", f'run.root="{tmp_path / "runs"}"']
    command = [sys.executable, "-m", "hpctrain", *words]
    answer = subprocess.run(command, env=full_size.env, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    (root,) = (tmp_path / "runs").glob("530b-*")
    run = RunPaths(root)
    job = _show_job(full_size, read_submission(run).job_id)
    assert (job["NumNodes"].partition("-")[0], job["NumTasks"]) == (str(NODES), str(NODES * GPUS))

    deadline = time.monotonic() + DEADLINE_S
    while not (attempts := read_attempts(run)) or attempts[0].state == "running":
        assert time.monotonic() < deadline, _end_of(run.logs / "batch.log")
        time.sleep(0.5)
    (attempt,) = attempts
    assert (attempt.state, attempt.end_reason, attempt.exit_code) == ("completed", "completed", 0), attempt.message
    assert attempt.world_size == NODES * GPUS
    assert [node.ranks for node in attempt.nodes] == [
        tuple(range(GPUS * node, GPUS * (node + 1))) for node in range(NODES)
    ]
    assert len({node.name for node in attempt.nodes}) == NODES
    assert attempt.master_addr == attempt.nodes[0].name

    result = read_record(run.launch_check, LaunchCheck)
    assert {node.gpus_visible for node in result.nodes} == {GPUS}
    assert result.findings == ()
    logs = {int(path.stem.partition("-")[2]): path for path in run.logs.glob("rank-*.log")}
    assert sorted(logs) == list(range(NODES * GPUS))
    for rank, path in logs.items():
        assert f"rank {rank} of {NODES * GPUS}, local rank {rank % GPUS} of {GPUS}" in path.read_text(encoding="utf-8")
    status = subprocess.run(
        [sys.executable, "-m", "hpctrain", "status", str(root), "--json"],
        env=full_size.env,
        capture_output=True,
        text=True,
        check=True,
    )
    (row,) = json.loads(status.stdout)
    assert (row["state"], row["attempt"], row["world_size"]) == ("COMPLETED", 1, NODES * GPUS)
    _check_scaling_sweep(full_size, tmp_path / "sweep")


def _check_scaling_sweep(sandbox: Sandbox, root: Path) -> None:
    """The model case of sweeps: arrays by shape, and the micro batch that does not fit left out."""
    swept = ["nodes=16,32,64,128", "training.micro_batch_size=4,8,16"]
    words = ["-m", "model=175b", "parallelism=zero3", *swept, "cluster.extra.hold=true"]
    command = [sys.executable, "-m", "hpctrain", *words, f'run.root="{root}"', "--json"]
    answer = subprocess.run(command, env=sandbox.env, capture_output=True, text=True, check=False)
    assert answer.returncode == EXIT_DOES_NOT_FIT, answer.stderr
    told = json.loads(answer.stdout)
    assert [group["num_points"] for group in told["groups"]] == [2, 2, 2, 2]
    assert {point["state"] for point in told["points"]} == {"submitted"}
    assert len(told["left_out"]) == 4
    nodes = [_show_job(sandbox, group["job_id"])["NumNodes"].partition("-")[0] for group in told["groups"]]
    assert nodes == ["16", "32", "64", "128"]


def _show_job(sandbox: Sandbox, job_id: str) -> dict[str, str]:
    command = ["scontrol", "show", "job", job_id]
    text = subprocess.run(command, env=sandbox.env, capture_output=True, text=True, check=True).stdout
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def _end_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")[-2000:] if path.exists() else f"no {path}"
