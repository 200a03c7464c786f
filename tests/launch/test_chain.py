"""What follows the end of an attempt in a chain."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.errors import LaunchError
from hpctrain.launch.chain import ChainBrokenError, continue_chain, next_start, submit_links
from hpctrain.launch.slurm.sbatch import Submission
from hpctrain.record.attempt_rules import Start
from hpctrain.record.files import write_record
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts
from hpctrain.record.schema import AttemptRecord, CheckpointFile, CheckpointRecord, SubmissionRecord
from tests.record.test_files import attempt


def ended(number: int, reason: str, start_step: int = 0, job_id: str = "7") -> AttemptRecord:
    state = "completed" if reason == "completed" else "failed"
    return attempt(number, state=state, end_reason=reason, start_step=start_step, job_id=job_id, message="why")


@pytest.mark.parametrize(
    ("chain", "attempts", "newest", "action", "words", "reason"),
    [
        ("requeue", [ended(1, "time_limit")], 40, "requeue", "goes on from step 40", None),
        ("requeue", [ended(1, "time_limit")], 0, "none", "no progress: attempt 1 (time_limit)", "no_progress"),
        ("requeue", [ended(1, "preempted", 0), ended(2, "time_limit", 40)], 40, "none", "step 40", "no_progress"),
        ("requeue", [ended(1, "completed")], 40, "none", "", None),
        ("requeue", [ended(1, "exception")], 40, "none", "exception is not tried again by itself", None),
        ("requeue", [ended(1, "out_of_memory")], 40, "none", "out_of_memory", None),
        ("requeue", [ended(1, "cancelled")], 40, "none", "cancelled", None),
        # Slurm requeues these itself; twice would be one too many.
        ("requeue", [ended(1, "preempted")], 40, "none", "", None),
        (
            "requeue",
            [ended(number, "time_limit", number) for number in range(1, 4)],
            *(40, "none", "launch.max_attempts=3", "out_of_attempts"),
        ),
        ("dependency", [ended(1, "time_limit")], 40, "leave_links", "in the next job", None),
        ("dependency", [ended(1, "time_limit")], 0, "leave_links", "in the next job", None),
        ("dependency", [ended(1, "time_limit"), ended(2, "time_limit")], 0, "cancel_links", "", "no_progress"),
        ("dependency", [ended(1, "completed")], 40, "cancel_links", "", None),
        ("dependency", [ended(1, "bad_data")], 40, "cancel_links", "bad_data", None),
        ("dependency", [ended(1, "preempted")], 40, "leave_links", "", None),
        ("dependency", [], 0, "none", "", None),
    ],
)
def test_what_follows(
    chain: str, attempts: list[AttemptRecord], newest: int, action: str, words: str, reason: str | None
) -> None:
    following = next_start(chain, attempts, Start("7", 1, newest, max_attempts=3))
    assert following.action == action
    assert words in following.told
    assert (following.refusal.reason if following.refusal else None) == reason


def make_run(folder: Path, chain: str, *words: str) -> RunPaths:
    run = RunPaths(folder / "a b'c $d")
    run.attempts.mkdir(parents=True)
    (point,) = compose_points(["model=tiny", f"launch.chain={chain}", *words], multirun=False)
    run.config.write_text(config_text(point.config), encoding="utf-8")
    return run


def save_checkpoint(run: RunPaths, step: int) -> None:
    folder = run.checkpoints / f"step-{step:08}"
    folder.mkdir(parents=True)
    (folder / "x.pt").write_bytes(b"xy")
    values: dict[str, Any] = {field.name: 1 for field in dataclasses.fields(CheckpointRecord)}
    values |= dict.fromkeys(("job_id", "offload_optimizer", "offload_param", "precision", "corpus_digest"), "x")
    values |= {"step": step, "model": {}, "versions": {}, "files": (CheckpointFile("x.pt", 2, 0),)}
    write_record(folder / "complete.json", CheckpointRecord(**values))


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str = "") -> Path:
    """scontrol and scancel that note how they were called."""
    (folder / "bin").mkdir()
    calls = folder / "calls"
    for name in ("scontrol", "scancel"):
        path = folder / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {shlex.quote(str(calls))}\n{body}\n', encoding="utf-8")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
    return calls


def test_a_job_requeues_itself_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = make_run(tmp_path, "requeue"), fake_slurm(tmp_path, monkeypatch)
    write_record(run.attempt(1), ended(1, "time_limit", job_id="83_1"))
    save_checkpoint(run, 40)
    continue_chain(run, "83_1", 1)
    # Of an array task: not $SLURM_JOB_ID, which may be another one's.
    assert calls.read_text(encoding="utf-8") == "scontrol requeue 83_1\n"
    (record,) = read_attempts(run)
    assert (record.end_reason, record.continuation) == (
        "time_limit",
        "goes on from step 40: requeued by its batch script",
    )


def test_why_a_job_does_not_requeue_itself_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = make_run(tmp_path, "requeue"), fake_slurm(tmp_path, monkeypatch)
    write_record(run.attempt(1), ended(1, "time_limit"))
    continue_chain(run, "7", 1)
    assert not calls.exists()
    (record,) = read_attempts(run)
    assert (record.end_reason, record.exit_code, record.message) == ("no_progress", 1, "time_limit: why")
    assert "not started again: no progress: attempt 1 (time_limit)" in record.continuation


def test_a_requeue_that_slurm_refuses_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "requeue")
    fake_slurm(tmp_path, monkeypatch, "echo 'Requested operation is presently disabled' >&2; exit 1")
    write_record(run.attempt(1), ended(1, "time_limit"))
    save_checkpoint(run, 40)
    continue_chain(run, "7", 1)
    assert read_attempts(run)[0].continuation == "not requeued: scontrol: Requested operation is presently disabled"


@pytest.mark.parametrize("reason", ["completed", "bad_data"])
def test_later_links_are_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    run, calls = make_run(tmp_path, "dependency"), fake_slurm(tmp_path, monkeypatch)
    write_record(run.attempt(1), ended(1, reason, job_id="8"))
    write_record(
        run.submission, SubmissionRecord(1, "slurm", "7", 1.0, "h", command=("sbatch",), chain=("8", "9", "10"))
    )
    assert "cancelled the later links: 9, 10" in continue_chain(run, "8", 1)
    assert calls.read_text(encoding="utf-8") == "scancel 10 9\n"


def test_links_wait_for_one_another(tmp_path: Path) -> None:
    script = tmp_path / "submission.sh"
    made: list[Submission] = []

    def submit(link: Submission) -> str:
        made.append(link)
        return str(100 + len(made))

    assert submit_links(Submission(script, {}, "key"), "100", 3, submit) == ("101", "102", "103")
    assert [link.after for link in made] == ["100", "101", "102"]
    assert made[2].command == ("sbatch", "--parsable", "--dependency=afterany:102", str(script))
    assert made[2].known_jobs == {"100", "101", "102"}


def test_a_chain_that_slurm_takes_in_part_is_told(tmp_path: Path) -> None:
    def submit(link: Submission) -> str:
        if link.after == "101":
            raise LaunchError("QOSMaxSubmitJobPerUserLimit")
        return "101"

    with pytest.raises(ChainBrokenError, match="1 of 3 later links of the chain were submitted: QOSMax") as caught:
        submit_links(Submission(tmp_path / "s.sh", {}, "key"), "100", 3, submit)
    assert caught.value.ids == ("101",)
