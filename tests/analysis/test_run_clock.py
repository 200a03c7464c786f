"""Wall-clock time, lost time and steps at times that cannot be (case 105)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.make_runs import Attempt, make_run
from tests.analysis.test_frames import load_one


def test_wall_clock_by_hand(tmp_path: Path) -> None:
    """Six steps, then again from step 5: 10 s of set-up each, 26 + 14 s of steps, and 5 s after the last.

    The curve has 10 steps of 1,024 tokens in 65 s; its steps took 3 + 3 + 1 + 1 and 3 + 3 + 2 + 2 + 2 + 2 s, 22 s.
    """
    failed = {"state": "failed", "end_reason": "killed", "exit_code": 137}
    again = Attempt([3, 3, 2, 2, 2, 2], 5, end={"ended_at_s": 1000 + 36 + 24 + 5})
    make_run(tmp_path / "run", attempts=[Attempt([3, 3, 1, 1, 9, 9], end=failed), again])
    summary = load_one(tmp_path)
    assert summary.valid, summary.reason
    assert summary.wall_tokens_per_s == pytest.approx(10 * 1024 / 65)
    assert summary.lost_time_share == pytest.approx(1 - 22 / 65)
    assert summary.gpu_hours == pytest.approx(65 * 8 / 3600)
    assert summary.tokens_per_s == 1024 / 2, "step throughput knows nothing of it"


def test_saving_is_lost_time_and_not_step_time(tmp_path: Path) -> None:
    """Twenty steps of 1 s; the writer's clock stands 40 s longer between two of them."""
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 20, end={"ended_at_s": 1000 + 10 + 20 + 40})])
    lines = [json.loads(line) for line in run.steps.read_text().splitlines()]
    late = [line | {"time_s": line["time_s"] + 40 * (line["step"] > 10)} for line in lines]
    run.steps.write_text("".join(json.dumps(line) + "\n" for line in late))
    summary = load_one(tmp_path)
    assert summary.step_time_s == 1
    assert summary.lost_time_share == pytest.approx(50 / 70)


def test_a_running_attempt_is_counted_up_to_its_last_step(tmp_path: Path) -> None:
    running = {"state": "running", "end_reason": None, "ended_at_s": None}
    make_run(tmp_path / "run", attempts=[Attempt([1.0] * 10, end=running)])
    summary = load_one(tmp_path)
    assert summary.lost_time_share == pytest.approx(0.5)
    assert summary.gpu_hours == pytest.approx(20 * 8 / 3600)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (
            {"ended_at_s": 1005.0},
            "attempt 1 has a step that ended 12 s after its end: the time stamps contradict each other",
        ),
        (
            {"started_at_s": 1012.5},
            "attempt 1 has a step that began 2.5 s before it started: the time stamps contradict each other",
        ),
        ({"started_at_s": 1e-3, "ended_at_s": 4e7}, "attempt 1 took 4e+07 s, more than a year: a clock was wrong"),
        ({"ended_at_s": 900.0}, "attempt 1 ended 100 s before it started: the time stamps contradict each other"),
    ],
    ids=["too short", "starts late", "a year", "backwards"],
)
def test_clocks_that_contradict_each_other(tmp_path: Path, end: dict[str, Any], reason: str) -> None:
    make_run(tmp_path / "run", attempts=[Attempt([2.0, 1.0, *[0.5] * 8], end=end)])
    summary = load_one(tmp_path)
    assert (summary.wall_tokens_per_s, summary.lost_time_share, summary.gpu_hours) == (None, None, None)
    assert summary.reason == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param(
            {"step_time_s": 1.8},
            "its steps take 18 s and all attempts together 17 s: the time stamps contradict each other",
            id="longer than all",
        ),
        pytest.param(
            {"time_s": -5.0},
            "attempt 1 has a step that began 1,007 s before it started: the time stamps contradict each other",
            id="negative",
        ),
        pytest.param({"time_s": math.nan}, "attempt 1 has 10 of 10 steps without a time stamp", id="no number"),
    ],
)
def test_steps_at_impossible_times(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    """17 s: 10 s and steps of 2, 1 and eight times 0.5 s."""
    make_run(tmp_path / "run", **fields)
    summary = load_one(tmp_path)
    assert (summary.valid, summary.reason) == (False, reason)
    assert (summary.wall_tokens_per_s, summary.lost_time_share, summary.gpu_hours) == (None, None, None)


@pytest.mark.parametrize("field", ["started_at_s", "ended_at_s"])
@pytest.mark.parametrize("moment_s", [0.0, -1e12, 253402300800, 1e300])
def test_an_attempt_at_an_impossible_time(tmp_path: Path, field: str, moment_s: float) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 10, end={field: moment_s})])
    summary = load_one(tmp_path)
    text = f"{run.attempt(1)}: {field}={moment_s:g} must be a Unix time in seconds, above 0 and below the year 10000"
    assert (summary.state, summary.valid, summary.gpu_hours) == ("unreadable", False, None)
    assert summary.reason.startswith(text)


def test_an_attempt_that_was_copied_is_not_counted_twice(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.attempt(2).write_bytes(run.attempt(1).read_bytes())
    summary = load_one(tmp_path)
    assert (summary.num_attempts, summary.valid, summary.gpu_hours) == (1, False, None)
    assert f"{run.attempt(2)}: attempt=1, but the file's name says 2: copied or renamed; restore or remove it" in (
        summary.reason
    )


# Lines that are missing.


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        pytest.param(range(3), "3 of 50 recorded", id="cut off"),
        pytest.param([*range(20), *range(35, 50)], "35 of 50 recorded", id="gap"),
        pytest.param(range(47), "47 of 50 recorded", id="six in a hundred"),
    ],
)
def test_a_completed_run_with_missing_steps(tmp_path: Path, kept: Sequence[int], reason: str) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([0.5] * 50)])
    lines = run.steps.read_text().splitlines(keepends=True)
    run.steps.write_text("".join(lines[place] for place in kept))
    summary = load_one(tmp_path)
    assert (summary.valid, summary.reason) == (False, f"steps missing: {reason} in steps.jsonl by a completed run")
    assert (summary.wall_tokens_per_s, summary.lost_time_share) == (None, None)
    assert summary.gpu_hours == pytest.approx(35 * 8 / 3600)


def test_one_missing_step_in_fifty_leaves_the_speed_and_no_wall_clock_figures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([0.5] * 50)])
    lines = run.steps.read_text().splitlines(keepends=True)
    run.steps.write_text("".join([*lines[:30], *lines[31:]]))
    summary = load_one(tmp_path)
    assert (summary.valid, summary.step_time_s) == (True, 0.5)
    assert (summary.wall_tokens_per_s, summary.lost_time_share) == (None, None)


def test_a_gap_in_a_run_that_failed_leaves_no_wall_clock_figures(tmp_path: Path) -> None:
    failed = {"state": "failed", "end_reason": "killed"}
    run = make_run(tmp_path / "run", attempts=[Attempt([0.5] * 9, end=failed)])
    assert load_one(tmp_path).lost_time_share == pytest.approx(10 / 14.5)
    lines = run.steps.read_text().splitlines(keepends=True)
    run.steps.write_text("".join([*lines[:4], *lines[6:]]))
    assert load_one(tmp_path).lost_time_share is None


# Files that are none, and names that are no text.
