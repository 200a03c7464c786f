"""Ends, restarts, gaps, time stamps, batches and hangs: each rule at and below its threshold."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.analysis.logs.conditions import find_conditions
from tests.analysis.logs.make_readings import attempts, flags_of, make_reading, series

DAY = "2024-05-01 10:"


@pytest.mark.parametrize(
    ("records", "flags"),
    [
        pytest.param(
            attempts((0, 0, [1, 2, 3]), (0, 1, [2, 3, 4])), {"restart", "iteration_repeated"}, id="restart-repeats"
        ),
        pytest.param(attempts((0, 0, [1, 2, 3]), (0, 1, [4, 5])), {"restart"}, id="restart-goes-on"),
        pytest.param(
            attempts((0, 0, [700, 701]), (1, 0, [1, 2, 3])), {"two_runs_in_file"}, id="from-the-first-step-again"
        ),
        pytest.param(
            attempts((0, 0, [700, 701]), total_iterations=1000) + attempts((1, 0, [702, 703]), total_iterations=9000),
            {"two_runs_in_file"},
            id="another-plan",
        ),
        pytest.param(
            attempts((0, 0, [700, 701]), (1, 0, [700, 701])), {"restart", "iteration_repeated"}, id="same-steps"
        ),
        pytest.param(
            [{"iteration": step, "epoch": epoch, "loss": 3.0} for epoch in (0, 1) for step in (1, 2, 3)],
            {"iteration_repeats_per_epoch"},
            id="epochs",
        ),
    ],
)
def test_starts(records: list[dict[str, Any]], flags: set[str]) -> None:
    assert flags_of(records) == flags


@pytest.mark.parametrize(
    ("steps", "flags"),
    [
        ([100, 101, 102, 111], {"iteration_gaps"}),
        ([100, 101, 102, 110], set()),
        ([1, 46, 47, 48], set()),
        ([10, 20, 30], {"log_interval_gt_1"}),
        ([10, 20, 30, 31, 32, 33, 34], {"log_interval_gt_1_at_start"}),
        ([10, 20, 21, 22, 23], {"log_interval_gt_1_at_start"}),
        ([30, 40, 41, 42, 43], {"iteration_gaps"}),
        ([1, 2, 3, 10, 20, 30], {"log_interval_gt_1"}),
        ([1, 2, 3, 40, 41, 42], {"iteration_gaps"}),
        ([2, 50, 51], {"iteration_gaps"}),
        ([100], set()),
    ],
    ids=[
        "nine-on",
        "eight-on",
        "after-step-1",
        "interval",
        "interval-at-start",
        "first-record-tells-it",
        "one-is-no-interval",
        "singles-first",
        "singles-and-a-gap",
        "gap",
        "one",
    ],
)
def test_intervals_and_gaps(steps: list[int], flags: set[str]) -> None:
    assert flags_of(attempts((0, 0, steps))) == flags


def test_cut_records_between_others_belong_to_the_interval() -> None:
    assert flags_of(attempts((0, 0, [5, 8, 11])), incomplete=[{"iteration": step} for step in (6, 7, 9, 10)]) == set()


def test_nanogpt_prints_the_time_of_one_step_in_ten() -> None:
    assert flags_of(attempts((0, 0, [10, 20, 30])), system="nanogpt") == set()


@pytest.mark.parametrize(
    ("stamps", "flags"),
    [
        (["00:00", "00:10", "00:20", "00:30"], set()),
        (["00:00", "00:10", "00:05", "00:15"], {"timestamps_not_monotonic"}),
        (["00:00", "00:10", "00:09", "00:19"], set()),
        (["00:00", "00:10", "00:20", "12:20"], {"log_gap"}),
        (["00:00", "00:10", "00:20", "10:10"], set()),
    ],
    ids=["even", "five-seconds-back", "one-second-back", "twelve-minutes", "less-than-ten-minutes"],
)
def test_time_stamps(stamps: list[str], flags: set[str]) -> None:
    assert flags_of(series(loss=[3.0] * 4, timestamp=[DAY + stamp for stamp in stamps])) == flags


def parts(plans: tuple[int, int], stamps: tuple[str, str], steps: tuple[int, int] = (700, 100)) -> list[dict[str, Any]]:
    """A record in each of two segments."""
    return [
        {"segment": place, "iteration": step, "total_iterations": plan, "loss": 3.0, "timestamp": DAY + stamp}
        for place, (plan, stamp, step) in enumerate(zip(plans, stamps, steps, strict=True))
    ]


@pytest.mark.parametrize(
    ("records", "flags"),
    [
        (parts((1000, 1000), ("09:00", "08:00")), {"two_runs_in_file", "timestamps_not_monotonic"}),
        (parts((1000, 9000), ("09:00", "08:00")), {"two_runs_in_file"}),
        (parts((1000, 9000), ("08:00", "09:00")), {"two_runs_in_file"}),
    ],
    ids=["an-older-part-of-the-same-plan", "another-run-is-older", "another-run-is-newer"],
)
def test_time_stamps_of_two_parts_of_a_file(records: list[dict[str, Any]], flags: set[str]) -> None:
    assert flags_of(records) == flags


@pytest.mark.parametrize(
    ("sizes", "flags"),
    [
        ([16, 16, 32, 64], {"batch_size_ramp_up"}),
        ([64, 64], set()),
        ([64, 32, 64], set()),
        ([4096, 4100], set()),
    ],
    ids=["grows", "constant", "up-and-down", "packed-by-tokens"],
)
def test_batch_sizes(sizes: list[int], flags: set[str]) -> None:
    assert flags_of(series(loss=[3.0] * len(sizes), global_batch_size=sizes)) == flags


@pytest.mark.parametrize(
    ("fields", "system", "flags"),
    [
        ({}, "megatron-lm", {"global_batch_size_unknown"}),
        ({}, "torchtitan", set()),
        ({"consumed_samples": 640}, "megatron-lm", set()),
        ({"samples_per_s": 32.0}, "megatron-lm", set()),
        ({"samples_per_s": 32.2}, "megatron-lm", {"global_batch_size_unknown"}),
    ],
    ids=["unknown", "never-told", "from-samples", "from-rate", "rate-gives-no-whole-number"],
)
def test_unknown_batch(fields: dict[str, float], system: str, flags: set[str]) -> None:
    record = {"iteration": 700, "total_iterations": 1000, "loss": 3.0, "time_per_iteration_s": 2.0, **fields}
    assert flags_of([record], system=system) == flags


@pytest.mark.parametrize(
    ("steps", "rest", "flags"),
    [
        ([1, 2, 3], {}, {"ended_before_total_iterations"}),
        ([8, 9, 10], {}, set()),
        ([2, 3], {}, set()),
        ([1, 2, 3], {"traits": ["truncated_last_line"]}, {"truncated_last_line"}),
        ([1, 2, 3], {"facts": {"end": [(50, {"reason": "CRASH"})]}}, {"end_crash"}),
        ([1, 2, 3], {"facts": {"end": [(11, {"reason": "CRASH"})]}}, {"ended_before_total_iterations"}),
    ],
    ids=["early", "done", "excerpt", "cut", "told-why", "a-crash-that-ended-nothing"],
)
def test_early_ends(steps: list[int], rest: dict[str, Any], flags: set[str]) -> None:
    assert flags_of(attempts((0, 0, steps), total_iterations=10), **rest) == flags


def test_a_tenth_of_the_plan_is_the_least_to_be_called_early() -> None:
    assert flags_of(attempts((0, 0, [1, 2, 3]), total_iterations=31)) == set()


@pytest.mark.parametrize(
    ("ends", "reason", "flag"),
    [
        (["CRASH", "CANCELLED"], "CRASH", "end_crash"),
        (["CRASH", "OOM", "CANCELLED"], "OOM", "end_oom"),
        (["CRASH", "TIMEOUT"], "TIMEOUT", "end_time_limit"),
        (["OOM", "TIMEOUT"], "OOM", "end_oom"),
        (["CANCELLED", "CRASH"], "CANCELLED", ""),
        (["NODE_FAIL", "CRASH"], "NODE_FAIL", ""),
    ],
    ids=lambda value: "-".join(value).lower() if isinstance(value, list) else None,
)
def test_the_first_strong_reason_is_the_end(ends: list[str], reason: str, flag: str) -> None:
    facts: Any = {"end": [(50 + place, {"reason": end}) for place, end in enumerate(ends)]}
    conditions = find_conditions(make_reading(attempts((0, 0, [700, 701])), facts=facts))
    assert conditions.summary["end_reason"] == reason
    assert conditions.flags == ((flag,) if flag else ())


def test_an_end_is_told_with_the_most_that_is_known() -> None:
    step = {"reason": "TIMEOUT", "slurm_job_id": 7, "slurm_step": "7.0", "end_time": "2024-05-01T10:00:07"}
    job = {"reason": "TIMEOUT", "slurm_job_id": 7, "end_time": None}
    facts: Any = {"end": [(50, job), (51, step)]}
    summary = find_conditions(make_reading(attempts((0, 0, [1])), facts=facts)).summary
    assert (summary["slurm_step"], summary["end_time"]) == ("7.0", "2024-05-01T10:00:07")


def test_lines_of_many_nodes_are_one_preemption() -> None:
    facts: Any = {"preemption": [(11, {}), (11, {}), (50, {})], "requeue": [(11, {})]}
    summary = find_conditions(make_reading(attempts((0, 0, [1, 2, 3])), facts=facts)).summary
    assert (summary["preemptions"], summary["requeues"]) == (2, 1)
    assert (summary["end_reason"], summary["end_cause"]) == ("CANCELLED", "preemption")


@pytest.mark.parametrize(
    ("last", "state", "flags"),
    [("11:00:00", "running", {"hang_suspected"}), ("10:29:00", "running", set()), ("11:00:00", "waiting", set())],
    ids=["an-hour", "half-an-hour", "not-running"],
)
def test_a_running_job_without_progress_is_a_hang(last: str, state: str, flags: set[str]) -> None:
    facts: Any = {
        "watchdog": [
            (40, {"time": "2024-05-01 10:00:00", "state": state}),
            (41, {"time": f"2024-05-01 {last}", "state": state}),
        ]
    }
    assert flags_of(series(loss=[3.0] * 2, time_per_iteration_s=[111.0, 111.0]), facts=facts) == flags


def test_looks_at_a_progress_bar_tell_nothing_of_intervals_and_starts() -> None:
    records = attempts((0, 0, [100, 134]), (1, 0, [3]))
    bars: Any = {"bar": [(10, {}), (11, {}), (12, {})]}
    assert flags_of(records, facts=bars, system="nemo") == set()


def test_a_bar_that_starts_again_with_an_epoch_repeats_its_steps() -> None:
    records = [{"iteration": step, "epoch": epoch, "loss": 3.0} for epoch in (0, 1) for step in (50, 100)]
    bars: Any = {"bar": [(place, {}) for place in range(4)]}
    assert flags_of(records, facts=bars, system="nemo") == {"iteration_repeats_per_epoch"}
