"""The verbs that read records: report, its files and its verdict; read-log; their messages and exit codes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from hpctrain.cli import main
from hpctrain.record.files import write_record
from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord, CancelRecord
from tests.analysis.make_runs import Attempt, make_run

DATA = Path(__file__).parents[1] / "data"
LOG = DATA / "logs" / "maxtext_three_generations_of_the_line.log"


@dataclass(frozen=True)
class Answer:
    returncode: object
    stdout: str
    stderr: str


@pytest.fixture
def hpctrain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """The command line in this process, where pandas is loaded already, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["hpctrain", *words])
        with pytest.raises(SystemExit) as left:
            main()
        told = capsys.readouterr()
        return Answer(left.value.code, told.out, told.err)

    return call


def test_read_log_prints_system_records_and_conditions(hpctrain: Callable[..., Answer]) -> None:
    answer = hpctrain("read-log", str(LOG))
    assert answer.returncode == 0, answer.stderr
    assert "system      maxtext" in answer.stdout
    assert LOG.name in answer.stdout


def test_read_log_as_json_has_the_names_and_units_of_the_samples(hpctrain: Callable[..., Answer]) -> None:
    answer = hpctrain("read-log", str(LOG), "--json")
    document = json.loads(answer.stdout)
    expected = json.loads(LOG.with_suffix(".json").read_text(encoding="utf-8"))["expected"]
    assert (document["system"], document["record_count"]) == ("maxtext", expected["record_count"])
    for record, wanted in zip(document["records"], expected["records"], strict=True):
        assert {name: record.get(name) for name in wanted} == pytest.approx(wanted)


def test_read_log_of_several_reads_the_good_ones_and_names_the_others(
    hpctrain: Callable[..., Answer], tmp_path: Path
) -> None:
    (tmp_path / "noise.log").write_text("hello\n", encoding="utf-8")
    answer = hpctrain("read-log", str(LOG), str(tmp_path / "noise.log"), str(tmp_path / "nosuch.log"), "--json")
    assert answer.returncode == 2
    assert [document["system"] for document in json.loads(answer.stdout)] == ["maxtext"]
    assert "noise.log: 1 lines, none of a known system; known: " in answer.stderr
    assert "nosuch.log: cannot be read: No such file or directory" in answer.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["report", "nosuch"], "nosuch: no such folder", id="missing folder"),
        pytest.param(["report", "empty"], "empty: no run here", id="no run"),
        pytest.param(
            ["report", "empty", "-o", "x.pdf"], "-o=x.pdf: the suffix must be one of .html, .csv", id="suffix"
        ),
        pytest.param(["report", "run", "--against", "empty"], "empty: no run here", id="no baseline"),
        pytest.param(
            ["report", "run", "--against", "run", "--tolerance", "-1"],
            "--tolerance=-1: must be a share of the step time, 0 or above",
            id="tolerance",
        ),
        pytest.param(
            ["report", "run", "--tolerance", "0.1"], "--tolerance 0.1: belongs to --against BASE", id="no base"
        ),
        pytest.param(["read-log", "empty"], "empty: is a directory", id="log is a folder"),
        pytest.param(["read-lag", "x"], "read-lag: is no verb; nearest: read-log", id="mistyped verb"),
    ],
)
def test_one_message_and_exit_code_2(
    hpctrain: Callable[..., Answer], tmp_path: Path, words: list[str], expected: str
) -> None:
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "run")
    answer = hpctrain(*words)
    assert answer.returncode == 2, answer.stdout
    assert expected in answer.stderr
    assert "Traceback" not in answer.stderr


def test_an_attempt_that_was_cancelled_as_it_started_does_not_run(
    hpctrain: Callable[..., Answer], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run")
    write_record(run.attempt(1), AttemptRecord(SCHEMA_VERSION, 1, "7", "running", 1000.0))
    for job_id, at_s, expected in (("7", 1001.0, "failed"), ("8", 1001.0, "running"), ("7", 999.0, "running")):
        write_record(run.cancelled, CancelRecord(SCHEMA_VERSION, (job_id,), at_s, "somebody"))
        (row,) = json.loads(hpctrain("report", "run", "--json").stdout)["runs"]
        assert row["state"] == expected
        assert row["end_reason"] == ("cancelled" if expected == "failed" else None)
        assert row["reason"].startswith("failed (cancelled)" if expected == "failed" else "running")


def test_report_writes_every_kind_of_file_and_nothing_into_the_runs(
    hpctrain: Callable[..., Answer], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "runs" / "run")
    before = sorted(run.root.rglob("*"))
    files = [tmp_path / f"report{suffix}" for suffix in (".html", ".csv", ".parquet", ".tex", ".md")]
    words = [word for file in files for word in ("-o", str(file))]
    answer = hpctrain("report", str(tmp_path / "runs"), str(LOG), *words)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [f"report {file}" for file in files]
    assert set(pd.read_parquet(files[2])["source"]) == {"hpctrain", "maxtext"}
    assert sorted(run.root.rglob("*")) == before


def test_a_missing_folder_beside_a_run_is_told(hpctrain: Callable[..., Answer], tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    answer = hpctrain("report", "run", "missing")
    assert answer.returncode == 0
    assert "missing: no such folder" in answer.stderr


def test_a_file_whose_name_is_no_text(hpctrain: Callable[..., Answer], tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.log")
    shutil.copy(LOG, tmp_path / name)
    assert "system      maxtext" in hpctrain("read-log", name).stdout


def test_the_runs_as_json(hpctrain: Callable[..., Answer], tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    document = json.loads(hpctrain("report", "run", "--json").stdout)
    (row,) = document["runs"]
    assert (row["run"], row["step_time_s"], row["valid"], document["problems"]) == ("run", 0.5, True, [])


def test_a_regression_is_exit_code_5(hpctrain: Callable[..., Answer], tmp_path: Path) -> None:
    for name, time_s in (("base", 0.5), ("same", 0.505), ("slow", 0.6)):
        make_run(tmp_path / name / "run", attempts=[Attempt([time_s] * 40)])
    same = hpctrain("report", "same", "--against", "base")
    assert same.returncode == 0, same.stderr
    assert "No regression shown in 1 configuration" in same.stdout
    slow = hpctrain("report", "slow", "--against", "base", "--json")
    assert (slow.returncode, json.loads(slow.stdout)["exit_code"]) == (5, 5)
    lenient = hpctrain("report", "slow", "--against", "base", "--tolerance", "0.3")
    assert lenient.returncode == 0, lenient.stdout
