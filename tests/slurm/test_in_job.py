"""What ranks find, check and leave in a real job: code as submitted, nodes, processes (cases 13, 14, 32, 50, 52, 69)."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts, read_submission
from hpctrain.worker.linux import parent_of
from tests.processes import processes_with
from tests.slurm.conftest import start_now
from tests.slurm.test_submit import Cluster, logs, losses, wait_until
from tests.slurm.test_submit import cluster as cluster  # the fixture

pytestmark = [pytest.mark.slurm, pytest.mark.train]

SOURCE = Path(__file__).parents[2]
TRAINING = (
    *("model=tiny", "parallelism=zero3", "model.num_layers=1"),
    *("training.warmup_steps=1", "training.log_interval=1"),
)
BEFORE_START = "        rank = start_rank(paths, started_at_s, guard.remove_at_end)\n"
WITH_DEAF_CHILD = """
        import subprocess, sys
        deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
        subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
"""


def submit_from(
    cluster: Cluster,
    source: Path,
    words: tuple[str, ...],
    cwd: Path = Path("/"),
    path: str = "",
    before: Callable[[], None] | None = None,
) -> RunPaths:
    """Submits with the package in ``source`` and returns the run."""
    seen = set(cluster.root.glob("[!.]*"))
    command = [sys.executable, "-m", "hpctrain", "cluster=sandbox", f'run.root="{cluster.root}"', *words]
    env = cluster.env | {"PYTHONPATH": str(source), "PATH": path + cluster.env["PATH"]}
    answer = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False, preexec_fn=before)
    assert answer.returncode == 0, answer.stderr
    (made,) = set(cluster.root.glob("[!.]*")) - seen
    return RunPaths(made)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of this package that a test may edit."""
    folder = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__", "analysis")
    shutil.copytree(SOURCE / "hpctrain", folder / "hpctrain", ignore=ignored)
    shutil.copytree(SOURCE / "conf", folder / "conf")
    return folder


def rank_log(run: RunPaths, rank: int = 0) -> str:
    return (run.logs / f"rank-{rank}.log").read_text(encoding="utf-8")


def marked(run: RunPaths) -> list[int]:
    """Processes whose environment names the run."""
    return processes_with(f"HPCTRAIN_RUN={run.root}")


def process_of_rank(run: RunPaths, rank: int) -> int:
    """The rank itself, and not its guard, which it has forked."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
            words = (path.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"SLURM_PROCID={rank}".encode() in variables and str(run.root).encode() in words:
            found.add(int(path.parent.name))
    (pid,) = [pid for pid in found if parent_of(pid) not in found]
    return pid


def low_memlock() -> None:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))


def test_edits_while_a_job_waits_and_before_it_is_requeued_change_nothing(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "bin"
    wrong.mkdir()
    for name in ("python", "python3"):
        (wrong / name).write_text("#!/bin/sh\nexit 77\n")
        (wrong / name).chmod(0o755)
    nodes = sorted(set(cluster.slurm("sinfo", "-hN", "-o", "%N").split()))[:2]
    words = (
        *TRAINING,
        "nodes=2",
        "training.num_steps=3",
        "cluster.setup=['sleep 4']",
        f"cluster.nodelist='{nodes[1]},{nodes[0]}'",
        "cluster.extra.distribution=cyclic",
        "cluster.extra.hold=true",
        "parallelism.offload_optimizer=cpu",
    )
    run = submit_from(cluster, source, words, cwd=source, path=f"{wrong}:", before=low_memlock)
    job = read_submission(run).job_id
    (source / "hpctrain" / "worker" / "training.py").write_text("raise SystemExit('edited')\n")
    (source / "conf" / "model" / "tiny.yaml").write_text("hidden_size: 4096\n")
    cluster.slurm("scontrol", "release", job)
    wait_until(lambda: read_attempts(run), f"the start of {run.root}")
    shutil.rmtree(source)
    cluster.slurm("scontrol", "requeue", job)
    start_now(cluster.slurm, job)
    row = cluster.wait_for(run, ("COMPLETED", "FAILED"))
    assert (row["state"], row["attempt"]) == ("COMPLETED", 2), logs(run)
    log = rank_log(run)
    first = log.splitlines()[0]
    assert first.startswith(f"hpctrain rank: {sys.executable}, python ")
    assert f"code {cluster.root}/.code/" in first
    assert f"on node {nodes[0]};" in log
    assert f"MASTER_ADDR={nodes[0]} (from first node of SLURM_STEP_NODELIST)" in log
    assert f"on node {nodes[1]};" in rank_log(run, 1)
    assert "rank 0 may run on CPUs " in log
    # Told, and no warning: ranks on CPUs pin nothing.
    assert "locked memory limit 64 KiB" in log
    assert "locked memory is limited" not in log
    assert "edited" not in logs(run)
    assert "source changed" not in logs(run)
    wait_until(lambda: not marked(run), "the end of all processes of the run")


def test_an_interface_that_no_node_has_stops_on_all_nodes(cluster: Cluster) -> None:
    run = cluster.submit("nodes=2", "env.NCCL_SOCKET_IFNAME=doesnotexist0")
    row = cluster.wait_for(run, ("FAILED",))
    assert "bad_environment" in row["detail"]
    assert "NCCL_SOCKET_IFNAME=doesnotexist0: matches no interface of node" in row["detail"]
    (attempt,) = read_attempts(run)
    assert "up are: " in attempt.message
    for rank in (0, 2):
        assert "doesnotexist0: matches no interface of node" in rank_log(run, rank)


def test_a_killed_rank_leaves_no_process_on_its_node(cluster: Cluster, source: Path) -> None:
    job = source / "hpctrain" / "worker" / "job.py"
    text = job.read_text(encoding="utf-8")
    assert BEFORE_START in text
    job.write_text(text.replace(BEFORE_START, WITH_DEAF_CHILD + BEFORE_START), encoding="utf-8")
    words = (*TRAINING, "nodes=1", "training.num_steps=1000000", "training.micro_batch_size=1")
    run = submit_from(cluster, source, words)
    wait_until(lambda: losses(run), f"the first steps of {run.root}")
    assert len(marked(run)) == 2
    os.kill(process_of_rank(run, 1), signal.SIGKILL)
    row = cluster.wait_for(run, ("FAILED",))
    assert "killed" in row["detail"]
    wait_until(lambda: not marked(run), "the end of the grandchildren")
