"""Cancelling: one scancel for many, arrays in one word, chains from the end, refusals told each."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.cli import run as run_command
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.launch.cancel import cancel_runs
from tests.analysis.make_runs import Attempt
from tests.launch.status_runs import FakeSlurm, submitted_run
from tests.launch.test_jobs import FAILED
from tests.launch.test_jobs import slurm as slurm  # the fixture


def scancels(slurm: FakeSlurm) -> list[str]:
    return [call for call in slurm.calls if call.startswith("scancel")]


def test_many_runs_are_one_scancel_and_arrays_one_word(slurm: FakeSlurm, tmp_path: Path) -> None:
    names = ["83_0", "83_1", "83_2", "83_7", "84", "90_5"]
    runs = [submitted_run(tmp_path / f"r{name}", name) for name in names]
    slurm.queue(*((run, name, "PENDING") for run, name in zip(runs, names, strict=True)))
    answers = cancel_runs(runs)
    assert all(answer.done for answer in answers)
    assert answers[3].text == "asked Slurm to cancel job 83_7"
    assert scancels(slurm) == ["scancel 83_[0-2,7] 84 90_5"]


def test_the_links_of_a_chain_go_from_the_last_to_the_first(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", chain=("8", "9"))
    slurm.queue((run, "7", "RUNNING"), (run, "8", "PENDING"), (run, "9", "PENDING"))
    (answer,) = cancel_runs([run])
    assert answer.text == "asked Slurm to cancel jobs 7, 8, 9"
    assert scancels(slurm) == ["scancel 9 8 7"]


def test_links_that_wait_on_after_a_failure_are_ended_too(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [FAILED], chain=("8",))
    slurm.queue((run, "8", "PENDING"))
    assert cancel_runs([run])[0].done
    assert scancels(slurm) == ["scancel 8 7"]


def test_the_numbers_of_an_old_chain_may_be_those_of_other_jobs(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7", [Attempt([1.0] * 10)], chain=("8", "9"))
    other = submitted_run(tmp_path / "other", "8")
    slurm.queue((other, "8", "RUNNING"), (run, "9", "PENDING", "Dependency"))
    assert cancel_runs([run])[0].text == "asked Slurm to cancel job 9"
    slurm.queue((other, "8", "RUNNING"))
    assert cancel_runs([run])[0].text == "the run has ended already (COMPLETED)"
    assert scancels(slurm) == ["scancel 9"]


def test_what_has_ended_is_left_alone(slurm: FakeSlurm, tmp_path: Path) -> None:
    runs = [submitted_run(tmp_path / "a", "7", [FAILED]), submitted_run(tmp_path / "b", "8", [Attempt([1.0] * 10)])]
    assert [answer.text for answer in cancel_runs(runs)] == [
        "the run has ended already (FAILED)",
        "the run has ended already (COMPLETED)",
    ]
    assert scancels(slurm) == []


def test_a_refusal_is_told_and_the_others_are_cancelled(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [submitted_run(tmp_path / name, name) for name in ("7", "8")]
    slurm.queue(*((run, run.root.name, "RUNNING") for run in runs))
    slurm.fail("scancel", "scancel: error: Kill job error on job id 8: Access/permission denied")
    with pytest.raises(LaunchError, match=r"8: scancel: .*Access/permission denied") as caught:
        run_command(["cancel", str(tmp_path)])
    assert caught.value.exit_code == 4
    assert "7: asked Slurm to cancel job 7" in capsys.readouterr().out


def test_a_job_that_ended_meanwhile_is_no_refusal(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    slurm.queue((run, "7", "RUNNING"))
    slurm.fail("scancel", "scancel: error: Kill job error on job id 7: Job/step already completing or completed")
    assert cancel_runs([run])[0].done


@pytest.mark.parametrize("words", ["Unable to contact slurm controller", "some new words"])
def test_a_scancel_that_fails_for_all_is_told_for_each(slurm: FakeSlurm, tmp_path: Path, words: str) -> None:
    runs = [submitted_run(tmp_path / name, name) for name in ("7", "8")]
    slurm.queue(*((run, run.root.name, "RUNNING") for run in runs))
    slurm.fail("scancel", f"scancel: error: {words}")
    assert [(answer.done, words in answer.text) for answer in cancel_runs(runs)] == [(False, True)] * 2


def test_a_run_that_slurm_does_not_know_is_not_cancelled(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    (answer,) = cancel_runs([run])
    assert not answer.done
    assert "job 7 is not known to be this run" in answer.text
    assert scancels(slurm) == []


def test_a_held_launch_failure_can_be_cancelled(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "run", "7")
    slurm.queue((run, "7", "PENDING", "launch failed requeued held"))
    assert cancel_runs([run])[0].done


def test_a_shared_job_says_that_it_ends_the_others_too(slurm: FakeSlurm, tmp_path: Path) -> None:
    script = str(tmp_path / "sweep" / "allocation.sh")
    runs = [submitted_run(tmp_path / "sweep" / name, "7", command=("sbatch", script)) for name in ("a", "b")]
    slurm.answer("squeue", f"7|RUNNING|None|N/A|900|N/A|n1|(null)|{script}")
    assert [answer.text for answer in cancel_runs(runs)] == [
        "asked Slurm to cancel job 7, which runs 1 other point too"
    ] * 2
    assert scancels(slurm) == ["scancel 7"]


def test_runs_by_name_and_by_job_id(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = {name: submitted_run(tmp_path / "runs" / f"r{name}", name) for name in ("83_0", "83_1", "9")}
    slurm.queue(*((run, name, "PENDING") for name, run in runs.items()))
    run_command(["cancel", "83_1", "r9"])
    assert scancels(slurm) == ["scancel 83_1 9"]
    run_command(["cancel", "83"])
    assert scancels(slurm)[1:] == ["scancel 83_[0-1]"]
    capsys.readouterr()
    with pytest.raises(ConfigError, match=r"99: no run in \./runs has this job id"):
        run_command(["cancel", "99"])
    with pytest.raises(ConfigError, match=r"r83_2: no such folder; nearest in \./runs: r83_"):
        run_command(["cancel", "r83_2"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty: no run in this folder"):
        run_command(["cancel", "empty"])
