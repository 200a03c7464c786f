"""Which steps of a run count for what: the warm-up rule, undone, dead and outlying steps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

WARM_UP_ONE_IN = 10
WARM_UP_MIN_STEPS = 2
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
    ``warm_up``: by ``num_warm_up_steps``, and the steps of a batch ramp, whose batch is not the full one. ``dead``: the optimizer
    did not update, or loss or time is no number above zero time. ``rejected``: faster than the hardware's peak allows, so its
    time is wrong. ``steady``: none of these; the only steps that speeds are computed from. ``outlier``: steady, and far from the
    median of its attempt, see ``outlier_steps``. Outliers stay in the median and its interval: a median hardly moves with them,
    and to leave them out would make speeds depend on the rule and flatter a run that is often slow. They are in the wall-clock
    time anyhow.

    Args:
        steps: columns attempt, step, loss, skipped, step_time_s, and any others.
        fastest_step_s: time below which a step would exceed the hardware's peak; 0: no peak is stated.
    """
    return pd.DataFrame(mark_columns({str(name): steps[name].to_numpy() for name in steps}, fastest_step_s), copy=False)


def mark_columns(
    columns: Mapping[str, NDArray[Any]], fastest_step_s: float = 0.0, full_batch_step: int = 1
) -> dict[str, NDArray[Any]]:
    """``mark_steps`` on bare columns, for many runs: a frame costs as much as all the marks.

    Args:
        columns: as there.
        fastest_step_s: as there, of a step with the full batch.
        full_batch_step: the first step with it; above 1 after a batch ramp.
    """
    attempt, step = columns["attempt"], columns["step"]
    if not _is_ordered(attempt, step):
        # Stable: within equal keys the order of the file stays, so that the last line of a step is the one that counts.
        order = np.lexsort((step, attempt))
        columns = {name: column[order] for name, column in columns.items()}
        attempt, step = columns["attempt"], columns["step"]
    bounds = attempt_bounds(attempt)
    growing: NDArray[np.bool_] = step < full_batch_step
    superseded, warm_up = _superseded(attempt, step, bounds), _warm_up(step, bounds) | growing
    time_s = columns["step_time_s"]
    has_time = np.isfinite(time_s) & (time_s > 0)
    dead = columns["skipped"] | ~np.isfinite(columns["loss"]) | ~has_time
    rejected = has_time & (time_s < fastest_step_s) & ~growing
    steady = ~(superseded | warm_up | dead | rejected)
    outlier = np.zeros(len(steady), bool)
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged time may be as large as a double
        for start, end in pairwise(bounds):
            part = np.flatnonzero(steady[start:end]) + start
            outlier[part] = outlier_steps(time_s[part])
    flags = {"superseded": superseded, "warm_up": warm_up, "dead": dead, "rejected": rejected, "outlier": outlier}
    return {**columns, **flags, "steady": steady}


def seeks_loss_scale(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Skipped steps of fp16 before the first update: a dynamic loss scale starts high, and every run comes down from there.

    Args:
        columns: loss, skipped and loss_scale (not finite: nothing is scaled) by step, in order.
    """
    is_skipped = columns["skipped"].astype(bool)
    before_updates = np.cumsum(~is_skipped) == 0
    sought: NDArray[np.bool_] = before_updates & np.isfinite(columns["loss"]) & np.isfinite(columns["loss_scale"])
    return sought


def attempt_bounds(attempt: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each attempt begins in a column that is ordered by attempt, and its length.

    >>> attempt_bounds(np.array([1, 1, 3])).tolist(), attempt_bounds(np.array([], int)).tolist()
    ([0, 2, 3], [0])
    """
    if len(attempt) == 0:
        return np.zeros(1, np.int64)
    return np.concatenate(([0], np.flatnonzero(np.diff(attempt)) + 1, [len(attempt)]))


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
