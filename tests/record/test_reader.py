"""Finding runs and reading attempts, each file by itself."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from hpctrain.errors import RecordError
from hpctrain.record.files import write_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts, read_each_attempt, search_runs
from hpctrain.record.schema import AttemptRecord


def run_with_attempts(folder: Path, *attempts: AttemptRecord) -> RunPaths:
    run = RunPaths(folder)
    run.attempts.mkdir(parents=True)
    for attempt in attempts:
        write_record(run.attempt(attempt.attempt), attempt)
    return run


def attempt(number: int, started_at_s: float = 100.0) -> AttemptRecord:
    return AttemptRecord(1, number, "7", "completed", started_at_s)


def test_a_run_that_was_never_started_has_no_attempts(tmp_path: Path) -> None:
    assert read_attempts(RunPaths(tmp_path)) == []
    found = read_each_attempt(RunPaths(tmp_path))
    assert (found.attempts, found.problems, found.last_is_known) == ((), (), True)


@pytest.mark.parametrize(("damaged", "last_is_known"), [(1, True), (2, True), (3, False)])
def test_one_damaged_attempt_does_not_hide_the_others(tmp_path: Path, damaged: int, last_is_known: bool) -> None:
    run = run_with_attempts(tmp_path, attempt(1), attempt(2), attempt(3))
    run.attempt(damaged).write_text("[]")
    found = read_each_attempt(run)
    assert [record.attempt for record in found.attempts] == [number for number in (1, 2, 3) if number != damaged]
    assert found.problems == (f"{run.attempt(damaged)}: schema_version=None, this hpctrain reads 1",)
    assert found.last_is_known == last_is_known
    with pytest.raises(RecordError, match=f"{damaged}.json: schema_version=None"):
        read_attempts(run)


def test_a_file_in_the_place_of_the_folder_of_attempts(tmp_path: Path) -> None:
    RunPaths(tmp_path).attempts.write_text("")
    found = read_each_attempt(RunPaths(tmp_path))
    assert (found.problems, found.last_is_known) == ((f"{tmp_path}/attempts: Not a directory",), False)


def test_an_attempt_with_a_time_that_is_no_number(tmp_path: Path) -> None:
    run = run_with_attempts(tmp_path, attempt(1, math.inf))
    with pytest.raises(RecordError, match="started_at_s=inf is no finite number"):
        read_attempts(run)


@pytest.mark.parametrize("moment_s", [0.0, -1.0, 253402300800.0])
def test_an_attempt_with_a_time_that_no_clock_shows(tmp_path: Path, moment_s: float) -> None:
    run = run_with_attempts(tmp_path, attempt(1, moment_s))
    with pytest.raises(RecordError, match=re.escape(f"1.json: started_at_s={moment_s:g} must be a Unix time")):
        read_attempts(run)


@pytest.mark.parametrize("suffix", ["json", "failure.json"])
def test_an_attempt_under_the_name_of_another(tmp_path: Path, suffix: str) -> None:
    run = run_with_attempts(tmp_path, attempt(1))
    write_record(run.attempts / f"2.{suffix}", attempt(7))
    found = read_each_attempt(run)
    assert ([record.attempt for record in found.attempts], found.last_is_known) == ([1], False)
    assert found.problems == (
        f"{run.attempts}/2.{suffix}: attempt=7, but the file's name says 2: copied or renamed; restore or remove it",
    )


def test_runs_by_the_time_in_their_names_then_by_name(tmp_path: Path) -> None:
    names = ["b-20240102-000000-0000", "a-20240103-000000-0000", "z", "sub/y", "c-20240102-000000-ffff"]
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "plan.json").touch()
    found = [str(run.root.relative_to(tmp_path)) for run in search_runs(tmp_path)[0]]
    assert found == ["sub/y", "z", "b-20240102-000000-0000", "c-20240102-000000-ffff", "a-20240103-000000-0000"]


def test_a_run_folder_is_not_searched_for_others(tmp_path: Path) -> None:
    """Its checkpoints and code may hold thousands of folders, and copies of a plan."""
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    (tmp_path / "plan.json").touch()
    (tmp_path / "checkpoints" / "1" / "plan.json").touch()
    assert search_runs(tmp_path) == ([RunPaths(tmp_path)], [])


def test_a_file_in_the_place_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(RecordError, match=r"x: no such folder; runs are kept in run\.root"):
        search_runs(tmp_path / "x")
