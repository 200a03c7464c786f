"""Which steps of a run count for what: the warm-up rule, undone, dead and outlying steps, and the median with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

WARM_UP_ONE_IN = 10
WARM_UP_MIN_STEPS = 2
CONFIDENCE = 0.95
OUTLIER_SIGMAS = 5.0
OUTLIER_MIN_SHARE = 0.05
SIGMAS_PER_DEVIATION = 1.4826
"""One over the upper quartile of the normal distribution, 0.6745."""


def num_warm_up_steps(num_steps: int) -> int:
    """Steps cut from the start of an attempt of ``num_steps``: one in ten, rounded up, and never fewer than two.

    The first step of an attempt pays for allocation, compilation, connections and cold files, the second for what is
    left of it.

    >>> [num_warm_up_steps(count) for count in (1, 20, 21, 300)]
    [2, 2, 3, 30]
    """
    return max(WARM_UP_MIN_STEPS, -(-num_steps // WARM_UP_ONE_IN))


def mark_steps(steps: pd.DataFrame, fastest_step_s: float = 0.0) -> pd.DataFrame:
    """The steps of one run by (attempt, step), with six flags.

    ``superseded``: a later attempt started again at or before this step, or the step was written twice; not on the curve.
    ``warm_up``: by ``num_warm_up_steps``. ``dead``: the optimizer did not update, or loss or time is no number above
    zero time. ``rejected``: faster than the hardware's peak allows, so its time is wrong. ``steady``: none of these; the
    only steps that speeds are computed from. ``outlier``: steady, and far from the median of its attempt, see
    ``outlier_steps``. Outliers stay in the median and its interval: a median hardly moves with them, and to leave them out
    would make speeds depend on the rule and flatter a run that is often slow. They are in the wall-clock time anyhow.

    Args:
        steps: columns attempt, step, loss, skipped, step_time_s, and any others.
        fastest_step_s: time below which a step would exceed the hardware's peak; 0: no peak is stated.
    """
    return pd.DataFrame(mark_columns({str(name): steps[name].to_numpy() for name in steps}, fastest_step_s), copy=False)


def mark_columns(columns: Mapping[str, NDArray[Any]], fastest_step_s: float = 0.0) -> dict[str, NDArray[Any]]:
    """``mark_steps`` on bare columns, for many runs: a frame costs as much as all the marks."""
    attempt, step = columns["attempt"], columns["step"]
    if not _is_ordered(attempt, step):
        # Stable: within equal keys the order of the file stays, so that the last line of a step is the one that counts.
        order = np.lexsort((step, attempt))
        columns = {name: column[order] for name, column in columns.items()}
        attempt, step = columns["attempt"], columns["step"]
    bounds = (
        np.concatenate(([0], np.flatnonzero(np.diff(attempt)) + 1, [len(attempt)]))
        if len(attempt)
        else np.zeros(1, int)
    )
    superseded, warm_up = _superseded(attempt, step, bounds), _warm_up(step, bounds)
    time_s = columns["step_time_s"]
    has_time = np.isfinite(time_s) & (time_s > 0)
    dead = columns["skipped"] | ~np.isfinite(columns["loss"]) | ~has_time
    rejected = has_time & (time_s < fastest_step_s)
    steady = ~(superseded | warm_up | dead | rejected)
    outlier = np.zeros(len(steady), bool)
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged time may be as large as a double
        for start, end in pairwise(bounds):
            part = np.flatnonzero(steady[start:end]) + start
            outlier[part] = outlier_steps(time_s[part])
    flags = {"superseded": superseded, "warm_up": warm_up, "dead": dead, "rejected": rejected, "outlier": outlier}
    return {**columns, **flags, "steady": steady}


def attempt_bounds(attempt: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each attempt begins in a column that is ordered by attempt, and its length.

    >>> attempt_bounds(np.array([1, 1, 3])).tolist()
    [0, 2, 3]
    """
    return np.concatenate((np.flatnonzero(np.diff(attempt, prepend=-1)), [len(attempt)]))


def _is_ordered(attempt: NDArray[np.int64], step: NDArray[np.int64]) -> bool:
    same, later = attempt[1:] == attempt[:-1], attempt[1:] > attempt[:-1]
    return bool((later | (same & (step[1:] >= step[:-1]))).all())


def _superseded(attempt: NDArray[np.int64], step: NDArray[np.int64], bounds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Steps that were written again, or undone by a later attempt."""
    written_again = np.zeros(len(step), bool)
    written_again[:-1] = (step[1:] == step[:-1]) & (attempt[1:] == attempt[:-1])
    starts = step[bounds[:-1]]
    earliest_later_start = np.append(np.minimum.accumulate(starts[::-1])[::-1][1:], np.iinfo(np.int64).max)
    return written_again | (step >= np.repeat(earliest_later_start[: len(starts)], np.diff(bounds)))


def _warm_up(step: NDArray[np.int64], bounds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The first different steps of each attempt."""
    warm_up = np.zeros(len(step), bool)
    for start, end in pairwise(bounds):
        position = np.cumsum(np.diff(step[start:end], prepend=step[start] - 1) != 0)
        warm_up[start:end] = position <= num_warm_up_steps(int(position[-1]))
    return warm_up


def outlier_steps(times_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the times lie further from their median than ``OUTLIER_SIGMAS`` robust sigmas and ``OUTLIER_MIN_SHARE`` of it.

    A robust sigma is 1.4826 times the median absolute deviation, which is the standard deviation where times are normally
    distributed, and which saving or evaluation every few steps does not widen. Five of them: the chance of a normally
    distributed time to lie outside is 6e-7, so that a run of 10,000 steps flags none by chance (with three it would flag 27).
    The share is for clocks so even that five sigmas mean nothing.
    Source: Leys et al., Journal of Experimental Social Psychology 49 (2013), for the deviation and its factor.

    >>> outlier_steps(np.array([1.0, 1.1, 0.9, 1.0, 1.05, 9.0])).tolist()
    [False, False, False, False, False, True]
    """
    if len(times_s) == 0:
        return np.zeros(0, bool)
    median = np.median(times_s)
    deviation = np.abs(times_s - median)
    sigma = SIGMAS_PER_DEVIATION * np.median(deviation)
    is_far: NDArray[np.bool_] = deviation > max(OUTLIER_SIGMAS * sigma, OUTLIER_MIN_SHARE * median)
    return is_far


@dataclass(frozen=True)
class MedianInterval:
    """A median and a confidence interval around it; no interval where there are too few values."""

    median: float
    low: float | None
    high: float | None


def median_interval(values: Sequence[float] | NDArray[np.float64]) -> MedianInterval:
    """The median with the distribution-free interval between two order statistics, at least ``CONFIDENCE`` sure.

    The interval from the k-th smallest to the k-th largest of n values holds the median with probability
    1 - 2·P(Binomial(n, 1/2) < k); the largest k that reaches the confidence is taken. Six values are the fewest that do.
    Source: David and Nagaraja, Order Statistics (2003), section 7.1; advised for timings by Hoefler and Belli (SC15).
    Leaves out that neighbouring steps are not independent: over a run that drifts the interval is too narrow.

    Raises:
        ValueError: there are no values.

    >>> median_interval([5, 1, 4, 2, 3, 6])
    MedianInterval(median=3.5, low=1.0, high=6.0)
    """
    if len(values) == 0:
        raise ValueError("a median needs values")
    ordered = np.sort(np.asarray(values, dtype=float))
    rank = _interval_rank(len(ordered))
    median = float(np.median(ordered))
    if rank == 0:
        return MedianInterval(median, None, None)
    return MedianInterval(median, float(ordered[rank - 1]), float(ordered[-rank]))


@lru_cache(maxsize=1024)
def _interval_rank(num_values: int) -> int:
    """The largest k, counted from 1, whose order statistics hold the median surely enough; 0: none does."""
    counts = np.arange(num_values + 1)
    log_factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, num_values + 1)))))
    log_ways = log_factorials[num_values] - log_factorials[counts] - log_factorials[num_values - counts]
    below = np.cumsum(np.exp(log_ways - num_values * np.log(2.0)))
    return int(np.count_nonzero(1 - 2 * below[: num_values // 2] >= CONFIDENCE))
