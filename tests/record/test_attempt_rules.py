"""When a run starts again."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.record.attempt_rules import Start, refusal_of
from hpctrain.record.schema import AttemptRecord
from tests.record.test_files import attempt


def ended(number: int, reason: str, start_step: int = 0, job_id: str = "7") -> AttemptRecord:
    state = "completed" if reason == "completed" else "failed"
    return attempt(number, state=state, end_reason=reason, start_step=start_step, job_id=job_id, message="why")


def start(**changes: Any) -> Start:
    return Start(**{"job_id": "7", "first_attempt": 1, "newest_step": 0, "max_attempts": 10, **changes})


@pytest.mark.parametrize(
    ("attempts", "asked"),
    [
        ([], start()),
        ([ended(1, "preempted")], start()),
        ([ended(1, "node_failure"), ended(2, "time_limit", 0)], start(newest_step=5)),
        # Slurm and the user may start what failed; only links of a chain are held back.
        ([ended(1, "exception")], start()),
        ([ended(1, "time_limit", job_id="6")], start(is_chained=True)),
        # A resumed run begins to count anew, also one that had completed.
        ([ended(1, "completed")], start(first_attempt=2)),
        ([ended(1, "preempted"), ended(2, "preempted"), ended(3, "no_progress")], start(first_attempt=4)),
        ([ended(number, "preempted", number) for number in range(1, 10)], start(newest_step=10)),
    ],
)
def test_it_starts(attempts: list[AttemptRecord], asked: Start) -> None:
    assert refusal_of(asked, attempts) is None


@pytest.mark.parametrize(
    ("attempts", "asked", "reason", "exit_code", "words"),
    [
        ([ended(1, "completed")], start(), None, 0, "has completed"),
        (
            [ended(1, "preempted"), ended(2, "node_failure")],
            *(start(), "no_progress", 1),
            "attempts 1 (preempted) and 2 (node_failure) ended without a complete checkpoint at all",
        ),
        (
            [ended(1, "time_limit"), ended(2, "preempted", 40), ended(3, "preempted", 40)],
            *(start(newest_step=40), "no_progress", 1),
            "attempts 2 (preempted) and 3 (preempted) ended without a complete checkpoint newer than step 40",
        ),
        # A damaged checkpoint fell out since.
        ([ended(1, "preempted", 60), ended(2, "preempted", 60)], start(newest_step=40), "no_progress", 1, "step 40"),
        (
            [ended(number, "preempted", number) for number in range(1, 4)],
            *(start(newest_step=9, max_attempts=3), "out_of_attempts", 1, "launch.max_attempts=3"),
        ),
        ([ended(1, "exception", job_id="6")], start(is_chained=True), None, 0, "ended with exception"),
        ([ended(1, "out_of_memory", job_id="6")], start(is_chained=True), None, 0, "not tried again by itself"),
        ([ended(1, "preempted"), ended(2, "no_progress")], start(), None, 1, "the run ended: why"),
    ],
)
def test_it_does_not_start(
    attempts: list[AttemptRecord], asked: Start, reason: str | None, exit_code: int, words: str
) -> None:
    refusal = refusal_of(asked, attempts)
    assert refusal is not None
    assert (refusal.reason, refusal.exit_code) == (reason, exit_code)
    assert words in refusal.message
