"""Intervals of ratios of medians: worked by hand, and their coverage on simulated steps."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from hpctrain.analysis.intervals import (
    MedianInterval,
    block_length,
    dependent_median_interval,
    ratio_between_runs,
    ratio_of_medians,
    student_quantile,
)


def test_independent_steps_give_order_statistics() -> None:
    values = [4.0, 1.0, 6.0, 3.0, 8.0, 5.0, 2.0, 7.0, 10.0, 9.0]
    # ranks 10/2 ± 1.96·√10/2 = 1.90 and its mirror: the smallest and the largest
    assert dependent_median_interval(values) == MedianInterval(5.5, 1.0, 10.0)


def test_steps_that_drift_give_a_wider_interval() -> None:
    shuffled = list(np.random.default_rng(3).permutation(np.arange(1.0, 101.0)))
    drifting = sorted(shuffled)
    narrow, wide = dependent_median_interval(shuffled), dependent_median_interval(drifting)
    # ranks 50 ± 1.96·√100/2 = 40.2 where steps are independent
    assert narrow == MedianInterval(50.5, 40.0, 61.0)
    assert wide.low is not None
    # with blocks of 10, 82 of 91 block sums are ±5 and the others less: f = 9.1 or so, ranks 50 ± 29.6
    assert wide.low == pytest.approx(20, abs=1)


@pytest.mark.parametrize(("count", "has_interval"), [(8, False), (12, False), (16, False), (18, False), (19, True)])
def test_steps_that_only_grow_need_more(count: int, has_interval: bool) -> None:
    """Blocks of 5 of the signs: at 18 steps the mean square of their sums is 4.82, so f = 3.86 and the rank 9 - 1.96·√69.4/2 =
    0.83; at 19 steps f = 3.91 and the rank 9.5 - 1.96·√74.3/2 = 1.05."""
    interval = dependent_median_interval([1.0 + 0.001 * place for place in range(count)])
    assert (interval.low is not None) is has_interval


@pytest.mark.parametrize(("count", "has_interval"), [(1, False), (7, False), (8, True)])
def test_eight_steps_are_the_fewest(count: int, has_interval: bool) -> None:
    interval = ratio_of_medians([1.0] * count, [2.0] * count)
    assert interval.ratio == 2.0
    assert ((interval.low, interval.high) == (2.0, 2.0)) is has_interval
    assert (interval.low is None) is not has_interval


def test_two_intervals_are_joined_on_the_logarithm() -> None:
    values = [4.0, 1.0, 6.0, 3.0, 8.0, 5.0, 2.0, 7.0, 10.0, 9.0]  # median 5.5 [1, 10]
    interval = ratio_of_medians(values, [2 * value for value in values])
    down = math.sqrt(math.log(11 / 2) ** 2 + math.log(10 / 5.5) ** 2)
    up = math.sqrt(math.log(20 / 11) ** 2 + math.log(5.5 / 1) ** 2)
    assert interval.ratio == 2.0
    assert interval.low == pytest.approx(2 / math.exp(down))
    assert interval.high == pytest.approx(2 * math.exp(up))


def test_between_runs_is_students_interval_of_logarithms() -> None:
    base, new = [1.0, 1.1, 1.05], [1.2, 1.3]
    logs = [[math.log(value) for value in values] for values in (base, new)]
    variance = (2 * statistics.variance(logs[0]) + statistics.variance(logs[1])) / 3
    half = 3.182446 * math.sqrt(variance * (1 / 3 + 1 / 2))  # 3.182: printed tables, 3 degrees of freedom
    interval = ratio_between_runs(base, new)
    middle = statistics.mean(logs[1]) - statistics.mean(logs[0])
    assert interval.ratio == pytest.approx(math.exp(middle))
    assert interval.low == pytest.approx(math.exp(middle - half), rel=1e-5)
    assert interval.high == pytest.approx(math.exp(middle + half), rel=1e-5)


def test_two_runs_say_nothing_of_runs() -> None:
    assert ratio_between_runs([1.0], [2.0]).low is None


@pytest.mark.parametrize(("freedom", "printed"), [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (120, 1.980)])
def test_student_quantiles_are_those_of_printed_tables(freedom: int, printed: float) -> None:
    assert student_quantile(freedom) == pytest.approx(printed, abs=5e-4)


def test_no_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="a median needs values"):
        dependent_median_interval([])


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(300):
        noise = rng.standard_normal((2, 130))
        for place in range(1, 130):  # a correlation of 0.5 from step to step
            noise[:, place] = 0.5 * noise[:, place - 1] + math.sqrt(0.75) * noise[:, place]
        base, new = np.exp(0.05 * noise[:, 30:])
        interval = ratio_of_medians(base, new)
        assert interval.low is not None
        assert interval.high is not None
        hits += interval.low <= 1 <= interval.high
    assert 0.91 <= hits / 300 <= 0.99


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.93), (0.5, 0.88)])
def test_the_interval_of_one_run_holds_its_median(correlation: float, least: float) -> None:
    """Of 400 runs of 60 steps; an interval for independent steps holds it in 85 % at a correlation of 0.5."""
    rng = np.random.default_rng(11)
    noise = rng.standard_normal((400, 90))
    for place in range(1, 90):
        fresh = math.sqrt(1 - correlation**2) * noise[:, place]
        noise[:, place] = correlation * noise[:, place - 1] + fresh
    intervals = [dependent_median_interval(values) for values in np.exp(0.05 * noise[:, 30:])]
    hits = [part.low <= 1 <= part.high for part in intervals if part.low is not None and part.high is not None]
    assert len(hits) == 400
    assert least <= sum(hits) / 400 <= 0.99


def test_blocks_grow_as_the_square_root() -> None:
    assert [block_length(count) for count in (1, 9, 10, 10_000)] == [1, 3, 4, 100]
