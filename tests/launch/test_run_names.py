"""Runs by what a user types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpctrain.cli import run as run_command
from hpctrain.errors import ConfigError
from hpctrain.launch.run_names import find_run, runs_named
from tests.analysis.make_runs import Attempt
from tests.launch.status_runs import submit_record, submitted_run

DONE = [Attempt([1.0] * 10)]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``./runs`` with two sweeps, and a run that was resumed as job 23."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs"
    for name, job_id in (("s1/run-0-0000", "8_0"), ("s1/run-0-0001", "8_1"), ("s2/run-0-0000", "9")):
        submitted_run(root / name, job_id, DONE)
    resumed = submitted_run(root / "creq-20261130-090000-ab12", "5", DONE, chain=("6",))
    resumed.earlier_submissions.mkdir()
    resumed.submission.rename(resumed.earlier_submissions / "1.json")
    (resumed.earlier_submissions / "1.plan.json").write_text("{}", encoding="utf-8")
    (resumed.earlier_submissions / "2.json").write_text("{", encoding="utf-8")
    submit_record(resumed, "23")
    return root


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("run-0-0001", "s1/run-0-0001"),
        ("s2/run-0-0000", "s2/run-0-0000"),
        ("s2", "s2/run-0-0000"),
        ("8_1", "s1/run-0-0001"),
        ("23", "creq-20261130-090000-ab12"),
        ("5", "creq-20261130-090000-ab12"),
        ("6", "creq-20261130-090000-ab12"),
        ("creq", "creq-20261130-090000-ab12"),
        ("creq-20261130", "creq-20261130-090000-ab12"),
    ],
)
def test_one_run_by_every_kind_of_word(root: Path, word: str, expected: str) -> None:
    assert find_run(word).root.relative_to(root) == Path(expected)


def test_a_number_is_first_of_all_that_of_a_newest_job(root: Path) -> None:
    submitted_run(root / "young", "5")
    assert [run.root.name for run in runs_named(["5"])] == ["young"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("run-0-0000", "run-0-0000: 2 runs have this name: s1/run-0-0000, s2/run-0-0000"),
        ("run-0-0009", "run-0-0009: no such folder; nearest in ./runs: s1/run-0-0001, s1/run-0-0000"),
        ("cre", "cre: no such folder; nearest in ./runs: creq-20261201-090000-cd34, creq-20261130-090000-ab12"),
        ("s1", "s1: 2 runs (s1/run-0-0000, s1/run-0-0001); name one of them"),
        ("creq", "creq: 2 names in ./runs begin so: creq-20261130-090000-ab12, creq-20261201-090000-cd34"),
        ("77", "77: no run in ./runs has this job id"),
    ],
)
def test_what_names_no_run_or_several_lists_what_to_type(root: Path, word: str, expected: str) -> None:
    submitted_run(root / "creq-20261201-090000-cd34", "30")
    with pytest.raises(ConfigError) as caught:
        find_run(word)
    assert expected in str(caught.value)


@pytest.mark.parametrize("word", ["run-0-0001", "8_1", "s1/run-0-0001", "runs/s1/run-0-0001"])
def test_status_and_report_take_the_same_words(root: Path, capsys: pytest.CaptureFixture[str], word: str) -> None:
    for verb in ("status", "report"):
        assert run_command([verb, word, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        (row,) = told if verb == "status" else told["runs"]
        assert row["run"] == "run-0-0001"


def test_status_of_what_is_not_there(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"s: no such folder; nearest in \./runs: s1/run-0-0000"):
        run_command(["status", "s"])
