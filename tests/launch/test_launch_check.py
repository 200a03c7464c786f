"""``training=launch_check`` as typed, on this machine: what a training needs is not asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.errors import ConfigError
from hpctrain.launch.preflight import check_packages
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.files import read_record
from hpctrain.record.launch_check import LaunchCheck, summary_text
from hpctrain.record.paths import RunPaths


def hpctrain(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpctrain", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_neither_memory_nor_data_nor_torch_stand_in_its_way(tmp_path: Path) -> None:
    words = ["model=2t", "cluster=local", "training=launch_check", "data=text", "data.path=no-such-file.txt"]
    answer = hpctrain(*words, f"run.root={tmp_path}")
    assert answer.returncode == 0, answer.stderr
    (run,) = (RunPaths(path) for path in tmp_path.glob("2t-*"))
    result = read_record(run.launch_check, LaunchCheck)
    assert (result.world_size, len(result.nodes)) == (2, 1)
    assert summary_text(result) in answer.stdout
    logs = "".join(path.read_text(encoding="utf-8", errors="replace") for path in run.logs.rglob("*") if path.is_file())
    assert "deepspeed" not in logs.lower()
    report = hpctrain("report", str(run.root))
    assert report.returncode == 0
    assert "state  completed" in report.stdout
    assert summary_text(result) in report.stdout
    status = hpctrain("status", str(run.root), "--json")
    (row,) = json.loads(status.stdout)
    assert (row["state"], row["payload"], row["step"]) == ("COMPLETED", "launch_check", 0)


@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_no_package_is_needed(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (point,) = compose_points(["model=tiny", f"cluster={cluster}", "training=launch_check"], multirun=False)
    check_packages(build_run_plan(point.config))


def test_memory_is_no_problem_of_a_launch_check_and_others_are() -> None:
    words = ["model=2t", "nodes=1", "hardware=dgx_h100"]
    (training,) = compose_points(words, multirun=False)
    assert {problem.kind for problem in build_run_plan(training.config).problems} == {"memory"}
    (check,) = compose_points([*words, "training=launch_check"], multirun=False)
    assert build_run_plan(check.config).problems == ()
    (wrong,) = compose_points([*words, "training=launch_check", "cluster.extra.gpus=3"], multirun=False)
    assert ConfigError(build_run_plan(wrong.config).problems).exit_code == 2
