"""Warm-up, undone, dead and outlying steps, against numbers worked out by hand."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hpctrain.analysis.steady import (
    SIGMAS_PER_DEVIATION,
    mark_steps,
    num_warm_up_steps,
    outlier_steps,
    seeks_loss_scale,
)


def steps(*rows: tuple[int, int], **fields: list[Any]) -> pd.DataFrame:
    """Healthy steps of one second each, as (attempt, step)."""
    table = pd.DataFrame(rows, columns=["attempt", "step"]).astype("int64")
    table = table.assign(loss=1.0, skipped=False, step_time_s=1.0)
    return table.assign(**fields)


def pairs(table: pd.DataFrame, flag: str) -> list[tuple[int, int]]:
    return [(attempt, step) for attempt, step in table.loc[table[flag], ["attempt", "step"]].itertuples(index=False)]


@pytest.mark.parametrize(("num_steps", "cut"), [(1, 2), (10, 2), (20, 2), (21, 3), (70, 7), (1000, 100)])
def test_warm_up_is_a_tenth_and_at_least_two(num_steps: int, cut: int) -> None:
    assert num_warm_up_steps(num_steps) == cut


def test_each_attempt_has_its_own_warm_up() -> None:
    marked = mark_steps(steps(*((1, step) for step in range(1, 31)), *((2, step) for step in range(31, 36))))
    assert pairs(marked, "warm_up") == [(1, 1), (1, 2), (1, 3), (2, 31), (2, 32)]
    assert marked["steady"].sum() == 27 + 3


def test_a_restart_undoes_all_steps_from_its_first_on() -> None:
    """Attempt 1 came to step 6, attempt 2 began again at 4 and has come to 5: step 6 is no longer part of the run."""
    marked = mark_steps(steps(*((1, step) for step in range(1, 7)), (2, 4), (2, 5)))
    assert pairs(marked, "superseded") == [(1, 4), (1, 5), (1, 6)]


def test_three_overlapping_attempts() -> None:
    marked = mark_steps(steps(*((1, step) for step in (1, 2, 3, 4)), (2, 3), (2, 4), (2, 5), (3, 2), (3, 3)))
    assert pairs(marked[~marked["superseded"]].assign(all=True), "all") == [(1, 1), (3, 2), (3, 3)]


def test_order_in_the_file_does_not_matter_and_the_last_line_of_a_step_counts() -> None:
    marked = mark_steps(steps((2, 3), (1, 2), (1, 1), (1, 2), loss=[3.0, 9.0, 1.0, 2.0]))
    assert marked.loc[~marked["superseded"], "loss"].tolist() == [1.0, 2.0, 3.0]
    assert marked.loc[marked["superseded"], "loss"].tolist() == [9.0]


@pytest.mark.parametrize(
    "broken",
    [{"skipped": True}, {"loss": math.nan}, {"loss": math.inf}, {"step_time_s": 0.0}, {"step_time_s": math.nan}],
    ids=lambda fields: "-".join(f"{key}={value}" for key, value in fields.items()),
)
def test_dead_steps_are_not_steady(broken: dict[str, Any]) -> None:
    table = steps(*((1, step) for step in range(1, 6)))
    for column, value in broken.items():
        table.loc[4, column] = value
    marked = mark_steps(table)
    assert marked["dead"].tolist() == [False] * 4 + [True]
    assert marked["steady"].tolist() == [False, False, True, True, False]


def test_no_step_at_all() -> None:
    marked = mark_steps(steps())
    assert marked.empty
    assert {"superseded", "warm_up", "dead", "rejected", "outlier", "steady"} <= set(marked.columns)


def test_steps_faster_than_possible_are_rejected() -> None:
    table = steps(*((1, step) for step in range(1, 6)), step_time_s=[0.1, 1.0, 0.2, 0.5, 0.49])
    marked = mark_steps(table, fastest_step_s=0.5)
    assert marked["rejected"].tolist() == [True, False, True, False, True]
    assert pairs(marked, "steady") == [(1, 4)]
    assert not mark_steps(table)["rejected"].any()


@pytest.mark.parametrize(
    ("times_s", "outliers"),
    [
        pytest.param([1.0] * 9 + [1.04, 1.06], [1.06], id="even times: 5 % of the median"),
        pytest.param([1.0, 0.9, 1.1] * 5 + [1.74, 1.75], [1.75], id="five sigmas of 0.14826 from 1.0"),
        pytest.param([1.0, 0.9, 1.1] * 5 + [0.25, 0.26], [0.25], id="fast ones too"),
        pytest.param([1.0, 9.0], [], id="two of which none is the usual one"),
        pytest.param([1.0, 1.0, 5.0, 1.0, 1.0, 5.0, 1.0, 1.0, 5.0], [5.0] * 3, id="saving every third step"),
    ],
)
def test_outliers_by_hand(times_s: list[float], outliers: list[float]) -> None:
    """With 1.0, 0.9 and 1.1 in equal numbers the median is 1.0 and the median absolute deviation 0.1."""
    rows = [(1, step) for step in range(1, len(times_s) + 3)]
    marked = mark_steps(steps(*rows, step_time_s=[50.0, 50.0, *times_s]))
    assert marked.loc[marked["outlier"], "step_time_s"].tolist() == outliers
    assert marked["steady"].sum() == len(times_s), "outliers stay steady"


def test_outliers_are_held_against_their_own_attempt() -> None:
    """An attempt on slower nodes is slow, but none of its steps is unusual for it."""
    rows = [*((1, step) for step in range(1, 21)), *((2, step) for step in range(21, 31))]
    times_s = [1.0] * 20 + [3.0] * 9 + [9.0]
    assert pairs(mark_steps(steps(*rows, step_time_s=times_s)), "outlier") == [(2, 30)]


def test_five_sigmas_flag_no_step_of_normal_noise() -> None:
    times_s = np.random.default_rng(1).normal(1.0, 0.05, 100_000)
    assert outlier_steps(times_s).sum() <= 1, "6e-7 of 100,000 is 0.06"
    assert np.isclose(2 * NormalDist().cdf(-5), 5.7e-7, rtol=0.01)
    assert np.isclose(1 / NormalDist().inv_cdf(0.75), SIGMAS_PER_DEVIATION, rtol=1e-4)


@pytest.mark.parametrize("seed", range(30))
def test_marks_against_a_plain_reckoning(seed: int) -> None:
    """Random restarts, repeats and orders: each flag again, step by step."""
    noise = np.random.default_rng(seed)
    count = int(noise.integers(1, 60))
    rows = [(int(noise.integers(1, 5)), int(noise.integers(1, 25))) for _ in range(count)]
    marked = mark_steps(steps(*rows, loss=[float(number) for number in range(count)]))
    last = {row: float(number) for number, row in enumerate(rows)}
    starts = {attempt: min(step for other, step in rows if other == attempt) for attempt, _ in rows}
    curve = [
        (attempt, step, loss)
        for (attempt, step), loss in sorted(last.items())
        if not any(later > attempt and start <= step for later, start in starts.items())
    ]
    kept = marked[~marked["superseded"]]
    assert list(zip(kept["attempt"], kept["step"], kept["loss"], strict=True)) == curve
    for attempt in starts:
        different = sorted({step for other, step in rows if other == attempt})
        cut = set(different[: num_warm_up_steps(len(different))])
        part = marked[marked["attempt"] == attempt]
        assert part["warm_up"].tolist() == [step in cut for step in part["step"]]


def test_fp16_seeks_its_loss_scale_before_the_first_update_only() -> None:
    nan = math.nan
    columns = {
        "skipped": np.array([True, True, True, False, True, False]),
        "loss": np.array([9.0, nan, 9.0, 9.0, 9.0, 9.0]),
        "loss_scale": np.array([8.0, 4.0, 2.0, 1.0, 1.0, 0.5]),
    }
    assert seeks_loss_scale(columns).tolist() == [True, False, True, False, False, False]
    # In bf16 nothing is scaled, and a skipped step is a dead one from the first on.
    assert not seeks_loss_scale(columns | {"loss_scale": np.full(6, nan)}).any()
