"""Differences of two runs, key by key; exit codes as of diff(1)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli import run as run_command
from hpctrain.errors import ConfigError, RecordError
from hpctrain.launch.run_diff import Difference, diff_runs
from hpctrain.record.files import write_text
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths
from tests.analysis.make_runs import make_run, toy_config
from tests.launch.status_runs import start_attempt, submit_record

CODE = {
    "schema_version": 1,
    "interpreter": "/usr/bin/python",
    "versions": {"torch": "2.6"},
    "commit": "abc",
    "diff": "",
    "sources": {"plan/flops.py": "1", "cli.py": "2"},
}


def whole_run(folder: Path, micro_batch_size: int = 4, code: dict[str, Any] = CODE) -> RunPaths:
    config = toy_config(micro_batch_size=micro_batch_size)
    run = make_run(folder, config)
    write_text(run.config, config_text(config))
    write_text(run.code, json.dumps(code))
    write_text(run.environment, json.dumps({"variables": {"NCCL_DEBUG": "INFO", "TOKEN": "<redacted>"}}))
    write_text(run.submission_script, f"#!/bin/bash\n#SBATCH --nodes=2\nrun_dir={folder}\n")
    start_attempt(run, 1, "7", versions={"torch": "2.6"})
    return run


@pytest.fixture
def same(tmp_path: Path) -> tuple[RunPaths, RunPaths]:
    return whole_run(tmp_path / "a"), whole_run(tmp_path / "b")


def test_equal_runs(same: tuple[RunPaths, RunPaths], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = same
    assert run_command(["diff", str(a.root), str(b.root)]) == 0
    assert "no difference" in capsys.readouterr().out
    assert diff_runs(a, b).not_compared == ()


def test_every_section(same: tuple[RunPaths, RunPaths], tmp_path: Path) -> None:
    a, _ = same
    code = {**CODE, "commit": "def", "versions": {"torch": "2.7"}, "sources": {"cli.py": "3", "new.py": "4"}}
    b = whole_run(tmp_path / "c", micro_batch_size=8, code=code)
    write_text(b.environment, json.dumps({"variables": {"NCCL_DEBUG": "WARN", "TOKEN": "<redacted>", "X": "1"}}))
    write_text(b.submission_script, f"#!/bin/bash\n#SBATCH --nodes=4\nrun_dir={b.root}\n")
    start_attempt(b, 1, "9", nodes=(), world_size=4)
    start_attempt(b, 2, "9", versions={"torch": "2.7"}, world_size=4)
    found = {(one.section, one.key): (one.a, one.b) for one in diff_runs(a, b).differences}
    assert found["config", "training.micro_batch_size"] == (4, 8)
    assert found["code", "commit"] == ("abc", "def")
    assert found["code", "sources plan/flops.py"] == ("1", None)
    assert found["code", "sources cli.py"] == ("2", "3")
    assert found["code", "sources new.py"] == (None, "4")
    assert found["versions", "torch"] == ("2.6", "2.7")
    assert found["versions", "torch (ranks)"] == ("2.6", "2.7")
    assert found["nodes", "world_size"] == (8, 4)
    assert found["environment", "variables.NCCL_DEBUG"] == ("INFO", "WARN")
    assert found["environment", "variables.X"] == (None, "1")
    assert found["script", "line 2"] == ("#SBATCH --nodes=2", "#SBATCH --nodes=4")
    assert found["plan", "batch.global_batch_size"] == (32, 64)
    assert ("script", "line 3") not in found  # only the run's own folder differs


def test_an_empty_mapping_beside_a_filled_one_is_told_by_the_keys_of_that(
    same: tuple[RunPaths, RunPaths],
) -> None:
    a, b = same
    for run, variables in ((a, {}), (b, {"X": "1"})):
        write_text(run.environment, json.dumps({"variables": variables}))
    assert diff_runs(a, b).differences == (Difference("environment", "variables.X", None, "1"),)
    assert diff_runs(b, a).differences == (Difference("environment", "variables.X", "1", None),)
    write_text(b.environment, "{}")
    assert [(one.key, one.a, one.b) for one in diff_runs(a, b).differences] == [("variables", {}, None)]


def test_text_and_exit_code(
    same: tuple[RunPaths, RunPaths], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, _ = same
    b = whole_run(tmp_path / "c", micro_batch_size=8, code={**CODE, "diff": "\n".join("+x" * 40) + "\x1b"})
    assert run_command(["diff", str(a.root), str(b.root)]) == 1
    out = capsys.readouterr().out
    assert "training.micro_batch_size  4 | 8" in out
    assert "lines)" in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) < 220


def test_json(same: tuple[RunPaths, RunPaths], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, _ = same
    b = whole_run(tmp_path / "c", code={**CODE, "commit": "def"})
    assert run_command(["diff", str(a.root), str(b.root), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["differences"] == [dataclasses.asdict(Difference("code", "commit", "abc", "def"))]
    assert (document["a"], document["b"]) == (str(a.root), str(b.root))


def test_what_a_run_lacks_is_told_and_is_no_difference(
    same: tuple[RunPaths, RunPaths], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = same
    b.environment.unlink()
    b.submission_script.unlink()
    for record in (b.attempt(1), b.code):
        record.unlink()
    assert run_command(["diff", str(a.root), str(b.root)]) == 0
    out = capsys.readouterr().out
    for section in ("code", "versions", "nodes", "environment"):
        assert f"not compared: {section}: nothing recorded in b" in out
    assert "not compared: script: no batch script in b" in out


def test_points_of_an_array_have_the_script_of_their_array(tmp_path: Path) -> None:
    script = tmp_path / "arrays" / "0.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/bash\n", encoding="utf-8")
    runs = [whole_run(tmp_path / f"run-0-000{number}") for number in range(2)]
    for number, run in enumerate(runs):
        run.submission_script.unlink()
        submit_record(run, f"83_{number}", command=("sbatch", str(script)))
    assert diff_runs(*runs).not_compared == ()


def test_a_damaged_run_is_an_error(same: tuple[RunPaths, RunPaths]) -> None:
    a, b = same
    b.plan.write_text("{", encoding="utf-8")
    with pytest.raises(RecordError, match=str(b.plan)):
        diff_runs(a, b)
    b.config.write_text("a: [", encoding="utf-8")
    with pytest.raises(RecordError, match=str(b.config)):
        diff_runs(a, b)


def test_a_folder_of_several_runs_is_ambiguous(same: tuple[RunPaths, RunPaths], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"2 runs .a, b.; name one of them"):
        run_command(["diff", str(tmp_path), str(same[0].root)])
