"""What --force let pass stays with the run: status and report tell it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import psutil
import pytest

from hpctrain.analysis.frames import read_run
from hpctrain.analysis.report.terminal import render_summary
from hpctrain.analysis.summary import summarise
from hpctrain.config.compose import compose_points
from hpctrain.errors import ConfigError, Problem
from hpctrain.launch.preflight import held_on_this_machine
from hpctrain.launch.run_folder import create_run_folder
from hpctrain.launch.status.rows import collect_status
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.files import write_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_plan
from tests.analysis.make_runs import make_run
from tests.launch.status_runs import submit_record

SHORT = Problem("memory.gpu", "90.00 GiB", "estimated need; a GPU has 79.15 GiB, short by 10.85 GiB", "", kind="memory")


def forced_run(folder: Path, *problems: Problem) -> RunPaths:
    run = make_run(folder)
    write_text(run.plan, dataclasses.replace(read_plan(run), problems=problems).to_json())
    submit_record(run, "77", cluster_kind="azureml")
    return run


def test_status_and_report_tell_what_was_forced(tmp_path: Path) -> None:
    run = forced_run(tmp_path / "run", SHORT)
    (row,) = collect_status([run])
    assert row.forced == ("memory.gpu",)
    assert "submitted with --force past memory.gpu" in row.detail
    summary = summarise(read_run(run))
    assert summary.forced == "memory.gpu=90.00 GiB: estimated need; a GPU has 79.15 GiB, short by 10.85 GiB"
    (line,) = (line for line in render_summary(summary).splitlines() if line.startswith("submitted with --force  "))
    assert line.endswith(f"  {summary.forced}")


def test_a_run_without_problems_says_nothing_of_it(tmp_path: Path) -> None:
    run = forced_run(tmp_path / "run")
    (row,) = collect_status([run])
    assert row.forced == ()
    assert "--force" not in row.detail
    assert summarise(read_run(run)).forced is None
    assert "--force" not in render_summary(summarise(read_run(run)))


def test_a_local_run_keeps_what_this_machine_is_short_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["model=tiny", "cluster=local", "hardware=cpu", "parallelism=ddp", f"run.root={tmp_path}"]
    (point,) = compose_points(words, multirun=False)
    plan = build_run_plan(point.config)
    assert plan.problems == ()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"total": 2**28})())
    with pytest.raises(ConfigError, match=r"this machine has 0.25 GiB, short by"):
        held_on_this_machine([(point, plan)], force=False)
    ((_, forced),) = held_on_this_machine([(point, plan)], force=True)
    run = create_run_folder(tmp_path, point, forced, sys.executable)
    (problem,) = read_plan(run).problems
    assert (problem.key, problem.kind) == ("memory.host", "memory")
    submit_record(run, "77", cluster_kind="azureml")
    (row,) = collect_status([run])
    assert row.forced == ("memory.host",)
    assert "submitted with --force past memory.host" in row.detail
    told = summarise(read_run(run)).forced
    assert told is not None
    assert "this machine has 0.25 GiB" in told


def test_a_local_run_that_fits_is_kept_as_it_is() -> None:
    (point,) = compose_points(["model=tiny", "cluster=local", "hardware=cpu", "parallelism=ddp"], multirun=False)
    plan = build_run_plan(point.config)
    assert held_on_this_machine([(point, plan)], force=True) == [(point, plan)]
