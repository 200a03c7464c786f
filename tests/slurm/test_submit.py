"""Runs on a real Slurm: submitted, trained over two nodes, watched, cancelled, failed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
from jupyter_client.manager import KernelManager

from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, read_attempts, read_submission
from tests.analysis.test_notebooks import NOTEBOOKS, NUM_FIGURES, execute
from tests.analysis.test_notebooks import kernel as kernel  # the fixture
from tests.slurm.conftest import DEADLINE_S
from tests.worker.run_folder import read_samples

pytestmark = [pytest.mark.slurm, pytest.mark.train]

T = TypeVar("T")

SOURCE = Path(__file__).parents[2]
SHORT = (
    "model=tiny",
    "parallelism=zero3",
    "model.num_layers=2",
    "training.num_steps=20",
    "training.warmup_steps=2",
    "training.log_interval=5",
)


class Sandbox(Protocol):
    """What the fixture of conftest.py gives."""

    env: dict[str, str]


class Cluster:
    """The command line on the sandbox, runs kept in a folder with a blank, an apostrophe and a dollar sign in its name."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.root = folder / "a b'c $d"
        self.env = {**sandbox.env, "PYTHONPATH": str(SOURCE)}
        self.folder = folder

    def call(self, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hpctrain", *words]
        variables = self.env | (env or {})
        return subprocess.run(command, capture_output=True, text=True, env=variables, cwd=self.folder, check=False)

    def submit(self, *words: str, env: dict[str, str] | None = None) -> RunPaths:
        before = set(self.root.glob("[!.]*"))
        root = f'run.root="{self.root}"'
        answer = self.call("cluster=sandbox", *SHORT, root, *words, env=env)
        assert answer.returncode == 0, answer.stderr
        (made,) = set(self.root.glob("[!.]*")) - before
        assert str(made) in answer.stdout
        return RunPaths(made)

    def status(self, run: RunPaths) -> dict[str, Any]:
        answer = self.call("status", str(run.root), "--json")
        assert answer.returncode == 0, answer.stderr
        (row,) = json.loads(answer.stdout)
        assert isinstance(row, dict)
        return row

    def wait_for(self, run: RunPaths, states: tuple[str, ...]) -> dict[str, Any]:
        def row_in_states() -> dict[str, Any] | None:
            row = self.status(run)
            return row if row["state"] in states else None

        return wait_until(row_in_states, f"{run.root} in {states}")

    def slurm(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, env=self.env, check=True).stdout


def wait_until(condition: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.5)
    raise AssertionError(f"not within {DEADLINE_S} s: {what}")


def losses(run: RunPaths) -> list[float]:
    return [record.loss for record in StepsFile(run.steps).new_records() if record.loss is not None]


def logs(run: RunPaths) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(run.logs.glob("*.log")))


@pytest.fixture
def cluster(sandbox: Sandbox, tmp_path: Path) -> Cluster:
    return Cluster(sandbox, tmp_path)


def test_zero_stages_train_over_two_nodes_with_the_same_losses_and_are_measured(cluster: Cluster) -> None:
    words = (
        *("nodes=2", "cluster.gpu_request=gpus_per_node", "cluster.cpus_per_task=2"),
        *("training.global_batch_size=16", "training.telemetry_interval_s=0.5"),
    )
    # Four ranks, and two for the stages that need no second rank on a node to be compared.
    gpus = {"zero1": 1, "zero2": 1, "zero3": 2}
    runs = {
        stage: cluster.submit(*words, f"parallelism={stage}", f"hardware.gpus_per_node={number}")
        for stage, number in gpus.items()
    }
    for run in runs.values():
        row = cluster.wait_for(run, ("COMPLETED", "FAILED"))
        assert row["state"] == "COMPLETED", logs(run)
        assert (row["step"], row["num_steps"]) == (20, 20)
    by_stage = {stage: losses(run) for stage, run in runs.items()}
    assert by_stage["zero3"][-1] < by_stage["zero3"][0] - 0.5
    # fp32: the order of additions differs between the stages and numbers of ranks.
    for stage in ("zero1", "zero2"):
        assert by_stage[stage] == pytest.approx(by_stage["zero3"], rel=1e-4)
    check_nodes(runs["zero3"])
    assert "gres/gpu=4" in cluster.slurm("scontrol", "show", "job", read_submission(runs["zero3"]).job_id)


def check_nodes(run: RunPaths) -> None:
    """Ranks are laid out over two nodes, and measured on each."""
    (attempt,) = read_attempts(run)
    assert attempt.world_size == 4
    assert [node.ranks for node in attempt.nodes] == [(0, 1), (2, 3)]
    assert len({node.name for node in attempt.nodes}) == 2
    assert attempt.master_addr == attempt.nodes[0].name
    assert sorted(run.nodes.iterdir()) == sorted(run.node_samples(node.name) for node in attempt.nodes)
    for node in attempt.nodes:
        samples = read_samples(run.node_samples(node.name))
        assert (samples[0].step, samples[-1].step) == (0, 20)
        assert all(0 < sample.host_used_bytes < sample.host_total_bytes for sample in samples)
        # Two ranks with torch loaded, of the four on this machine.
        assert 300_000_000 < samples[-1].ranks_rss_bytes < 4_000_000_000
    assert "${" not in run.config.read_text(encoding="utf-8")


def test_submission_returns_and_waits_in_the_queue(cluster: Cluster) -> None:
    run = cluster.submit("nodes=1", "cluster.extra.hold=true")
    row = cluster.status(run)
    assert (row["state"], row["detail"].partition(":")[0]) == ("PENDING", "JobHeldUser")
    assert "asked Slurm to cancel" in cluster.call("cancel", str(run.root)).stdout
    assert cluster.wait_for(run, ("CANCELLED",))["step"] == 0


def test_five_starts_in_the_same_second_are_five_runs_with_a_job_each(cluster: Cluster) -> None:
    words = ["cluster=sandbox", *SHORT, f'run.root="{cluster.root}"', "cluster.extra.hold=true"]
    command = [sys.executable, "-m", "hpctrain", *words]
    started = [subprocess.Popen(command, env=cluster.env, cwd=cluster.folder) for _ in range(5)]
    assert [process.wait(timeout=DEADLINE_S) for process in started] == [0] * 5
    runs = [RunPaths(folder) for folder in cluster.root.glob("[!.]*")]
    jobs = {read_submission(run).job_id for run in runs}
    assert (len(runs), len(jobs)) == (5, 5)
    queue = cluster.slurm("squeue", "-h", "-o", "%i %o").splitlines()
    assert sum(str(cluster.root) in line for line in queue) == 5
    assert cluster.call("cancel", str(cluster.root)).returncode == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_sweep_submits_two_runs_and_the_notebooks_show_them(cluster: Cluster, kernel: KernelManager) -> None:
    words = ("-m", "cluster=sandbox", *SHORT, "nodes=1,2", "hardware.gpus_per_node=1")
    answer = cluster.call(*words, f'run.root="{cluster.root}"')
    assert answer.returncode == 0, answer.stderr
    (manifest,) = cluster.root.glob("sweep-*/sweep.json")
    points = json.loads(manifest.read_text(encoding="utf-8"))["points"]
    assert [point["state"] for point in points] == ["submitted", "submitted"]
    for point in points:
        run = RunPaths(manifest.parent / point["run"])
        assert cluster.wait_for(run, ("COMPLETED", "FAILED"))["state"] == "COMPLETED", logs(run)
    for path in NOTEBOOKS[:2]:
        text, num_figures = execute(kernel, path, cluster.root)
        assert "2 runs, 2 of them valid" in text
        assert num_figures == NUM_FIGURES[path.stem]


def test_a_failing_rank_ends_the_job_and_is_named(cluster: Cluster) -> None:
    (cluster.folder / "short.txt").write_text("too short", encoding="utf-8")
    run = cluster.submit("nodes=2", "hardware.gpus_per_node=1", "data=text", "data.path=short.txt")
    row = cluster.wait_for(run, ("FAILED",))
    assert "bad_data" in row["detail"]
    (attempt,) = read_attempts(run)
    assert attempt.failed_rank is not None
    assert attempt.failed_node in {node.name for node in attempt.nodes} or not attempt.nodes


def test_a_followed_run_ends_with_its_result(cluster: Cluster) -> None:
    words = ("cluster=sandbox", *SHORT, "nodes=1", "cluster.wait=true", f'run.root="{cluster.root}"')
    answer = cluster.call(*words)
    assert answer.returncode == 0, answer.stderr
    assert "final loss" in answer.stdout
