"""Attempts as the batch script opens and closes them, before and without ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain.analysis.frames import load_frames
from hpctrain.analysis.goodput import goodput
from tests.analysis.make_runs import Attempt, make_run

OPENED: dict[str, Any] = {
    "state": "running",
    "end_reason": None,
    "exit_code": None,
    "ended_at_s": None,
    "world_size": None,
    "host": "n1",
    "start_step": 4,
}
REFUSED: dict[str, Any] = {
    "state": "failed",
    "end_reason": "no_progress",
    "exit_code": 1,
    "world_size": None,
    "message": "no progress",
    "host": "n1",
}
CUT = {"state": "failed", "end_reason": "preempted", "exit_code": 16, "message": "preempted"}
STEPS = Attempt([0.5] * 6, end=CUT)


def load(folder: Path, *attempts: Attempt) -> tuple[Any, Any, Any]:
    make_run(folder / "run", attempts=attempts)
    frames = load_frames([folder])
    assert not frames.problems
    (row,) = frames.runs.to_dict("records")
    result = goodput(frames.runs, frames.steps, frames.attempts)
    return row, frames.attempts.to_dict("records"), result.attempts.to_dict("records")


@pytest.mark.parametrize("before", [(), (STEPS,)], ids=["first", "second"])
def test_an_attempt_whose_ranks_have_not_met_is_a_running_one(tmp_path: Path, before: tuple[Attempt, ...]) -> None:
    row, attempts, _ = load(tmp_path, *before, Attempt([], end=OPENED))
    assert (row["state"], row["num_attempts"], row["num_recorded_steps"]) == (
        "running",
        len(before) + 1,
        6 * len(before),
    )
    assert attempts[-1]["state"] == "running"
    if before:  # what the steps were made with is known, whatever the new attempt will measure
        assert row["world_size"] == 8


def test_a_start_that_was_refused_costs_nothing(tmp_path: Path) -> None:
    refused = Attempt([], end={**REFUSED, "started_at_s": 1013.0, "ended_at_s": 1013.0})
    row, attempts, times = load(tmp_path, STEPS, refused)
    assert (row["state"], row["end_reason"]) == ("failed", "no_progress")
    assert [attempt["end_reason"] for attempt in attempts] == ["preempted", "no_progress"]
    assert [attempt["wall_s"] for attempt in times] == [13.0, 0.0]
    assert row["wall_tokens_per_s"] > 0
