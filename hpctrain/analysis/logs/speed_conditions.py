"""What the step times and rates of a log say of its speed, and whether they contradict each other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from hpctrain.analysis.logs.loss_conditions import MAX_PLACES, exceeding, first_places
from hpctrain.analysis.logs.record_columns import FloatArray, RecordColumns
from hpctrain.analysis.logs.unit_checks import SAMPLES_TOLERANCE
from hpctrain.plan.devices import DEVICES

WARM_UP_RATIO = 1.1
"""First record over the median of the others. Steady steps differ by one or two percent; a start costs tens of percent."""
DROP_RATIO = 1.03
"""Pace over the median of the records before: above the one or two percent that healthy runs vary by."""
DROP_DEVIATIONS = 4.0
DROP_MIN_RECORDS = 2
"""Slow records in a row; a single one is an outlier."""
DROP_LOOK_AHEAD = 5
"""Records, or as many as are left, that all must be slow."""
TREND_MIN_RECORDS = 6
"""Three a third of the run are the fewest medians need, two the fewest that make a third."""
TREND_RATIO = 1.1
"""Pace of the last third over that of the first."""
TREND_RANK_CORRELATION = 0.85
"""Spearman's, of pace with position. One drop in the middle gives up to 0.87 (two levels, equally long, without noise)."""
ONE_DROP_SHARE = 0.6
"""Of the whole rise: more of it between two neighbouring records is a drop, and no trend."""
OUTLIER_RATIO = 2.0
"""A single record over the median: evaluation or saving inside the step; twice is beyond any jitter of a whole step."""
OUTLIER_MIN_RECORDS = 4
UNSTEADY_SPREAD = 0.3
"""Quartile distance over the median: with it a median says nothing within 15 %."""
UNSTEADY_MIN_RECORDS = 3
FASTEST_GPU_TFLOPS = 2500.0
"""Dense bf16 of the fastest GPU sold. Source: NVIDIA GB300 NVL72 data sheet (2025), half of the figure with sparsity.
For a log that does not name its GPU; otherwise its own peak counts, see ``peak_tflops``."""
IMPLAUSIBLE_TFLOPS = 1000.0
"""Above the dense bf16 peak of all GPUs before Blackwell and of TPUs before v7; such a rate must fit the log's others."""
IMPLAUSIBLE_RATIO = 4.0
"""Over the median of the log. A steady step is never so much slower than the hardware allows while one step is not: the clock
stopped before the device did. Source: MaxText's first steps, which time the dispatch of the step (MaxText docs, «logs»)."""
IMPLAUSIBLE_MIN_RECORDS = 3
TWO_RATES_TOLERANCE = 0.05
"""Relative, between the trainer's and DeepSpeed's samples/s of one step; rounding and the timers' own cost are below it."""
TOTAL_OVER_AVERAGE_TOLERANCE = 0.2
"""Relative, total against count x average of a row of collectives; the average leaves out the outer ten percent at each end."""
ZERO_TFLOPS_RECORDS = 1000
"""Records without a rate that are looked at; a defect of the trainer shows in all."""
AVERAGE_MIN_MS = 0.05
"""A smaller average has lost its digits in two decimals."""


def speed_flags(columns: RecordColumns) -> list[str]:
    """Warm-up, drops, trends and outliers of the pace; contradicting and impossible rates."""
    trend = _trend_down(columns)
    # A trend is told once, not at each of its steps.
    drops = [] if trend else [f"throughput_drop_at_{columns.place_name(place)}" for place in _drops(columns)]
    return [
        *_warm_up(columns),
        *drops,
        *(["throughput_trend_down"] if trend else []),
        *(["slow_outlier"] if _outlier(columns) else []),
        *(["no_steady_state"] if not trend and _unsteady(columns) else []),
        *_rates(columns),
        *_collectives(columns),
    ]


def _warm_up(columns: RecordColumns) -> list[str]:
    """Slow first records of starts that the file shows from their beginning.

    A first record of skipped steps is not judged: such steps leave the optimizer out and search for a loss scale.
    """
    if columns.from_bars:
        return []
    judged = 0
    slow: list[int] = []
    for position, places in enumerate(columns.groups()):
        pace = columns.pace[places]
        steps = columns.iteration[places]
        from_start = position > 0 or (len(steps) > 0 and steps[0] <= columns.log_interval)
        others = pace[1:][np.isfinite(pace[1:])]
        if not from_start or not np.isfinite(pace[0]) or not len(others):
            continue
        if columns.numbers("skipped_iterations")[places[0]] > 0:
            continue
        judged += 1
        if pace[0] >= WARM_UP_RATIO * np.median(others):
            slow.append(position)
    if slow == [0]:
        return ["warmup_outlier_first_record"]
    return ["warmup_outlier_first_record_of_each_segment"] if slow and 2 * len(slow) >= judged else []


def _steady_parts(columns: RecordColumns) -> list[tuple[list[int], FloatArray]]:
    """Places and paces of each start without its first record and without records that have no pace."""
    parts = []
    for position, places in enumerate(columns.groups()):
        from_start = position > 0 or columns.iteration[places[0]] <= columns.log_interval
        kept = places[1:] if from_start else places
        kept = kept[np.isfinite(columns.pace[kept])]
        parts.append(([int(place) for place in kept], columns.pace[kept]))
    return parts


def _drops(columns: RecordColumns) -> list[int]:
    found: list[int] = []
    for places, pace in _steady_parts(columns):
        if len(pace) <= DROP_MIN_RECORDS:
            continue
        reversed_pace = pd.Series(pace[::-1])
        ahead = reversed_pace.rolling(DROP_LOOK_AHEAD, min_periods=DROP_MIN_RECORDS).min().to_numpy()[::-1]
        # A record counts by the fastest of those that follow, so that outliers drop out.
        slow = [place for place in exceeding(pace, DROP_RATIO, DROP_DEVIATIONS) if _stays_slow(pace, ahead, int(place))]
        found += first_places(np.array(places)[slow], np.array(places))
    return found[:MAX_PLACES]


def _stays_slow(pace: FloatArray, ahead: FloatArray, place: int) -> bool:
    before = float(np.median(pace[max(0, place - DROP_LOOK_AHEAD) : place]))
    return bool(np.isfinite(ahead[place])) and bool(ahead[place] > DROP_RATIO * before)


def _trend_down(columns: RecordColumns) -> bool:
    for places, pace in _steady_parts(columns):
        if len(pace) < TREND_MIN_RECORDS or _is_one_drop(columns.iteration[places], pace, columns.log_interval):
            continue
        third = len(pace) // 3
        ranks = pd.Series(pace).rank().to_numpy()
        correlation = np.corrcoef(ranks, np.arange(len(pace)))[0, 1] if np.ptp(ranks) > 0 else 0.0
        rise = np.median(pace[-third:]) / np.median(pace[:third])
        if correlation >= TREND_RANK_CORRELATION and rise >= TREND_RATIO:
            return True
    return False


def _is_one_drop(steps: FloatArray, pace: FloatArray, log_interval: int) -> bool:
    """Most of the rise from the first third to the last lies between two records that follow each other without a gap."""
    third, width = len(pace) // 3, len(pace) // TREND_MIN_RECORDS
    rise = np.median(pace[-third:]) - np.median(pace[:third])
    for place in np.flatnonzero(np.diff(steps) <= log_interval) + 1:
        before, after = pace[max(0, place - width) : place], pace[place : place + width]
        if rise > 0 and np.median(after) - np.median(before) >= ONE_DROP_SHARE * rise:
            return True
    return False


def _outlier(columns: RecordColumns) -> bool:
    return any(
        len(pace) >= OUTLIER_MIN_RECORDS and bool((pace > OUTLIER_RATIO * np.median(pace)).any())
        for _, pace in _steady_parts(columns)
    )


def _unsteady(columns: RecordColumns) -> bool:
    """No part has a plateau, outliers aside, or several starts have no record beyond their first."""
    if columns.from_bars:
        return False
    parts = [pace for _, pace in _steady_parts(columns)]
    if len(parts) > 1 and np.isfinite(columns.pace).any() and not any(len(pace) for pace in parts):
        return True
    usual = [pace[pace <= OUTLIER_RATIO * np.median(pace)] for pace in parts if len(pace)]
    spreads = [_spread(pace) for pace in usual if len(pace) >= UNSTEADY_MIN_RECORDS]
    return len(spreads) > 0 and min(spreads) > UNSTEADY_SPREAD


def _spread(pace: FloatArray) -> float:
    """Quartile distance over the median; of three records the distance of the nearest two, so that one may be an outlier."""
    if len(pace) == UNSTEADY_MIN_RECORDS:
        return float(np.diff(np.sort(pace)).min() / np.median(pace))
    upper, lower = np.percentile(pace, (75, 25))
    return float((upper - lower) / np.median(pace))


def _rates(columns: RecordColumns) -> list[str]:
    flags = []
    if columns.has("samples_per_s_printed") or _contradicted(columns):
        flags.append("samples_per_s_inconsistent")
    trainer, engine = columns.numbers("samples_per_s"), columns.numbers("ds_curr_samples_per_s")
    with np.errstate(invalid="ignore", divide="ignore"):
        if (np.abs(engine / trainer - 1) > TWO_RATES_TOLERANCE).any():
            flags.append("two_throughputs")
        tflops = np.fmax(columns.numbers("tflops_per_gpu"), columns.numbers("hardware_tflops_per_gpu"))
        impossible = (tflops > peak_tflops(columns.reading.settings)) | _implausible(tflops)
        if impossible.any() or (columns.numbers("mfu_percent") > 100).any():
            flags.append("tflops_above_peak")
    if _zero_tflops(columns):
        flags.append("tflops_zero_means_missing")
    return flags


def _implausible(tflops: FloatArray) -> npt.NDArray[np.bool_]:
    """Rates that no GPU named in the log forbids but the log's own others do."""
    known = tflops[np.isfinite(tflops)]
    usual = np.median(known) if len(known) >= IMPLAUSIBLE_MIN_RECORDS else np.inf
    implausible: npt.NDArray[np.bool_] = (tflops > IMPLAUSIBLE_TFLOPS) & (tflops > IMPLAUSIBLE_RATIO * usual)
    return implausible


def peak_tflops(settings: Mapping[str, object]) -> float:
    """The most that a record may state, in TFLOP/s a GPU: the named GPU's dense peak in the log's precision, else in any."""
    device = DEVICES.get(str(settings.get("gpu")))
    if device is None:
        return FASTEST_GPU_TFLOPS
    return device.peak_tflops.get(str(settings.get("precision")), max(device.peak_tflops.values()))


def _contradicted(columns: RecordColumns) -> bool:
    """A rate that was left as printed although batch / time says otherwise."""
    names = ("global_batch_size", "time_per_iteration_s", "samples_per_s")
    if not all(columns.has(name) for name in names):
        return False
    batch, time, rate = (columns.numbers(name) for name in names)
    with np.errstate(invalid="ignore", divide="ignore"):
        return bool((np.abs(rate * time / batch - 1)[rate > 0] > SAMPLES_TOLERANCE).any())


def _zero_tflops(columns: RecordColumns) -> bool:
    """A record whose key for TFLOP/s has no usable value, after records with one; the first has often not measured yet."""
    name = "tflops_per_gpu"
    if not columns.has(name):
        return False
    values = columns.numbers(name)
    empty = np.flatnonzero(~np.isfinite(values) & ~columns.first_of_group)
    records = columns.reading.records
    return any(records[int(place)].get(name, 0) is None for place in empty[:ZERO_TFLOPS_RECORDS])


def _collectives(columns: RecordColumns) -> list[str]:
    rows = columns.reading.fact_rows("comm_row")
    if not len(rows):
        return []
    flags = []
    total, average, count = (np.array(rows.numbers(name)) for name in ("total_ms", "avg_ms", "count"))
    if (total < 0).any() or (average < 0).any():
        flags.append("negative_latency")
    usable = average >= AVERAGE_MIN_MS
    expected = (count * average)[usable]
    if (np.abs(total[usable] - expected) > TOTAL_OVER_AVERAGE_TOLERANCE * expected).any():
        flags.append("avg_not_total_over_count")
    return flags
