"""Which folder a notebook reads, and what it says about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.analysis.frames import load_frames
from hpctrain.analysis.runs_folder import RECORDED_RUNS, describe_folder, describe_runs, runs_folder
from tests.analysis.make_runs import make_run

REPOSITORY = Path(__file__).parents[2]


def test_the_variable_wins_even_if_its_folder_is_missing(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    stated = {"HPCTRAIN_RUNS": str(tmp_path / "my runs")}
    assert runs_folder(stated, tmp_path) == tmp_path / "my runs"
    assert describe_folder(tmp_path / "my runs", stated) == f"{tmp_path}/my runs, from HPCTRAIN_RUNS"


@pytest.mark.parametrize("environment", [{}, {"HPCTRAIN_RUNS": ""}], ids=["unset", "empty"])
def test_without_it_the_own_runs_then_the_recorded_ones(tmp_path: Path, environment: dict[str, str]) -> None:
    recorded = tmp_path / "tests" / "data" / "runs"
    assert runs_folder(environment, tmp_path) == recorded
    assert describe_folder(recorded, environment) == (
        f"{recorded}: recorded runs of the project, since HPCTRAIN_RUNS is not set and there is no folder runs"
    )
    (tmp_path / "runs").mkdir()
    assert runs_folder(environment, tmp_path) == tmp_path / "runs"
    assert describe_folder(tmp_path / "runs", environment) == f"{tmp_path}/runs, since HPCTRAIN_RUNS is not set"


def test_the_recorded_runs_are_in_the_checkout() -> None:
    frames = load_frames([REPOSITORY / RECORDED_RUNS])
    assert frames.problems == ()
    assert frames.runs["valid"].any()


def test_what_was_found(tmp_path: Path) -> None:
    make_run(tmp_path / "done")
    make_run(tmp_path / "waiting", attempts=[])
    frames = load_frames([tmp_path])
    assert describe_runs(frames.runs, frames.problems) == "2 runs, 1 of them valid"
    nothing = load_frames([tmp_path / "none"])
    assert describe_runs(nothing.runs, nothing.problems).splitlines()[0] == "0 runs, 0 of them valid"
    assert f"{tmp_path}/none: no such folder" in describe_runs(nothing.runs, nothing.problems)
