"""Which steps of a run count for what: the warm-up rule, undone and dead steps, and the median with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

WARM_UP_ONE_IN = 10
WARM_UP_MIN_STEPS = 2
CONFIDENCE = 0.95


def num_warm_up_steps(num_steps: int) -> int:
    """Steps cut from the start of an attempt of ``num_steps``: one in ten, rounded up, and never fewer than two.

    The first step of an attempt pays for allocation, compilation, connections and cold files, the second for what is
    left of it.

    >>> [num_warm_up_steps(count) for count in (1, 20, 21, 300)]
    [2, 2, 3, 30]
    """
    return max(WARM_UP_MIN_STEPS, -(-num_steps // WARM_UP_ONE_IN))


def mark_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps of one run by (attempt, step), each once, with four flags.

    ``superseded``: a later attempt started again at or before this step, or the step was written twice; not on the curve.
    ``warm_up``: by ``num_warm_up_steps``. ``dead``: the optimizer did not update, or loss or time is no number above
    zero time. ``steady``: none of these; the only steps that speeds are computed from.
    """
    # A stable sort keeps the order of the file within equal keys, so the last line of a step is the one that counts.
    marked = steps.sort_values(["attempt", "step"], kind="stable").reset_index(drop=True)
    written_again = marked.duplicated(["attempt", "step"], keep="last")
    starts = marked.groupby("attempt")["step"].min()
    earliest_later_start = starts[::-1].cummin().shift(1, fill_value=np.iinfo(np.int64).max)
    undone = marked["step"] >= marked["attempt"].map(earliest_later_start)
    marked["superseded"] = written_again | undone
    position = marked["step"].groupby(marked["attempt"]).rank(method="dense")
    num_steps = marked["step"].groupby(marked["attempt"]).transform("nunique")
    marked["warm_up"] = position <= num_steps.map(num_warm_up_steps)
    has_time = np.isfinite(marked["step_time_s"]) & (marked["step_time_s"] > 0)
    marked["dead"] = marked["skipped"] | ~np.isfinite(marked["loss"]) | ~has_time
    marked["steady"] = ~(marked["superseded"] | marked["warm_up"] | marked["dead"])
    return marked


@dataclass(frozen=True)
class MedianInterval:
    """A median and a confidence interval around it; no interval where there are too few values."""

    median: float
    low: float | None
    high: float | None


def median_interval(values: Sequence[float]) -> MedianInterval:
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


def _interval_rank(num_values: int) -> int:
    """The largest k, counted from 1, whose order statistics hold the median surely enough; 0: none does."""
    counts = np.arange(num_values + 1)
    log_factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, num_values + 1)))))
    log_ways = log_factorials[num_values] - log_factorials[counts] - log_factorials[num_values - counts]
    below = np.cumsum(np.exp(log_ways - num_values * np.log(2.0)))
    return int(np.count_nonzero(1 - 2 * below[: num_values // 2] >= CONFIDENCE))
